//! What files cost a NameNode, and how long they take on HDFS.

use crate::Extent;
use crate::peers::{Java, Native};
use crate::report::{Goal, Report};
use crate::support::hdfs::{Hdfs, Namespace, RpcCounts};
use crate::support::mount::Mount;
use crate::work::{Files, Rounds, on_threads};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub fn cluster(datanodes: usize, replication: u32) -> Hdfs {
    Hdfs::builder()
        .datanodes(datanodes)
        .replication(replication)
        .block_size(128 << 20)
        .start()
}

pub fn mount(hdfs: &Hdfs, name: &str, more: &[&str]) -> Mount {
    let conf = hdfs.conf_dir();
    let conf = ["--hadoop-conf", conf.to_str().expect("a path")];
    Mount::with(
        &format!("{}/{name}", hdfs.url()),
        &[&conf[..], more].concat(),
    )
}

/// 8 KiB to 4 MiB, as many below as above the geometric mean; the same at each run.
fn sizes() -> Vec<usize> {
    const STEPS: usize = 101;
    let at = |i: usize| {
        // 37 is coprime to 101: neighbours differ.
        let share = (i * 37 % STEPS) as f64 / (STEPS - 1) as f64;
        (8192.0 * 512f64.powf(share)) as usize
    };
    (0..STEPS).map(at).collect()
}

/// What happened at the NameNode.
struct Cost {
    calls: RpcCounts,
    transactions: u64,
    /// Files, directories and blocks that are there after the writing, before the unlinking.
    left: u64,
}

