//! What a root leaves on its store: orphans go when they are old, never when they are young;
//! deletions are spread and hold up nothing; many mounts leave few files.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stowfs::admin::{segments_of_store, segments_of_volume};
use stowfs::base::config::Config;
use stowfs::base::{Error, ErrorKind, Ino};
use stowfs::format::{Attr, DataFrame, Row, SegmentState};
use stowfs::store::connect::{ConnectOptions, connect};
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::store::{Op, Store};
use stowfs::volume::{OpenOptions, Volume};
use tokio::time::{Instant, sleep};

fn options() -> OpenOptions {
    OpenOptions::new(Config {
        segment_size: 24 << 10,
        block_size: 4 << 10,
        idle_seal: Duration::from_secs(1),
        gc_grace: Duration::from_secs(5),
        gc_keep: 0.0,
        compact_target: 1.3,
        compact_rate: 0,
        orphan_age: Duration::from_secs(600),
        upkeep_every: Duration::from_millis(500),
        ..Config::default()
    })
}

/// Replaces a small file.
fn put(volume: &Volume, name: &str, len: usize) {
    let fresh = volume.new_ino().unwrap();
    let data: Bytes = vec![7; len].into();
    let changed = volume.change(|index, change| {
        let ino = index.lookup(Ino::ROOT, name.as_bytes()).unwrap_or(fresh);
        let frame = DataFrame::new(ino, 0, data.clone(), name.into());
        let extents = vec![change.data(frame)];
        let (mode, size) = (libc::S_IFREG | 0o644, len as u64);
        let attr = Attr {
            mode,
            nlink: 1,
            size,
            ..Attr::default()
        };
        change.row(Row::Inode { ino, attr });
        change.row(Row::Entry {
            parent: Ino::ROOT,
            name: name.into(),
            ino,
        });
        change.row(Row::Extents {
            ino,
            off: 0,
            len: size,
            extents,
        });
        Ok::<_, Error>(())
    });
    changed.unwrap();
}

fn unlink(volume: &Volume, name: &str) {
    let done = volume.change(|index, change| {
        let ino = index.lookup(Ino::ROOT, name.as_bytes()).expect("a file");
        change.row(Row::NoEntry {
            parent: Ino::ROOT,
            name: name.into(),
        });
        change.row(Row::Free { ino });
        Ok::<_, Error>(())
    });
    done.unwrap();
}

/// Files that writers which died left behind, with who may still use them.
const PLANTED: &[&str] = &[
    ".stowfs/data/1/77.seg",
    ".stowfs/log/1.fenced/9.seg",
    ".stowfs/log/1.fenced/0.seg.rebuilding",
    ".stowfs/snapshot/5.1.123.part",
    ".stowfs/owner/1.claim.00",
    ".stowfs/owner/.stowfs-tmp-00",
    ".stowfs/.stowfs-00.tmp",
];
/// Not stowfs's, or somebody else's.
const STRANGE: &[&str] = &[
    ".stowfs/data/1/readme",
    ".stowfs/data/9/0.seg",
    ".stowfs/snapshot/5.9.123.part",
    ".stowfs/owner/note",
    ".stowfs/log/1.fenced/notes.seg",
];

