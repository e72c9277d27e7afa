//! The model of HDFS itself: crashes, zombies, forks and replay.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::{ErrorKind, Result};
use stowfs::store::Store;
use stowfs::store::memory::{LastCall, MemoryCluster, MemoryStore};
use tokio::time::{Instant, sleep, timeout};

/// Writes records of 10 bytes to one file and puts the count of those acknowledged in `acked`.
async fn write_log(host: Arc<MemoryStore>, acked: Arc<parking_lot::Mutex<usize>>) -> Result<()> {
    host.mkdir("log/1").await?;
    let mut writer = host.create("log/1/0").await?;
    for i in 0..10u8 {
        writer.append(Bytes::from(vec![i; 10])).await?;
        writer.sync().await?;
        *acked.lock() += 1;
    }
    writer.close().await
}

fn log(records: u8) -> Vec<u8> {
    (0..records).flat_map(|i| [i; 10]).collect()
}

/// Runs the workload until it ends, fails or its host dies; returns what was acknowledged.
async fn run_until_crash(host: &Arc<MemoryStore>) -> usize {
    let acked = Arc::new(parking_lot::Mutex::new(0));
    tokio::select! {
        biased;
        _ = write_log(host.clone(), acked.clone()) => {}
        _ = host.crashed() => {}
    }
    *acked.lock()
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_call_loses_nothing_acknowledged() {
    let mut surplus = BTreeSet::new();
    for seed in 0..40 {
        let whole = MemoryCluster::new(seed);
        let host = whole.host("a");
        assert_eq!(run_until_crash(&host).await, 10);
        let calls = host.calls();
        assert_eq!(calls, 2 + 20 + 1);
        for n in 1..=calls {
            for last in [LastCall::Lost, LastCall::Done] {
                let context = format!("seed {seed}, call {n}, {last:?}");
                let cluster = MemoryCluster::new(seed);
                let host = cluster.host("a");
                host.crash_at(n, last);
                let acked = run_until_crash(&host).await;
                assert!(host.is_crashed() && host.calls() == n, "{context}");
                assert_eq!(acked, (n as usize).saturating_sub(3) / 2, "{context}");

                let other = cluster.host("b");
                let Ok(()) = other.recover("log/1/0").await else {
                    assert!(n <= 2 && acked == 0, "{context}");
                    continue;
                };
                let reader = other.open("log/1/0").await.unwrap();
                let read = reader.read_at(0, reader.len() as usize).await.unwrap();
                assert!(
                    read.len() >= acked * 10 && log(10).starts_with(&read),
                    "{context}"
                );
                assert!(read.len() <= (acked + 1) * 10, "{context}");
                surplus.insert(read.len() - acked * 10);
            }
        }
    }
    assert_eq!(
        surplus.len(),
        11,
        "tails of every length from none to a whole record: {surplus:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_host_hears_nothing_and_stays_dead() {
    let cluster = MemoryCluster::new(1);
    let host = cluster.host("a");
    host.crash();
    host.thaw();
    assert!(host.is_crashed());
    assert!(
        timeout(Duration::from_secs(1000), host.now())
            .await
            .is_err()
    );
    assert_eq!(host.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_zombies_calls_are_carried_out_when_it_thaws() {
    let cluster = MemoryCluster::new(1);
    let (zombie, other) = (cluster.host("zombie"), cluster.host("other"));
    zombie.mkdir("log/1").await.unwrap();
    let mut kept = zombie.create("log/1/0").await.unwrap();
    zombie.freeze();
    // Its callers give up; the calls themselves are only late.
    let second = Duration::from_secs(1);
    assert!(
        timeout(second, zombie.put("log/2", "late".into()))
            .await
            .is_err()
    );
    assert!(timeout(second, zombie.create("log/1/1")).await.is_err());
    assert!(timeout(second, kept.append("late".into())).await.is_err());
    assert!(
        other
            .stat("log/2")
            .await
            .unwrap_err()
            .is(ErrorKind::NotFound)
    );

    other.rename("log/1", "log/1.fenced").await.unwrap();
    other.recover("log/1.fenced/0").await.unwrap();
    zombie.thaw();
    sleep(second).await;
    assert_eq!(other.stat("log/2").await.unwrap().len, 4);
    assert_eq!(
        cluster.tree(),
        ["log/", "log/1.fenced/", "log/1.fenced/0", "log/2"]
    );
    assert_eq!(
        cluster.peek("log/1.fenced/0").unwrap(),
        (vec![], 0),
        "the length was final"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renamed_directory_lets_its_writer_go_on_until_it_is_recovered() {
    let cluster = MemoryCluster::new(1);
    let (old, new) = (cluster.host("old"), cluster.host("new"));
    old.mkdir("log/1").await.unwrap();
    let mut writer = old.create("log/1/0").await.unwrap();
    new.rename("log/1", "log/1.fenced").await.unwrap();
    writer.append("abc".into()).await.unwrap();
    writer.sync().await.unwrap();
    assert!(
        old.create("log/1/1")
            .await
            .err()
            .unwrap()
            .is(ErrorKind::NotFound)
    );
    assert_eq!(
        cluster.peek("log/1.fenced/0").unwrap(),
        (b"abc".to_vec(), 3)
    );

    let start = Instant::now();
    new.recover("log/1.fenced/0").await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(500),
        "recovery takes time"
    );
    assert!(
        !writer.sync().await.unwrap_err().is(ErrorKind::Fenced),
        "HDFS cannot tell"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fork_is_the_store_at_that_moment() {
    let cluster = MemoryCluster::new(1);
    let host = cluster.host("a");
    let mut writer = host.create("f").await.unwrap();
    writer.append("synced".into()).await.unwrap();
    writer.sync().await.unwrap();
    writer.append("-tail".into()).await.unwrap();
    let forks: Vec<MemoryCluster> = (0..30).map(|seed| cluster.fork(seed)).collect();
    writer.append("-later".into()).await.unwrap();
    writer.close().await.unwrap();

    let mut seen = BTreeSet::new();
    for fork in forks {
        let host = fork.host("b");
        assert!(fork.now() >= cluster.now() - 60_000_000_000);
        host.recover("f").await.unwrap();
        let (bytes, _) = fork.peek("f").unwrap();
        assert!(bytes.starts_with(b"synced") && b"synced-tail".starts_with(&bytes[..]));
        seen.insert(bytes.len());
    }
    assert!(seen.len() > 3, "{seen:?}");
    assert_eq!(cluster.peek("f").unwrap().0, b"synced-tail-later");
}

#[tokio::test(start_paused = true)]
async fn damage_is_for_closed_files() {
    let cluster = MemoryCluster::new(1);
    let host = cluster.host("a");
    host.put("f", "abc".into()).await.unwrap();
    let _open = host.create("g").await.unwrap();
    let reader = host.open("f").await.unwrap();
    cluster.damage("f", |bytes| bytes.truncate(1)).unwrap();
    assert!(cluster.damage("g", |_| ()).is_err());
    assert_eq!(host.stat("f").await.unwrap().len, 1);
    assert!(
        reader
            .read_at(0, 3)
            .await
            .unwrap_err()
            .is(ErrorKind::Corrupt)
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_and_deleting_helps() {
    let config = stowfs::store::memory::MemoryConfig {
        capacity: 100,
        ..Default::default()
    };
    let cluster = MemoryCluster::with(1, config);
    let host = cluster.host("a");
    host.put("f", vec![0; 90].into()).await.unwrap();
    assert_eq!(host.usage().await.unwrap().available, 10);
    assert!(
        host.put("g", vec![0; 11].into())
            .await
            .unwrap_err()
            .is(ErrorKind::NoSpace)
    );
    let mut writer = host.create("h").await.unwrap();
    assert!(
        writer
            .append(vec![0; 11].into())
            .await
            .unwrap_err()
            .is(ErrorKind::NoSpace)
    );
    host.delete("f").await.unwrap();
    host.put("g", vec![0; 11].into()).await.unwrap();
}

/// Everything a run did and when, to the nanosecond.
async fn trace(seed: u64) -> Vec<String> {
    let cluster = MemoryCluster::new(seed);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    a.crash_at(9, LastCall::Done);
    let run = tokio::join!(run_until_crash(&a), async {
        sleep(Duration::from_millis(20)).await;
        let renamed = b.rename("log/1", "log/1.fenced").await;
        format!(
            "{renamed:?}, recovered {:?}",
            b.recover("log/1.fenced/0").await
        )
    });
    let mut trace = vec![format!("{run:?} at {}, calls {}", cluster.now(), b.calls())];
    trace.extend(cluster.tree());
    trace.push(format!("{:?}", cluster.peek("log/1.fenced/0")));
    trace
}

#[test]
fn a_seed_replays() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(trace(seed))
    };
    let traces: BTreeSet<_> = (0..20).map(|seed| (run(seed), run(seed))).collect();
    assert!(traces.iter().all(|(first, second)| first == second));
    assert!(traces.len() > 10, "seeds differ");
}
