//! The store on a real HDFS whose daemons are killed, frozen, restarted and failed over. Every call
//! must end in time; what was acknowledged must be there; and the same store object must serve
//! again when HDFS does.

mod support;

use bytes::Bytes;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};
use stowfs::base::{ErrorKind, Result};
use stowfs::store::hdfs::HdfsOptions;
use stowfs::store::{ConnectOptions, Store, Writer, connect};
use support::hdfs::Hdfs;
use tokio::sync::{Mutex, MutexGuard};

/// A cluster that one test after the other breaks and mends.
struct Cluster {
    hdfs: Hdfs,
    turn: Mutex<()>,
}

impl Cluster {
    async fn take(&self) -> (&Hdfs, MutexGuard<'_, ()>) {
        let turn = self.turn.lock().await;
        tokio::task::block_in_place(|| self.hdfs.mend());
        (&self.hdfs, turn)
    }
}

fn plain() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let hdfs = Hdfs::builder().datanodes(3).replication(2).start();
        Cluster {
            hdfs,
            turn: Mutex::new(()),
        }
    })
}

fn ha() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let hdfs = Hdfs::builder().datanodes(1).ha(true).start();
        Cluster {
            hdfs,
            turn: Mutex::new(()),
        }
    })
}

const SYNC: Duration = Duration::from_secs(6);
const OP: Duration = Duration::from_secs(15);

async fn store(hdfs: &Hdfs, dir: &str) -> Arc<dyn Store> {
    let hdfs_options = HdfsOptions {
        op_timeout: OP,
        rpc_timeout: Duration::from_secs(2),
        sync_timeout: SYNC,
        socket_timeout: Duration::from_secs(1),
        conf_dir: Some(hdfs.conf_dir()),
        ..HdfsOptions::default()
    };
    let options = ConnectOptions { hdfs: hdfs_options };
    let store = connect(&format!("{}/{dir}", hdfs.url()), &options)
        .await
        .unwrap();
    store.mkdir("").await.unwrap();
    store
}

async fn write(writer: &mut dyn Writer, text: &'static str) -> Result<()> {
    writer.append(Bytes::from_static(text.as_bytes())).await?;
    writer.sync().await
}

async fn read(store: &dyn Store, path: &str) -> Bytes {
    let reader = store.open(path).await.unwrap();
    reader.read_at(0, reader.len() as usize).await.unwrap()
}

