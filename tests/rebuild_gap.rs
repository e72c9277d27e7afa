//! What a rebuild knows of changes that came after a lost part of the log.

#[path = "support/damaged.rs"]
#[allow(dead_code)]
mod damaged;
#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;
#[path = "support/tree.rs"]
#[allow(dead_code)]
mod tree;

use damaged::salvage;
use std::sync::Arc;
use stowfs::base::{Config, Ino};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use tree::{Tree, content};

const SPARSE: u64 = 500_000;

/// A root whose first log, in which two directories were made, is lost.
async fn without_the_first_log() -> MemoryCluster {
    let cluster = MemoryCluster::new(3);
    let store: Arc<dyn Store> = cluster.host("a");
    let mut t = Tree::open(&store, Config::default()).await;
    t.write("one/old", &content(1, 10)).await;
    t.write("two/old", &content(2, 10)).await;
    t.remount(&store, Config::default()).await;
    for (n, path) in ["one/first", "one/second", "two/first", "two/second"]
        .iter()
        .enumerate()
    {
        t.write(path, &content(n, 700)).await;
    }
    t.write("sparse", b"").await;
    t.sync().await;
    t.truncate("sparse", SPARSE).await;
    t.sync().await;
    t.volume().shutdown().await.expect("shutdown");
    drop(t);
    let all = filled::log_files(&cluster).into_iter();
    let first: Vec<String> = all.filter(|path| path.contains("log/1.fenced/")).collect();
    assert!(!first.is_empty());
    for path in &first {
        store.delete(path).await.expect("lost");
    }
    cluster
}

fn names(index: &Index, dir: Ino) -> Vec<(String, Ino)> {
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let all = index.readdir(dir, 0);
    all.map(|entry| (name(entry.name), entry.ino)).collect()
}

/// The first entry in a directory of the lost part lost its name: its record names it before it tells
/// of the directory.
#[tokio::test(start_paused = true)]
async fn the_first_name_in_a_directory_after_the_gap_is_kept() {
    let cluster = without_the_first_log().await;
    salvage(filled::host(&cluster)).await.expect("rebuilt");
    let store: Arc<dyn Store> = cluster.host("b");
    let t = Tree::open(&store, Config::default()).await;
    let mut inside: Vec<String> = t.volume().read(|index| {
        let lost = index.lookup(Ino::ROOT, b"lost+found").expect("lost+found");
        let dirs = names(index, lost).into_iter();
        dirs.flat_map(|(_, dir)| names(index, dir))
            .map(|(name, _)| name)
            .collect()
    });
    inside.sort();
    assert_eq!(inside, ["first", "first", "second", "second"]);
}

/// A file that was made after the gap has no unknown bytes: what was never written is a hole.
#[tokio::test(start_paused = true)]
async fn holes_of_a_file_made_after_the_gap_are_no_lost_bytes() {
    let cluster = without_the_first_log().await;
    let report = salvage(filled::host(&cluster)).await.expect("rebuilt");
    assert!(report.damaged.is_empty(), "{report}");
    let store: Arc<dyn Store> = cluster.host("b");
    let t = Tree::open(&store, Config::default()).await;
    assert_eq!(t.attr("sparse").expect("it is there").size, SPARSE);
    let read = t.read("sparse").await.expect("it is there");
    assert!(read == vec![0; SPARSE as usize]);
}
