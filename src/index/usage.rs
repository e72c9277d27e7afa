//! How much of each segment files still use.
//!
//! An extent names a stream and a position, not a segment, because bytes at a position stay the
//! same while a failed sync moves them to another segment. It belongs to the last segment that
//! begins at or before it. A segment's row may come after extents in it, so what lies where the
//! next segment may still begin (the *young* part of a stream) is kept by position.

use crate::base::{Pos, SegmentName, StreamId};
use crate::format::{Extent, SegmentRow, SegmentState};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// What files use of something. Bytes that two files share (a clone) count twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Live {
    pub bytes: u64,
    pub extents: u64,
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
}

#[derive(Default)]
struct Stream {
    /// The segments by where they begin. Of two that begin at the same place (nothing of the first
    /// became durable) the later name has the bytes.
    bases: BTreeSet<(Pos, SegmentName)>,
    /// Use of positions before the first segment.
    outside: Live,
    /// Use by position, of the positions from `settled` on.
    young: BTreeMap<Pos, Live>,
    /// Below this no further segment is expected to begin.
    settled: Pos,
}

impl Stream {
    fn at(&self, pos: Pos) -> Option<SegmentName> {
        let upto = (pos, LAST_NAME);
        self.bases.range(..=upto).next_back().map(|(_, name)| *name)
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

/// The caller must count a stream anew from all extents: a segment appeared or went where use
/// was settled. Only a log out of order does that.
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
        tally(&mut self.segments, s, e.pos).add(one);
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
        let Some(known) = self.segments.get_mut(&row.name) else {
            return self.insert(row);
        };
        if (known.row.stream, known.row.base) == (row.stream, row.base) {
            known.row = row.clone();
            self.settle(row.stream);
            return Recount::No;
        }
        // A name never changes its place; if rows say so, believe the later one.
        let old = self.remove(&row.name);
        let new = self.insert(row);
        if old == Recount::No { new } else { old }
    }

    fn insert(&mut self, row: &SegmentRow) -> Recount {
        let s = self.streams.entry(row.stream).or_default();
        let before = s.at(row.base);
        s.bases.insert((row.base, row.name));
        let mut moved = Live::default();
        // Equal bases: the segment with the later name has the bytes already or gets them now.
        if s.at(row.base) == Some(row.name) {
            let next = s.bases.range((row.base, row.name)..).nth(1).map(|b| b.0);
            let upto = next.unwrap_or(Pos::MAX);
            let young = s.young.range(row.base..).take_while(|(p, _)| **p < upto);
            young.for_each(|(_, live)| moved.add(*live));
        }
        match before.and_then(|name| self.segments.get_mut(&name)) {
            Some(from) => from.live.sub(moved),
            None => s.outside.sub(moved),
        }
        let late = row.base < s.settled;
        let row = row.clone();
        let stream = row.stream;
        self.segments
            .insert(row.name, SegmentUse { row, live: moved });
        self.settle(stream);
        if late {
            Recount::Stream(stream)
        } else {
            Recount::No
        }
    }

    fn remove(&mut self, name: &SegmentName) -> Recount {
        let Some(gone) = self.segments.remove(name) else {
            return Recount::No;
        };
        let stream = gone.row.stream;
        if let Some(s) = self.streams.get_mut(&stream) {
            s.bases.remove(&(gone.row.base, *name));
            if s.bases.is_empty() && s.young.is_empty() && s.outside == Live::default() {
                self.streams.remove(&stream);
            }
        }
        match gone.live == Live::default() {
            true => Recount::No,
            false => Recount::Stream(stream),
        }
    }

    /// Forgets positions where no segment can begin any more: below the start of the last one, or
    /// below its end once it is sealed.
    fn settle(&mut self, stream: StreamId) {
        let Some(s) = self.streams.get_mut(&stream) else {
            return;
        };
        let Some((base, name)) = s.bases.last() else {
            return;
        };
        let last = self.segments.get(name).map(|u| &u.row);
        let sealed = last.filter(|r| r.state != SegmentState::Open);
        let line = sealed.map_or(*base, |r| r.end.max(*base));
        if line > s.settled {
            s.settled = line;
            s.young = s.young.split_off(&line);
        }
    }

    /// Starts counting a stream anew.
    pub fn reset(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.outside = Live::default();
            s.young.clear();
            for (_, name) in &s.bases {
                if let Some(u) = self.segments.get_mut(name) {
                    u.live = Live::default();
                }
            }
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
