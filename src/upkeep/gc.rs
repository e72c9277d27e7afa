//! Garbage collection: gives back segments that nothing refers to.
//!
//! Zero references are necessary, not sufficient. A segment goes when it is sealed; when no extent
//! has referred to it for the grace period; when the change that took the last reference is
//! durable, and every read planned before that change has ended; and when all that is confirmed
//! in the atomic step that logs it as condemned. Then the store deletes it, then that is logged.

use super::Root;
use crate::base::{ErrorKind, Pos, Result, SegmentName, StreamId};
use crate::format::{Row, SegmentRow, SegmentState};
use crate::index::{Index, SegmentUse};
use crate::segment;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct GcOptions {
    /// How long a segment stays after its last reference went.
    pub grace: Duration,
    /// Bytes of unreferenced segments that may wait for their grace, as a share of live bytes;
    /// beyond it the oldest go at once.
    pub keep: f64,
    /// Segments deleted per second.
    pub delete_rate: f64,
}

/// Since when, and since which position of the log, a segment is unreferenced.
#[derive(Clone, Copy)]
struct Unreferenced {
    since: Instant,
    pos: Pos,
    size: u64,
}

/// What garbage collection remembers between passes. Losing it costs a further grace period.
#[derive(Default)]
pub struct Gc {
    waiting: BTreeMap<SegmentName, Unreferenced>,
    /// Earliest time of the next deletion.
    next_delete: Option<Instant>,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub segments: u64,
    pub bytes: u64,
}

impl Gc {
    /// One pass: notes what became unreferenced, condemns what is due, deletes what is condemned.
    pub async fn pass(&mut self, root: &dyn Root, options: &GcOptions) -> Result<Freed> {
        self.note(root);
        let due = self.due(root, options).await?;
        if !due.is_empty() {
            let pos = root.commit(&mut |index| condemn(root, index, &due))?;
            root.durable(pos).await?;
        }
        self.delete_condemned(root, options).await
    }

    /// Segments that wait for their grace, and their bytes.
    pub fn waiting(&self) -> Freed {
        let bytes = self.waiting.values().map(|u| u.size).sum();
        Freed {
            segments: self.waiting.len() as u64,
            bytes,
        }
    }

    fn note(&mut self, root: &dyn Root) {
        let mut seen = BTreeMap::new();
        root.view(&mut |index| {
            let pos = root.log_end();
            for s in index.segments().filter(|s| is_unreferenced(root, index, s)) {
                let new = Unreferenced {
                    since: Instant::now(),
                    pos,
                    size: s.row.size,
                };
                let known = self.waiting.get(&s.row.name).copied();
                seen.insert(s.row.name, known.unwrap_or(new));
            }
        });
        self.waiting = seen;
    }

    /// Those whose time has come, oldest first.
    async fn due(&self, root: &dyn Root, options: &GcOptions) -> Result<Vec<SegmentName>> {
        let mut live = 0;
        root.view(&mut |index| live = index.segments().map(|s| s.live.bytes).sum());
        let budget = (live as f64 * options.keep) as u64;
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(name, u)| (u.since, **name));
        let mut left: u64 = waiting.iter().map(|(_, u)| u.size).sum();
        let mut due = Vec::new();
        for (name, u) in waiting {
            if u.since.elapsed() < options.grace && left <= budget {
                break;
            }
            left -= u.size;
            if root.oldest_read() >= u.pos {
                root.durable(u.pos).await?;
                due.push(*name);
            }
        }
        Ok(due)
    }

    async fn delete_condemned(&mut self, root: &dyn Root, options: &GcOptions) -> Result<Freed> {
        let mut condemned: Vec<SegmentRow> = Vec::new();
        root.view(&mut |index| {
            let rows = index.segments().map(|s| &s.row);
            condemned.extend(rows.filter(|r| r.state == SegmentState::Condemned).cloned());
        });
        let mut freed = Freed::default();
        for row in condemned {
            self.wait_for_turn(options).await;
            let path = segment::path(&row.name, root.epoch());
            match root.store().delete(&path).await {
                Err(e) if !e.is(ErrorKind::NotFound) => return Err(e),
                _ => {}
            }
            freed.segments += 1;
            freed.bytes += row.size;
            let gone = Row::Segment(SegmentRow {
                state: SegmentState::Deleted,
                ..row
            });
            root.commit(&mut |_| vec![gone.clone()])?;
        }
        Ok(freed)
    }

    /// Spreads deletions evenly: a burst of block deletions holds up DataNodes.
    async fn wait_for_turn(&mut self, options: &GcOptions) {
        let now = Instant::now();
        let turn = self.next_delete.unwrap_or(now).max(now);
        let gap = Duration::from_secs_f64(1.0 / options.delete_rate.max(0.01));
        self.next_delete = Some(turn + gap);
        tokio::time::sleep_until(turn).await;
    }
}

fn is_unreferenced(root: &dyn Root, index: &Index, s: &SegmentUse) -> bool {
    let log_needs_it = s.row.stream == StreamId::LOG && s.row.end > index.log_needed();
    s.row.state == SegmentState::Sealed
        // Without a size it is still being closed.
        && s.row.size > 0
        && s.live.extents == 0
        && !log_needs_it
        && !root.is_staged(&s.row)
}

/// The rows that condemn those of `due` that are still unreferenced.
fn condemn(root: &dyn Root, index: &Index, due: &[SegmentName]) -> Vec<Row> {
    let still = due.iter().filter_map(|name| index.segment(name));
    still
        .filter(|s| is_unreferenced(root, index, s))
        .map(|s| {
            Row::Segment(SegmentRow {
                state: SegmentState::Condemned,
                ..s.row.clone()
            })
        })
        .collect()
}
