//! Which segments files go to, how many there are, and who waits for whom while they are compacted: the volume on a
//! store in memory, in simulated time.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Clock, Ino, StreamId, Timestamp};
use stowfs::fs::{Caller, Fs, FsOptions, WriteMode};
use stowfs::store::Store;
use stowfs::store::memory::{LastCall, MemoryCluster, MemoryConfig};
use stowfs::volume::{OpenOptions, Volume};
use tokio::time::Instant;

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// Goes with the time of the simulation: a volume learns how long files live.
struct Simulated(Instant);

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        2_000_000_000_000_000_000 + self.0.elapsed().as_nanos() as Timestamp
    }
}

fn options(config: Config) -> OpenOptions {
    OpenOptions {
        clock: Arc::new(Simulated(Instant::now())),
        ..OpenOptions::new(config)
    }
}

/// Mounts a store on which nothing goes wrong.
async fn mount(store: &Arc<dyn Store>, config: &Config) -> Arc<Fs> {
    let volume = Volume::open(store.clone(), options(config.clone()));
    Fs::new(volume.await.expect("a mount"), FsOptions::default())
}

async fn put(fs: &Fs, name: String, len: usize) -> Ino {
    let byte = name.len() as u8;
    put_bytes(fs, name, vec![byte; len].into()).await
}

async fn put_bytes(fs: &Fs, name: String, data: Bytes) -> Ino {
    let made = fs.create(WHO, Ino::ROOT, name.into(), 0o644, 0, libc::O_WRONLY);
    let (entry, fh) = made.await.expect("create");
    let ino = entry.ino;
    for (n, part) in data.chunks(1 << 20).enumerate() {
        let (off, part) = ((n as u64) << 20, data.slice_ref(part));
        let written = fs.write(ino, fh, off, part, WriteMode::default()).await;
        written.expect("write");
    }
    fs.flush(ino, fh, 0).await.expect("close");
    fs.release(ino, fh).await.expect("release");
    ino
}

fn segments(cluster: &MemoryCluster) -> usize {
    let tree = cluster.tree();
    tree.iter().filter(|path| path.ends_with(".seg")).count()
}

/// Each mount leaves a small segment of the log, and, if it wrote a long file, one of a lane. Nothing
/// in them dies, so space alone would never ask for them to be emptied.
#[tokio::test(start_paused = true)]
async fn many_remounts_leave_few_segments() {
    let cluster = MemoryCluster::new(3);
    let config = Config {
        segment_size: 8 << 20,
        block_size: 1 << 20,
        small_file: 16 << 10,
        lasting_file: Some(1 << 10),
        gc_grace: Duration::from_secs(1),
        delete_rate: 1000.0,
        upkeep_every: Duration::from_millis(500),
        ..Config::default()
    };
    let mounts = 300;
    let mut most = 0;
    for n in 0..mounts {
        let store: Arc<dyn Store> = cluster.host("a");
        let fs = mount(&store, &config).await;
        put(&fs, format!("small-{n}"), 3000).await;
        put(&fs, format!("long-{n}"), 40 << 10).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        fs.volume().shutdown().await.expect("shutdown");
        most = most.max(segments(&cluster));
    }
    // Up to 64 of the log between snapshots, twice; and up to 7 of each size.
    assert!(most < 200, "{most} segments after {mounts} mounts");
    let store: Arc<dyn Store> = cluster.host("b");
    let fs = mount(&store, &config).await;
    for n in 0..mounts {
        for (name, len) in [("small", 3000), ("long", 40 << 10)] {
            let name = Bytes::from(format!("{name}-{n}"));
            let entry = fs.lookup(Ino::ROOT, name.clone()).await.expect("lookup");
            let opened = fs.open(entry.ino, libc::O_RDONLY).await.expect("open");
            let bytes = fs
                .read(entry.ino, opened.fh, 0, 1 << 20)
                .await
                .expect("read");
            assert_eq!(bytes.len(), len, "{name:?}");
            assert!(bytes.iter().all(|b| *b == name.len() as u8), "{name:?}");
        }
    }
}

