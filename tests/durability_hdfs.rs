//! Mounts on a real HDFS whose daemons are killed, frozen, restarted and failed over under them,
//! while files are being written. Each writer gets success, late success, or an error that is true;
//! service resumes by itself; what was acknowledged is there, also after `kill -9` and a new mount.
//!
//! Long form: `STOWFS_TEST_ROUNDS=100 STOWFS_TEST_REPEAT=5 cargo test --test durability_hdfs`.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::load::{self, Writer};
use support::mount::{Mount, stowfs};

const DATANODES: usize = 3;
const DFS_ADMIN: &str = "org.apache.hadoop.hdfs.tools.DFSAdmin";

/// One cluster, an HA pair with three DataNodes, that one test after the other breaks and mends.
fn cluster() -> (&'static Hdfs, MutexGuard<'static, ()>) {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        let builder = Hdfs::builder().datanodes(DATANODES).replication(2);
        builder.ha(true).start()
    };
    let hdfs = CLUSTER.get_or_init(start);
    hdfs.mend();
    (hdfs, turn)
}

fn mount(hdfs: &Hdfs, root: &str, more: &[&str]) -> Mount {
    let conf = hdfs.conf_dir();
    let common = ["--replication=2", "--hadoop-conf", conf.to_str().unwrap()];
    Mount::with(&format!("{}/{root}", hdfs.url()), &[&common, more].concat())
}

#[test]
fn acknowledged_files_survive_kill_9_again_and_again() {
    let (hdfs, _turn) = cluster();
    let mut mount = mount(hdfs, "killed", &[]);
    load::kill_again_and_again(&mut mount, "kill -9, HDFS", 6);
}

/// `kill -9` of stowfs leaves what the DataNodes have in their page caches, so it cannot show a
/// missing hsync: the NameNode, which hears of each, must.
#[test]
fn each_close_that_is_alone_costs_one_sync() {
    let (hdfs, _turn) = cluster();
    let mount = mount(hdfs, "counted", &[]);
    fs::write(mount.at("first"), "opens the segment").unwrap();
    let before = hdfs.rpc_counts();
    for n in 0..20 {
        fs::write(mount.at(&format!("{n}")), vec![n; 5000]).unwrap();
    }
    let calls = hdfs.rpc_counts().since(&before);
    println!("20 files, one after the other: {calls:?}");
    assert!((20..=24).contains(&calls.fsync()), "{calls:?}");
    assert!(calls.create() <= 1, "{calls:?}");
}

struct Faulted {
    /// The longest wait for an acknowledgement before, and from the beginning of the fault on.
    usual: Duration,
    worst: Duration,
    errors: usize,
}

/// Four writers work on a mount while `fault` happens; it returns when all is well again. Two
/// seconds later they must have got on by themselves.
fn under_fault(hdfs: &Hdfs, name: &str, more: &[&str], fault: impl Fn(&Hdfs, &Mount)) -> Faulted {
    let mut result = Faulted {
        usual: Duration::ZERO,
        worst: Duration::ZERO,
        errors: 0,
    };
    for n in 0..load::number("STOWFS_TEST_REPEAT").unwrap_or(1) {
        let root = format!("{name}-{n}");
        let mut mount = mount(hdfs, &root, more);
        let mut writers = load::writers(&mount.path(), 4, load::seed(name));
        let once = once_under_fault(hdfs, &mount, &mut writers, &fault);
        println!(
            "{name}: worst wait for a commit {:?} (before the fault {:?}), {} errors",
            once.worst, once.usual, once.errors
        );
        load::verify(&mut writers, false);
        mount.kill9();
        hdfs.mend();
        mount.remount();
        load::verify(&mut writers, true);
        result.usual = result.usual.max(once.usual);
        result.worst = result.worst.max(once.worst);
        result.errors += once.errors;
    }
    result
}

