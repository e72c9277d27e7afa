//! Chooses what compaction empties. Free, and without effect: the same plan serves a dry run.

use super::compact::CompactOptions;
use crate::base::{SegmentName, StreamId};
use crate::format::SegmentState;
use crate::index::{Index, SegmentUse};
use std::collections::{BTreeMap, BTreeSet};

/// A segment with a larger share of live bytes is not worth copying for the space.
const FULL: f64 = 0.9;
/// What a copy takes beside the bytes themselves, about: of a segment its header and footer, of an
/// extent its frame with the path and its place in the frame table. Without this a root with a few
/// small files would be copied for ever, as no copy of it comes down to the target.
const SEGMENT_TAKES: u64 = 512;
const EXTENT_TAKES: u64 = 192;

/// A segment takes at most one part in so many of the live bytes. Smaller ones are sooner empty by
/// themselves, and cheaper to empty; larger ones cost fewer calls.
const SEGMENTS: u64 = 128;
/// Segments are not made smaller than this, however little is live.
pub const SMALLEST_SEGMENT: u64 = 4 << 20;

/// A segment below this part of the usual size is *small*. An idle mount and each remount leave some.
const SMALL: u64 = 8;
/// Small segments are merged when so many of about one size (within a factor of four) are there, so
/// a byte is copied once for each such step at most, and there are never many of them.
const MERGE: usize = 8;

/// A segment that is worth emptying.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    pub name: SegmentName,
    pub size: u64,
    pub live: u64,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Much of it is dead, and segments take more than the target.
    Sparse,
    /// It is one of many small ones.
    Small,
}

impl Why {
    /// What is done about it, for people.
    pub fn action(self) -> &'static str {
        match self {
            Why::Sparse => "copy what is live, then delete",
            Why::Small => "merge with others of its size",
        }
    }
}

/// At which size new segments are sealed, if that is below the configured one.
pub fn segment_size(live: u64, options: &CompactOptions) -> u64 {
    let size = (live / SEGMENTS).max(options.smallest_segment);
    size.min(options.largest_segment)
}

/// Chooses what to empty: the emptiest first, which frees most for what it costs, until the
/// amplification is down to the target; and small segments, where there are many.
pub fn plan(index: &Index, options: &CompactOptions) -> Vec<Victim> {
    let sealed = index
        .segments()
        .filter(|s| s.row.state == SegmentState::Sealed);
    let used: Vec<&SegmentUse> = sealed.filter(|s| s.live.bytes > 0).collect();
    let live: u64 = used.iter().map(|s| s.live.bytes).sum();
    let total: u64 = used.iter().map(|s| s.row.size).sum();
    let free: Vec<&SegmentUse> = used
        .into_iter()
        .filter(|s| may_be_emptied(index, s))
        .collect();
    let mut victims = sparse(&free, total, live, options.target);
    let chosen: BTreeSet<SegmentName> = victims.iter().map(|v| v.name).collect();
    let others = free.into_iter().filter(|s| !chosen.contains(&s.row.name));
    victims.extend(small(others, segment_size(live, options) / SMALL));
    victims
}

/// A log segment that replay still needs would not go away for being empty. This is a floor of age
/// as well: what was just written is never copied, and most of it dies young.
fn may_be_emptied(index: &Index, s: &SegmentUse) -> bool {
    s.row.stream != StreamId::LOG || s.row.end <= index.log_needed()
}

fn victim(s: &SegmentUse, why: Why) -> Victim {
    Victim {
        name: s.row.name,
        size: s.row.size,
        live: s.live.bytes,
        why,
    }
}

fn sparse(free: &[&SegmentUse], mut total: u64, live: u64, target: f64) -> Vec<Victim> {
    let worth = |s: &&&SegmentUse| {
        let copy = s.live.bytes + s.live.extents * EXTENT_TAKES + SEGMENT_TAKES;
        (copy as f64) < FULL * s.row.size as f64
    };
    let found = free.iter().filter(worth);
    let mut victims: Vec<Victim> = found.map(|s| victim(s, Why::Sparse)).collect();
    victims.sort_by(|a, b| share(a).total_cmp(&share(b)).then(a.name.cmp(&b.name)));
    victims.retain(|v| {
        let needed = total as f64 > target * live as f64;
        total -= if needed {
            v.size.saturating_sub(v.live)
        } else {
            0
        };
        needed
    });
    victims
}

fn share(v: &Victim) -> f64 {
    v.live as f64 / v.size.max(1) as f64
}

