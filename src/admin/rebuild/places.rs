//! Where the bytes of the salvaged files are: every segment becomes a stream of its own, so that
//! no position is in two places, however the old log was cut.

use super::salvage::{Salvage, void_extent};
use super::{RebuildReport, Source, path_of};
use crate::admin::report::Problem;
use crate::admin::text;
use crate::base::{Epoch, Ino, Pos, Result, SegmentName, SessionId, StreamId, Timestamp};
use crate::format::segment::HEADER_LEN;
use crate::format::{Extent, Row, SegmentRow, SegmentState};
use crate::index::Index;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Places {
    /// Which sources have a data frame with its payload at a position of a stream.
    frames: BTreeMap<(StreamId, Pos), Vec<usize>>,
    /// The number of source 0's new stream; the others follow.
    first_stream: u32,
}

impl Places {
    pub fn new(sources: &[Source], salvage: &Salvage) -> Places {
        let streams: Vec<_> = sources.iter().map(|s| streams_of(s, salvage)).collect();
        let known = streams.iter().flatten().map(|s| s.0.saturating_add(1));
        // Absurd numbers are no reason to run out of them.
        let known = known.filter(|s| *s < u32::MAX / 2);
        let first_stream = known.max().unwrap_or(1).max(salvage.index.next_stream().0);
        let mut frames: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (i, source) in sources.iter().enumerate() {
            let own = StreamId(first_stream + i as u32);
            let counting = source.walk.data.values();
            let counting = counting.filter(|d| salvage.counts(source, d.pos));
            for payload in counting.map(|d| d.payload()) {
                for stream in streams[i].iter().chain([&own]) {
                    frames.entry((*stream, payload)).or_default().push(i);
                }
            }
        }
        Places {
            frames,
            first_stream,
        }
    }

    /// The new stream of a source.
    pub fn stream(&self, source: usize) -> StreamId {
        StreamId(self.first_stream + source as u32)
    }

    /// Bytes whose segment is unknown point there, and nothing else ever does.
    fn nowhere(&self, sources: &[Source]) -> StreamId {
        self.stream(sources.len())
    }

    /// The place of an extent, and what is wrong with the bytes there. Of several copies a good one,
    /// the latest.
    fn find(
        &self,
        e: &Extent,
        sources: &[Source],
    ) -> (Option<usize>, std::result::Result<(), String>) {
        let lost = Err("the bytes are lost".to_string());
        let Some(candidates) = self.frames.get(&(e.stream, e.pos)) else {
            return (None, lost);
        };
        let mut best = (None, lost);
        for i in candidates.iter().rev() {
            match sources[*i].walk.verify(e) {
                Ok(()) => return (Some(*i), Ok(())),
                Err(_) if best.0.is_some() => {}
                Err(what) => best = (Some(*i), Err(what)),
            }
        }
        best
    }

    /// All rows of the new log.
    pub fn rows(
        &self,
        index: &Index,
        sources: &[Source],
        epoch: Epoch,
        now: Timestamp,
        report: &mut RebuildReport,
    ) -> Result<Vec<Row>> {
        let mut rows = vec![
            Row::Session {
                epoch,
                session: SessionId(epoch.0),
                started: now,
            },
            Row::InoRange {
                next: index.next_ino(),
            },
            Row::StreamRange {
                next: StreamId(self.nowhere(sources).0 + 1),
            },
        ];
        for (i, source) in sources.iter().enumerate() {
            rows.push(Row::Segment(segment_row(source, self.stream(i))));
        }
        if index.adopted() {
            // Or the next mount would take in again what was removed from the mount since.
            rows.push(Row::Adopted);
        }
        index.foreign_rows_in_use(&mut |row| rows.push(row));
        for ino in index.inos() {
            index.inode_rows(ino, &mut |row| {
                rows.push(match row {
                    Row::Extents {
                        ino,
                        off,
                        len,
                        extents,
                    } => Row::Extents {
                        ino,
                        off,
                        len,
                        extents: self.moved(index, ino, &extents, sources, epoch, report),
                    },
                    other => other,
                })
            });
        }
        for ino in index.inos() {
            index.entry_rows(ino, &mut |row| rows.push(row));
        }
        Ok(rows)
    }

    fn moved(
        &self,
        index: &Index,
        ino: Ino,
        extents: &[Extent],
        sources: &[Source],
        epoch: Epoch,
        report: &mut RebuildReport,
    ) -> Vec<Extent> {
        let mut moved = Vec::with_capacity(extents.len());
        for e in extents {
            if e.frame == 0 && index.foreign(e.stream).is_some() {
                moved.push(*e);
                continue;
            }
            let (place, verified) = self.find(e, sources);
            if let Err(what) = verified {
                let source = place.map(|i| &sources[i]);
                report
                    .damaged
                    .push(damage(index, ino, e, source, epoch, what));
            }
            moved.push(match place {
                Some(i) => Extent {
                    stream: self.stream(i),
                    ..*e
                },
                None => Extent {
                    stream: self.nowhere(sources),
                    ..void_extent(e.off, e.len)
                },
            });
        }
        moved
    }
}

fn damage(
    index: &Index,
    ino: Ino,
    e: &Extent,
    source: Option<&Source>,
    epoch: Epoch,
    what: String,
) -> Problem {
    let offset = source.and_then(|s| e.pos.checked_sub(s.walk.base?));
    Problem {
        path: source.map_or(String::new(), |s| path_of(&s.found, epoch)),
        offset: offset.map(|at| at + HEADER_LEN as u64),
        file: index.path(ino).map(|p| format!("/{}", text(&p))),
        what: format!("bytes {} to {}: {what}", e.off, e.end()),
    }
}

/// The numbers under which extents may name a segment's stream.
pub(super) fn streams_of(source: &Source, salvage: &Salvage) -> BTreeSet<StreamId> {
    let rows = salvage.streams.get(&source.found.name);
    let mut streams: BTreeSet<StreamId> = rows.into_iter().flatten().copied().collect();
    match (&source.walk.header, source.found.name) {
        (Ok(header), _) => streams.insert(header.stream),
        (Err(_), SegmentName::Log { .. }) => streams.insert(StreamId::LOG),
        (Err(_), SegmentName::Lane { .. }) => false,
    };
    streams
}

fn segment_row(source: &Source, stream: StreamId) -> SegmentRow {
    let base = source.walk.base.unwrap_or(0);
    let end = match &source.walk.footer {
        Some(Ok(footer)) => footer.end,
        _ => base + source.walk.len.saturating_sub(HEADER_LEN as u64),
    };
    SegmentRow {
        name: source.found.name,
        stream,
        base,
        end: end.max(base),
        state: SegmentState::Sealed,
        size: source.walk.len,
    }
}
