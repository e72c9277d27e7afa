//! The store on a real HDFS: the contract of all stores, and what only HDFS does.

mod support;

use std::sync::{Arc, OnceLock};
use stowfs::store::hdfs::HdfsOptions;
use stowfs::store::{ConnectOptions, Store, connect};
use support::hdfs::Hdfs;
use support::store_suite::run_suite;

/// One cluster for the tests that leave it as they found it.
fn shared() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| Hdfs::builder().datanodes(2).replication(2).start())
}

async fn store(hdfs: &Hdfs, dir: &str, change: impl FnOnce(&mut HdfsOptions)) -> Arc<dyn Store> {
    let mut options = ConnectOptions::default();
    options.hdfs.conf_dir = Some(hdfs.conf_dir());
    options.hdfs.block_size = 64 << 10;
    change(&mut options.hdfs);
    let store = connect(&format!("{}/{dir}", hdfs.url()), &options)
        .await
        .unwrap();
    store.mkdir("").await.unwrap();
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn hdfs_keeps_the_contract() {
    let hdfs = shared();
    let one = store(hdfs, "contract", |_| ()).await;
    let two = store(hdfs, "contract", |_| ()).await;
    run_suite(one, two).await;
}