/// A segment was sealed once it was full, so its last write began another block for a few bytes: one
/// block in three, when a segment has two.
#[tokio::test(start_paused = true)]
async fn what_a_last_write_adds_begins_no_other_block() {
    const BLOCK: u64 = 1 << 20;
    let memory = MemoryConfig {
        block_size: BLOCK,
        ..MemoryConfig::default()
    };
    let cluster = MemoryCluster::with(7, memory);
    let config = Config {
        segment_size: 2 * BLOCK,
        block_size: BLOCK,
        ..Config::default()
    };
    let store: Arc<dyn Store> = cluster.host("a");
    let fs = mount(&store, &config).await;
    for n in 0..400 {
        put(&fs, format!("file-{n}"), 50_000).await;
    }
    fs.volume().shutdown().await.expect("shutdown");
    let mut full = 0;
    for path in cluster.tree().iter().filter(|path| path.ends_with(".seg")) {
        let len = store.stat(path).await.expect("stat").len;
        assert!(len <= 2 * BLOCK, "{path} has {len} bytes");
        full += u64::from(len > BLOCK);
    }
    assert!(full >= 8, "{full} full segments");
}

/// How long a pass over many dead segments takes beside writers that are never idle, and without any;
/// and how long their commits take meanwhile.
#[tokio::test(start_paused = true)]
async fn compaction_lets_writers_go_first() {
    let alone = compact_beside(0).await;
    let beside = compact_beside(4).await;
    eprintln!("alone {alone:?}, beside writers {beside:?}");
    assert!(beside.took > alone.took * 2, "it did not yield");
    assert!(
        beside.copied > 0 && beside.took < Duration::from_secs(120),
        "it starved"
    );
    assert!(
        beside.slowest < Duration::from_millis(250),
        "writers waited"
    );
}

#[derive(Debug)]
struct Measured {
    took: Duration,
    copied: u64,
    /// The slowest commit of a writer.
    slowest: Duration,
}

async fn compact_beside(writers: usize) -> Measured {
    let latency = Duration::from_millis(5)..=Duration::from_millis(10);
    let cluster = MemoryCluster::with(
        5,
        MemoryConfig {
            block_size: 1 << 20,
            latency,
            ..MemoryConfig::default()
        },
    );
    let config = Config {
        segment_size: 4 << 20,
        block_size: 1 << 20,
        snapshot_bytes: 4 << 20,
        compact_rate: 0,
        compact_target: 1.2,
        gc_grace: Duration::ZERO,
        delete_rate: 1000.0,
        upkeep_every: Duration::from_millis(500),
        ..Config::default()
    };
    let store: Arc<dyn Store> = cluster.host("a");
    let fs = mount(&store, &config).await;
    let mut inos = Vec::new();
    for n in 0..600 {
        inos.push(put(&fs, format!("file-{n}"), 100 << 10).await);
    }
    let slowest = Arc::new(Mutex::new(Duration::ZERO));
    let tasks: Vec<_> = (0..writers)
        .map(|w| tokio::spawn(write_for_ever(fs.clone(), w, slowest.clone())))
        .collect();
    for (n, ino) in inos.into_iter().enumerate().filter(|(n, _)| n % 3 > 0) {
        let name = Bytes::from(format!("file-{n}"));
        fs.unlink(WHO, Ino::ROOT, name).await.expect("unlink");
        fs.forget(ino, 1);
    }
    let copied = || fs.volume().counters().copied.load(Ordering::Relaxed);
    let began = Instant::now();
    let (mut done, mut took) = (copied(), Duration::ZERO);
    while began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if copied() > done {
            (done, took) = (copied(), began.elapsed());
        }
    }
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    let slowest = *slowest.lock();
    Measured {
        took,
        copied: done,
        slowest,
    }
}

fn note(slowest: &Mutex<Duration>, took: Duration) {
    let mut slowest = slowest.lock();
    *slowest = slowest.max(took);
}

/// Rewrites one file again and again, never idle.
async fn write_for_ever(fs: Arc<Fs>, writer: usize, slowest: Arc<Mutex<Duration>>) {
    loop {
        let began = Instant::now();
        let name = format!("writer-{writer}");
        let ino = put(&fs, name.clone(), 1000).await;
        note(&slowest, began.elapsed());
        fs.unlink(WHO, Ino::ROOT, name.into())
            .await
            .expect("unlink");
        fs.forget(ino, 1);
    }
}

const LASTING: usize = 20_000;

