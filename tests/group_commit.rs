//! Files that are being written while others wait for a sync join it.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Ino, Result};
use stowfs::fs::{Caller, Fh, Fs, FsOptions, WriteMode};
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::store::{Op, Store};
use stowfs::volume::{OpenOptions, Volume};

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
const WAIT: Duration = Duration::from_millis(2);
/// Of each call of the store, so that a sync is longer than the wait.
const LATENCY: Duration = Duration::from_millis(10);

fn config(commit_wait: Duration) -> Config {
    Config {
        commit_wait,
        ..Config::default()
    }
}

async fn mounted(store: Arc<dyn Store>, commit_wait: Duration) -> Result<Arc<Fs>> {
    let volume = Volume::open(store, OpenOptions::new(config(commit_wait))).await?;
    Ok(Fs::new(volume, FsOptions::default()))
}

/// Every call of the store takes as long.
async fn mount(commit_wait: Duration) -> Result<Arc<Fs>> {
    mounted(store(LATENCY), commit_wait).await
}

fn store(latency: Duration) -> Arc<dyn Store> {
    let config = MemoryConfig {
        latency: latency..=latency,
        ..MemoryConfig::default()
    };
    MemoryCluster::with(1, config).host("one")
}

/// Only syncs take long.
async fn mount_with_slow_syncs(commit_wait: Duration) -> Result<Arc<Fs>> {
    let faults = Faults::new(1);
    faults.add(Rule::new(Fault::Delay(LATENCY)).op(Op::Sync));
    mounted(faults.wrap(store(Duration::ZERO)), commit_wait).await
}

async fn written(fs: &Fs, name: &str) -> (Ino, Fh) {
    let made = fs.create(
        WHO,
        Ino::ROOT,
        name.to_string().into(),
        0o644,
        0,
        libc::O_WRONLY,
    );
    let (entry, fh) = made.await.expect("create");
    let data = Bytes::from_static(b"some bytes");
    let wrote = fs.write(entry.ino, fh, 0, data, WriteMode::default());
    assert_eq!(wrote.await, Ok(10));
    (entry.ino, fh)
}

/// The syncs that two closes cost, the second of which comes `later`.
async fn syncs(commit_wait: Duration, later: Duration) -> u64 {
    let fs = mount(commit_wait).await.expect("a mount");
    // So that it is known how long a sync takes.
    for n in 0..40 {
        let (ino, fh) = written(&fs, &format!("warm{n}")).await;
        fs.flush(ino, fh, 0).await.expect("close");
        fs.release(ino, fh).await.expect("release");
    }
    let (first, second) = (written(&fs, "first").await, written(&fs, "second").await);
    let counted = || fs.volume().counters().syncs.load(Ordering::Relaxed);
    let before = counted();
    let close = |(ino, fh)| fs.flush(ino, fh, 0);
    let (a, b) = tokio::join!(close(first), async {
        tokio::time::sleep(later).await;
        close(second).await
    });
    a.and(b).expect("close");
    counted() - before
}

/// The first moment (in milliseconds) at which the second close needs a sync of its own.
async fn too_late(commit_wait: Duration) -> u64 {
    for ms in 0..100 {
        if syncs(commit_wait, Duration::from_millis(ms)).await == 2 {
            return ms;
        }
    }
    panic!("every close joins");
}

/// Nobody had counted the files that are being written, so no sync ever waited for one. (Who comes
/// while bytes are on their way to the store joins as well.)
#[tokio::test(start_paused = true)]
async fn a_file_that_is_being_written_joins_the_sync_of_another() {
    let (waiting, not) = (too_late(WAIT).await, too_late(Duration::ZERO).await);
    let gained = Duration::from_millis(waiting.saturating_sub(not));
    assert_eq!(
        gained, WAIT,
        "too late after {waiting} ms, without waiting {not} ms"
    );
}

