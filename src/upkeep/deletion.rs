//! Deletes what is condemned, evenly in time: a burst of block deletions holds up DataNodes.

use super::Root;
use super::gc::Freed;
use crate::base::{ErrorKind, Result};
use crate::format::{Row, SegmentRow, SegmentState};
use crate::segment;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

const CLEARED_AT_ONCE: usize = 1000;

#[derive(Clone, Debug)]
pub struct DeletionRate {
    /// Files per second.
    pub files: f64,
    /// Bytes per second; 0: not limited.
    pub bytes: u64,
}

impl DeletionRate {
    /// How long after a file of this size the next may go.
    fn gap(&self, size: u64) -> Duration {
        let by_count = 1.0 / self.files.max(0.01);
        let by_size = match self.bytes {
            0 => 0.0,
            rate => size as f64 / rate as f64,
        };
        Duration::from_secs_f64(by_count.max(by_size))
    }
}

/// Whoever deletes takes a turn here, the background and commands alike, so that the rate holds
/// for all of them together.
pub struct Deletion {
    rate: DeletionRate,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    next: Option<Instant>,
    /// Condemned, and the record that says so is durable.
    cleared: VecDeque<SegmentRow>,
}

impl Turns {
    async fn wait(&self) {
        if let Some(next) = self.next {
            tokio::time::sleep_until(next).await;
        }
    }
}

impl Deletion {
    pub fn new(rate: DeletionRate) -> Deletion {
        Deletion {
            rate,
            turns: Mutex::default(),
        }
    }

    /// Deletes one condemned segment when its turn has come. None if there is none.
    pub async fn one(&self, root: &dyn Root) -> Result<Option<Freed>> {
        let mut turns = self.turns.lock().await;
        turns.wait().await;
        if turns.cleared.is_empty() {
            turns.cleared = clear(root).await?;
        }
        let Some(row) = turns.cleared.pop_front() else {
            return Ok(None);
        };
        turns.next = Some(Instant::now() + self.rate.gap(row.size));
        let path = segment::path(&row.name, root.epoch());
        root.forget_reader(&path);
        match root.store().delete(&path).await {
            // It is found again.
            Err(e) if !e.is(ErrorKind::NotFound) => {
                return Err(e.context(format_args!("deleting {path}")));
            }
            _ => {}
        }
        let freed = Freed {
            segments: 1,
            bytes: row.size,
        };
        let gone = Row::Segment(SegmentRow {
            state: SegmentState::Deleted,
            ..row
        });
        root.commit(&mut |_| vec![gone.clone()])?;
        Ok(Some(freed))
    }

    /// Waits for a turn to delete something of this size.
    pub(super) async fn turn(&self, size: u64) {
        let mut turns = self.turns.lock().await;
        turns.wait().await;
        turns.next = Some(Instant::now() + self.rate.gap(size));
    }

    /// Deletes a small file or an empty directory. False if it was gone, or is not empty.
    pub async fn file(&self, root: &dyn Root, path: &str) -> Result<bool> {
        let mut turns = self.turns.lock().await;
        turns.wait().await;
        turns.next = Some(Instant::now() + self.rate.gap(0));
        match root.store().delete(path).await {
            Ok(()) => Ok(true),
            Err(e) if e.is(ErrorKind::NotFound) || e.is(ErrorKind::Invalid) => Ok(false),
            Err(e) => Err(e.context(format_args!("deleting {path}"))),
        }
    }
}

/// Some condemned segments. Nothing is deleted before the record that condemns it is durable: an
/// owner that was fenced cannot write one.
async fn clear(root: &dyn Root) -> Result<VecDeque<SegmentRow>> {
    let (mut rows, mut pos) = (VecDeque::new(), 0);
    root.view(&mut |index| {
        let all = index.segments().map(|s| &s.row);
        let condemned = all.filter(|r| r.state == SegmentState::Condemned);
        rows = condemned.take(CLEARED_AT_ONCE).cloned().collect();
        pos = root.log_end();
    });
    if !rows.is_empty() {
        root.durable(pos).await?;
    }
    Ok(rows)
}

/// What is condemned and not deleted yet.
pub fn condemned(root: &dyn Root) -> Freed {
    let mut left = Freed::default();
    root.view(&mut |index| {
        let rows = index.segments().map(|s| &s.row);
        for row in rows.filter(|r| r.state == SegmentState::Condemned) {
            left.segments += 1;
            left.bytes += row.size;
        }
    });
    left
}
