//! Many tasks on real threads in the same few files and directories, more open bytes than the
//! write buffer holds, and very many small appends: no deadlock, no lost byte, nothing left over.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::fs::{Caller, Errno, Fh, Fs, FsOptions, WriteMode};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::volume::{OpenOptions, Volume};

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

async fn mount(config: Config) -> Arc<Fs> {
    let store = MemoryConfig {
        latency: Duration::ZERO..=Duration::from_micros(200),
        block_size: 64 << 10,
        ..MemoryConfig::default()
    };
    let store: Arc<dyn Store> = MemoryCluster::with(1, store).host("one");
    let options = OpenOptions::new(config);
    let volume = Volume::open(store, options).await.expect("open");
    Fs::new(volume, FsOptions::default())
}

async fn create(fs: &Arc<Fs>, name: String) -> (Ino, Fh) {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let made = fs.create(WHO, Ino::ROOT, name.into(), 0o644, 0, flags);
    let (entry, fh) = made.await.expect("create");
    (entry.ino, fh)
}

async fn within<T>(seconds: u64, what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(seconds);
    tokio::time::timeout(limit, what).await.expect("a deadlock")
}

async fn settled(fs: &Arc<Fs>) {
    fs.sync_all().await.expect("sync_all");
    let bad = fs.volume().read(Index::check);
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(fs.held()[1..], [0, 0, 0], "nodes, dirty inodes, handles");
}

const SLICE: usize = 6000;
const TASKS: usize = 8;

