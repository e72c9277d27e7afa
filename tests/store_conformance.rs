//! The contract of a store, on the stores that need no server. (HDFS: `tests/hdfs_store.rs`.)

#[path = "support/store_suite/mod.rs"]
mod store_suite;

use std::sync::Arc;
use std::time::Duration;
use store_suite::run_suite;
use stowfs::base::{ErrorKind, Random};
use stowfs::store::faulty::{Fault, Faults, Rates, Rule};
use stowfs::store::local::LocalStore;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::store::retry::with_retries;
use stowfs::store::timeout::{Limits, with_time_out};
use stowfs::store::{Op, Store};

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
    let zero = Duration::ZERO;
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

/// Decorators change when a call ends, not what it means.
#[tokio::test(start_paused = true)]
async fn decorated_stores_keep_the_contract() {
    for seed in 0..10 {
        println!("seed {seed}");
        let cluster = MemoryCluster::new(seed);
        let faults = Faults::new(seed);
        let longest_delay = Duration::from_millis(300);
        faults.set_rates(Rates {
            delay: 4,
            longest_delay,
            ..Rates::default()
        });
        let outage = Rule::new(Fault::Refuse(ErrorKind::Unavailable));
        faults.add(
            outage
                .op(Op::Stat)
                .op(Op::Open)
                .op(Op::Read)
                .op(Op::List)
                .skip(10)
                .times(5),
        );
        let client = |name| {
            let (second, random) = (Duration::from_secs(1), Random::new(seed));
            let limits = Limits {
                call: second,
                recover: 10 * second,
                slow: second,
            };
            let bounded = with_time_out(faults.wrap(cluster.host(name)), limits);
            with_retries(bounded, 10 * second, random)
        };
        run_suite(client("a"), client("b")).await;
        assert!(faults.injected() > 100);
    }
}