fn small<'a>(others: impl Iterator<Item = &'a SegmentUse>, limit: u64) -> Vec<Victim> {
    let mut by_size: BTreeMap<u32, Vec<Victim>> = BTreeMap::new();
    for s in others.filter(|s| s.row.size < limit) {
        let magnitude = s.row.size.max(1).ilog2() / 2;
        let alike = by_size.entry(magnitude).or_default();
        alike.push(victim(s, Why::Small));
    }
    by_size.retain(|_, alike| alike.len() >= MERGE);
    by_size.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Ino, SessionId};
    use crate::format::{Attr, Extent, Row, SegmentRow};

    const KIB: u64 = 1 << 10;

    fn lane(n: u32) -> SegmentName {
        let session = SessionId(1);
        SegmentName::Lane { session, n }
    }

    /// Adds a sealed segment of which one file uses some.
    fn add(index: &mut Index, n: u32, stream: StreamId, size: u64, live: u64) {
        let base = n as u64 * (1 << 30);
        let name = lane(n);
        let row = SegmentRow {
            name,
            stream,
            base,
            end: base + size,
            state: SegmentState::Sealed,
            size,
        };
        index.apply(&Row::Segment(row)).unwrap();
        let ino = Ino(100 + n as u64);
        let attr = Attr {
            mode: libc::S_IFREG,
            nlink: 1,
            ..Attr::default()
        };
        index.apply(&Row::Inode { ino, attr }).unwrap();
        let len = live as u32;
        let extent = Extent {
            off: 0,
            len,
            stream,
            pos: base,
            frame: len,
            skip: 0,
        };
        let extents = vec![extent];
        let row = Row::Extents {
            ino,
            off: 0,
            len: live,
            extents,
        };
        index.apply(&row).unwrap();
    }

    fn options(target: f64) -> CompactOptions {
        CompactOptions {
            target,
            rate: 0,
            smallest_segment: SMALLEST_SEGMENT,
            largest_segment: 256 << 20,
        }
    }

    fn names(victims: &[Victim]) -> Vec<SegmentName> {
        victims.iter().map(|v| v.name).collect()
    }

    #[test]
    fn the_emptiest_are_emptied_until_the_target_is_reached() {
        let mut index = Index::new();
        let size = 8 << 20;
        for (n, share) in [95, 20, 50, 70].into_iter().enumerate() {
            add(&mut index, n as u32, StreamId(1), size, size * share / 100);
        }
        // 32 MiB hold 18.8 MiB: 1.70.
        assert_eq!(names(&plan(&index, &options(1.75))), []);
        assert_eq!(names(&plan(&index, &options(1.5))), [lane(1)]);
        assert_eq!(names(&plan(&index, &options(1.2))), [lane(1), lane(2)]);
        assert_eq!(
            names(&plan(&index, &options(1.0))),
            [lane(1), lane(2), lane(3)]
        );
    }

    #[test]
    fn the_log_that_a_snapshot_needs_is_left_alone() {
        let mut index = Index::new();
        add(&mut index, 1, StreamId::LOG, 8 << 20, 1 << 20);
        assert_eq!(plan(&index, &options(1.2)), []);
        let oldest = 2 << 30;
        index.apply(&Row::Snapshots { oldest }).unwrap();
        assert_eq!(names(&plan(&index, &options(1.2))), [lane(1)]);
    }

    /// Where live bytes / 128 passed the size that segments can have, all of them were small, and so
    /// was what they were merged into: compaction never ended.
    #[test]
    fn segments_of_the_largest_size_are_not_small() {
        let mut index = Index::new();
        for n in 0..20 {
            add(&mut index, n, StreamId(1), 64 * KIB, 64 * KIB);
        }
        let options = CompactOptions {
            largest_segment: 64 * KIB,
            ..options(1.5)
        };
        assert_eq!(plan(&index, &options), []);
    }

    #[test]
    fn many_small_segments_are_merged_and_few_are_not() {
        let mut index = Index::new();
        let small = |n: u32| n as usize + 1 >= MERGE;
        for n in 0..MERGE as u32 {
            add(&mut index, n, StreamId(1), 20 * KIB, 20 * KIB);
            // Of another size: it is not dragged along.
            add(&mut index, 100 + n % 3, StreamId(1), 300 * KIB, 300 * KIB);
            let victims = plan(&index, &options(1.5));
            assert_eq!(victims.len(), if small(n) { MERGE } else { 0 });
            assert!(
                victims
                    .iter()
                    .all(|v| v.why == Why::Small && v.size == 20 * KIB)
            );
        }
        // One of the usual size is never small.
        for n in 200..220 {
            add(&mut index, n, StreamId(1), 4 << 20, 4 << 20);
        }
        assert_eq!(plan(&index, &options(1.5)).len(), MERGE);
    }
}