/// The usual time of a close among the first and among later ones: of writers that are never idle, with
/// a file open beside them that nobody closes or without.
async fn closes(writers: usize, beside: bool) -> [Duration; 2] {
    let fs = mount(WAIT).await.expect("a mount");
    if beside {
        written(&fs, "idle").await;
    }
    let write = async |w: usize| {
        let mut took = Vec::new();
        for n in 0..40 {
            let (ino, fh) = written(&fs, &format!("{w}-{n}")).await;
            let begun = tokio::time::Instant::now();
            fs.flush(ino, fh, 0).await.expect("close");
            took.push(begun.elapsed());
        }
        took
    };
    let took = futures::future::join_all((0..writers).map(write)).await;
    // A sync must have been seen first, so that it is known how long one takes.
    [1..8, 20..40].map(|range| {
        let mut of_all: Vec<Duration> = took
            .iter()
            .flat_map(|t| t[range.clone()].to_vec())
            .collect();
        of_all.sort();
        of_all[of_all.len() / 2]
    })
}

/// With two writers every commit had waited in vain for the third, for ever.
#[tokio::test(start_paused = true)]
async fn a_file_that_stays_open_is_waited_for_a_little_and_a_few_times() {
    for writers in [1, 2, 8] {
        let (alone, beside) = (closes(writers, false).await, closes(writers, true).await);
        let most = alone[0] + WAIT + Duration::from_millis(1);
        assert!(
            alone[0] < beside[0] && beside[0] <= most && beside[1] <= alone[1],
            "{writers} writers: {beside:?}, alone {alone:?}"
        );
    }
}

/// The syncs per file of writers each of whom does something else for a moment after each file.
async fn looping(commit_wait: Duration, writers: usize) -> f64 {
    const EACH: usize = 20;
    let fs = mount_with_slow_syncs(commit_wait).await.expect("a mount");
    let write = async |w: usize| {
        // Not all at the same moment.
        tokio::time::sleep(LATENCY * w as u32 / 2).await;
        for n in 0..EACH {
            let (ino, fh) = written(&fs, &format!("{w}-{n}")).await;
            fs.flush(ino, fh, 0).await.expect("close");
            fs.release(ino, fh).await.expect("release");
            tokio::time::sleep(WAIT / 2).await;
        }
    };
    let counted = || fs.volume().counters().syncs.load(Ordering::Relaxed);
    let before = counted();
    futures::future::join_all((0..writers).map(write)).await;
    (counted() - before) as f64 / (writers * EACH) as f64
}

/// Two groups of writers took turns: whoever was acknowledged came back while the sync of the others ran.
#[tokio::test(start_paused = true)]
async fn writers_that_come_back_at_once_all_share_one_sync() {
    for writers in [2, 8] {
        let (waiting, not) = (
            looping(WAIT, writers).await,
            looping(Duration::ZERO, writers).await,
        );
        let least = 1.0 / writers as f64;
        assert!(
            waiting < 1.3 * least,
            "{writers} writers: {waiting} syncs per file"
        );
        assert!(not > 1.6 * least, "{writers} writers, not waiting: {not}");
    }
}

/// A long file goes to two lanes in turn, and its sync had waited for one after the other.
#[tokio::test(start_paused = true)]
async fn the_parts_of_a_file_on_two_lanes_are_synced_at_the_same_time() {
    let fs = mount_with_slow_syncs(Duration::ZERO)
        .await
        .expect("a mount");
    let (ino, fh) = written(&fs, "long").await;
    let mut took = Duration::MAX;
    for n in 0..4 {
        for turn in 2 * n..2 * n + 2 {
            let data = Bytes::from(vec![7; 5 << 20]);
            let wrote = fs.write(ino, fh, turn << 26, data, WriteMode::default());
            assert_eq!(wrote.await, Ok(5 << 20));
        }
        let begun = tokio::time::Instant::now();
        fs.fsync(ino, fh, false).await.expect("fsync");
        took = took.min(begun.elapsed());
    }
    // That of the lanes, and then that of the record.
    assert!(took < LATENCY * 5 / 2, "{took:?}");
}
