//! The inner parts that run for every file: frames and their checksums, the index, a group commit on
//! the store in memory, and finding what to read. `cargo bench --bench hot`; criterion compares with
//! the last run, so that a regression shows.

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::{Config, Epoch, Ino, StreamId, SystemClock};
use stowfs::format::{Attr, DataFrame, Extent, Row, frame};
use stowfs::fs::{Caller, Fs, FsOptions, WriteMode};
use stowfs::index::Index;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::volume::{OpenOptions, Volume};

const FILES: u64 = 1_000_000;
const EXTENTS: u64 = 10_000;
const SIZE: usize = 64 << 10;

fn frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame");
    group.throughput(Throughput::Bytes(SIZE as u64));
    let payload = Bytes::from(vec![7; SIZE]);
    group.bench_function("checksums of 64 KiB", |b| {
        b.iter(|| frame::checksums(black_box(&payload)));
    });
    let mut out = Vec::with_capacity(2 * SIZE);
    group.bench_function("make and encode, 64 KiB", |b| {
        b.iter(|| {
            out.clear();
            let made = DataFrame::new(Ino(2), 0, payload.clone(), b"a/file".to_vec());
            out.extend(made.encode_head(4096, Epoch(1)));
            out.extend_from_slice(&made.payload);
            out.extend_from_slice(&made.path);
            black_box(&out);
        });
    });
    assert!(matches!(
        frame::parse(&out, 4096, false),
        frame::Parsed::Frame { .. }
    ));
    group.bench_function("parse, 64 KiB", |b| {
        b.iter(|| black_box(frame::parse(&out, 4096, false)));
    });
    group.finish();
}

fn name(n: u64) -> Vec<u8> {
    format!("{n:036}").into_bytes()
}

fn attr(mode: u32, size: u64) -> Attr {
    Attr {
        mode,
        nlink: 1,
        size,
        ..Attr::default()
    }
}

fn file(n: u64) -> [Row; 3] {
    let extent = Extent {
        off: 0,
        len: 100,
        stream: StreamId(0),
        pos: n * 200,
        frame: 100,
        skip: 0,
    };
    [
        Row::Inode {
            ino: Ino(n),
            attr: attr(libc::S_IFREG | 0o644, 100),
        },
        Row::Entry {
            parent: Ino(1),
            name: name(n),
            ino: Ino(n),
        },
        Row::Extents {
            ino: Ino(n),
            off: 0,
            len: 100,
            extents: vec![extent],
        },
    ]
}

fn apply(index: &mut Index, rows: &[Row]) {
    for row in rows {
        index.apply(row).expect("a row that fits");
    }
}

fn indexes(c: &mut Criterion) {
    let mut index = Index::new();
    let root = Row::Inode {
        ino: Ino(1),
        attr: attr(libc::S_IFDIR | 0o755, 0),
    };
    apply(&mut index, &[root]);
    (2..FILES).for_each(|n| apply(&mut index, &file(n)));
    let mut group = c.benchmark_group("index of a million files");
    group.bench_function("insert and remove a file", |b| {
        let inserted = file(FILES);
        let removed = [
            Row::NoEntry {
                parent: Ino(1),
                name: name(FILES),
            },
            Row::Free { ino: Ino(FILES) },
        ];
        b.iter(|| {
            apply(&mut index, &inserted);
            apply(&mut index, &removed);
        });
    });
    let mut n = 1;
    group.bench_function("look a name up", |b| {
        b.iter(|| {
            n = 2 + (n * 7919) % (FILES - 2);
            black_box(index.lookup(Ino(1), format!("{n:036}").as_bytes()))
        });
    });
    let extents = (0..EXTENTS).map(|i| Extent {
        off: i * 4096,
        len: 4096,
        stream: StreamId(0),
        pos: (FILES + i * 50) * 200,
        frame: 4096,
        skip: 0,
    });
    let long = Row::Extents {
        ino: Ino(2),
        off: 0,
        len: EXTENTS * 4096,
        extents: extents.collect(),
    };
    apply(&mut index, &[long]);
    group.bench_function("plan a read of 128 KiB among 10,000 extents", |b| {
        b.iter(|| {
            n = (n * 7919) % (EXTENTS - 32);
            black_box(index.extents(Ino(2), n * 4096, n * 4096 + (128 << 10)))
        });
    });
    group.finish();
}

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

async fn open() -> Arc<Fs> {
    let config = Config {
        commit_wait: Duration::from_micros(100),
        ..Config::default()
    };
    let memory = MemoryConfig {
        block_size: config.block_size,
        latency: Duration::ZERO..=Duration::ZERO,
        ..MemoryConfig::default()
    };
    let options = OpenOptions {
        config,
        clock: Arc::new(SystemClock),
        host: "bench".into(),
        pid: 1,
        lock_dir: None,
        takeover: false,
        read_only: false,
        uid: 0,
        gid: 0,
    };
    let store = MemoryCluster::with(1, memory).host("bench");
    let volume = Volume::open(store, options).await.expect("a volume");
    Fs::new(volume, FsOptions::default())
}

/// Eight writers commit 64 KiB each, at once; then the files go, so that the store stays small.
fn commits(c: &mut Criterion) {
    const WRITERS: u64 = 8;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fs = runtime.block_on(open());
    let payload = Bytes::from(vec![7; SIZE]);
    let one = |n: u64| {
        let (fs, payload) = (fs.clone(), payload.clone());
        async move {
            let name = Bytes::from(name(n));
            let made = fs.create(WHO, Ino::ROOT, name.clone(), 0o644, 0, libc::O_WRONLY);
            let (entry, fh) = made.await.expect("create");
            let written = fs.write(entry.ino, fh, 0, payload, WriteMode::default());
            written.await.expect("write");
            fs.flush(entry.ino, fh, 0).await.expect("flush");
            fs.release(entry.ino, fh).await.expect("release");
            let gone = fs.unlink(WHO, Ino::ROOT, name).await;
            gone.expect("unlink");
            fs.forget(entry.ino, 1);
        }
    };
    let mut group = c.benchmark_group("group commit");
    group.throughput(Throughput::Elements(WRITERS));
    group.bench_function("8 writers create, write 64 KiB, close, unlink", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let tasks: Vec<_> = (0..WRITERS).map(|n| tokio::spawn(one(n))).collect();
                for task in tasks {
                    task.await.expect("a writer");
                }
            });
        });
    });
    group.finish();
}

criterion_group! {
    name = hot;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_secs(1));
    targets = frames, indexes, commits
}
criterion_main!(hot);
