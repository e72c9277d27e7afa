//! Payloads that a reader must get from memory: the store cannot show them yet.

use crate::base::Pos;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Default)]
pub(super) struct Tail {
    payloads: BTreeMap<Pos, Bytes>,
    bytes: usize,
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

    /// The store shows these positions now. Payloads that reach past the end stay.
    pub(super) fn release(&mut self, range: Range<Pos>) {
        let shown: Vec<Pos> = self
            .payloads
            .range(range.clone())
            .filter(|(pos, p)| *pos + p.len() as u64 <= range.end)
            .map(|(pos, _)| *pos)
            .collect();
        for pos in shown {
            if let Some(p) = self.payloads.remove(&pos) {
                self.bytes -= p.len();
            }
        }
    }
}
