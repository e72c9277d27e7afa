//! The store on a real HDFS: the contract of all stores, what it costs the NameNode, and what only
//! HDFS refuses.

mod support;

use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stowfs::base::{ErrorKind, Result};
use stowfs::store::hdfs::HdfsOptions;
use stowfs::store::{ConnectOptions, Store, connect};
use support::hdfs::Hdfs;
use support::store_suite::run_suite;

const BLOCK: u64 = 64 << 10;
const DFS_ADMIN: &str = "org.apache.hadoop.hdfs.tools.DFSAdmin";
const EC_ADMIN: &str = "org.apache.hadoop.hdfs.tools.ECAdmin";

/// One cluster for all tests: each leaves it as it found it. Its listings come in many parts.
fn cluster() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let builder = Hdfs::builder().datanodes(2).replication(2);
        builder.property("dfs.ls.limit", "40").start()
    })
}

async fn connect_to(dir: &str, change: impl FnOnce(&mut HdfsOptions)) -> Arc<dyn Store> {
    let mut options = ConnectOptions::default();
    options.hdfs.conf_dir = Some(cluster().conf_dir());
    options.hdfs.block_size = BLOCK;
    options.hdfs.op_timeout = Duration::from_secs(8);
    change(&mut options.hdfs);
    let url = format!("{}/{dir}", cluster().url());
    connect(&url, &options).await.unwrap()
}

/// A new directory.
async fn store(dir: &str) -> Arc<dyn Store> {
    let store = connect_to(dir, |_| ()).await;
    store.mkdir("").await.unwrap();
    store
}

fn admin(class: &str, args: &[&str]) {
    tokio::task::block_in_place(|| cluster().admin(class, args)).unwrap();
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    let e = result.err().expect("it should be refused");
    assert!(e.is(kind) && e.to_string().contains(text), "{e:?}");
}

/// Appends and syncs, one file per call.
async fn write(store: &dyn Store, path: &str, len: usize) -> Result<()> {
    let mut writer = store.create(path).await?;
    writer.append(Bytes::from(vec![1; len])).await?;
    writer.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn hdfs_keeps_the_contract() {
    let (one, two) = (store("contract").await, store("contract").await);
    run_suite(one, two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hdfs_keeps_the_contract_with_default_options_and_as_the_default_filesystem() {
    let options = ConnectOptions::default().with_conf_dir(cluster().conf_dir());
    let one = connect("hdfs:///default", &options).await.unwrap();
    one.mkdir("").await.unwrap();
    one.put("a", Bytes::from_static(b"a")).await.unwrap();
    let other = connect_to("default", |_| ()).await;
    assert_eq!(other.stat("a").await.unwrap().len, 1);
    let refusing = HdfsOptions { block_size: 1000, ..options.hdfs };
    let refusing = ConnectOptions { hdfs: refusing };
    refused(connect("hdfs:///default", &refusing).await, ErrorKind::Invalid, "multiple of 512");
}
