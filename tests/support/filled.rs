//! Roots with files in them, to look at and to damage.

use bytes::Bytes;
use std::sync::Arc;
use stowfs::base::config::Config;
use stowfs::base::{Error, Ino, Result};
use stowfs::format::frame::{Frame, Parsed, parse};
use stowfs::format::segment::{HEADER_LEN, SegmentHeader};
use stowfs::format::{Attr, DataFrame, Extent, Row};
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use stowfs::volume::{OpenOptions, Volume};

pub fn options() -> OpenOptions {
    OpenOptions::new(Config {
        segment_size: 32 << 10,
        block_size: 4 << 10,
        ..Config::default()
    })
}

pub async fn open(store: &Arc<dyn Store>) -> Result<Arc<Volume>> {
    Volume::open(store.clone(), options()).await
}

pub fn host(cluster: &MemoryCluster) -> Arc<dyn Store> {
    cluster.host("test")
}

pub fn content(i: u64, len: usize) -> Bytes {
    (0..len)
        .map(|k| (i as usize * 131 + k * 7) as u8)
        .collect::<Vec<_>>()
        .into()
}

fn file_attr(size: u64) -> Attr {
    Attr {
        mode: libc::S_IFREG | 0o644,
        nlink: 1,
        size,
        ..Attr::default()
    }
}

fn link(ino: Ino, parent: Ino, name: &str, extents: Vec<Extent>) -> [Row; 3] {
    let size = extents.last().map_or(0, Extent::end);
    let name = name.into();
    [
        Row::Inode {
            ino,
            attr: file_attr(size),
        },
        Row::Entry { parent, name, ino },
        Row::Extents {
            ino,
            off: 0,
            len: size,
            extents,
        },
    ]
}

/// Creates a file with its content, durably.
pub async fn put(volume: &Volume, parent: Ino, name: &str, data: Bytes) -> Ino {
    let ino = volume.new_ino().expect("a number");
    let ((), pos) = volume
        .change(|_, change| {
            let extent = change.data(DataFrame::new(ino, 0, data, name.into()));
            link(ino, parent, name, vec![extent])
                .into_iter()
                .for_each(|r| change.row(r));
            Ok::<_, Error>(())
        })
        .expect("a change");
    volume.durable(pos).await.expect("durable");
    ino
}

/// The same through a lane, in pieces.
pub async fn put_long(volume: &Volume, name: &str, pieces: &[Bytes]) -> Ino {
    let ino = volume.new_ino().expect("a number");
    let (mut extents, mut off) = (Vec::new(), 0);
    for piece in pieces {
        let frame = DataFrame::new(ino, off, piece.clone(), name.into());
        extents.push(volume.lane_append(frame, None).await.expect("lane"));
        off += piece.len() as u64;
    }
    volume.lane_sync(&extents).await.expect("durable lane");
    let ((), pos) = volume
        .change(|_, change| {
            link(ino, Ino::ROOT, name, extents)
                .into_iter()
                .for_each(|r| change.row(r));
            Ok::<_, Error>(())
        })
        .expect("a change");
    volume.durable(pos).await.expect("durable");
    ino
}

pub async fn mkdir(volume: &Volume, name: &str) -> Ino {
    let ino = volume.new_ino().expect("a number");
    let ((), pos) = volume
        .change(|index, change| {
            let mut root = index.attr(Ino::ROOT).expect("the root");
            root.nlink += 1;
            let attr = Attr {
                mode: libc::S_IFDIR | 0o755,
                nlink: 2,
                ..Attr::default()
            };
            change.row(Row::Inode { ino, attr });
            change.row(Row::Inode {
                ino: Ino::ROOT,
                attr: root,
            });
            let (parent, name) = (Ino::ROOT, name.into());
            change.row(Row::Entry { parent, name, ino });
            Ok::<_, Error>(())
        })
        .expect("a change");
    volume.durable(pos).await.expect("durable");
    ino
}

pub async fn take_snapshot(volume: &Volume) {
    let duty = volume.duty().expect("upkeep");
    duty.take_snapshot(volume).await.expect("a snapshot");
}