/// Each task owns a slice of each file, and does to it what it likes.
async fn shared(fs: Arc<Fs>, task: usize, files: Vec<Ino>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mine = vec![vec![0u8; SLICE]; files.len()];
    let start = task * SLICE;
    for _ in 0..300 {
        let n = rng.random_range(0..files.len());
        let ino = files[n];
        let fh = fs.open(ino, libc::O_RDWR).await.expect("open").fh;
        let at = rng.random_range(0..SLICE - 1);
        let len = rng.random_range(1..SLICE - at);
        let off = (start + at) as u64;
        match rng.random_range(0..8) {
            0..4 => {
                let mut data = vec![0; len];
                rng.fill(&mut data[..]);
                mine[n][at..at + len].copy_from_slice(&data);
                let done = fs.write(ino, fh, off, data.into(), WriteMode::default());
                assert_eq!(done.await, Ok(len as u32));
            }
            4 => {
                mine[n][at..at + len].fill(0);
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let done = fs.fallocate(WHO, ino, fh, off, len as u64, mode);
                assert_eq!(done.await, Ok(()));
            }
            5 => assert_eq!(fs.fsync(ino, fh, false).await, Ok(())),
            6 => {
                let from = rng.random_range(0..files.len());
                let len = len.min(SLICE / 2);
                let (a, b) = match rng.random() {
                    true => (0, SLICE / 2),
                    false => (SLICE / 2, 0),
                };
                let (x, y) = ((start + a) as u64, (start + b) as u64);
                let (source, other) = (files[from], Fh(0));
                let clone = fs.copy_file_range(WHO, source, other, x, ino, fh, y, len as u64);
                let copied = clone.await.expect("clone") as usize;
                let part = mine[from][a..a + copied].to_vec();
                mine[n][b..b + copied].copy_from_slice(&part);
            }
            _ => {
                let mut read = fs.read(ino, fh, off, len).await.expect("read").to_vec();
                read.resize(len, 0);
                assert!(read == mine[n][at..at + len], "file {n}, task {task}");
            }
        }
        assert_eq!(fs.flush(ino, fh, 0).await, Ok(()));
        assert_eq!(fs.release(ino, fh).await, Ok(()));
    }
    for (ino, want) in files.iter().zip(&mine) {
        let read = fs.read(*ino, Fh(0), start as u64, SLICE).await;
        let mut read = read.expect("read").to_vec();
        read.resize(SLICE, 0);
        assert!(read == *want, "task {task}, at the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_share_files_find_what_each_wrote() {
    let fs = mount(Config {
        small_file: 16 << 10,
        write_buffer: 256 << 10,
        dirty_age: Duration::from_millis(20),
        segment_size: 1 << 20,
        ..Config::default()
    })
    .await;
    let mut files = Vec::new();
    for n in 0..3 {
        let (ino, fh) = create(&fs, format!("f{n}")).await;
        fs.release(ino, fh).await.expect("release");
        files.push(ino);
    }
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let spawn = |task| tokio::spawn(shared(fs.clone(), task, files.clone(), seed + task as u64));
    let tasks: Vec<_> = (0..TASKS).map(spawn).collect();
    for task in tasks {
        within(120, task).await.expect("a task failed");
    }
    settled(&fs).await;
}

/// Names come and go while others list, link, rename and write what they name.
async fn names(fs: Arc<Fs>, seed: u64) -> Result<(), Errno> {
    let mut rng = StdRng::seed_from_u64(seed);
    let expected = [libc::ENOENT, libc::EEXIST, libc::ESTALE];
    for _ in 0..400 {
        let name = |rng: &mut StdRng| Bytes::from(format!("n{}", rng.random_range(0..5)));
        let (a, b) = (name(&mut rng), name(&mut rng));
        let root = Ino::ROOT;
        let outcome = match rng.random_range(0..6) {
            0..2 => match fs.create(WHO, root, a, 0o644, 0, libc::O_RDWR).await {
                Ok((entry, fh)) => {
                    let data = Bytes::from(vec![1; 500]);
                    let ino = entry.ino;
                    fs.write(ino, fh, 0, data, WriteMode::default()).await?;
                    fs.flush(ino, fh, 0).await?;
                    fs.release(ino, fh).await?;
                    fs.forget(ino, 1);
                    Ok(())
                }
                Err(e) => Err(e),
            },
            2 => fs.unlink(WHO, root, a).await,
            3 => fs.rename(WHO, root, a, root, b, 0).await,
            4 => match fs.lookup(root, a).await {
                Ok(entry) => {
                    let linked = fs.link(entry.ino, root, b).await;
                    linked.as_ref().map(|e| fs.forget(e.ino, 1)).ok();
                    fs.forget(entry.ino, 1);
                    linked.map(|_| ())
                }
                Err(e) => Err(e),
            },
            _ => fs.readdirplus(root, Fh(0), 0, 100).await.map(|_| ()),
        };
        if let Err(e) = outcome
            && !expected.contains(&e.0)
        {
            return Err(e);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn names_that_come_and_go_leave_no_inode_behind() {
    let fs = mount(Config::default()).await;
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let tasks: Vec<_> = (0..TASKS as u64)
        .map(|n| tokio::spawn(names(fs.clone(), seed + n)))
        .collect();
    for task in tasks {
        let ended = within(120, task).await.expect("a task panicked");
        ended.expect("an unexpected error");
    }
    settled(&fs).await;
    assert_eq!(fs.held()[0], 0, "inodes that the kernel was told of");
    assert_eq!(fs.volume().read(Index::nameless), Vec::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_may_hold_more_than_the_write_buffer() {
    let fs = mount(Config {
        write_buffer: 1 << 20,
        dirty_age: Duration::from_secs(3600),
        ..Config::default()
    })
    .await;
    let data = Bytes::from(vec![9; 64 << 10]);
    let mut open = Vec::new();
    let fill = async {
        for n in 0..100 {
            let (ino, fh) = create(&fs, format!("f{n}")).await;
            let done = fs.write(ino, fh, 0, data.clone(), WriteMode::default());
            assert_eq!(done.await, Ok(64 << 10));
            open.push((ino, fh));
        }
    };
    within(60, fill).await;
    for (ino, fh) in open {
        assert_eq!(fs.read(ino, fh, 0, 1 << 20).await.expect("read"), data);
        fs.flush(ino, fh, 0).await.expect("flush");
        fs.release(ino, fh).await.expect("release");
    }
    settled(&fs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_synced_appends_leave_few_extents() {
    let fs = mount(Config::default()).await;
    let (ino, fh) = create(&fs, "wal".into()).await;
    let mut want = Vec::new();
    for n in 0..3000u32 {
        let line = Bytes::from(format!("line {n}\n"));
        want.extend_from_slice(&line);
        let off = (want.len() - line.len()) as u64;
        fs.write(ino, fh, off, line, WriteMode::default())
            .await
            .expect("write");
        fs.fsync(ino, fh, false).await.expect("fsync");
    }
    let extents = fs.volume().read(|index| index.extent_count(ino));
    assert!(extents < 60, "{extents} extents");
    let read = fs.read(ino, fh, 0, 1 << 20).await.expect("read");
    assert!(read == want);
    fs.release(ino, fh).await.expect("release");
    settled(&fs).await;
}

#[tokio::test]
async fn a_long_stream_goes_to_a_lane_and_reads_back() {
    let fs = mount(Config {
        write_buffer: 8 << 20,
        small_file: 1 << 20,
        ..Config::default()
    })
    .await;
    let (ino, fh) = create(&fs, "long".into()).await;
    let block = |n: u64| Bytes::from(vec![n as u8; 128 << 10]);
    for n in 0..400 {
        let done = fs.write(ino, fh, n * (128 << 10), block(n), WriteMode::default());
        within(60, done).await.expect("write");
    }
    for n in (0..400).rev() {
        let read = fs.read(ino, fh, n * (128 << 10), 128 << 10).await;
        assert!(read.expect("read") == block(n), "block {n}");
    }
    fs.flush(ino, fh, 0).await.expect("flush");
    fs.release(ino, fh).await.expect("release");
    settled(&fs).await;
    let in_log = fs.volume().read(|index| {
        let all = index.extents(ino, 0, u64::MAX);
        all.iter()
            .filter(|e| e.stream.0 == 0)
            .map(|e| e.len as u64)
            .sum::<u64>()
    });
    assert!(
        in_log <= 2 << 20,
        "{in_log} bytes of a long file are in the log"
    );
}

#[tokio::test]
async fn create_opens_what_exists_and_truncates_it_if_asked() {
    let fs = mount(Config::default()).await;
    let (ino, fh) = create(&fs, "f".into()).await;
    let data = Bytes::from_static(b"old");
    let done = fs.write(ino, fh, 0, data, WriteMode::default());
    assert_eq!(done.await, Ok(3));
    assert_eq!(create(&fs, "f".into()).await.0, ino);
    assert_eq!(fs.getattr(ino).await.expect("getattr").attr.size, 3);
    for (flags, want) in [(libc::O_EXCL, Err(libc::EEXIST)), (libc::O_TRUNC, Ok(0))] {
        let flags = libc::O_RDWR | libc::O_CREAT | flags;
        let made = fs.create(WHO, Ino::ROOT, "f".into(), 0o644, 0, flags).await;
        let size = made.map(|(entry, _)| entry.stat.attr.size).map_err(|e| e.0);
        assert_eq!(size, want.map(|n: u64| n));
    }
}
