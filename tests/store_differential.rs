//! Random calls on the memory store and on a local one must come out alike: what simulations prove
//! on the one then means something for the other. (HDFS: `tests/hdfs_store.rs`.)

#[path = "support/differential.rs"]
mod differential;

use differential::compare;
use stowfs::store::local::LocalStore;
use stowfs::store::memory::MemoryCluster;

#[tokio::test(start_paused = true)]
async fn memory_and_local_agree() {
    let seeds = match std::env::var("STORE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STORE_SEED is a number")],
        Err(_) => (0..40).collect(),
    };
    for seed in seeds {
        let dir = tempfile::tempdir().unwrap();
        let local = LocalStore::new("file:///test", dir.path());
        let memory = MemoryCluster::new(seed).host("a");
        compare(seed, 150, &*memory, &local).await;
    }
}
