//! The store on a real HDFS: the contract of all stores, what it costs the NameNode, and what only
//! HDFS refuses.

mod support;

use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stowfs::base::{ErrorKind, Result};
use stowfs::store::hdfs::HdfsOptions;
use stowfs::store::local::LocalStore;
use stowfs::store::{ConnectOptions, Store, connect};
use support::differential::compare;
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
async fn hdfs_and_local_agree() {
    for seed in 0..6 {
        println!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let local = LocalStore::new("file:///test", dir.path());
        let hdfs = store(&format!("random-{seed}")).await;
        compare(seed, 150, &*hdfs, &local).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_filesystem_needs_no_authority() {
    let hdfs = HdfsOptions {
        conf_dir: Some(cluster().conf_dir()),
        ..HdfsOptions::default()
    };
    let options = ConnectOptions { hdfs };
    let one = connect("hdfs:///default", &options).await.unwrap();
    one.mkdir("").await.unwrap();
    one.put("a", Bytes::from_static(b"a")).await.unwrap();
    let other = connect_to("default", |_| ()).await;
    assert_eq!(other.stat("a").await.unwrap().len, 1);
}

/// What each call costs the NameNode; design and documents rest on it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_to_the_namenode_are_few() {
    let hdfs = Hdfs::builder().start();
    let mut options = ConnectOptions::default();
    options.hdfs.block_size = BLOCK;
    let store = connect(&format!("{}/cost", hdfs.url()), &options)
        .await
        .unwrap();
    store.mkdir("").await.unwrap();
    let cost = async |what: &str, f: BoxFuture<'_, Result<()>>| {
        let before = hdfs.rpc_counts();
        f.await.unwrap();
        let calls = hdfs.rpc_counts().since(&before);
        println!("{what}: {calls:?}");
        calls
    };
    let content = Bytes::from_static(b"content");

    let put = cost("put", Box::pin(store.put("f", content.clone()))).await;
    let once = ["Create", "AddBlock", "Fsync", "Rename2"].map(|call| put.get(call));
    assert_eq!(once, [1; 4], "{put:?}");
    assert!(put.total() <= 5 + put.complete(), "{put:?}");

    let mut writer = store.create("g").await.unwrap();
    writer.append(content.clone()).await.unwrap();
    let sync = async {
        for _ in 0..100 {
            writer.append(content.clone()).await?;
            writer.sync().await?;
        }
        Ok(())
    };
    let sync = cost("100 syncs", Box::pin(sync)).await;
    assert_eq!((sync.fsync(), sync.total()), (100, 100), "{sync:?}");

    // Each block is synced before it is full, or its last bytes would never be.
    let blocks = async {
        writer
            .append(Bytes::from(vec![1; 4 * BLOCK as usize]))
            .await?;
        writer.close().await
    };
    let blocks = cost("four blocks more", Box::pin(blocks)).await;
    assert_eq!((blocks.add_block(), blocks.fsync()), (4, 5), "{blocks:?}");

    let reader = store.open("g").await.unwrap();
    let read = async {
        for i in 0..100 {
            reader.read_at(i * 2000, 5000).await?;
        }
        Ok(())
    };
    let read = cost("100 reads", Box::pin(read)).await;
    assert_eq!(read.total(), 0, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_denied() {
    let store = store("mine").await;
    store.put("f", Bytes::from_static(b"secret")).await.unwrap();
    let stranger = connect_to("mine", |options| options.user = Some("stranger".into())).await;
    refused(stranger.open("f").await, ErrorKind::Denied, "stranger");
    refused(
        stranger.create("g").await,
        ErrorKind::Denied,
        "AccessControlException",
    );
    refused(stranger.list("").await, ErrorKind::Denied, "/mine");
    refused(
        stranger.put("h", Bytes::new()).await,
        ErrorKind::Denied,
        "/mine/h",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_no_space_until_they_are_raised() {
    let store = store("quota").await;
    admin(DFS_ADMIN, &["-setSpaceQuota", "300000", "/quota"]);
    let two_replicas = connect_to("quota", |options| options.replication = Some(2)).await;
    let usage = two_replicas.usage().await.unwrap();
    assert_eq!((usage.capacity, usage.available), (150_000, 150_000));
    refused(
        write(&*store, "f", 200_000).await,
        ErrorKind::NoSpace,
        "DSQuotaExceeded",
    );
    admin(DFS_ADMIN, &["-clrSpaceQuota", "/quota"]);
    write(&*store, "g", 200_000).await.unwrap();

    admin(DFS_ADMIN, &["-setQuota", "3", "/quota"]);
    refused(
        store.put("h", Bytes::new()).await,
        ErrorKind::NoSpace,
        "NSQuotaExceeded",
    );
    refused(store.mkdir("i").await, ErrorKind::NoSpace, "/quota/i");
    admin(DFS_ADMIN, &["-clrQuota", "/quota"]);
    store.put("h", Bytes::new()).await.unwrap();
    assert!(store.usage().await.unwrap().available > 1 << 40);
}

/// hsync is refused on such files, so nothing there would ever be durable.
#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_coded_root_is_refused_with_the_way_out() {
    let store = store("coded").await;
    admin(EC_ADMIN, &["-enablePolicy", "-policy", "XOR-2-1-1024k"]);
    admin(
        EC_ADMIN,
        &["-setPolicy", "-path", "/coded", "-policy", "XOR-2-1-1024k"],
    );
    for block_size in [BLOCK, 4 << 20] {
        let store = connect_to("coded", |options| options.block_size = block_size).await;
        let put = store.put("FORMAT", Bytes::from_static(b"1")).await;
        refused(put, ErrorKind::Unsupported, "hdfs ec -setPolicy -replicate");
    }
    assert!(store.list("").await.unwrap().is_empty());
    admin(EC_ADMIN, &["-setPolicy", "-replicate", "-path", "/coded"]);
    store.put("FORMAT", Bytes::from_static(b"1")).await.unwrap();
}

/// The NameNode says so at once; the call waits for the end of the safe mode, but not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn safe_mode_is_waited_for() {
    let hdfs = Hdfs::builder().start();
    let mut options = ConnectOptions::default();
    options.hdfs.op_timeout = Duration::from_secs(3);
    let store = connect(&format!("{}/safe", hdfs.url()), &options)
        .await
        .unwrap();
    store.mkdir("").await.unwrap();
    tokio::task::block_in_place(|| hdfs.admin(DFS_ADMIN, &["-safemode", "enter"])).unwrap();
    let start = Instant::now();
    refused(store.create("f").await, ErrorKind::Unavailable, "SafeMode");
    assert!(
        (2..10).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert!(store.list("").await.unwrap().is_empty());

    let options = ConnectOptions::default();
    let patient = connect(store.url(), &options).await.unwrap();
    let leave = || hdfs.admin(DFS_ADMIN, &["-safemode", "leave"]).unwrap();
    let leave = async { tokio::task::block_in_place(leave) };
    let (put, _) = tokio::join!(patient.put("f", Bytes::from_static(b"f")), leave);
    put.unwrap();
}

#[tokio::test]
async fn a_bad_place_is_named() {
    let no_conf = tempfile::tempdir().unwrap();
    let hdfs = HdfsOptions {
        conf_dir: Some(no_conf.path().into()),
        op_timeout: Duration::from_millis(500),
        ..HdfsOptions::default()
    };
    let options = ConnectOptions { hdfs };
    let cases = [
        ("hdfs://ns7/a", ErrorKind::Invalid, "ns7 is no nameservice"),
        ("hdfs:///a", ErrorKind::Invalid, "fs.defaultFS"),
        ("hdfs://host:x/a", ErrorKind::Usage, "port"),
    ];
    for (url, kind, why) in cases {
        refused(connect(url, &options).await, kind, why);
    }
    let odd = HdfsOptions {
        block_size: 1000,
        ..options.hdfs.clone()
    };
    let odd = connect("hdfs://localhost:9/a", &ConnectOptions { hdfs: odd }).await;
    refused(odd, ErrorKind::Invalid, "multiple of 512");
    // Nobody listens there.
    let store = connect("hdfs://127.0.0.1:9/a", &options).await.unwrap();
    let start = Instant::now();
    let error = store.stat("").await.unwrap_err();
    assert!(error.is_ambiguous(), "{error:?}");
    assert!(error.to_string().contains("hdfs://127.0.0.1:9"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}