/// Runs `f` until it succeeds.
async fn eventually<T>(what: &str, f: impl AsyncFn() -> Result<T>) -> T {
    let start = Instant::now();
    loop {
        match f().await {
            Ok(value) => return value,
            Err(e) if start.elapsed() > Duration::from_secs(60) => panic!("{what}: {e}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// A file that was synced on two of three DataNodes; returns it with one of those DataNodes.
async fn file_on(hdfs: &Hdfs, store: &dyn Store, name: &str) -> (Box<dyn Writer>, usize) {
    let mut writer = store.create(name).await.unwrap();
    write(&mut *writer, "kept").await.unwrap();
    (writer, hdfs.a_datanode_that_is_written_to())
}

/// hdfs-native replaces a DataNode that is found dead by the next sync, and waits for ever when it
/// dies during one.
#[tokio::test(flavor = "multi_thread")]
async fn a_sync_ends_when_a_datanode_of_its_pipeline_is_killed() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "killed").await;
    for during_the_sync in [false, true] {
        let name = format!("f-{during_the_sync}");
        let (mut writer, victim) = file_on(hdfs, &*store, &name).await;
        hdfs.freeze_datanode(victim);
        if !during_the_sync {
            hdfs.kill_datanode(victim);
        }
        let start = Instant::now();
        let kill = async {
            tokio::time::sleep(SYNC / 4).await;
            hdfs.kill_datanode(victim);
        };
        let (result, ()) = tokio::join!(write(&mut *writer, " and more"), kill);
        assert!(start.elapsed() < SYNC * 2, "{:?}", start.elapsed());
        let acknowledged = match result {
            Ok(()) => "kept and more",
            Err(_) => {
                let broken = writer.sync().await.unwrap_err();
                assert!(broken.to_string().contains("broken"), "{broken}");
                assert!(writer.close().await.is_err());
                "kept"
            }
        };
        drop(writer);
        store.recover(&name).await.unwrap();
        let content = read(&*store, &name).await;
        assert!(content.starts_with(acknowledged.as_bytes()), "{content:?}");

        // A new pipeline may be given the dead DataNode until the NameNode notices.
        eventually("writing goes on", async || {
            let name = uuid::Uuid::new_v4().to_string();
            let mut writer = store.create(&name).await?;
            write(&mut *writer, "new").await?;
            writer.close().await
        })
        .await;
        hdfs.restart_datanode(victim);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_and_a_read_end_when_a_datanode_is_frozen() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "frozen").await;
    store
        .put("closed", Bytes::from(vec![7; 300_000]))
        .await
        .unwrap();
    let (mut writer, victim) = file_on(hdfs, &*store, "f").await;
    hdfs.freeze_datanode(victim);

    let start = Instant::now();
    let error = write(&mut *writer, " and lost").await.unwrap_err();
    assert!(start.elapsed() < SYNC * 2, "{:?}", start.elapsed());
    assert!(error.is_ambiguous(), "{error:?}");
    // Whichever DataNodes hold it, one of them answers.
    let start = Instant::now();
    assert!(read(&*store, "closed").await == vec![7; 300_000]);
    assert!(start.elapsed() < OP, "{:?}", start.elapsed());
    hdfs.thaw_datanode(victim);
    drop(writer);
    store.recover("f").await.unwrap();
    assert!(read(&*store, "f").await.starts_with(b"kept"));
}

/// Bytes `from..from + len` of one endless sequence that nowhere looks as at another place nearby.
fn pattern(from: usize, len: usize) -> Bytes {
    static ROUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let word = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        (0..500_009).flat_map(word).collect()
    });
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let rest = &ROUND[(from + bytes.len()) % ROUND.len()..];
        bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
    }
    bytes.into()
}

/// Whatever a writer went through, what it acknowledged is there, in order, on any replica.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_bytes_survive_datanodes_that_die_under_load() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "load").await;
    for round in 0..2 {
        let victim = round;
        let write = async {
            let mut files = Vec::new();
            let end = Instant::now() + Duration::from_secs(4);
            while Instant::now() < end {
                let name = format!("{round}-{}", files.len());
                let mut acknowledged = 0;
                let Ok(mut writer) = store.create(&name).await else {
                    continue;
                };
                for i in 0.. {
                    let bytes = pattern(acknowledged, [700, 200_000, 66_000, 3_000_000][i % 4]);
                    let len = bytes.len();
                    if writer.append(bytes).await.is_err() || writer.sync().await.is_err() {
                        break;
                    }
                    acknowledged += len;
                    if Instant::now() > end {
                        break;
                    }
                }
                files.push((name, acknowledged));
            }
            files
        };
        let kill = async {
            tokio::time::sleep(Duration::from_millis(1000)).await;
            hdfs.kill_datanode(victim);
        };
        let (files, ()) = tokio::join!(write, kill);
        println!("acknowledged in round {round}: {files:?}");
        for (name, acknowledged) in files {
            store.recover(&name).await.unwrap();
            let content = read(&*store, &name).await;
            assert!(content.len() >= acknowledged, "{name}: {}", content.len());
            assert!(
                content == pattern(0, content.len()),
                "{name} is not what was written"
            );
        }
        tokio::task::block_in_place(|| hdfs.restart_datanode(victim));
    }
}