#[tokio::test(start_paused = true)]
async fn orphans_go_when_they_are_old_and_nothing_else() {
    let cluster = MemoryCluster::new(3);
    let store: Arc<dyn Store> = cluster.host("a");
    for _ in 0..2 {
        let volume = Volume::open(store.clone(), options()).await.unwrap();
        put(&volume, "kept", 3000);
        volume.shutdown().await.unwrap();
    }
    store.mkdir(".stowfs/snapshot").await.unwrap();
    store.mkdir(".stowfs/data/9").await.unwrap();
    let volume = Volume::open(store.clone(), options()).await.unwrap();
    for path in PLANTED.iter().chain(STRANGE) {
        store.put(path, Bytes::from_static(b"x")).await.unwrap();
    }
    let has = |path: &str| cluster.tree().iter().any(|p| p == path);
    let lines = || async {
        let plan = volume.duty().unwrap().plan_gc(&*volume, false).await;
        plan.unwrap().orphans
    };
    let listed = lines().await;
    for path in PLANTED {
        let line = listed.iter().find(|o| o.path == *path);
        let line = line.unwrap_or_else(|| panic!("{path} is not listed: {listed:#?}"));
        assert!(line.action.starts_with("delete in"), "{line:?}");
    }
    assert!(!listed.iter().any(|o| STRANGE.contains(&&o.path[..])));
    let mounted = segments_of_volume(&volume).await.unwrap().orphans;
    let offline = segments_of_store(&*store).await.unwrap().orphans;
    for path in PLANTED.iter().map(|path| path.to_string()) {
        assert!(mounted.contains(&path), "{path}: {mounted:#?}");
        assert!(offline.contains(&path), "{path}: {offline:#?}");
    }
    // `--now` does not make the young old.
    let told = |_| true;
    let duty = volume.duty().unwrap();
    duty.collect(&*volume, true, &told).await.unwrap();
    sleep(Duration::from_secs(590)).await;
    PLANTED.iter().for_each(|path| assert!(has(path), "{path}"));
    sleep(Duration::from_secs(600)).await;
    let left = cluster.tree();
    PLANTED
        .iter()
        .for_each(|path| assert!(!has(path), "{path} of {left:#?}"));
    STRANGE.iter().for_each(|path| assert!(has(path), "{path}"));
    assert!(!has(".stowfs/owner/1") && has(".stowfs/owner/3"));
    // Where the log ended when it ended cleanly last is kept until it does so again.
    assert!(!has(".stowfs/owner/1.released") && has(".stowfs/owner/2.released"));
    assert!(!has(".stowfs/data/2/"), "an empty directory");
    assert!(lines().await.is_empty(), "{:#?}", lines().await);
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    volume.shutdown().await.unwrap();
    let again = Volume::open(store, options()).await.unwrap();
    assert!(again.read(|i| i.lookup(Ino::ROOT, b"kept").is_some()));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_fenced_removes_nothing() {
    let cluster = MemoryCluster::new(4);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    let first = Volume::open(a.clone() as Arc<dyn Store>, options())
        .await
        .unwrap();
    let path = ".stowfs/data/1/77.seg";
    b.put(".stowfs/owner/.stowfs-tmp-00", Bytes::from_static(b"x"))
        .await
        .unwrap();
    a.freeze();
    let mut takeover = options();
    takeover.takeover = true;
    takeover.config.orphan_age = Duration::from_secs(1 << 30);
    let _second = Volume::open(b.clone() as Arc<dyn Store>, takeover)
        .await
        .unwrap();
    b.put(path, Bytes::from_static(b"x")).await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    a.thaw();
    // Whether it knows by now that it was fenced or not.
    if let Ok(duty) = first.duty() {
        let pass = duty.collect(&*first, true, &|_| true);
        let _ = tokio::time::timeout(Duration::from_secs(60), pass).await;
    }
    sleep(Duration::from_secs(3600)).await;
    let tree = cluster.tree();
    assert!(tree.iter().any(|p| p == path), "{tree:#?}");
    assert!(
        tree.iter().any(|p| p.ends_with(".stowfs-tmp-00")),
        "{tree:#?}"
    );
}

/// Two snapshots lie at most some 64 segments of the log apart, and each mount leaves one of these in
/// a directory of its own.
const MANY: usize = 450;

async fn mount_again_and_again(
    store: Arc<dyn Store>,
    options: fn() -> OpenOptions,
    n: u64,
) -> usize {
    for i in 0..n {
        let volume = Volume::open(store.clone(), options()).await.unwrap();
        put(&volume, &format!("f{}", i % 7), 500);
        sleep(options().config.upkeep_every * 3).await;
        volume.shutdown().await.unwrap();
    }
    // The last one stays for a while, as a mount that is used does.
    let volume = Volume::open(store.clone(), options()).await.unwrap();
    sleep(options().config.orphan_age * 3).await;
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    volume.shutdown().await.unwrap();
    count(&*store, ".stowfs".into()).await
}

async fn count(store: &dyn Store, dir: String) -> usize {
    let mut n = 0;
    for entry in store.list(&dir).await.unwrap() {
        n += 1;
        if entry.is_dir {
            n += Box::pin(count(store, format!("{dir}/{}", entry.name))).await;
        }
    }
    n
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_mounts_leave_few_files() {
    let cluster = MemoryCluster::new(5);
    let store: Arc<dyn Store> = cluster.host("a");
    let few = mount_again_and_again(store.clone(), options, 100).await;
    let many = mount_again_and_again(store, options, 300).await;
    let tree = cluster.tree();
    assert!(few < MANY && many < MANY, "{few}, then {many}: {tree:#?}");
}

#[tokio::test]
async fn a_hundred_mounts_of_a_local_store_leave_few_files() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let store = connect(&url, &ConnectOptions::default()).await.unwrap();
    let quick = || {
        let mut options = options();
        options.config.upkeep_every = Duration::from_millis(10);
        options.config.orphan_age = Duration::from_secs(1);
        options.config.gc_grace = Duration::from_millis(100);
        options.config.delete_rate = 1000.0;
        options
    };
    let files = mount_again_and_again(store, quick, 110).await;
    assert!(files < MANY, "{files}");
}

/// No copy of a few small files comes down to the target of compaction, so it copied them for ever.
#[tokio::test(start_paused = true)]
async fn an_idle_root_of_small_files_is_left_alone() {
    let cluster = MemoryCluster::new(7);
    let store: Arc<dyn Store> = cluster.host("a");
    let mut options = options();
    options.config.snapshot_bytes = 8 << 10;
    let volume = Volume::open(store, options).await.unwrap();
    for i in 0..200 {
        put(&volume, &format!("f{}", i % 3), 100 + i);
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(300)).await;
    let end = volume.last_pos();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        volume.last_pos(),
        end,
        "nothing happens, so nothing is logged"
    );
    volume.shutdown().await.unwrap();
}

