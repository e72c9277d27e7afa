//! How much of each segment files still use.
//!
//! An extent names a stream and a position, not a segment, because bytes at a position stay the
//! same while a failed sync moves them to another segment. A position belongs to the last segment
//! that begins at or before it and, if sealed, ends after it. Segments appear, and their ends move,
//! after there are extents in them, so what lies where that still happens (the *young* part of a
//! stream) is kept by position.

use crate::base::{Pos, SegmentName, StreamId};
use crate::format::{Extent, SegmentRow, SegmentState};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;

/// What files use of something. Bytes that two files share (a clone) count twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Live {
    pub bytes: u64,
    pub extents: u64,
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} extents", self.bytes, self.extents)
    }
}

impl Live {
    fn add(&mut self, other: Live) {
        self.bytes += other.bytes;
        self.extents += other.extents;
    }

    // Saturating: rows that contradict each other must not stop a mount; `check` finds them.
    fn sub(&mut self, other: Live) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.extents = self.extents.saturating_sub(other.extents);
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentUse {
    pub row: SegmentRow,
    pub live: Live,
    /// How often something began to refer to it: whoever waits for its end sees that it was in use
    /// meanwhile (undelete brings references back).
    pub begun: u32,
}

#[derive(Default)]
struct Stream {
    /// The segments that have a position, by where they begin, with where they end. Of two that
    /// begin at the same place the later name comes last.
    ranges: BTreeMap<(Pos, SegmentName), Pos>,
    /// Use of positions that no segment has.
    outside: Live,
    /// Use by position, of the positions from `settled` on.
    young: BTreeMap<Pos, Live>,
    /// Below this no segment is expected to begin, or to move its end.
    settled: Pos,
}

impl Stream {
    fn at(&self, pos: Pos) -> Option<SegmentName> {
        self.ranges
            .range(..=(pos, LAST_NAME))
            .rev()
            .find(|(_, end)| pos < **end)
            .map(|((_, name), _)| *name)
    }

    fn set(&mut self, row: &SegmentRow) {
        let key = (row.base, row.name);
        match range_end(row) {
            end if end > row.base => drop(self.ranges.insert(key, end)),
            _ => drop(self.ranges.remove(&key)),
        }
    }

    /// Forgets positions that will stay where they are.
    fn settle(&mut self) {
        let line = self.ranges.last_key_value().map(|((base, _), end)| {
            let open = *end == Pos::MAX;
            if open { *base } else { *end }
        });
        if let Some(line) = line.filter(|line| *line > self.settled) {
            self.settled = line;
            self.young = self.young.split_off(&line);
        }
    }
}

fn range_end(row: &SegmentRow) -> Pos {
    match row.state {
        SegmentState::Open => Pos::MAX,
        _ => row.end,
    }
}

const LAST_NAME: SegmentName = SegmentName::Lane {
    session: crate::base::SessionId(u32::MAX),
    n: u32::MAX,
};

#[derive(Default)]
pub(super) struct UsageTable {
    segments: BTreeMap<SegmentName, SegmentUse>,
    streams: FxHashMap<StreamId, Stream>,
}

/// The caller must count a stream anew from all extents: something moved where use was settled.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Recount {
    No,
    Stream(StreamId),
}

impl UsageTable {
    pub fn segments(&self) -> impl Iterator<Item = &SegmentUse> {
        self.segments.values()
    }

    pub fn segment(&self, name: &SegmentName) -> Option<&SegmentUse> {
        self.segments.get(name)
    }

    pub fn at(&self, stream: StreamId, pos: Pos) -> Option<&SegmentUse> {
        self.segments.get(&self.streams.get(&stream)?.at(pos)?)
    }

    pub fn outside(&self, stream: StreamId) -> Live {
        self.streams
            .get(&stream)
            .map_or(Live::default(), |s| s.outside)
    }

