//! From all records that can be read to an index.
//!
//! Records state final values, so they can be applied in the order of their positions with some of
//! them missing. After a gap a record may speak of bytes that a lost record put into a file: those
//! bytes must not read as zeros, so they are marked as lost (`VOID`).

use super::{RebuildReport, Source, epoch_of};
use crate::base::{Epoch, Ino, Pos, Result, SegmentName, StreamId};
use crate::format::{Attr, Extent, Origin, RecordFrame, Row};
use crate::index::Index;
use std::collections::{BTreeMap, BTreeSet};

/// The stream of bytes that are gone.
pub(super) const VOID: StreamId = StreamId(u32::MAX);

pub(super) struct Salvage {
    pub index: Index,
    /// Streams of segments as rows name them; a header may name another, or be lost.
    pub streams: BTreeMap<SegmentName, BTreeSet<StreamId>>,
    /// Payload positions that some record names: their frames have or had an owner.
    pub named: BTreeSet<(StreamId, Pos)>,
    pub freed: BTreeSet<Ino>,
    /// From which position on a higher epoch goes on, by epoch.
    cuts: BTreeMap<Epoch, Pos>,
}

impl Salvage {
    /// Whether a position of the log counts in a segment of this epoch. What an owner wrote after
    /// the next one had read the log never counted.
    pub fn counts(&self, source: &Source, pos: Pos) -> bool {
        if !source.found.is_log() {
            return true;
        }
        self.cuts
            .get(&epoch_of(&source.found))
            .is_none_or(|cut| pos < *cut)
    }
}

pub(super) fn from_records(sources: &[Source], report: &mut RebuildReport) -> Result<Salvage> {
    let mut salvage = Salvage {
        index: Index::new(),
        streams: BTreeMap::new(),
        named: BTreeSet::new(),
        freed: BTreeSet::new(),
        cuts: cuts(sources),
    };
    let origin = usable_origin(sources, report);
    let mut records: BTreeMap<Pos, &RecordFrame> = BTreeMap::new();
    for source in sources.iter().filter(|s| s.found.is_log()) {
        let table = source.walk.from_table.iter();
        let table = table.filter_map(|(pos, (_, r))| Some((*pos, r.as_ref()?)));
        let all = source.walk.records.iter().map(|(pos, r)| (*pos, r));
        for (pos, record) in all.chain(table) {
            if !salvage.counts(source, pos) {
                continue;
            }
            salvage.remember(record);
            if epoch_of(&source.found) >= origin.epoch {
                records.insert(pos, record);
            }
        }
    }
    let first_gap = gaps(sources, &salvage, origin, report);
    for (pos, record) in &records {
        if *pos >= first_gap {
            mark_unknown_bytes(&mut salvage.index, record)?;
        }
        // Each segment gets a new row.
        let rows = record.rows.iter();
        let mut rows = rows.filter(|row| !matches!(row, Row::Segment(_)));
        rows.try_for_each(|row| salvage.index.apply(row))?;
    }
    report.records = records.len() as u64;
    Ok(salvage)
}

impl Salvage {
    fn remember(&mut self, record: &RecordFrame) {
        for row in &record.rows {
            match row {
                Row::Segment(s) => {
                    self.streams.entry(s.name).or_default().insert(s.stream);
                }
                Row::Extents { extents, .. } => {
                    self.named.extend(extents.iter().map(|e| (e.stream, e.pos)));
                }
                Row::Free { ino } => {
                    self.freed.insert(*ino);
                }
                _ => {}
            }
        }
    }
}

