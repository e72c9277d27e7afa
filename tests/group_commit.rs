//! Files that are being written while others wait for a sync join it.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Ino, Result};
use stowfs::fs::{Caller, Fh, Fs, FsOptions, WriteMode};
use stowfs::store::Store;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::volume::{OpenOptions, Volume};

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
const WAIT: Duration = Duration::from_millis(2);
/// Of each call of the store, so that half of a sync is longer than the wait.
const LATENCY: Duration = Duration::from_millis(10);

async fn mount(commit_wait: Duration) -> Result<Arc<Fs>> {
    let config = MemoryConfig {
        latency: LATENCY..=LATENCY,
        ..MemoryConfig::default()
    };
    let store: Arc<dyn Store> = MemoryCluster::with(1, config).host("one");
    let config = Config {
        commit_wait,
        ..Config::default()
    };
    let volume = Volume::open(store, OpenOptions::new(config)).await?;
    Ok(Fs::new(volume, FsOptions::default()))
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

/// How long each of many closes takes, with a file open beside them that nobody closes or without.
async fn closes(beside: bool) -> Vec<Duration> {
    let fs = mount(WAIT).await.expect("a mount");
    if beside {
        written(&fs, "idle").await;
    }
    let mut took = Vec::new();
    for n in 0..40 {
        let (ino, fh) = written(&fs, &format!("f{n}")).await;
        let begun = tokio::time::Instant::now();
        fs.flush(ino, fh, 0).await.expect("close");
        took.push(begun.elapsed());
    }
    took
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_file_that_stays_open_is_bounded() {
    let median = |mut took: Vec<Duration>| {
        took.sort();
        took[took.len() / 2]
    };
    let alone = median(closes(false).await);
    let beside = median(closes(true).await);
    let milli = Duration::from_millis(1);
    assert!(
        alone < beside && beside <= alone + WAIT + milli,
        "{alone:?} and {beside:?}"
    );
}
