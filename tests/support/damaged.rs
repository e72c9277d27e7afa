//! Roots on the memory store that get damaged, and what fsck and rebuild say of them.

use super::filled::*;
use std::sync::Arc;
use stowfs::admin::{FsckOptions, RebuildOptions, RebuildReport, Report, fsck, rebuild};
use stowfs::base::{Ino, Result, SystemClock};
use stowfs::format::Frame;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;

pub const N: u64 = 60;

pub async fn check(cluster: &MemoryCluster) -> Report {
    fsck(host(cluster), &FsckOptions::default())
        .await
        .expect("fsck runs")
}

pub async fn salvage(store: Arc<dyn Store>) -> Result<RebuildReport> {
    let options = RebuildOptions {
        clock: Arc::new(SystemClock),
        host: "test".into(),
        pid: 1,
        lock_dir: None,
        takeover: false,
        parallel: 2,
    };
    rebuild(store, &options).await
}

/// Rebuilds, and shows that a mount works afterwards: it reads, writes, and can be mounted again.
pub async fn salvaged(cluster: &MemoryCluster) -> (RebuildReport, Arc<stowfs::volume::Volume>) {
    let report = salvage(host(cluster)).await.expect("rebuild");
    let volume = open(&host(cluster)).await.expect("a mount after a rebuild");
    replace(&volume, "after", body(7)).await;
    volume.shutdown().await.expect("shutdown");
    let volume = open(&host(cluster)).await.expect("a second mount");
    assert_eq!(get(&volume, "after").await.unwrap().unwrap(), body(7));
    if report.damaged.is_empty() {
        assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    }
    (report, volume)
}

pub fn bytes_of(cluster: &MemoryCluster, path: &str) -> Vec<u8> {
    cluster.peek(path).expect("a file").0
}

pub fn flip(cluster: &MemoryCluster, path: &str, at: usize) {
    cluster
        .damage(path, |bytes| bytes[at] ^= 0x10)
        .expect("a closed file");
}

/// Offset and length of the `n`-th record of a segment, and the file it is about.
pub fn record(cluster: &MemoryCluster, path: &str, n: usize) -> (usize, usize, Ino) {
    let all = frames(&bytes_of(cluster, path));
    let mut ino = Ino(0);
    let mut seen = 0;
    for (at, len, frame) in all {
        match frame {
            Frame::Data { head, .. } => ino = head.ino,
            Frame::Record(_) if seen == n => return (at, len, ino),
            Frame::Record(_) => seen += 1,
        }
    }
    panic!("there is no record {n}");
}

/// Destroys a record where it was written, and in the frame table if there is one.
pub fn destroy_record(cluster: &MemoryCluster, path: &str, n: usize) -> Ino {
    let (at, len, ino) = record(cluster, path, n);
    let copy = bytes_of(cluster, path)[at..at + len].to_vec();
    cluster
        .damage(path, |bytes| {
            let hits: Vec<usize> = (0..bytes.len() - len)
                .filter(|i| bytes[*i..i + len] == copy)
                .collect();
            assert!(
                (1..=2).contains(&hits.len()),
                "in its place, and in the table"
            );
            hits.into_iter().for_each(|i| bytes[i + len - 1] ^= 1);
        })
        .unwrap();
    ino
}

pub async fn with_lane(seed: u64) -> MemoryCluster {
    let cluster = filled(seed, 5).await;
    let volume = open(&host(&cluster)).await.unwrap();
    let pieces: Vec<_> = (0..6).map(|i| content(i, 20_000)).collect();
    put_long(&volume, "long", &pieces).await;
    volume.shutdown().await.unwrap();
    cluster
}
