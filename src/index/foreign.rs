//! Plain files and directories from before stowfs, and which of them nothing refers to any more.

use super::Index;
use super::inode::Inode;
use crate::base::{Ino, StreamId};
use crate::format::{ForeignHold, ForeignRow, ForeignState, Row};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foreign {
    pub row: ForeignRow,
    pub hold: ForeignHold,
    /// How often something began to refer to it again, as undelete does: whoever waits for its end
    /// must begin anew.
    pub begun: u32,
}

#[derive(Default)]
pub(super) struct ForeignTable {
    all: BTreeMap<StreamId, Foreign>,
    /// By the inode that holds it.
    held: FxHashMap<Ino, StreamId>,
    /// Held, but nothing refers to it.
    idle: BTreeSet<StreamId>,
    condemned: BTreeSet<StreamId>,
}

impl Foreign {
    pub(super) fn rows(&self, f: &mut impl FnMut(Row)) {
        f(Row::Foreign(self.row.clone()));
        if self.hold != ForeignHold::of(self.row.stream) {
            f(Row::ForeignHold(self.hold.clone()));
        }
    }
}

impl Index {
    pub fn foreign(&self, stream: StreamId) -> Option<&ForeignRow> {
        Some(&self.foreign.all.get(&stream)?.row)
    }

    pub fn foreign_use(&self, stream: StreamId) -> Option<&Foreign> {
        self.foreign.all.get(&stream)
    }

    pub fn foreign_files(&self) -> impl Iterator<Item = &Foreign> {
        self.foreign.all.values()
    }

    /// Those with higher numbers, in order.
    pub(super) fn foreign_after(&self, after: StreamId) -> impl Iterator<Item = &Foreign> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.foreign.all.range(range).map(|(_, f)| f)
    }

    /// The foreign files that a file has bytes in, in the order of its bytes.
    pub fn foreign_of(&self, ino: Ino) -> Vec<StreamId> {
        if self.foreign.all.is_empty() {
            return Vec::new();
        }
        let extents = self.inode(ino).and_then(Inode::extents);
        let all = extents.into_iter().flat_map(|x| x.iter());
        all.filter(|e| e.frame == 0).map(|e| e.stream).collect()
    }

    /// Those that nothing refers to, and that are not condemned yet.
    pub fn idle_foreign(&self) -> impl Iterator<Item = &Foreign> {
        let table = &self.foreign;
        table.idle.iter().filter_map(|s| table.all.get(s))
    }

    pub fn is_idle_foreign(&self, stream: StreamId) -> bool {
        self.foreign.idle.contains(&stream)
    }

    pub fn condemned_foreign(&self) -> impl Iterator<Item = &Foreign> {
        let table = &self.foreign;
        table.condemned.iter().filter_map(|s| table.all.get(s))
    }

    /// Rows of those that something refers to or that are condemned. The others would be deleted,
    /// which is right only if nothing of the index was lost.
    pub fn foreign_rows_in_use(&self, f: &mut impl FnMut(Row)) {
        for foreign in self.foreign_files() {
            if !self.foreign.idle.contains(&foreign.row.stream) {
                foreign.rows(f);
            }
        }
    }

    fn is_referenced(&self, foreign: &Foreign) -> bool {
        self.usage.outside(foreign.row.stream).extents > 0 || self.inode(foreign.hold.ino).is_some()
    }

    pub(super) fn put_foreign(&mut self, row: &ForeignRow) {
        self.use_stream(row.stream);
        let stream = row.stream;
        let known = self.foreign.all.remove(&stream);
        let (hold, begun) = match known {
            Some(f) => (f.hold, f.begun),
            None => (ForeignHold::of(stream), 0),
        };
        let row = row.clone();
        self.foreign
            .all
            .insert(stream, Foreign { row, hold, begun });
        self.sort_foreign(stream);
    }

    pub(super) fn put_hold(&mut self, hold: &ForeignHold) {
        let stream = hold.stream;
        let Some(foreign) = self.foreign.all.get_mut(&stream) else {
            self.strays += 1;
            return;
        };
        self.foreign.held.remove(&foreign.hold.ino);
        if hold.state == ForeignState::Gone {
            self.foreign.all.remove(&stream);
        } else {
            foreign.hold = hold.clone();
            if hold.ino != Ino(0) {
                self.foreign.held.insert(hold.ino, stream);
            }
        }
        self.sort_foreign(stream);
    }

    /// The inode has come or gone.
    pub(super) fn sort_foreign_of(&mut self, ino: Ino) {
        if let Some(stream) = self.foreign.held.get(&ino).copied() {
            self.sort_foreign(stream);
        }
    }

    /// Whether something refers to it may have changed.
    pub(super) fn sort_foreign(&mut self, stream: StreamId) {
        let state = self.foreign.all.get(&stream).map(|f| f.hold.state);
        let held = state == Some(ForeignState::Held);
        let idle = held
            && self
                .foreign_use(stream)
                .is_some_and(|f| !self.is_referenced(f));
        if held && !idle && self.foreign.idle.contains(&stream) {
            let foreign = self.foreign.all.get_mut(&stream);
            foreign
                .into_iter()
                .for_each(|f| f.begun = f.begun.wrapping_add(1));
        }
        put_if(&mut self.foreign.idle, stream, idle);
        let condemned = state == Some(ForeignState::Condemned);
        put_if(&mut self.foreign.condemned, stream, condemned);
    }

    /// Problems of the table, as sentences for a person.
    pub(super) fn check_foreign(&self, bad: &mut Vec<String>) {
        for foreign in self.foreign_files() {
            let stream = foreign.row.stream;
            let path = String::from_utf8_lossy(&foreign.row.path);
            let referenced = self.is_referenced(foreign);
            match foreign.hold.state {
                ForeignState::Held if referenced == self.foreign.idle.contains(&stream) => bad
                    .push(format!(
                        "plain file {path}: referred to: {referenced}, counted otherwise"
                    )),
                ForeignState::Condemned if referenced => {
                    bad.push(format!("plain file {path}: condemned, but in use"));
                }
                _ => {}
            }
        }
    }
}

fn put_if(set: &mut BTreeSet<StreamId>, stream: StreamId, wanted: bool) {
    if wanted {
        set.insert(stream);
    } else {
        set.remove(&stream);
    }
}
