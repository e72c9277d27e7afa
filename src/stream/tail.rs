//! Payloads that a reader must get from memory: the store cannot show them yet.

use crate::base::{Pos, SegmentName};
use crate::format::{SegmentRow, SegmentState};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Default)]
pub(super) struct Tail {
    payloads: BTreeMap<Pos, Bytes>,
    bytes: usize,
    /// Where segments of this session begin. As in the index, a position belongs to the last one
    /// that begins at or before it; one that was sealed empty has none.
    begins: BTreeSet<(Pos, SegmentName)>,
    /// What readers see of lost segments that were closed. A position that a later segment loses
    /// falls back to one of them.
    closed: Vec<(SegmentName, Range<Pos>)>,
}

impl Tail {
    pub(super) fn insert(&mut self, pos: Pos, payload: Bytes) {
        self.bytes += payload.len();
        if let Some(old) = self.payloads.insert(pos, payload) {
            self.bytes -= old.len();
        }
    }

    pub(super) fn get(&self, pos: Pos) -> Option<Bytes> {
        self.payloads.get(&pos).cloned()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A segment has these positions now.
    pub(super) fn place(&mut self, row: &SegmentRow) {
        if row.state == SegmentState::Open || row.end > row.base {
            self.begins.insert((row.base, row.name));
        } else if self.begins.remove(&(row.base, row.name)) {
            for (name, range) in self.closed.clone() {
                self.release(name, range);
            }
        }
    }

    /// A lost segment was closed: readers see all of it.
    pub(super) fn close(&mut self, name: SegmentName, range: Range<Pos>) {
        self.release(name, range.clone());
        self.closed.push((name, range));
    }

    /// The store shows these positions of a segment now. What belongs to another one by now stays,
    /// and so do payloads that reach past the end.
    pub(super) fn release(&mut self, name: SegmentName, range: Range<Pos>) {
        let shown: Vec<Pos> = self
            .payloads
            .range(range.clone())
            .filter(|(pos, p)| *pos + p.len() as u64 <= range.end)
            .filter(|(pos, _)| self.owner(**pos) == Some(name))
            .map(|(pos, _)| *pos)
            .collect();
        for pos in shown {
            if let Some(p) = self.payloads.remove(&pos) {
                self.bytes -= p.len();
            }
        }
    }

    fn owner(&self, pos: Pos) -> Option<SegmentName> {
        let last = SegmentName::Lane {
            session: crate::base::SessionId(u32::MAX),
            n: u32::MAX,
        };
        self.begins
            .range(..=(pos, last))
            .next_back()
            .map(|(_, name)| *name)
    }
}