/// 10,000 condemned segments held up snapshots and compaction for 500 s.
#[tokio::test(start_paused = true)]
async fn a_storm_of_deletions_is_spread_and_holds_up_nothing() {
    let cluster = MemoryCluster::new(6);
    let store: Arc<dyn Store> = cluster.host("a");
    let mut slow = options();
    slow.config.delete_rate = 2.0;
    slow.config.delete_bytes_rate = 10 << 10;
    slow.config.snapshot_bytes = 100 << 10;
    let volume = Volume::open(store, slow).await.unwrap();
    for i in 0..100 {
        put(&volume, &format!("f{i}"), 20 << 10);
        volume.durable(volume.last_pos()).await.unwrap();
    }
    (0..100).for_each(|i| unlink(&volume, &format!("f{i}")));
    // Their log is needed until two snapshots are taken.
    for i in 0..60 {
        put(&volume, "filler", 5000 + i);
        sleep(Duration::from_secs(1)).await;
    }
    let state = |state| volume.read(|i| i.segments().filter(|s| s.row.state == state).count());
    let condemned = state(SegmentState::Condemned);
    assert!(condemned > 30, "{condemned}");
    let segments = || {
        cluster
            .tree()
            .iter()
            .filter(|p| p.ends_with(".seg"))
            .count()
    };
    let newest = || {
        let tree = cluster.tree();
        let idx = tree
            .iter()
            .filter_map(|p| p.strip_suffix(".idx")?.rsplit('/').next());
        idx.filter_map(|n| n.parse::<u64>().ok()).max()
    };
    let snapshot = newest();
    let (begun, first) = (Instant::now(), segments());
    let mut last = first;
    while state(SegmentState::Condemned) > 5 {
        sleep(Duration::from_secs(10)).await;
        // Each has some 24 KiB, so one goes in 2.4 s.
        let gone = last.saturating_sub(segments());
        assert!(gone <= 12, "{gone} in ten seconds");
        last = segments();
        put(&volume, "filler", 20_000);
        assert!(begun.elapsed() < Duration::from_secs(3600));
    }
    assert!(begun.elapsed() > Duration::from_secs(40));
    assert!(newest() > snapshot, "a snapshot meanwhile");
}

/// A snapshot that was being written when the NameNode was killed stayed open on HDFS for as long as
/// the mount lived (found by the soak).
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_not_finished_goes_with_the_next() {
    let (cluster, faults) = (MemoryCluster::new(5), Faults::new(5));
    let volume = Volume::open(faults.wrap(cluster.host("a")), options())
        .await
        .unwrap();
    let lost = Fault::FailAfter(ErrorKind::TimedOut);
    faults.add(Rule::new(lost).op(Op::Append).path(".part").times(1));
    let unfinished = || cluster.tree().iter().any(|p| p.ends_with(".part"));
    let mut seen = false;
    for n in 0..200 {
        put(&volume, &format!("{}", n % 10), 100_000);
        tokio::time::sleep(Duration::from_millis(100)).await;
        seen |= faults.injected() > 0 && unfinished();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(seen && !unfinished(), "{:#?}", cluster.tree());
}
