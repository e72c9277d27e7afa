//! From all records that can be read to an index.
//!
//! Records state final values, so they can be applied in the order of their positions with some of
//! them missing. After a gap a record may speak of bytes that a lost record put into a file: those
//! bytes must not read as zeros, so they are marked as lost (`VOID`).

use super::{RebuildReport, Source, epoch_of};
use crate::base::{Epoch, ErrorKind, Ino, Pos, Result, SegmentName, StreamId};
use crate::format::{Attr, Extent, Origin, RecordFrame, Row};
use crate::index::Index;
use crate::log;
use crate::segment;
use crate::store::Store;
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
    /// Everything before this position is in the index, so data from before that nothing names is
    /// garbage, not lost.
    pub known: Pos,
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

/// What the records are applied to.
pub(super) struct Start {
    index: Index,
    origin: Origin,
    /// Records before this are in the index.
    from: Pos,
    /// Whether all of them are.
    whole: bool,
}

/// The newest good snapshot; without one the origin of the log. If the segment with which a rebuild
/// began is damaged, what was before it is used once more.
pub(super) async fn start(
    store: &dyn Store,
    root: &[u8; 16],
    sources: &[Source],
    report: &mut RebuildReport,
) -> Result<Start> {
    let headers = sources.iter().filter_map(|s| s.walk.header.as_ref().ok());
    let mut origin = headers.map(|h| h.origin).max().unwrap_or_default();
    let (mut index, mut snapshot) = log::load_newest(store, root, origin.pos).await?;
    if snapshot.is_none() && !is_whole(sources, origin) {
        report.notes.push(format!(
            "the result of the rebuild of {:?} is damaged; what was before it is used again",
            origin.epoch
        ));
        origin = Origin::default();
        (index, snapshot) = log::load_newest(store, root, 0).await?;
    }
    let mut start = Start {
        index,
        origin,
        from: snapshot.as_ref().map_or(origin.pos, |header| header.from),
        whole: true,
    };
    if snapshot.is_none() {
        salvage_snapshot(store, &mut start, report).await?;
    }
    Ok(start)
}

/// Of several damaged snapshots, as much of the newest as can be read.
async fn salvage_snapshot(
    store: &dyn Store,
    start: &mut Start,
    report: &mut RebuildReport,
) -> Result<()> {
    let all = log::list_snapshots(store).await?;
    let Some(from) = all.into_iter().find(|from| *from >= start.origin.pos) else {
        return Ok(());
    };
    let path = segment::snapshot_path(from);
    let index = &mut start.index;
    match log::visit_snapshot(store, &path, &mut |row| index.apply(row)).await {
        Err(e) if e.is(ErrorKind::Corrupt) => report.notes.push(format!(
            "no snapshot is whole; used what can be read of {path} ({e})"
        )),
        Err(e) => return Err(e),
        Ok(_) => {} // another root's
    }
    start.whole = false;
    Ok(())
}

fn is_whole(sources: &[Source], origin: Origin) -> bool {
    let first = SegmentName::Log {
        epoch: origin.epoch,
        n: 0,
    };
    origin == Origin::default()
        || sources.iter().any(|s| {
            s.found.name == first && s.walk.bad.is_empty() && matches!(s.walk.footer, Some(Ok(_)))
        })
}

pub(super) fn from_records(
    sources: &[Source],
    start: Start,
    report: &mut RebuildReport,
) -> Result<Salvage> {
    let (origin, from) = (start.origin, start.from);
    let mut salvage = Salvage {
        streams: BTreeMap::new(),
        named: BTreeSet::new(),
        freed: BTreeSet::new(),
        cuts: cuts(sources),
        known: if start.whole { from } else { 0 },
        index: start.index,
    };
    salvage.remember_start();
    let mut records: BTreeMap<Pos, &RecordFrame> = BTreeMap::new();
    for source in sources.iter().filter(|s| s.found.is_log()) {
        let table = source.walk.from_table.iter();
        let table = table.filter_map(|(pos, (_, r))| Some((*pos, r.as_ref()?)));
        let all = source.walk.records.iter().map(|(pos, r)| (*pos, r));
        for (pos, record) in all.chain(table) {
            if !salvage.counts(source, pos) {
                continue;
            }
            salvage.remember(&record.rows);
            if epoch_of(&source.found) >= origin.epoch && pos >= from {
                records.insert(pos, record);
            }
        }
    }
    let (gap, last_gap) = gaps(sources, &salvage, origin, from, report);
    let first_gap = if start.whole { gap } else { 0 };
    // Files made after the last gap: all that happened to them is known.
    let mut whole: BTreeSet<Ino> = BTreeSet::new();
    for (pos, record) in &records {
        if *pos >= last_gap {
            whole.extend(created(record));
        }
        if *pos >= first_gap {
            mark_unknown_bytes(&mut salvage.index, record, &whole)?;
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
    /// Rows of a snapshot name streams and data as records do.
    fn remember_start(&mut self) {
        let mut rows = Vec::new();
        self.index.table_rows(&mut |row| rows.push(row));
        self.remember(&rows);
        for ino in self.index.inos() {
            let extents = self.index.extents(ino, 0, u64::MAX);
            self.named.extend(extents.iter().map(|e| (e.stream, e.pos)));
        }
    }

    fn remember(&mut self, rows: &[Row]) {
        for row in rows {
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

/// Notes the positions at which nothing can be read, and returns where the first and the last of them
/// end.
fn gaps(
    sources: &[Source],
    salvage: &Salvage,
    origin: Origin,
    from: Pos,
    report: &mut RebuildReport,
) -> (Pos, Pos) {
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
    let (mut at, mut first, mut last) = (from, Pos::MAX, 0);
    for (from, to) in ranges {
        if from > at {
            report.notes.push(format!(
                "positions {at} to {from} of the log are lost; changes in them are missing"
            ));
            first = first.min(from);
            last = from;
        }
        at = at.max(to);
    }
    (first, last)
}

/// Before a record is applied that comes after a gap: what a file gained in the gap is unknown. Inodes
/// go first, for a directory that was made in the gap is known by its attributes only, and the
/// record may name what is in it before them.
fn mark_unknown_bytes(
    index: &mut Index,
    record: &RecordFrame,
    whole: &BTreeSet<Ino>,
) -> Result<()> {
    for row in &record.rows {
        let Row::Inode { ino, attr } = row else {
            continue;
        };
        let known = index.attr(*ino).map_or(0, |a| a.size);
        index.apply(row)?;
        let is_known = whole.contains(ino) || is_creation(record, *ino, attr);
        if attr.is_file() && attr.size > known && !is_known {
            index.apply(&void(*ino, known, attr.size))?;
        }
    }
    Ok(())
}

/// The files that a record made.
fn created(record: &RecordFrame) -> impl Iterator<Item = Ino> {
    record.rows.iter().filter_map(|row| match row {
        Row::Inode { ino, attr } if is_creation(record, *ino, attr) => Some(*ino),
        _ => None,
    })
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
