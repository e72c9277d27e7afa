//! Decides when upkeep is due, and does it, for as long as a root is mounted. Each kind of work has
//! a loop of its own, so that a slow one holds up no other; commands take part through `command`.

use super::compact::{self, CompactOptions, Victim};
use super::deletion::{Deletion, DeletionRate};
use super::gc::{Gc, GcOptions};
use super::plain::PlainGc;
use super::{Root, choice, orphans, snapshot};
use crate::base::{ErrorKind, Pos, Result, StreamId};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

#[derive(Clone, Debug)]
pub struct DutyOptions {
    pub gc: GcOptions,
    pub deletion: DeletionRate,
    pub compact: CompactOptions,
    /// What no index knows is deleted when it is older.
    pub orphan_age: Duration,
    /// Bytes of log after which a snapshot is due, if not sooner.
    pub snapshot_bytes: u64,
    pub every: Duration,
}

/// A snapshot is not due before the log has grown by this many times its size: the write
/// amplification of snapshots is at most one part in so many.
const SNAPSHOT_SHARE: u64 = 4;
/// The log since the older of two snapshots is kept, so it takes at most about two parts in so many
/// of the live bytes.
const LOG_SHARE: u64 = 16;
/// A snapshot is due when so many segments of the log were begun since the last: each remount
/// leaves one, however little is in it.
const LOG_SEGMENTS: usize = 64;

/// Bytes that one pass of compaction copies: about this, or a part of the live bytes, because each
/// pass looks at all files.
const PASS_LEAST: u64 = 64 << 20;
const PASS_SHARE: u64 = 64;

/// Orphans are looked for at least this often.
const ORPHANS_AFTER: Duration = Duration::from_secs(900);

/// How long compaction rests after a pass that moved nothing.
const FRUITLESS_PAUSE: Duration = Duration::from_secs(60);

/// The locks are held while the work is done: each kind is done once at a time.
pub struct Duty {
    pub(super) options: DutyOptions,
    pub(super) gc: Mutex<Gc>,
    pub(super) deletion: Deletion,
    pub(super) plain: Mutex<PlainGc>,
    pub(super) compaction: Mutex<Compaction>,
    /// Held by a compaction that somebody asked for.
    pub(super) commanded: Mutex<()>,
    snapshots: Mutex<Snapshots>,
}

pub(super) struct Compaction {
    /// None by itself before this.
    again: Instant,
}

struct Snapshots {
    last: Pos,
    size: u64,
    /// Whether those that are too old are gone. A crash may have come between.
    trimmed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Snapshots,
    Compaction,
    Collection,
    Deletion,
    Orphans,
    PlainFiles,
}

impl Duty {
    /// `last_snapshot`: the position of the newest one, 0 if there is none.
    pub fn new(options: DutyOptions, last_snapshot: Pos) -> Duty {
        Duty {
            gc: Mutex::default(),
            deletion: Deletion::new(options.deletion.clone()),
            plain: Mutex::default(),
            compaction: Mutex::new(Compaction {
                again: Instant::now(),
            }),
            commanded: Mutex::default(),
            snapshots: Mutex::new(Snapshots {
                last: last_snapshot,
                size: 0,
                trimmed: false,
            }),
            options,
        }
    }

    /// Runs until the root is gone.
    pub async fn run<R: Root>(self: Arc<Self>, root: Weak<R>) {
        tokio::join!(
            self.keep_up(&root, Job::Snapshots),
            self.keep_up(&root, Job::Compaction),
            self.keep_up(&root, Job::Collection),
            self.keep_up(&root, Job::Deletion),
            self.keep_up(&root, Job::Orphans),
            self.keep_up(&root, Job::PlainFiles),
        );
    }

    async fn keep_up<R: Root>(&self, root: &Weak<R>, job: Job) {
        let (mut more, mut pause) = (false, self.options.every);
        loop {
            if !more {
                tokio::time::sleep(pause).await;
            }
            if matches!(job, Job::Orphans) {
                let often = (self.options.orphan_age / 4).min(ORPHANS_AFTER);
                pause = often.max(self.options.every);
            }
            let Some(root) = root.upgrade() else { return };
            more = match self.work(&*root, job).await {
                Ok(more) => more,
                // Final; the volume has said so.
                Err(e) if e.is(ErrorKind::Fenced) => return,
                Err(e) => {
                    warn!("upkeep: {e}; trying again");
                    false
                }
            };
        }
    }

