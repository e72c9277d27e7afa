//! Packed files that lie side by side are read with few requests, in whatever order, and what is
//! read ahead is never taken for something else.

#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;
#[path = "support/seeds.rs"]
mod seeds;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use stowfs::base::{ErrorKind, Ino};
use stowfs::format::Extent;
use stowfs::store::memory::{MemoryCluster, MemoryStore};
use stowfs::volume::{OpenOptions, Volume};

fn options(read_only: bool) -> OpenOptions {
    let mut options = filled::options();
    options.config.segment_size = 8 << 20;
    options.read_only = read_only;
    options
}

struct Root {
    cluster: MemoryCluster,
    host: Arc<MemoryStore>,
    volume: Arc<Volume>,
    extents: Vec<Extent>,
}

impl Root {
    /// A root with these files, each in one frame; mounted anew and read-only, so that it does
    /// nothing by itself.
    async fn new(files: &[Bytes]) -> Root {
        let cluster = MemoryCluster::new(1);
        let volume = Volume::open(cluster.host("a"), options(false)).await;
        let volume = volume.unwrap();
        for (i, content) in files.iter().enumerate() {
            let name = i.to_string();
            match content.len() {
                0..1_000_000 => filled::put(&volume, Ino::ROOT, &name, content.clone()).await,
                _ => filled::put_long(&volume, &name, std::slice::from_ref(content)).await,
            };
        }
        volume.shutdown().await.unwrap();
        let host = cluster.host("b");
        let volume = Volume::open(host.clone(), options(true)).await.unwrap();
        let extents = volume.read(|index| {
            let extent = |i: usize| {
                let ino = index.lookup(Ino::ROOT, i.to_string().as_bytes()).unwrap();
                index.extents(ino, 0, u64::MAX)[0]
            };
            (0..files.len()).map(extent).collect()
        });
        Root {
            cluster,
            host,
            volume,
            extents,
        }
    }
}

fn small() -> Vec<Bytes> {
    let different = |i: u64| [&i.to_le_bytes(), &filled::content(i, 16 << 10)[..]].concat();
    (0..600).map(|i| different(i).into()).collect()
}

#[tokio::test]
async fn neighbours_come_with_few_requests_in_any_order() {
    let files = small();
    for shuffled in [false, true] {
        let root = Root::new(&files).await;
        let mut order: Vec<usize> = (0..files.len()).collect();
        if shuffled {
            order.shuffle(&mut StdRng::seed_from_u64(7));
        }
        let before = root.host.calls();
        for i in order {
            let bytes = root.volume.fetch(&root.extents[i]).await.unwrap();
            assert!(bytes == files[i], "file {i}");
        }
        let calls = root.host.calls() - before;
        assert!(calls < 75, "{calls} calls, shuffled: {shuffled}");
    }
}

/// Requests of half a MiB and more had all been taken for parts of long files, whose neighbours are not
/// worth it: each file cost a request of its own.
#[tokio::test]
async fn neighbours_of_a_mib_that_are_read_whole_come_together_too() {
    let files: Vec<Bytes> = (0..24).map(|i| filled::content(i, 999_000)).collect();
    let root = Root::new(&files).await;
    let before = root.host.calls();
    for (extent, content) in root.extents.iter().zip(&files) {
        assert!(root.volume.fetch(extent).await.unwrap() == content);
    }
    let calls = root.host.calls() - before;
    assert!(calls < 18, "{calls} calls");
}

/// The kernel keeps what is read of a long file, so the cache has only the blocks at the edges of the pieces.
#[tokio::test]
async fn a_long_file_that_is_read_on_and_on_does_not_fill_the_cache() {
    let content = filled::content(1, 4_000_000);
    let root = Root::new(std::slice::from_ref(&content)).await;
    let mut at = 100_000;
    while at + (1 << 20) <= root.extents[0].len as u64 {
        let part = root.extents[0].clip(at, at + (1 << 20));
        let got = root.volume.fetch(&part).await.unwrap();
        assert!(got == content[at as usize..][..1 << 20]);
        at += 1 << 20;
    }
    let cached = root.volume.memory().cache;
    assert!((1..1 << 20).contains(&cached), "{cached} bytes");
}

#[tokio::test]
async fn a_damaged_neighbour_is_missed_by_nobody_else() {
    let files = small();
    let root = Root::new(&files).await;
    let mut hit = 0;
    for path in filled::log_files(&root.cluster) {
        let damage = |bytes: &mut Vec<u8>| {
            let needle = &files[300][..];
            if let Some(at) = bytes.windows(needle.len()).position(|w| w == needle) {
                bytes[at + 5] ^= 1;
                hit += 1;
            }
        };
        // One is the mount's own, and open.
        let _ = root.cluster.damage(&path, damage);
    }
    assert_eq!(hit, 1);
    for (i, (extent, content)) in root.extents.iter().zip(&files).enumerate() {
        match root.volume.fetch(extent).await {
            Err(e) => assert!(i == 300 && e.is(ErrorKind::Corrupt), "{i}: {e}"),
            Ok(bytes) => assert!(i != 300 && bytes == content, "{i}"),
        }
    }
}

#[test]
fn any_part_in_any_order_by_several_readers_is_right() {
    seeds::each("parts read by several", 3, parts);
}

/// Parts of files of all sizes.
async fn parts(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let files: Vec<Bytes> = (0..60)
        .map(|i| {
            let most = [100, 20_000, 300_000, 4 << 20][i % 4];
            filled::content(seed + i as u64, random.random_range(1..=most))
        })
        .collect();
    let root = Root::new(&files).await;
    let shared = Arc::new((root.volume.clone(), files, root.extents.clone()));
    let readers = (0..6).map(|n| {
        let shared = shared.clone();
        let mut random = StdRng::seed_from_u64(seed * 31 + n);
        tokio::spawn(async move {
            let (volume, files, extents) = &*shared;
            let mut i = 0;
            for _ in 0..200 {
                // On to the next one mostly, as one who restores.
                i = match random.random_range(0..4) {
                    0 => random.random_range(0..files.len()),
                    _ => (i + 1) % files.len(),
                };
                let len = files[i].len();
                let from = random.random_range(0..len) * random.random_range(0..2);
                let to = random.random_range(from..len) + 1;
                let part = extents[i].clip(from as u64, to as u64);
                let got = volume.fetch(&part).await.unwrap();
                assert!(got == files[i][from..to], "file {i}, bytes {from} to {to}");
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
}