/// The bytes of a file by its path; None if there is no such file.
pub async fn get(volume: &Volume, path: &str) -> Option<Result<Vec<u8>>> {
    let (size, extents) = volume.read(|index| {
        let mut ino = Ino::ROOT;
        for name in path.split('/') {
            ino = index.lookup(ino, name.as_bytes())?;
        }
        Some((index.attr(ino)?.size, index.extents(ino, 0, u64::MAX)))
    })?;
    let mut out = vec![0; size as usize];
    for e in extents {
        match volume.fetch(&e).await {
            Ok(bytes) => out[e.off as usize..e.end() as usize].copy_from_slice(&bytes),
            Err(e) => return Some(Err(e)),
        }
    }
    Some(Ok(out))
}

/// A root with `n` files `f0…` of 1,000 bytes and more in several log segments, shut down cleanly.
pub async fn filled(seed: u64, n: u64) -> MemoryCluster {
    let cluster = MemoryCluster::new(seed);
    let volume = open(&host(&cluster)).await.expect("mount");
    for i in 0..n {
        put(&volume, Ino::ROOT, &format!("f{i}"), body(i)).await;
    }
    volume.shutdown().await.expect("shutdown");
    cluster
}

/// What `filled` writes to file `f<i>`.
pub fn body(i: u64) -> Bytes {
    content(i, 1000 + i as usize * 10)
}

/// Which of the files of `filled` can be read, are there but fail, and are missing.
pub async fn census(volume: &Volume, n: u64) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let (mut good, mut bad, mut missing) = (vec![], vec![], vec![]);
    for i in 0..n {
        match get(volume, &format!("f{i}")).await {
            None => missing.push(i),
            Some(Err(_)) => bad.push(i),
            Some(Ok(found)) => {
                assert_eq!(found, body(i), "f{i}");
                good.push(i);
            }
        }
    }
    (good, bad, missing)
}

pub fn log_files(cluster: &MemoryCluster) -> Vec<String> {
    files_below(cluster, ".stowfs/log/")
}

pub fn lane_files(cluster: &MemoryCluster) -> Vec<String> {
    files_below(cluster, ".stowfs/data/")
}

fn files_below(cluster: &MemoryCluster, dir: &str) -> Vec<String> {
    let mut files: Vec<String> = cluster
        .tree()
        .into_iter()
        .filter(|p| p.starts_with(dir) && p.ends_with(".seg"))
        .collect();
    let numbers = |p: &String| -> Vec<u32> {
        let parts = p.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|n| n.parse().ok()).collect()
    };
    files.sort_by_key(numbers);
    files
}

/// Offset, length and kind of every frame of a segment.
pub fn frames(bytes: &[u8]) -> Vec<(usize, usize, Frame)> {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let (mut at, mut found) = (HEADER_LEN, Vec::new());
    while let Parsed::Frame { prefix, frame } =
        parse(&bytes[at..], header.base + (at - HEADER_LEN) as u64, false)
    {
        found.push((at, prefix.frame_len(), frame));
        at += prefix.frame_len();
    }
    found
}

/// Creates a file or replaces all of its content, durably.
pub async fn replace(volume: &Volume, name: &str, data: Bytes) {
    let fresh = volume.new_ino().expect("a number");
    let ((), pos) = volume
        .change(|index, change| {
            let known = index.lookup(Ino::ROOT, name.as_bytes());
            let ino = known.unwrap_or(fresh);
            let len = data.len() as u64;
            let extent = change.data(DataFrame::new(ino, 0, data, name.into()));
            let extents = vec![extent];
            change.row(Row::Inode {
                ino,
                attr: file_attr(len),
            });
            change.row(Row::Extents {
                ino,
                off: 0,
                len: u64::MAX,
                extents,
            });
            if known.is_none() {
                let (parent, name) = (Ino::ROOT, name.into());
                change.row(Row::Entry { parent, name, ino });
            }
            Ok::<_, Error>(())
        })
        .expect("a change");
    volume.durable(pos).await.expect("durable");
}
