//! Replicas that hang, and a store that is slow as a whole: how long a commit takes then, in
//! simulated time. (On a real HDFS see `durability_hdfs`.)

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::{Config, Error, Ino};

use stowfs::format::{Attr, DataFrame, Row, SegmentState};
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::store::{Op, Store};
use stowfs::volume::{OpenOptions, Volume};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

async fn open(store: Arc<dyn Store>) -> Arc<Volume> {
    let options = OpenOptions::new(Config {
        block_size: 4 << 10,
        segment_size: 64 << 10,
        ..Config::default()
    });
    Volume::open(store, options).await.unwrap()
}

/// Commits a file; how long that took.
async fn commit(volume: &Volume, name: &str) -> Duration {
    let begun = Instant::now();
    let ino = volume.new_ino().unwrap();
    let change = volume.change(|_, change| {
        let frame = DataFrame::new(ino, 0, Bytes::from(name.repeat(1000)), Vec::new());
        let extent = change.data(frame);
        let (len, name) = (u64::from(extent.len), name.as_bytes().to_vec());
        let attr = Attr {
            mode: libc::S_IFREG | 0o644,
            nlink: 1,
            size: len,
            ..Attr::default()
        };
        change.row(Row::Inode { ino, attr });
        change.row(Row::Entry {
            parent: Ino::ROOT,
            name,
            ino,
        });
        change.row(Row::Extents {
            ino,
            off: 0,
            len,
            extents: vec![extent],
        });
        Ok::<_, Error>(())
    });
    volume.durable(change.unwrap().1).await.unwrap();
    begun.elapsed()
}

async fn check(volume: &Volume, names: &[&str]) {
    for name in names {
        let extents = volume.read(|index| {
            let ino = index.lookup(Ino::ROOT, name.as_bytes());
            index.extents(ino.expect(name), 0, u64::MAX)
        });
        let bytes = volume.fetch(&extents[0]).await.unwrap();
        assert_eq!(bytes, name.repeat(1000));
    }
}

/// What happens to the open segment, and to the next five that are begun: HDFS chooses a DataNode
/// that hangs again and again until it takes it for dead. A commit used to wait for each in turn,
/// 18 s on a real HDFS with one of three DataNodes frozen.
async fn with_a_hanging_replica(fault: Fault, op: Op) {
    let (cluster, faults) = (MemoryCluster::new(1), Faults::new(1));
    let host = cluster.host("a");
    let volume = open(faults.wrap(host.clone())).await;
    commit(&volume, "before").await;
    faults.add(Rule::new(fault).op(op).path("log/1/").times(6));
    let took = commit(&volume, "meanwhile").await;
    assert!(took < 3 * SECOND, "{took:?}");
    let took = commit(&volume, "after").await;
    assert!(took < SECOND / 10, "{took:?}");
    assert_eq!(faults.injected(), 6);
    check(&volume, &["before", "meanwhile", "after"]).await;

    // What was begun in vain and holds nothing was listed as being closed, for as long as the mount lived.
    tokio::time::sleep(120 * SECOND).await;
    let unclosed = volume.read(|index| {
        let sealed = index.segments().map(|s| s.row.clone());
        let unclosed = sealed.filter(|r| r.state == SegmentState::Sealed && r.size == 0);
        unclosed.map(|r| r.name).collect::<Vec<_>>()
    });
    assert_eq!(unclosed, []);

    drop(volume);
    host.crash();
    let volume = open(cluster.host("b")).await;
    check(&volume, &["before", "meanwhile", "after"]).await;
}

#[tokio::test(start_paused = true)]
async fn syncs_that_hang_delay_a_commit_little() {
    with_a_hanging_replica(Fault::Hang, Op::Sync).await;
}

#[tokio::test(start_paused = true)]
async fn syncs_that_are_carried_out_but_never_answered_delay_a_commit_little() {
    with_a_hanging_replica(Fault::HangAfter, Op::Sync).await;
}

#[tokio::test(start_paused = true)]
async fn appends_that_hang_delay_a_commit_little() {
    with_a_hanging_replica(Fault::Hang, Op::Append).await;
}

/// While the sync that was overtaken still hung, no further one was hedged: when the next block of
/// the new segment was placed on the frozen DataNode too, commits waited 4 s.
#[tokio::test(start_paused = true)]
async fn a_second_replica_that_hangs_is_overtaken_too() {
    let (cluster, faults) = (MemoryCluster::new(1), Faults::new(1));
    let volume = open(faults.wrap(cluster.host("a"))).await;
    commit(&volume, "before").await;
    for (n, op) in (0..).zip([Op::Sync, Op::Append, Op::Sync]) {
        faults.add(Rule::new(Fault::Hang).op(op).path("log/1/").times(1));
        let took = commit(&volume, &format!("{n}")).await;
        assert!(took < 3 * SECOND, "{op:?}: {took:?}");
        assert_eq!(faults.injected(), n + 1);
    }
    check(&volume, &["before", "0", "1", "2"]).await;
}

/// More writing would make it worse: patience grows until the store keeps up.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_as_a_whole_is_waited_for() {
    let (cluster, faults) = (MemoryCluster::new(1), Faults::new(1));
    let volume = open(faults.wrap(cluster.host("a"))).await;
    commit(&volume, "before").await;
    faults.add(Rule::new(Fault::Delay(4 * SECOND)).op(Op::Sync));
    for n in 0..10 {
        let took = commit(&volume, &format!("{n}")).await;
        assert!(took < 15 * SECOND, "{n}: {took:?}");
    }
    let begun = cluster.host("b").list(".stowfs/log/1").await.unwrap().len();
    assert!(begun < 20, "{begun} segments were begun for 10 commits");
    let took = commit(&volume, "used to it").await;
    assert_eq!(took.as_secs(), 4, "no segment is begun beside it");
}

/// Completing a file takes half a second on a real HDFS, and for ever when a DataNode hangs.
#[tokio::test(start_paused = true)]
async fn no_commit_waits_for_a_segment_to_be_closed() {
    let (cluster, faults) = (MemoryCluster::new(1), Faults::new(1));
    let volume = open(faults.wrap(cluster.host("a"))).await;
    faults.add(Rule::new(Fault::Delay(4 * SECOND)).op(Op::Close));
    let names: Vec<String> = (0..30).map(|n| format!("name-{n}")).collect();
    for name in &names {
        let took = commit(&volume, name).await;
        assert!(took < SECOND / 10, "{name}: {took:?}");
    }
    let segments = cluster.host("b").list(".stowfs/log/1").await.unwrap().len();
    assert!((3..10).contains(&segments), "{segments}");
    let begun = Instant::now();
    volume.shutdown().await.unwrap();
    assert!(begun.elapsed() < 6 * SECOND, "{:?}", begun.elapsed());
    let closed = faults.injected();
    assert!(
        closed >= 2,
        "{closed} of {segments} were closed when it had shut down"
    );

    let volume = open(cluster.host("b")).await;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check(&volume, &names).await;
}
