//! Garbage collection: gives back segments that nothing refers to.
//!
//! Zero references are necessary, not sufficient. A segment goes when it is sealed; when no extent
//! has referred to it for the grace period; when the change that took the last reference is
//! durable, and every read planned before that change has ended; and when all that is confirmed
//! in the atomic step that logs it as condemned. Then the store deletes it, then that is logged
//! (see `deletion`).

use super::Root;
use super::plan::{Line, whole_seconds};
use crate::base::{Error, ErrorKind, Pos, Result, SegmentName, StreamId};
use crate::format::{Row, SegmentRow, SegmentState};
use crate::index::{Index, SegmentUse};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct GcOptions {
    /// How long a segment stays after its last reference went.
    pub grace: Duration,
    /// Bytes of unreferenced segments that may wait for their grace, as a share of live bytes (the
    /// most that were live within the grace, or deleting everything would leave no time to undo
    /// it); beyond it the oldest go at once.
    pub keep: f64,
}

/// A count takes time, and holds up changes meanwhile.
const COUNTED_AT_MOST: usize = 20_000;

/// Since when, and since which position of the log, a segment is unreferenced.
#[derive(Clone, Copy)]
struct Unreferenced {
    since: Instant,
    pos: Pos,
    size: u64,
    /// `SegmentUse::begun`: another number means that it was in use again meanwhile.
    begun: u32,
}

/// What garbage collection remembers between passes. Losing it costs a further grace period.
#[derive(Default)]
pub struct Gc {
    waiting: BTreeMap<SegmentName, Unreferenced>,
    /// Live bytes at passes within the grace, those that a later pass did not exceed.
    live: VecDeque<(Instant, u64)>,
}

/// What was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub segments: u64,
    pub bytes: u64,
}

/// Whether an unreferenced segment may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Due,
    /// Its grace has not passed.
    In(Duration),
    /// A read that planned when it was referred to has not ended.
    Read,
}

/// Why a segment without live bytes is no garbage yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Closing,
    Log,
    Staged,
}

impl Gc {
    /// Notes what became unreferenced and condemns what is due. Returns what was condemned.
    pub async fn pass(&mut self, root: &dyn Root, options: &GcOptions) -> Result<Freed> {
        self.note(root, options);
        let due = self.due(root, options).await?;
        let mut condemned = Freed::default();
        if due.is_empty() {
            return Ok(condemned);
        }
        let pos = root.commit(&mut |index| {
            let rows = condemn(root, index, &due, &self.waiting);
            condemned.segments = rows.len() as u64;
            condemned.bytes = rows.iter().map(|row| row.size).sum();
            rows.into_iter().map(Row::Segment).collect()
        })?;
        for name in &due {
            self.waiting.remove(name);
        }
        root.durable(pos).await?;
        check_counts(root);
        Ok(condemned)
    }

    /// Segments that wait for their grace, and their bytes.
    pub fn waiting(&self) -> Freed {
        let bytes = self.waiting.values().map(|u| u.size).sum();
        Freed {
            segments: self.waiting.len() as u64,
            bytes,
        }
    }

    /// What a pass would do now, and what it waits for.
    pub fn plan(&mut self, root: &dyn Root, options: &GcOptions) -> Vec<Line> {
        self.note(root, options);
        let verdicts: BTreeMap<_, _> = self.verdicts(root, options).into_iter().collect();
        let mut lines = Vec::new();
        root.view(&mut |index| {
            for s in index.segments() {
                if let Some(action) = action(root, index, s, verdicts.get(&s.row.name)) {
                    lines.push(Line::new(&s.row, s.live.bytes, action));
                }
            }
        });
        lines
    }

    fn note(&mut self, root: &dyn Root, options: &GcOptions) {
        let mut seen = BTreeMap::new();
        let mut live = 0;
        root.view(&mut |index| {
            live = index.live_bytes();
            let pos = root.log_end();
            for s in index.segments().filter(|s| is_unreferenced(root, index, s)) {
                let new = Unreferenced {
                    since: Instant::now(),
                    pos,
                    size: s.row.size,
                    begun: s.begun,
                };
                let known = self.waiting.get(&s.row.name).copied();
                let known = known.filter(|u| u.begun == s.begun);
                seen.insert(s.row.name, known.unwrap_or(new));
            }
        });
        if self.live.is_empty() {
            // After a mount: what waits may have been in use just before.
            live += seen.values().map(|u: &Unreferenced| u.size).sum::<u64>();
        }
        self.waiting = seen;
        self.note_live(live, options.grace);
    }