/// hdfs-native's reader never forgets a DataNode that failed once.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_lives_through_the_loss_and_return_of_every_datanode() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "reader").await;
    store
        .put("f", Bytes::from_static(b"content"))
        .await
        .unwrap();
    let reader = store.open("f").await.unwrap();
    for i in 0..3 {
        hdfs.kill_datanode(i);
        assert_eq!(reader.read_at(0, 7).await.unwrap(), "content");
        hdfs.restart_datanode(i);
    }
    (0..3).for_each(|i| hdfs.kill_datanode(i));
    let start = Instant::now();
    let error = reader.read_at(0, 7).await.unwrap_err();
    assert!(
        start.elapsed() < OP + SYNC && error.is_ambiguous(),
        "{error:?}"
    );
    (0..3).for_each(|i| hdfs.restart_datanode(i));
    assert_eq!(reader.read_at(3, 4).await.unwrap(), "tent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_namenode_is_found_again() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "restarted").await;
    let mut writer = store.create("f").await.unwrap();
    write(&mut *writer, "one").await.unwrap();
    hdfs.kill_namenode(0);

    let start = Instant::now();
    let error = store.stat("f").await.unwrap_err();
    assert!(
        start.elapsed() < OP + SYNC && error.is_ambiguous(),
        "{error:?}"
    );
    hdfs.restart_namenode(0);
    // The call waits for the NameNode to start and to leave safe mode, or is asked again.
    eventually("creating", async || match store.create("g").await {
        Ok(mut w) => w.close().await,
        Err(e) => Err(e),
    })
    .await;
    // Leases outlive the NameNode.
    write(&mut *writer, " two").await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(read(&*store, "f").await, "one two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_lives_through_a_short_absence_of_the_namenode() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "absent").await;
    let mut writer = store.create("f").await.unwrap();
    write(&mut *writer, "one").await.unwrap();
    hdfs.freeze_namenode(0);
    let thaw = async {
        tokio::time::sleep(SYNC / 2).await;
        hdfs.thaw_namenode(0);
    };
    let (synced, ()) = tokio::join!(write(&mut *writer, " two"), thaw);
    synced.unwrap();
    writer.close().await.unwrap();
    assert_eq!(read(&*store, "f").await, "one two");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_frozen_namenode_end_and_tell_the_truth() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "truth").await;
    store.put("a", Bytes::from_static(b"a")).await.unwrap();
    let mut writer = store.create("open").await.unwrap();
    hdfs.freeze_namenode(0);
    let start = Instant::now();
    let (stat, create, rename, sync) = tokio::join!(
        store.stat("a"),
        store.create("b"),
        store.rename("a", "c"),
        write(&mut *writer, "x"),
    );
    assert!(start.elapsed() < 3 * OP, "{:?}", start.elapsed());
    let calls = [
        ("stat", stat.err()),
        ("create", create.err()),
        ("rename", rename.err()),
        ("sync", sync.err()),
    ];
    for (call, error) in calls {
        let error = error.unwrap_or_else(|| panic!("{call}: nothing can succeed"));
        assert!(error.is_ambiguous(), "{call}: {error:?}");
    }
    hdfs.thaw_namenode(0);
    // The rename may be carried out now, many times over, even between two looks.
    let content = eventually("looking", async || match store.open("c").await {
        Err(e) if e.is(ErrorKind::NotFound) => store.open("a").await,
        found => found,
    })
    .await;
    assert_eq!(content.len(), 1);
    assert_eq!(content.read_at(0, 1).await.unwrap(), "a");
    eventually("writing", async || {
        let name = uuid::Uuid::new_v4().to_string();
        store.put(&name, Bytes::from_static(b"d")).await
    })
    .await;
}