/// Waits until nothing changes at the NameNode. (A mount that is idle still looks after its ownership
/// and the free space, and leases are renewed; such calls are counted, but not waited for.)
fn settle(hdfs: &Hdfs) {
    const QUIET: Duration = Duration::from_secs(7);
    let changes = || {
        let calls = hdfs.all_calls();
        let reports = calls.get("BlockReceivedAndDeleted");
        (hdfs.namespace().transactions, calls.complete(), reports)
    };
    let begun = Instant::now();
    let (mut last, mut since) = (changes(), Instant::now());
    while since.elapsed() < QUIET {
        if begun.elapsed() > Duration::from_secs(90) {
            println!("  the NameNode is still busy after 90 s");
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
        let now = changes();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn cost(hdfs: &Hdfs, write: impl FnOnce(), delete: impl FnOnce()) -> Cost {
    settle(hdfs);
    let held = |n: Namespace| n.files + n.blocks;
    let (calls, before) = (hdfs.all_calls(), hdfs.namespace());
    write();
    settle(hdfs);
    let left = held(hdfs.namespace()).saturating_sub(held(before));
    delete();
    settle(hdfs);
    Cost {
        calls: hdfs.all_calls().since(&calls),
        transactions: hdfs.namespace().transactions - before.transactions,
        left,
    }
}

/// The calls that are made most.
fn per_file(calls: &RpcCounts, files: f64) -> String {
    let mut all: Vec<(&String, u64)> = calls.0.iter().map(|(k, v)| (k, *v)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let one = |(name, n): &(&String, u64)| format!("{name} {:.3}", *n as f64 / files);
    let parts: Vec<String> = all.iter().take(8).map(one).collect();
    parts.join(", ")
}

/// One kind of load on a NameNode.
struct Case {
    name: &'static str,
    files: Files,
    /// What a plain file costs does not depend on how many there are, so the peer writes fewer.
    peer_each: usize,
    goal: Goal,
}

fn cases(extent: &Extent) -> [Case; 3] {
    let mixed = |writers, each, every| Files {
        sizes: sizes(),
        every,
        ..Files::small(writers, extent.scaled(each))
    };
    let case = |name, files: Files, peer_each, goal| Case {
        name,
        peer_each: files.each.min(peer_each),
        files,
        goal,
    };
    let second = Some(Duration::from_secs(1));
    [
        case(
            "8 writers",
            mixed(8, 1250, None),
            100,
            Goal::RatioAtMost(1.0 / 20.0),
        ),
        case(
            "1 writer",
            mixed(1, 400, None),
            200,
            Goal::RatioAtMost(1.0 / 6.0),
        ),
        case(
            "one file a second",
            mixed(1, 30, second),
            30,
            Goal::RatioAtMost(1.0),
        ),
    ]
}

pub fn namenode(extent: &Extent, report: &mut Report) {
    let hdfs = cluster(3, 3);
    let java = Java::new();
    for (n, case) in cases(extent).into_iter().enumerate() {
        // Counts hardly differ between rounds, so there is one; the waits are short to keep it short.
        let waits = ["--gc-grace=3s", "--idle-seal=3s"];
        let mut mount = mount(&hdfs, &format!("counts-{n}"), &waits);
        let (dir, plain) = (mount.path(), format!("/plain-{n}"));
        let files = &case.files;
        let ours = cost(&hdfs, || drop(files.write(&dir)), || files.unlink(&dir));
        // What it asks while it is idle is not the peer's.
        mount.umount();
        let peer = Files {
            each: case.peer_each,
            ..files.clone()
        };
        let direct = cost(
            &hdfs,
            || drop(java.write(&hdfs, &plain, &peer, 0)),
            || java.delete(&hdfs, &plain, &peer),
        );
        namenode_rows(report, &case, ours.per_file(files), direct.per_file(&peer));
        let note = |who, cost: &Cost, files: &Files| {
            let calls = per_file(&cost.calls, files.count() as f64);
            format!("{who}, {}, {} files: {calls}", case.name, files.count())
        };
        report.note(note("stowfs", &ours, files));
        report.note(note("Java client", &direct, &peer));
    }
}

/// Calls, transactions, and what is left.
type PerFile = [f64; 3];

impl Cost {
    fn per_file(&self, files: &Files) -> PerFile {
        let counts = [self.calls.total(), self.transactions, self.left];
        counts.map(|n| n as f64 / files.count() as f64)
    }
}

fn namenode_rows(report: &mut Report, case: &Case, ours: PerFile, direct: PerFile) {
    let mut row = |i: usize, what: &str, unit, times: f64, goal| {
        let peer = Some(("Java client", times * direct[i]));
        let what = format!("{what}, {}", case.name);
        report.row(("namenode", &what), unit, times * ours[i], peer, goal);
    };
    row(0, "NameNode calls", "per file", 1.0, Some(case.goal));
    row(1, "edit-log transactions", "per file", 1.0, None);
    if case.files.writers > 1 {
        let (what, unit) = ("HDFS files + blocks left", "per 10,000 files");
        row(2, what, unit, 10_000.0, Some(Goal::RatioAtMost(0.01)));
    }
}

pub fn latency(extent: &Extent, report: &mut Report) {
    let hdfs = cluster(3, 3);
    let (java, native) = (Java::new(), Native::new(&hdfs));
    let mount = mount(&hdfs, "latency", &[]);
    for (writers, each) in [(8, 100), (1, 200)] {
        for fsync in [false, true] {
            let files = Files {
                fsync,
                ..Files::small(writers, extent.scaled(each))
            };
            // They take several times as long for each.
            let peer = Files {
                each: files.each.div_ceil(4),
                ..files.clone()
            };
            let mut rounds: [Rounds; 4] = Default::default();
            for n in 0..extent.rounds {
                let name = format!("{writers}-{fsync}-{n}");
                let dir = mount.at(&name);
                std::fs::create_dir(&dir).expect("mkdir");
                rounds[0].push(files.write(&dir));
                rounds[1].push(java.write(&hdfs, &format!("/java-{name}"), &peer, 3));
                rounds[2].push(native.write(&format!("/native-{name}"), &peer));
                // The best that group commit could do: one sync after the other, for all writers at once.
                let (bytes, path) = (writers * (64 << 10), format!("/syncs-{name}"));
                rounds[3].push(native.syncs(&path, bytes, files.each));
            }
            latency_rows(report, &files, &rounds);
        }
    }
}

/// A file that is open already, nothing around it.
const SYNC: &str = "limit: one write and hsync for all writers";

fn latency_rows(report: &mut Report, files: &Files, rounds: &[Rounds; 4]) {
    let with = if files.fsync { ", fsync" } else { "" };
    let case = format!("64 KiB{with}, {} writers", files.writers);
    let mut rows = |what: String, unit, figures: [f64; 4], goal| {
        let [ours, java, native, sync] = figures;
        for (peer, goal) in [
            (("Java client", java), goal),
            (("hdfs-native", native), None),
            ((SYNC, sync), None),
        ] {
            report.row(("latency", &what), unit, ours, Some(peer), goal);
        }
    };
    for (quantile, name, most) in [(0.5, "p50", 0.25), (0.99, "p99", 0.1)] {
        let what = format!("create to close {name}, {case}");
        let figures = rounds.each_ref().map(|r| r.quantile_ms(quantile));
        rows(what, "ms", figures, Some(Goal::RatioAtMost(most)));
    }
    let mut figures = rounds.each_ref().map(Rounds::per_second);
    figures[3] *= files.writers as f64;
    let goal = (files.writers == 8).then_some(Goal::RatioAtLeast(20.0));
    rows(format!("create to close, {case}"), "files/s", figures, goal);
}

/// Eight writers while a DataNode that is written to stands still for 20 s.
pub fn frozen(_extent: &Extent, report: &mut Report) {
    let hdfs = cluster(4, 2);
    let mount = mount(&hdfs, "frozen", &["--replication=2"]);
    let (ended, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    let took = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            on_threads(8, |w| {
                let mut took = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    let path = mount.at(&Files::name(w, took.len()));
                    let begun = Instant::now();
                    failed.fetch_add(u64::from(write_fails(&path)), Ordering::Relaxed);
                    took.push(begun.elapsed());
                    std::thread::sleep(Duration::from_millis(50));
                }
                took
            })
        });
        let seconds = |n| std::thread::sleep(Duration::from_secs(n));
        seconds(5);
        let i = hdfs.a_datanode_that_is_written_to();
        hdfs.freeze_datanode(i);
        seconds(20);
        hdfs.thaw_datanode(i);
        seconds(5);
        ended.store(true, Ordering::Relaxed);
        writing.join().expect("the writers")
    });
    let mut rounds = Rounds::default();
    let files = took.each.len();
    rounds.push(took);
    let what = ("frozen", "worst close while a DataNode is frozen for 20 s");
    let worst = rounds.quantile_ms(1.0) / 1e3;
    report.row(what, "s", worst, None, Some(Goal::AtMost(5.0)));
    let failed = failed.into_inner() as f64;
    let what = ("frozen", "closes that failed meanwhile");
    report.row(what, "of all", failed, None, Some(Goal::AtMost(0.0)));
    let at = |share| rounds.quantile_ms(share);
    report.note(format!(
        "{files} files; p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms",
        at(0.5),
        at(0.99),
        at(0.999)
    ));
}

fn write_fails(path: &Path) -> bool {
    match Files::small(1, 1).write_one(path, 64 << 10) {
        Ok(()) => false,
        Err(e) => {
            println!("  {}: {e}", path.display());
            true
        }
    }
}
