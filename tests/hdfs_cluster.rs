//! The test helper that starts a real HDFS: it must itself be right before anything rests on it.

mod support;

use hdfs_native::{ClientBuilder, WriteOptions};
use std::time::Duration;
use support::hdfs::Hdfs;

fn client(hdfs: &Hdfs) -> hdfs_native::Client {
    ClientBuilder::new()
        .with_url(hdfs.url())
        .with_config_dir(hdfs.conf_dir().to_str().unwrap())
        .build()
        .unwrap()
}

async fn write(client: &hdfs_native::Client, path: &str) -> hdfs_native::Result<()> {
    let mut w = client.create(path, WriteOptions::default()).await?;
    w.write_bytes(bytes::Bytes::from_static(b"hello")).await?;
    w.hsync().await?;
    w.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_namenode_counts_calls_and_comes_back() {
    let hdfs = Hdfs::builder().datanodes(2).replication(2).start();
    assert_eq!(hdfs.live_datanodes(), 2);
    let before = hdfs.rpc_counts();
    write(&client(&hdfs), "/a").await.unwrap();
    let calls = hdfs.rpc_counts().since(&before);
    assert_eq!(
        (calls.create(), calls.add_block(), calls.fsync()),
        (1, 1, 1),
        "{calls:?}"
    );
    assert!(
        calls.total() < 12,
        "only calls of clients are counted: {calls:?}"
    );

    hdfs.kill_datanode(0);
    hdfs.restart_datanode(0);
    hdfs.kill_namenode(0);
    hdfs.restart_namenode(0);
    hdfs.wait_ready();
    write(&client(&hdfs), "/b").await.unwrap();

    hdfs.freeze_datanode(1);
    hdfs.freeze_namenode(0);
    assert_eq!(hdfs.active(), None);
    hdfs.thaw_namenode(0);
    hdfs.thaw_datanode(1);
    hdfs.wait_ready();
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_pair_fails_over() {
    let hdfs = Hdfs::builder().ha(true).start();
    let client = client(&hdfs);
    write(&client, "/a").await.unwrap();
    assert_eq!(hdfs.failover(), 1);
    assert_eq!(hdfs.active(), Some(1));
    write(&client, "/b").await.unwrap();
    hdfs.kill_namenode(1);
    hdfs.force_active(0);
    // So long that a heartbeat which the dead one still answered is stale: it is not waited for.
    tokio::time::sleep(Duration::from_secs(6)).await;
    hdfs.wait_ready();
    write(&client, "/c").await.unwrap();
}