    pub fn add(&mut self, e: &Extent) {
        let one = weight(e);
        let s = self.streams.entry(e.stream).or_default();
        if is_young(s, e) {
            s.young.entry(e.pos).or_default().add(one);
        }
        match s.at(e.pos).and_then(|name| self.segments.get_mut(&name)) {
            Some(u) => {
                u.begun = u.begun.wrapping_add(u32::from(u.live.extents == 0));
                u.live.add(one);
            }
            None => s.outside.add(one),
        }
    }

    pub fn sub(&mut self, e: &Extent) {
        let one = weight(e);
        let s = self.streams.entry(e.stream).or_default();
        if is_young(s, e)
            && let Some(live) = s.young.get_mut(&e.pos)
        {
            live.sub(one);
            if *live == Live::default() {
                s.young.remove(&e.pos);
            }
        }
        tally(&mut self.segments, s, e.pos).sub(one);
    }

    /// A segment is new, changed, or (state `Deleted`) no more.
    pub fn apply(&mut self, row: &SegmentRow) -> Recount {
        if row.state == SegmentState::Deleted {
            return self.remove(&row.name);
        }
        let old = self.segments.get(&row.name).map(|u| &u.row);
        let stays = old.is_none_or(|o| (o.stream, o.base) == (row.stream, row.base));
        if !stays {
            // A name never changes its place; if rows say so, believe the later one.
            let recount = self.remove(&row.name);
            let again = self.apply(row);
            return if recount == Recount::No {
                again
            } else {
                recount
            };
        }
        // From here on, positions may belong to another segment than before.
        let from = match old {
            Some(o) if range_end(o) == range_end(row) => Pos::MAX,
            Some(o) => range_end(o).min(range_end(row)),
            None => row.base,
        };
        let s = self.streams.entry(row.stream).or_default();
        let late = from < s.settled;
        let moving: Vec<(Pos, Live)> = s.young.range(from..).map(|(p, l)| (*p, *l)).collect();
        for (pos, live) in &moving {
            tally(&mut self.segments, s, *pos).sub(*live);
        }
        s.set(row);
        let known = self.segments.get(&row.name).map(|u| (u.live, u.begun));
        let (live, begun) = known.unwrap_or_default();
        let (row, stream) = (row.clone(), row.stream);
        self.segments
            .insert(row.name, SegmentUse { row, live, begun });
        for (pos, live) in &moving {
            tally(&mut self.segments, s, *pos).add(*live);
        }
        s.settle();
        match late {
            true => Recount::Stream(stream),
            false => Recount::No,
        }
    }

    fn remove(&mut self, name: &SegmentName) -> Recount {
        let Some(gone) = self.segments.remove(name) else {
            return Recount::No;
        };
        let stream = gone.row.stream;
        if let Some(s) = self.streams.get_mut(&stream) {
            s.ranges.remove(&(gone.row.base, *name));
            if s.ranges.is_empty() && s.young.is_empty() && s.outside == Live::default() {
                self.streams.remove(&stream);
            }
        }
        match gone.live == Live::default() {
            true => Recount::No,
            false => Recount::Stream(stream),
        }
    }

    /// Whether a segment must have this position.
    pub fn is_settled(&self, stream: StreamId, pos: Pos) -> bool {
        self.streams.get(&stream).is_some_and(|s| pos < s.settled)
    }

    /// Starts counting a stream anew.
    pub fn reset(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.outside = Live::default();
            s.young.clear();
        }
        let of_stream = self.segments.values_mut();
        for u in of_stream.filter(|u| u.row.stream == stream) {
            u.live = Live::default();
        }
    }
}

/// Foreign files have no segments, so nothing of them is ever moved.
fn is_young(s: &Stream, e: &Extent) -> bool {
    e.frame != 0 && e.pos >= s.settled
}

fn weight(e: &Extent) -> Live {
    Live {
        bytes: e.len as u64,
        extents: 1,
    }
}

fn tally<'a>(
    segments: &'a mut BTreeMap<SegmentName, SegmentUse>,
    s: &'a mut Stream,
    pos: Pos,
) -> &'a mut Live {
    match s.at(pos).and_then(|name| segments.get_mut(&name)) {
        Some(u) => &mut u.live,
        None => &mut s.outside,
    }
}