fn once_under_fault(
    hdfs: &Hdfs,
    mount: &Mount,
    writers: &mut [Writer],
    fault: impl Fn(&Hdfs, &Mount),
) -> Faulted {
    let (mut broken, mut mended) = (Instant::now(), Instant::now());
    load::run(writers, &AtomicBool::new(false), || {
        std::thread::sleep(Duration::from_secs(3));
        broken = Instant::now();
        fault(hdfs, mount);
        mended = Instant::now();
        // The first commit that begins now may be slow; then it goes on.
        std::thread::sleep(Duration::from_secs(3));
    });
    let all = || writers.iter().flat_map(|w| &w.acknowledged);
    let longest = |before: bool| {
        let those = all().filter(|(begun, took)| (*begun + *took < broken) == before);
        those.map(|(_, took)| *took).max().unwrap_or_default()
    };
    for writer in &*writers {
        for (what, e, took) in &writer.errors {
            println!("{what}: {e} after {took:?}");
        }
    }
    for writer in &*writers {
        let got_on = writer
            .acknowledged
            .iter()
            .any(|(begun, took)| *begun + *took > mended);
        assert!(got_on, "a writer did not get on by itself\n{}", mount.log());
    }
    Faulted {
        usual: longest(true),
        worst: longest(false),
        errors: writers.iter().map(|w| w.errors.len()).sum(),
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Commits must not wait for a DataNode that is frozen for 20 seconds. How fast they go on is measured
/// by a bench.
const WHILE_FROZEN: Duration = Duration::from_secs(15);

#[test]
fn a_datanode_is_killed() {
    let (hdfs, _turn) = cluster();
    let faulted = under_fault(hdfs, "datanode-killed", &[], |hdfs, _| {
        hdfs.kill_datanode(hdfs.a_datanode_that_is_written_to());
        std::thread::sleep(10 * SECOND);
    });
    assert_eq!(faulted.errors, 0);
    assert!(faulted.worst < WHILE_FROZEN, "{:?}", faulted.worst);
}

#[test]
fn a_datanode_is_frozen_for_20_seconds() {
    let (hdfs, _turn) = cluster();
    let faulted = under_fault(hdfs, "datanode-frozen", &[], |hdfs, _| {
        let victim = hdfs.a_datanode_that_is_written_to();
        hdfs.freeze_datanode(victim);
        std::thread::sleep(20 * SECOND);
        hdfs.thaw_datanode(victim);
    });
    assert_eq!(faulted.errors, 0);
    assert!(faulted.worst < WHILE_FROZEN, "{:?}", faulted.worst);
}

#[test]
fn the_namenode_is_killed_and_started_again() {
    let (hdfs, _turn) = cluster();
    let outage = Mutex::new(Duration::ZERO);
    let faulted = under_fault(hdfs, "namenode-killed", &[], |hdfs, _| {
        let active = hdfs.active().unwrap();
        let killed = Instant::now();
        hdfs.kill_namenode(active);
        std::thread::sleep(SECOND);
        hdfs.restart_namenode(active);
        hdfs.mend();
        *outage.lock().unwrap() = killed.elapsed();
    });
    let outage = *outage.lock().unwrap();
    println!("the NameNode was gone for {outage:?}");
    // On a slow machine it takes longer to start than an operation may last.
    assert!(
        faulted.errors == 0 || outage > 40 * SECOND,
        "gone for {outage:?}"
    );
}

#[test]
fn the_namenode_is_frozen() {
    let (hdfs, _turn) = cluster();
    let faulted = under_fault(hdfs, "namenode-frozen", &[], |hdfs, _| {
        let active = hdfs.active().unwrap();
        hdfs.freeze_namenode(active);
        std::thread::sleep(8 * SECOND);
        hdfs.thaw_namenode(active);
    });
    assert_eq!(faulted.errors, 0);
    assert!(faulted.worst < 20 * SECOND, "{:?}", faulted.worst);
}

#[test]
fn the_namenode_fails_over_twice() {
    let (hdfs, _turn) = cluster();
    let faulted = under_fault(hdfs, "failover", &[], |hdfs, _| {
        hdfs.failover();
        std::thread::sleep(SECOND);
        hdfs.failover();
    });
    assert_eq!(faulted.errors, 0);
}

/// What an impatient administrator does, or another program that takes the file for left behind.
#[test]
fn another_client_recovers_the_leases_of_the_writer() {
    let (hdfs, _turn) = cluster();
    let faulted = under_fault(hdfs, "recovered", &[], |hdfs, _| {
        for _ in 0..3 {
            let files = recover_all_leases(hdfs, "/recovered-0/.stowfs");
            assert!(files > 0, "no segment was open");
            std::thread::sleep(SECOND);
        }
    });
    assert_eq!(faulted.errors, 0);
    assert!(faulted.worst < 10 * SECOND, "{:?}", faulted.worst);
}

/// Of all segments below a directory; how many there are.
fn recover_all_leases(hdfs: &Hdfs, dir: &str) -> usize {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = hdfs_native::ClientBuilder::new()
        .with_url(hdfs.url())
        .with_config_dir(hdfs.conf_dir().to_str().unwrap())
        .build()
        .unwrap();
    runtime.block_on(async {
        let all = client.list_status(dir, true).await.unwrap();
        let segments = all.iter().filter(|f| !f.isdir && f.path.ends_with(".seg"));
        let mut count = 0;
        for file in segments {
            // Some are gone by now.
            count += usize::from(client.recover_lease(&file.path).await.is_ok());
        }
        count
    })
}

/// The whole of HDFS hangs: every operation ends, memory stays within the budgets, the log names
/// the call that is slow, and all goes on when HDFS does.
#[test]
fn operations_end_and_memory_is_bounded_while_hdfs_hangs() {
    const LIMIT: Duration = Duration::from_secs(8);
    const BUDGETS: u64 = (16 + 16 + 3 * 4) << 20;
    let (hdfs, _turn) = cluster();
    let options = [
        "--op-timeout=8s",
        "--write-buffer=16MiB",
        "--cache-size=16MiB",
        "--block-size=4MiB",
        "--segment-size=64MiB",
    ];
    let mut mount = mount(hdfs, "hangs", &options);
    let idle = mount.resident();
    let mut writers = load::writers(&mount.path(), 4, load::seed("hang"));

    // Writers that are faster than the store, then a store that takes nothing.
    let most = write_and_watch(&mount, 60 << 20);
    println!(
        "resident {} MiB idle, {} MiB under load",
        idle >> 20,
        most >> 20
    );
    assert!(most < idle + BUDGETS + (64 << 20), "{} MiB", most >> 20);

    for i in 0..DATANODES {
        hdfs.freeze_datanode(i);
    }
    for i in 0..2 {
        hdfs.freeze_namenode(i);
    }
    let mut most = 0;
    load::run(&mut writers, &AtomicBool::new(false), || {
        let begun = Instant::now();
        while begun.elapsed() < 20 * SECOND {
            most = most.max(mount.resident());
            let asked = Instant::now();
            let _ = fs::metadata(mount.at(&format!("{asked:?}")));
            let _ = fs::create_dir(mount.at(&format!("dir-{}", begun.elapsed().as_millis())));
            let _ = fs::read_dir(mount.path()).map(Iterator::count);
            let _ = nix::sys::statvfs::statvfs(&mount.path());
            assert!(
                asked.elapsed() < SECOND,
                "names need no store: {:?}",
                asked.elapsed()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let errors: Vec<_> = writers.iter().flat_map(|w| &w.errors).collect();
    assert!(!errors.is_empty(), "nothing can be acknowledged");
    for (what, e, took) in errors {
        // An operation of a writer is several calls, but after an error it ends.
        assert!(*took < 2 * LIMIT + 2 * SECOND, "{what}: {e} after {took:?}");
        assert!(e.to_string().contains("os error 5"), "{what}: {e}");
    }
    println!("resident {} MiB while HDFS hangs", most >> 20);
    assert!(most < idle + BUDGETS + (64 << 20), "{} MiB", most >> 20);
    let log = mount.log();
    assert!(log.contains("slow store call"), "{log}");

    hdfs.mend();
    let begun = Instant::now();
    while fs::write(mount.at("again"), "x").is_err() {
        assert!(
            begun.elapsed() < 60 * SECOND,
            "it does not go on\n{}",
            mount.log()
        );
    }
    println!("served again {:?} after HDFS was", begun.elapsed());
    load::verify(&mut writers, false);
    mount.kill9();
    mount.remount();
    load::verify(&mut writers, true);
}

/// Four threads write `each` bytes; the most memory that the mount had meanwhile.
fn write_and_watch(mount: &Mount, each: usize) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(mount.resident());
                std::thread::sleep(Duration::from_millis(10));
            }
            most
        });
        let writers: Vec<_> = (0..4)
            .map(|t| {
                scope.spawn(move || {
                    let chunk = vec![t; 3 << 20];
                    for n in 0..each / chunk.len() {
                        fs::write(mount.at(&format!("big-{t}-{n}")), &chunk).unwrap();
                    }
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        for end in ended {
            end.unwrap();
        }
        watch.join().unwrap()
    })
}

/// A restore right after the checkpoint: the files are in a segment that is still open.
#[test]
fn two_thousand_files_are_read_back_at_once() {
    const FILES: usize = 2000;
    let (hdfs, _turn) = cluster();
    let mount = mount(hdfs, "restored", &[]);
    let on_8_threads = |f: &(dyn Fn(&Path, Vec<u8>) + Sync)| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for t in 0..8 {
                let mount = &mount;
                scope.spawn(move || {
                    for n in (t..FILES).step_by(8) {
                        let content = n.to_le_bytes().repeat(512 + n % 1000);
                        f(&mount.at(&format!("{n}")), content);
                    }
                });
            }
        });
        begun.elapsed()
    };
    let before = hdfs.rpc_counts();
    let written = on_8_threads(&|path, content| fs::write(path, content).unwrap());
    let after = hdfs.rpc_counts();
    // What the kernel kept would prove nothing.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap_or_else(|e| println!("caches kept: {e}"));
    let read = on_8_threads(&|path, content| assert!(fs::read(path).unwrap() == content));
    let (writing, reading) = (after.since(&before), hdfs.rpc_counts().since(&after));
    println!("{FILES} files written in {written:?}: {writing:?}\nread in {read:?}: {reading:?}");
    assert!(read < 10 * SECOND, "{read:?}");
    assert!(reading.complete() + reading.create() <= 2, "{reading:?}");
    assert!(reading.total() < 60, "{reading:?}");
    assert!(writing.create() <= 4, "{writing:?}");
    assert!((writing.fsync() as usize) < FILES, "{writing:?}");
}

/// An open block is charged to a quota whole, hence the small ones here.
#[test]
fn a_quota_that_is_reached_is_enospc_until_it_is_raised() {
    let (hdfs, _turn) = cluster();
    let options = [
        "--block-size=1MiB",
        "--segment-size=4MiB",
        "--op-timeout=20s",
    ];
    let mut mount = mount(hdfs, "quota", &options);
    let dfs_admin = |args: &[&str]| hdfs.admin(DFS_ADMIN, args).unwrap();
    let mut writers = load::writers(&mount.path(), 2, load::seed("quota"));
    dfs_admin(&["-setSpaceQuota", "50m", "/quota"]);
    let full = |writers: &[Writer]| {
        let mut errors = writers.iter().flat_map(|w| &w.errors);
        errors.any(|(_, e, _)| e.to_string().contains("os error 28"))
    };
    let begun = Instant::now();
    while !full(&writers) {
        load::run(&mut writers, &AtomicBool::new(false), || {
            std::thread::sleep(SECOND)
        });
        assert!(begun.elapsed() < 60 * SECOND, "no ENOSPC\n{}", mount.log());
    }
    for (what, e, _) in writers.iter().flat_map(|w| &w.errors) {
        assert!(e.to_string().contains("os error 28"), "{what}: {e}");
    }
    load::verify(&mut writers, false);
    dfs_admin(&["-clrSpaceQuota", "/quota"]);
    let begun = Instant::now();
    while fs::write(mount.at("again"), "x").is_err() {
        assert!(
            begun.elapsed() < 30 * SECOND,
            "it does not go on\n{}",
            mount.log()
        );
    }
    load::verify(&mut writers, false);
    mount.kill9();
    mount.remount();
    load::verify(&mut writers, true);
}

/// Says who may not do what where, and ends.
#[test]
fn a_mount_without_permission_is_refused() {
    let (hdfs, _turn) = cluster();
    let mut mine = mount(hdfs, "mine", &[]);
    fs::write(mine.at("f"), "x").unwrap();
    mine.umount();
    let stranger = Mount::unmounted(
        &format!("{}/mine", hdfs.url()),
        &[
            "--hadoop-conf",
            hdfs.conf_dir().to_str().unwrap(),
            "--op-timeout=10s",
        ],
    )
    .env("HADOOP_USER_NAME", "stranger");
    let output = stranger.command().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("Permission denied: user=stranger") && text.contains("/mine"),
        "{text}"
    );
    mine.remount();
    assert_eq!(fs::read(mine.at("f")).unwrap(), b"x");
}

#[test]
fn a_namenode_that_cannot_be_reached_is_named_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().port().to_string();
    // One port where nobody listens, one where nobody answers.
    for port in ["1", silent.as_str()] {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("hdfs://127.0.0.1:{port}/dir");
        let begun = Instant::now();
        let mut command: Command = stowfs();
        command.args(["mount", &url, "--op-timeout=3s", "--run-dir"]);
        command
            .arg(dir.path().join("run"))
            .arg("--")
            .arg(dir.path());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        println!("after {:?}: {text}", begun.elapsed());
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&url), "{text}");
        assert!(begun.elapsed() < 10 * SECOND, "{:?}", begun.elapsed());
    }
}
