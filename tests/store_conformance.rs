//! The contract of a store, on the stores that need no server. (HDFS: `tests/hdfs_store.rs`.)

#[path = "support/store_suite.rs"]
mod store_suite;

use std::sync::Arc;
use store_suite::run_suite;
use stowfs::store::Store;
use stowfs::store::local::LocalStore;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};

#[tokio::test(start_paused = true)]
async fn memory_keeps_the_contract() {
    for seed in 0..50 {
        println!("seed {seed}");
        let cluster = MemoryCluster::new(seed);
        run_suite(cluster.host("a"), cluster.host("b")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_keeps_the_contract_without_latency() {
    let zero = std::time::Duration::ZERO;
    let config = MemoryConfig {
        latency: zero..=zero,
        ..MemoryConfig::default()
    };
    let cluster = MemoryCluster::with(1, config);
    run_suite(cluster.host("a"), cluster.host("b")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let client = || Arc::new(LocalStore::new("file:///test", dir.path().join("root")));
    client().mkdir("").await.unwrap();
    run_suite(client(), client()).await;
}
