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

pub fn namenode(extent: &Extent, report: &mut Report) {
    let hdfs = cluster(3, 3);
    let java = Java::new();
    let mixed = |writers, each, every| Files {
        sizes: sizes(),
        every,
        ..Files::small(writers, each)
    };
    let cases = [
        (
            "8 writers",
            mixed(8, extent.scaled(100), None),
            Goal::RatioAtMost(1.0 / 20.0),
        ),
        (
            "1 writer",
            mixed(1, extent.scaled(200), None),
            Goal::RatioAtMost(1.0 / 6.0),
        ),
        (
            "one file a second",
            mixed(1, extent.scaled(30), Some(Duration::from_secs(1))),
            Goal::RatioAtMost(1.0),
        ),
    ];
    for (n, (case, files, goal)) in cases.into_iter().enumerate() {
        // Counts hardly differ between rounds, so there is one; the waits are short to keep it short.
        let waits = ["--gc-grace=3s", "--idle-seal=3s"];
        let mut mount = mount(&hdfs, &format!("counts-{n}"), &waits);
        let (dir, plain) = (mount.path(), format!("/plain-{n}"));
        let ours = cost(&hdfs, || drop(files.write(&dir)), || files.unlink(&dir));
        // What it asks while it is idle is not the peer's.
        mount.umount();
        let direct = cost(
            &hdfs,
            || drop(java.write(&hdfs, &plain, &files, 0)),
            || java.delete(&hdfs, &plain, &files),
        );
        let count = files.count() as f64;
        let mut row = |what: &str, unit, a: u64, b: u64, goal| {
            let peer = Some(("Java client", b as f64 / count));
            report.row(
                ("namenode", &format!("{what}, {case}")),
                unit,
                a as f64 / count,
                peer,
                goal,
            );
        };
        let total = |c: &Cost| c.calls.total();
        row(
            "NameNode calls",
            "per file",
            total(&ours),
            total(&direct),
            Some(goal),
        );
        let (a, b) = (ours.transactions, direct.transactions);
        row("edit-log transactions", "per file", a, b, None);
        if n == 0 {
            let (a, b) = (10_000 * ours.left, 10_000 * direct.left);
            let goal = Some(Goal::RatioAtMost(0.01));
            row("HDFS files + blocks left", "per 10,000 files", a, b, goal);
        }
        report.note(format!("stowfs, {case}: {}", per_file(&ours.calls, count)));
        report.note(format!(
            "Java client, {case}: {}",
            per_file(&direct.calls, count)
        ));
    }
}

pub fn latency(extent: &Extent, report: &mut Report) {
    let hdfs = cluster(3, 3);
    let (java, native) = (Java::new(), Native::new(&hdfs));
    let mount = mount(&hdfs, "latency", &[]);
    for (writers, each) in [(8, 25), (1, 50)] {
        for fsync in [false, true] {
            let files = Files {
                fsync,
                ..Files::small(writers, extent.scaled(each))
            };
            let mut rounds: [Rounds; 3] = Default::default();
            for n in 0..extent.rounds {
                let name = format!("{writers}-{fsync}-{n}");
                let dir = mount.at(&name);
                std::fs::create_dir(&dir).expect("mkdir");
                rounds[0].push(files.write(&dir));
                rounds[1].push(java.write(&hdfs, &format!("/java-{name}"), &files, 3));
                rounds[2].push(native.write(&format!("/native-{name}"), &files));
            }
            latency_rows(report, writers, fsync, &rounds);
        }
    }
}

fn latency_rows(report: &mut Report, writers: usize, fsync: bool, rounds: &[Rounds; 3]) {
    let with = if fsync { ", fsync" } else { "" };
    let case = format!("64 KiB{with}, {writers} writers");
    for (quantile, name, most) in [(0.5, "p50", 0.25), (0.99, "p99", 0.1)] {
        let [ours, java, native] = rounds.each_ref().map(|r| r.quantile_ms(quantile));
        let what = format!("create to close {name}, {case}");
        let goal = Some(Goal::RatioAtMost(most));
        let peer = Some(("Java client", java));
        report.row(("latency", &what), "ms", ours, peer, goal);
        let peer = Some(("hdfs-native", native));
        report.row(("latency", &what), "ms", ours, peer, None);
    }
    let [ours, java, native] = rounds.each_ref().map(Rounds::per_second);
    let what = format!("create to close, {case}");
    let goal = (writers == 8).then_some(Goal::RatioAtLeast(20.0));
    let peer = Some(("Java client", java));
    report.row(("latency", &what), "files/s", ours, peer, goal);
    let peer = Some(("hdfs-native", native));
    report.row(("latency", &what), "files/s", ours, peer, None);
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