/// A rename whose answer is lost is carried out once, and said to be.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_namenode_does_late_is_found_out() {
    let (hdfs, _turn) = plain().take().await;
    let store = store(hdfs, "late").await;
    store.put("a", Bytes::from_static(b"a")).await.unwrap();
    store.mkdir("d").await.unwrap();
    hdfs.freeze_namenode(0);
    let thaw = async {
        // After the first attempts were given up, before the whole call is.
        tokio::time::sleep(OP / 2).await;
        hdfs.thaw_namenode(0);
    };
    let (put, rename, delete, mkdir, ()) = tokio::join!(
        store.put("p", Bytes::from_static(b"p")),
        store.rename("a", "b"),
        store.delete("d"),
        store.mkdir("e"),
        thaw
    );
    rename.unwrap();
    delete.unwrap();
    mkdir.unwrap();
    assert_eq!(read(&*store, "b").await, "a");
    match put {
        Ok(()) => assert_eq!(read(&*store, "p").await, "p"),
        Err(e) => assert!(e.is_ambiguous(), "{e:?}"),
    }
}

/// Appends and syncs numbers until told to stop; a writer that fails is replaced. Returns each
/// file with how many numbers were acknowledged in it.
async fn count_until(store: &dyn Store, stop: impl Fn() -> bool) -> Vec<(String, u32)> {
    let mut files: Vec<(String, u32)> = Vec::new();
    while !stop() {
        let name = format!("{}", files.len());
        let mut writer = match store.create(&name).await {
            Ok(writer) => writer,
            Err(e) => {
                assert!(e.is_ambiguous(), "{e:?}");
                files.push((name, 0));
                continue;
            }
        };
        files.push((name, 0));
        let acknowledged = &mut files.last_mut().unwrap().1;
        while !stop() {
            let number = Bytes::copy_from_slice(&acknowledged.to_le_bytes());
            if writer.append(number).await.is_err() || writer.sync().await.is_err() {
                break;
            }
            *acknowledged += 1;
        }
    }
    files
}

async fn all_is_there(store: &dyn Store, files: Vec<(String, u32)>) {
    for (name, acknowledged) in files {
        match store.recover(&name).await {
            Err(e) if e.is(ErrorKind::NotFound) && acknowledged == 0 => continue,
            result => result.unwrap(),
        }
        let content = read(store, &name).await;
        assert!(content.len() >= acknowledged as usize * 4, "{name}");
        for (i, number) in content.chunks_exact(4).enumerate() {
            assert_eq!(number, (i as u32).to_le_bytes(), "{name}");
        }
    }
}

/// Two failovers in good order; then the active NameNode is killed and the other one takes over.
#[tokio::test(flavor = "multi_thread")]
async fn syncs_go_on_over_failovers() {
    let (hdfs, _turn) = ha().take().await;
    let store = store(hdfs, "failover").await;
    let done = std::sync::atomic::AtomicBool::new(false);
    let stop = || done.load(std::sync::atomic::Ordering::Relaxed);
    let second = || tokio::time::sleep(Duration::from_secs(1));
    let failovers = async {
        for _ in 0..2 {
            second().await;
            tokio::task::block_in_place(|| hdfs.failover());
        }
        second().await;
        let active = hdfs.active().unwrap();
        hdfs.kill_namenode(active);
        tokio::task::block_in_place(|| hdfs.force_active(1 - active));
        second().await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (files, ()) = tokio::join!(count_until(&*store, stop), failovers);
    println!("syncs in each file: {files:?}");
    assert!(files.iter().any(|(_, n)| *n > 100), "{files:?}");
    assert!(files.last().unwrap().1 > 0, "it went on: {files:?}");
    all_is_there(&*store, files).await;
}

/// hdfs-native asks a NameNode that is frozen or cut off for ever, never the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_active_namenode_is_left_for_the_other_one() {
    let (hdfs, _turn) = ha().take().await;
    let store = store(hdfs, "left").await;
    store.put("a", Bytes::from_static(b"a")).await.unwrap();
    let active = hdfs.active().unwrap();
    hdfs.freeze_namenode(active);
    tokio::task::block_in_place(|| hdfs.force_active(1 - active));
    assert_eq!(read(&*store, "a").await, "a");
    store.put("b", Bytes::from_static(b"b")).await.unwrap();
    assert_eq!(read(&*store, "b").await, "b");
    // The one that was fenced without knowing must not come back as it is.
    hdfs.kill_namenode(active);
}
