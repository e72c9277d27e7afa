//! Where the bytes of one file are: extents that do not overlap, by file offset.

use super::inode::{allocated, tree};
use crate::format::Extent;
use std::collections::BTreeMap;

/// Most files have one extent, and there are millions of them.
#[derive(Default)]
pub enum Extents {
    #[default]
    None,
    One(Extent),
    Many(Box<Many>),
}

/// At least two extents.
pub struct Many {
    map: BTreeMap<u64, Extent>,
    /// Sum of their lengths.
    bytes: u64,
}

impl Extents {
    pub fn within(&self, from: u64, to: u64) -> Vec<Extent> {
        let overlaps = |e: &Extent| e.off < to && e.end() > from;
        match self {
            _ if from >= to => Vec::new(),
            Extents::None => Vec::new(),
            Extents::One(e) if overlaps(e) => vec![e.clip(from, to)],
            Extents::One(_) => Vec::new(),
            Extents::Many(m) => {
                let before = m.map.range(..from).next_back().map(|(_, e)| e);
                let inside = m.map.range(from..to).map(|(_, e)| e);
                before
                    .into_iter()
                    .chain(inside)
                    .filter(|e| overlaps(e))
                    .map(|e| e.clip(from, to))
                    .collect()
            }
        }
    }

    /// The first extent that ends after an offset.
    pub fn next(&self, from: u64) -> Option<Extent> {
        match self {
            Extents::None => None,
            Extents::One(e) => Some(*e).filter(|e| e.end() > from),
            Extents::Many(m) => {
                let before = m.map.range(..=from).next_back().map(|(_, e)| *e);
                let after = || m.map.range(from..).next().map(|(_, e)| *e);
                before.filter(|e| e.end() > from).or_else(after)
            }
        }
    }

    /// Memory besides what is in the enum itself, about.
    pub fn memory(&self) -> usize {
        match self {
            Extents::None | Extents::One(_) => 0,
            Extents::Many(m) => {
                allocated(size_of::<Many>()) + tree(m.map.len(), size_of::<(u64, Extent)>())
            }
        }
    }

    /// The last `n` extents, the last one first.
    pub fn last(&self, n: usize) -> Vec<Extent> {
        match self {
            Extents::None => Vec::new(),
            Extents::One(e) => vec![*e],
            Extents::Many(m) => m.map.values().rev().take(n).copied().collect(),
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = &Extent> + '_> {
        match self {
            Extents::None => Box::new(std::iter::empty()),
            Extents::One(e) => Box::new(std::iter::once(e)),
            Extents::Many(m) => Box::new(m.map.values()),
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Extents::None => 0,
            Extents::One(_) => 1,
            Extents::Many(m) => m.map.len(),
        }
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Extents::None => 0,
            Extents::One(e) => e.len as u64,
            Extents::Many(m) => m.bytes,
        }
    }

    /// Gives a file that has no extents its first one. False if this is another case.
    pub fn begin(&mut self, new: &[Extent]) -> bool {
        match (&*self, new) {
            (Extents::None, [one]) => *self = Extents::One(*one),
            _ => return false,
        }
        true
    }

    /// Makes the bytes `[off, end)` what `new` says, and holes between. `new` is in order and
    /// within the range. Returns the extents that this took out and those it put in (a neighbour
    /// that is cut or joined is in both).
    pub fn replace(&mut self, off: u64, end: u64, new: &[Extent]) -> (Vec<Extent>, Vec<Extent>) {
        let out = self.take_touching(off, end);
        let mut put: Vec<Extent> = Vec::with_capacity(new.len() + 2);
        let left = out.iter().filter(|e| e.off < off).map(|e| e.clip(0, off));
        let right = out.iter().filter(|e| e.end() > end);
        let right = right.map(|e| e.clip(end, u64::MAX));
        for e in left.chain(new.iter().copied()).chain(right) {
            match put.last_mut() {
                Some(last) if joins(last, &e) => last.len += e.len,
                _ => put.push(e),
            }
        }
        self.insert(&put);
        (out, put)
    }

    /// Removes the extents that overlap or touch `[off, end]`.
    fn take_touching(&mut self, off: u64, end: u64) -> Vec<Extent> {
        match self {
            Extents::None => Vec::new(),
            Extents::One(e) if e.off <= end && e.end() >= off => {
                let e = *e;
                *self = Extents::None;
                vec![e]
            }
            Extents::One(_) => Vec::new(),
            Extents::Many(m) => {
                let before = m.map.range(..off).next_back().map(|(_, e)| e);
                let before = before.filter(|e| e.end() >= off);
                let inside = m.map.range(off..=end).map(|(_, e)| e);
                let out: Vec<Extent> = before.into_iter().chain(inside).copied().collect();
                for e in &out {
                    m.map.remove(&e.off);
                    m.bytes -= e.len as u64;
                }
                out
            }
        }
    }

    fn insert(&mut self, new: &[Extent]) {
        let (mut map, mut bytes) = match std::mem::replace(self, Extents::None) {
            Extents::None => (BTreeMap::new(), 0),
            Extents::One(e) => (BTreeMap::from([(e.off, e)]), e.len as u64),
            Extents::Many(m) => (m.map, m.bytes),
        };
        for e in new {
            map.insert(e.off, *e);
            bytes += e.len as u64;
        }
        *self = match map.len() {
            0 => Extents::None,
            1 => map.into_values().next().map_or(Extents::None, Extents::One),
            _ => Extents::Many(Box::new(Many { map, bytes })),
        };
    }
}

/// Whether `b` continues `a` in the file and in the same frame.
fn joins(a: &Extent, b: &Extent) -> bool {
    a.end() == b.off
        && (a.stream, a.pos, a.frame) == (b.stream, b.pos, b.frame)
        && a.skip.checked_add(a.len) == Some(b.skip)
        && a.len.checked_add(b.len).is_some()
}
