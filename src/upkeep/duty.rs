//! Decides when upkeep is due, and does it, for as long as a root is mounted.

use super::compact::{self, CompactOptions};
use super::gc::{Gc, GcOptions};
use super::{Root, snapshot};
use crate::base::{Pos, Result};
use std::sync::Weak;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};

#[derive(Clone, Debug)]
pub struct DutyOptions {
    pub gc: GcOptions,
    pub compact: CompactOptions,
    /// Bytes of log after which a snapshot is due, at least.
    pub snapshot_bytes: u64,
    pub every: Duration,
}

/// A snapshot is due when the log has grown by this many times its size: the write amplification
/// of snapshots is at most one part in so many.
const SNAPSHOT_SHARE: u64 = 4;

/// A segment takes at most one part in so many of the live bytes, or a small root could not be
/// compacted: what is in open segments stays.
const SEGMENTS: u64 = 32;
const SMALLEST_SEGMENT: u64 = 4 << 20;

/// How long compaction rests after a pass that moved nothing.
const FRUITLESS_PAUSE: Duration = Duration::from_secs(60);

pub struct Duty {
    options: DutyOptions,
    gc: Gc,
    last_snapshot: Pos,
    snapshot_size: u64,
    /// No compaction before this.
    compact_again: Instant,
}

impl Duty {
    /// `last_snapshot`: the position of the newest one, 0 if there is none.
    pub fn new(options: DutyOptions, last_snapshot: Pos) -> Duty {
        Duty {
            options,
            gc: Gc::default(),
            last_snapshot,
            snapshot_size: 0,
            compact_again: Instant::now(),
        }
    }

    /// Runs until the root is gone.
    pub async fn run<R: Root>(mut self, root: Weak<R>) {
        loop {
            tokio::time::sleep(self.options.every).await;
            let Some(root) = root.upgrade() else { return };
            if let Err(e) = self.round(&*root).await {
                warn!("upkeep: {e}; trying again");
            }
        }
    }

    /// One round of everything that is due.
    pub async fn round(&mut self, root: &dyn Root) -> Result<()> {
        let grown = root.log_end().saturating_sub(self.last_snapshot);
        if grown
            >= self
                .options
                .snapshot_bytes
                .max(self.snapshot_size * SNAPSHOT_SHARE)
        {
            (self.last_snapshot, self.snapshot_size) = snapshot::take(root).await?;
            debug!(
                "snapshot at {}, {} bytes",
                self.last_snapshot, self.snapshot_size
            );
            snapshot::trim(root).await?;
        }
        scale_segments(root);
        self.compact(root).await?;
        let freed = self.gc.pass(root, &self.options.gc).await?;
        if freed.segments > 0 {
            debug!("garbage collection: {freed:?}");
        }
        Ok(())
    }

    async fn compact(&mut self, root: &dyn Root) -> Result<()> {
        if Instant::now() < self.compact_again {
            return Ok(());
        }
        let mut victims = Vec::new();
        root.view(&mut |index| victims = compact::plan(index, &self.options.compact));
        if victims.is_empty() {
            return Ok(());
        }
        let copied = compact::execute(root, &victims, &self.options.compact).await?;
        debug!("compaction: {} segments, {copied:?}", victims.len());
        if copied.extents == 0 {
            // Nothing that could be moved: the next look would find the same.
            self.compact_again = Instant::now() + FRUITLESS_PAUSE;
        }
        Ok(())
    }
}

fn scale_segments(root: &dyn Root) {
    let mut live = 0;
    root.view(&mut |index| live = index.segments().map(|s| s.live.bytes).sum());
    root.set_segment_size((live / SEGMENTS).max(SMALLEST_SEGMENT));
}