    fn note_live(&mut self, live: u64, grace: Duration) {
        if grace.is_zero() {
            return; // a command that does not wait; what others wait for stays
        }
        while self.live.back().is_some_and(|(_, less)| *less <= live) {
            self.live.pop_back();
        }
        self.live.push_back((Instant::now(), live));
        let old = |(at, _): &(Instant, u64)| at.elapsed() > grace;
        while self.live.len() > 1 && self.live.front().is_some_and(old) {
            self.live.pop_front();
        }
    }

    /// Those whose time has come, oldest first.
    async fn due(&self, root: &dyn Root, options: &GcOptions) -> Result<Vec<SegmentName>> {
        let verdicts = self.verdicts(root, options);
        let due = verdicts.into_iter().filter(|(_, v)| *v == Verdict::Due);
        let due: Vec<SegmentName> = due.map(|(name, _)| name).collect();
        let since = due.iter().filter_map(|name| self.waiting.get(name));
        if let Some(pos) = since.map(|u| u.pos).max() {
            root.durable(pos).await?;
        }
        Ok(due)
    }

    /// How many bytes that nothing refers to may wait for their grace.
    pub fn budget(&self, live: u64, options: &GcOptions) -> u64 {
        let most = self.live.front().map_or(0, |(_, most)| *most);
        (most.max(live) as f64 * options.keep) as u64
    }

    /// Oldest first.
    fn verdicts(&self, root: &dyn Root, options: &GcOptions) -> Vec<(SegmentName, Verdict)> {
        let budget = self.budget(0, options);
        let oldest_read = root.oldest_read();
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(name, u)| (u.since, **name));
        let mut left: u64 = waiting.iter().map(|(_, u)| u.size).sum();
        let judge = |(name, u): (&SegmentName, &Unreferenced)| {
            let grace = options.grace.saturating_sub(u.since.elapsed());
            let verdict = if !grace.is_zero() && left <= budget {
                Verdict::In(grace)
            } else if oldest_read < u.pos {
                Verdict::Read
            } else {
                Verdict::Due
            };
            if !matches!(verdict, Verdict::In(_)) {
                left -= u.size;
            }
            (*name, verdict)
        };
        waiting.into_iter().map(judge).collect()
    }
}

fn action(
    root: &dyn Root,
    index: &Index,
    s: &SegmentUse,
    verdict: Option<&Verdict>,
) -> Option<String> {
    if s.row.state == SegmentState::Condemned {
        return Some("delete (condemned already)".into());
    }
    if s.row.state != SegmentState::Sealed || s.live.extents > 0 {
        return None;
    }
    let text = match (held(root, index, s), verdict) {
        (Some(Held::Closing), _) => "wait until it is closed".into(),
        (Some(Held::Log), _) => "keep until two later snapshots exist".into(),
        (Some(Held::Staged), _) => "wait until bytes in it are committed".into(),
        (None, Some(Verdict::In(grace))) => {
            format!("delete in {}", whole_seconds(*grace))
        }
        (None, Some(Verdict::Read)) => "delete when a read has ended".into(),
        (None, Some(Verdict::Due) | None) => "delete".into(),
    };
    Some(text)
}

fn held(root: &dyn Root, index: &Index, s: &SegmentUse) -> Option<Held> {
    if s.row.size == 0 {
        return Some(Held::Closing);
    }
    if s.row.stream == StreamId::LOG && s.row.end > index.log_needed() {
        return Some(Held::Log);
    }
    root.is_staged(&s.row).then_some(Held::Staged)
}

fn is_unreferenced(root: &dyn Root, index: &Index, s: &SegmentUse) -> bool {
    s.row.state == SegmentState::Sealed && s.live.extents == 0 && held(root, index, s).is_none()
}

/// The rows that condemn those of `due` that are, and were, unreferenced all the time.
fn condemn(
    root: &dyn Root,
    index: &Index,
    due: &[SegmentName],
    waiting: &BTreeMap<SegmentName, Unreferenced>,
) -> Vec<SegmentRow> {
    let still = due.iter().filter_map(|name| index.segment(name));
    let begun = |s: &SegmentUse| waiting.get(&s.row.name).map(|u| u.begun);
    still
        .filter(|s| is_unreferenced(root, index, s) && begun(s) == Some(s.begun))
        .map(|s| SegmentRow {
            state: SegmentState::Condemned,
            ..s.row.clone()
        })
        .collect()
}

/// Counts of references are derived; a build for tests counts them again. A wrong one would cost
/// somebody's bytes, so it stops the mount.
fn check_counts(root: &dyn Root) {
    if !cfg!(debug_assertions) {
        return;
    }
    let mut wrong = Vec::new();
    root.view(&mut |index| {
        if index.inodes() <= COUNTED_AT_MOST {
            wrong = index.check_counts();
        }
    });
    if !wrong.is_empty() {
        let text = format!("references were miscounted: {}", wrong.join("; "));
        root.stop(Error::new(ErrorKind::Corrupt, text));
    }
}