/// What the volume learns: files of one size live for a minute, others for five seconds.
async fn teach(fs: &Fs) {
    let mut young = Vec::new();
    let mut old = Vec::new();
    for n in 0..150 {
        old.push(put(fs, format!("old-{n}"), LASTING + n % 50).await);
        young.push(put(fs, format!("young-{n}"), 9_000 + n * 37 % 3000).await);
        for (kept, inos, name) in [(60, &old, "old"), (5, &young, "young")] {
            let Some(n) = n.checked_sub(kept) else {
                continue;
            };
            let name = format!("{name}-{n}");
            fs.unlink(WHO, Ino::ROOT, name.into())
                .await
                .expect("unlink");
            fs.forget(inos[n], 1);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn teachable() -> Config {
    Config {
        segment_size: 128 << 10,
        block_size: 4 << 10,
        // The smallest file that is worth a lane has a sixteenth of it.
        small_file: 64 << 10,
        lasting_file: Some(4 << 10),
        ..Config::default()
    }
}

fn is_in_log(fs: &Fs, ino: Ino) -> bool {
    let extents = fs.volume().read(|index| index.extents(ino, 0, u64::MAX));
    extents.iter().all(|e| e.stream == StreamId::LOG)
}

#[tokio::test(start_paused = true)]
async fn files_that_will_last_go_to_a_lane() {
    let cluster = MemoryCluster::new(7);
    let store: Arc<dyn Store> = cluster.host("a");
    let fs = mount(&store, &teachable()).await;
    let first = put(&fs, "first".into(), LASTING).await;
    assert!(is_in_log(&fs, first), "nothing is known yet");
    teach(&fs).await;
    let lasting = put(&fs, "lasting".into(), LASTING + 20).await;
    let young = put(&fs, "young".into(), 10_000).await;
    let tiny = put(&fs, "tiny".into(), 2_000).await;
    assert!(!is_in_log(&fs, lasting));
    assert!(is_in_log(&fs, young));
    assert!(is_in_log(&fs, tiny), "not worth a sync of its own");
}

/// A file goes to the lane, then its record to the log: a crash at any call in between leaves it
/// whole or not there, and whole if its close returned.
#[tokio::test(start_paused = true)]
async fn files_in_the_lane_survive_a_crash_at_any_call() {
    for n in 1..=40 {
        crash_while_placing(n).await;
    }
}

async fn crash_while_placing(n: u64) {
    let cluster = MemoryCluster::new(n);
    let host = cluster.host("a");
    let store: Arc<dyn Store> = host.clone();
    let fs = mount(&store, &teachable()).await;
    teach(&fs).await;
    let last = [LastCall::Lost, LastCall::Done][n as usize % 2];
    host.crash_at(host.calls() + n, last);
    let done: Arc<Mutex<Vec<String>>> = Arc::default();
    let writers = (0..4u8).map(|w| {
        let (fs, done) = (fs.clone(), done.clone());
        async move {
            for k in 0..20 {
                let (name, data) = (format!("file-{w}-{k}"), vec![w + 1; LASTING + k]);
                put_bytes(&fs, name.clone(), data.into()).await;
                done.lock().push(name);
            }
        }
    });
    let life = futures::future::join_all(writers);
    tokio::select! {
        biased;
        () = host.crashed() => {}
        _ = life => panic!("call {n} was never made"),
    }
    let done = done.lock().clone();
    let store: Arc<dyn Store> = cluster.host("b");
    let fs = mount(&store, &teachable()).await;
    for w in 0..4u8 {
        for k in 0..20 {
            let name = format!("file-{w}-{k}");
            let ino = fs.lookup(Ino::ROOT, name.clone().into()).await;
            let Ok(entry) = ino else {
                assert!(!done.contains(&name), "crash {n}: {name} is lost");
                continue;
            };
            let opened = fs.open(entry.ino, libc::O_RDONLY).await.expect("open");
            let bytes = fs.read(entry.ino, opened.fh, 0, 1 << 20).await;
            let bytes = bytes.expect("read");
            assert!(bytes.iter().all(|b| *b == w + 1), "crash {n}: {name}");
            let whole = bytes.len() == LASTING + k;
            assert!(
                whole || !done.contains(&name) && bytes.is_empty(),
                "crash {n}: {name}"
            );
        }
    }
}