/// Where the log begins. If the segment with which a rebuild began is damaged, what was before it
/// is needed once more.
fn usable_origin(sources: &[Source], report: &mut RebuildReport) -> Origin {
    let headers = sources.iter().filter_map(|s| s.walk.header.as_ref().ok());
    let origin = headers.map(|h| h.origin).max().unwrap_or_default();
    let first = SegmentName::Log {
        epoch: origin.epoch,
        n: 0,
    };
    let whole = sources.iter().any(|s| {
        s.found.name == first && s.walk.bad.is_empty() && matches!(s.walk.footer, Some(Ok(_)))
    });
    if origin == Origin::default() || whole {
        return origin;
    }
    report.notes.push(format!(
        "the result of the rebuild of {:?} is damaged; what was before it is used again",
        origin.epoch
    ));
    Origin::default()
}

fn cuts(sources: &[Source]) -> BTreeMap<Epoch, Pos> {
    let mut cuts = BTreeMap::new();
    let mut next: Option<Pos> = None;
    let logs = sources.iter().filter(|s| s.found.is_log());
    let mut bases: BTreeMap<Epoch, Option<Pos>> = BTreeMap::new();
    for source in logs {
        let base = bases.entry(epoch_of(&source.found)).or_default();
        *base = (*base).into_iter().chain(source.walk.base).min();
    }
    for (epoch, base) in bases.iter().rev() {
        if let Some(next) = next {
            cuts.insert(*epoch, next);
        }
        next = next.into_iter().chain(*base).min();
    }
    cuts
}

/// Notes the positions at which nothing can be read, and returns where the first of them ends.
fn gaps(sources: &[Source], salvage: &Salvage, origin: Origin, report: &mut RebuildReport) -> Pos {
    let mut ranges: Vec<(Pos, Pos)> = Vec::new();
    let logs = sources
        .iter()
        .filter(|s| s.found.is_log() && epoch_of(&s.found) >= origin.epoch);
    for source in logs {
        let table = source.walk.from_table.iter();
        let table = table.map(|(pos, (end, _))| (*pos, *end));
        let all = source.walk.covered.iter().copied().chain(table);
        ranges.extend(all.filter(|(from, _)| salvage.counts(source, *from)));
    }
    ranges.sort_unstable();
    let (mut at, mut first) = (origin.pos, Pos::MAX);
    for (from, to) in ranges {
        if from > at {
            report.notes.push(format!(
                "positions {at} to {from} of the log are lost; changes in them are missing"
            ));
            first = first.min(from);
        }
        at = at.max(to);
    }
    first
}

/// Before a record is applied that comes after a gap: what a file gained in the gap is unknown.
fn mark_unknown_bytes(index: &mut Index, record: &RecordFrame) -> Result<()> {
    for row in &record.rows {
        if let Row::Inode { ino, attr } = row
            && attr.is_file()
        {
            let known = index.attr(*ino).map_or(0, |a| a.size);
            index.apply(row)?;
            if attr.size > known && !is_creation(record, *ino, attr) {
                index.apply(&void(*ino, known, attr.size))?;
            }
        }
    }
    Ok(())
}

/// Whether a record made this file, so that all there is of the file is in it.
fn is_creation(record: &RecordFrame, ino: Ino, attr: &Attr) -> bool {
    let entered = |row: &Row| matches!(row, Row::Entry { ino: i, .. } if *i == ino);
    attr.crtime == attr.ctime && record.rows.iter().any(entered)
}

/// The bytes `[from, to)` of a file are lost. A row cannot be longer than a record, so of absurdly
/// long ranges only the front is marked.
fn void(ino: Ino, from: u64, to: u64) -> Row {
    const LONGEST: u64 = 1 << 31;
    const MOST: u64 = 100_000;
    let pieces = (to - from).div_ceil(LONGEST).min(MOST);
    let extents = (0..pieces).map(|i| {
        let off = from + i * LONGEST;
        let len = LONGEST.min(to - off) as u32;
        void_extent(off, len)
    });
    Row::Extents {
        ino,
        off: from,
        len: to - from,
        extents: extents.collect(),
    }
}

pub(super) fn void_extent(off: u64, len: u32) -> Extent {
    Extent {
        off,
        len,
        stream: VOID,
        pos: 0,
        frame: len,
        skip: 0,
    }
}