    /// Does what is due. True: look again at once.
    async fn work(&self, root: &dyn Root, job: Job) -> Result<bool> {
        match job {
            Job::Snapshots => {
                scale_segments(root, &self.options.compact);
                self.snapshot(root).await?;
            }
            Job::Compaction => self.compact(root).await?,
            Job::Collection => {
                let condemned = self.gc.lock().await.pass(root, &self.options.gc).await?;
                if condemned.segments > 0 {
                    debug!("garbage collection condemns {condemned:?}");
                }
            }
            Job::Orphans => {
                self.sweep(root).await?;
            }
            Job::PlainFiles => {
                let mut plain = self.plain.lock().await;
                let done = plain.pass(root, &self.options.gc, &self.deletion).await?;
                if done.any() {
                    tracing::info!("plain files that nothing refers to any more: {done:?}");
                }
                return Ok(done.any());
            }
            Job::Deletion => return Ok(self.deletion.one(root).await?.is_some()),
        }
        Ok(false)
    }

    /// Takes a snapshot now; returns its position.
    pub async fn take_snapshot(&self, root: &dyn Root) -> Result<Pos> {
        let mut snapshots = self.snapshots.lock().await;
        snapshots.trimmed = false;
        (snapshots.last, snapshots.size) = snapshot::take(root).await?;
        Ok(snapshots.last)
    }

    async fn snapshot(&self, root: &dyn Root) -> Result<()> {
        let mut snapshots = self.snapshots.lock().await;
        if self.is_snapshot_due(root, &snapshots) {
            snapshots.trimmed = false;
            (snapshots.last, snapshots.size) = snapshot::take(root).await?;
            debug!("snapshot at {}, {} bytes", snapshots.last, snapshots.size);
        }
        if !snapshots.trimmed {
            snapshot::trim(root).await?;
            snapshots.trimmed = true;
        }
        Ok(())
    }

    fn is_snapshot_due(&self, root: &dyn Root, snapshots: &Snapshots) -> bool {
        let least = self.options.compact.smallest_segment;
        let often = (live(root) / LOG_SHARE).max(least);
        let after = self.options.snapshot_bytes.min(often);
        let grown = root.log_end().saturating_sub(snapshots.last);
        if grown >= after.max(snapshots.size * SNAPSHOT_SHARE) {
            return true;
        }
        let mut begun = 0;
        root.view(&mut |index| {
            let rows = index.segments().map(|s| &s.row);
            let log = rows.filter(|r| r.stream == StreamId::LOG);
            begun = log.filter(|r| r.base > snapshots.last).count();
        });
        begun >= LOG_SEGMENTS
    }

    /// Removes orphans that are old enough.
    pub(super) async fn sweep(&self, root: &dyn Root) -> Result<u64> {
        orphans::sweep(root, &self.deletion, self.options.orphan_age).await
    }

    async fn compact(&self, root: &dyn Root) -> Result<()> {
        let mut compaction = self.compaction.lock().await;
        if Instant::now() < compaction.again {
            return Ok(());
        }
        let mut victims = victims(root, &self.options.compact);
        if victims.is_empty() {
            return Ok(());
        }
        limit(&mut victims, live(root));
        let copied = compact::execute(root, &victims, &self.options.compact).await?;
        debug!("compaction: {} segments, {copied:?}", victims.len());
        if copied.extents == 0 {
            // Nothing that could be moved: the next look would find the same.
            compaction.again = Instant::now() + FRUITLESS_PAUSE;
        }
        Ok(())
    }
}

pub(super) fn victims(root: &dyn Root, options: &CompactOptions) -> Vec<Victim> {
    let mut victims = Vec::new();
    root.view(&mut |index| victims = compact::plan(index, options));
    victims
}

/// Leaves what one pass can do; the next plans anew, and what died meanwhile is not copied.
fn limit(victims: &mut Vec<Victim>, live: u64) {
    let most = (live / PASS_SHARE).max(PASS_LEAST);
    let mut sum = 0;
    victims.retain(|v| {
        let fits = sum < most;
        sum += v.live;
        fits
    });
}

fn live(root: &dyn Root) -> u64 {
    let mut live = 0;
    root.view(&mut |index| live = index.live_bytes());
    live
}

fn scale_segments(root: &dyn Root, options: &CompactOptions) {
    root.set_segment_size(choice::segment_size(live(root), options));
}
