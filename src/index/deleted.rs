//! What was deleted lately, and can perhaps be brought back.
//!
//! Fed by the rows that take names and inodes away, so that replay fills it again. Nothing in it is
//! live: its extents keep no segment, and are good only while the segments that they lie in are
//! neither condemned nor gone. Memory is bounded; the oldest go first.

use super::Index;
use super::inode::{Inode, allocated};
use crate::base::{Ino, StreamId, Timestamp};
use crate::format::{Attr, Row};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// What an index remembers unless it is told otherwise.
pub const DELETED_MEMORY: u64 = 16 << 20;

/// A name that an inode lost; the rows that follow say what that meant.
struct Lost {
    parent: Ino,
    name: Box<[u8]>,
    /// Link count before.
    nlink: u32,
}

struct Kept {
    ino: Ino,
    parent: Ino,
    name: Box<[u8]>,
    at: Timestamp,
    /// None: it was one of several names of a file.
    inode: Option<Inode>,
    cost: usize,
}

pub(super) struct DeletedTable {
    lost: FxHashMap<Ino, Lost>,
    /// In the order of deletion: what is in a directory comes before the directory itself.
    kept: VecDeque<Kept>,
    /// How many went from the front of `kept`: numbers of its items stay the same.
    gone: u64,
    /// The number of the item that has an inode.
    bodies: FxHashMap<Ino, u64>,
    cost: usize,
    limit: u64,
}

impl Default for DeletedTable {
    fn default() -> DeletedTable {
        DeletedTable {
            lost: FxHashMap::default(),
            kept: VecDeque::new(),
            gone: 0,
            bodies: FxHashMap::default(),
            cost: 0,
            limit: DELETED_MEMORY,
        }
    }
}

impl DeletedTable {
    /// An inode loses a name. A rename gives it another one in the same record (`named`).
    pub fn lose(&mut self, ino: Ino, parent: Ino, name: &[u8], nlink: u32) {
        if self.limit > 0 {
            let name = name.into();
            let lost = Lost {
                parent,
                name,
                nlink,
            };
            self.lost.insert(ino, lost);
        }
    }

    pub fn named(&mut self, ino: Ino) {
        if !self.lost.is_empty() {
            self.lost.remove(&ino);
        }
    }

    /// New attributes of an inode: a link count that went down to something above zero means that
    /// one of several names is gone.
    pub fn stated(&mut self, ino: Ino, attr: &Attr) {
        if attr.nlink == 0 || !self.lost.contains_key(&ino) {
            return;
        }
        if let Some(lost) = self.lost.remove(&ino)
            && attr.nlink < lost.nlink
        {
            self.keep(ino, lost, attr.ctime, None);
        }
    }

    /// An inode is gone. `time_of` tells when a directory changed last.
    pub fn freed(&mut self, ino: Ino, inode: Inode, time_of: impl Fn(Ino) -> Option<Timestamp>) {
        let Some(lost) = self.lost.remove(&ino) else {
            return;
        };
        // Rows that free at once do not say when; but the directory changed in the same record.
        let at = match inode.attr.nlink {
            0 => inode.attr.ctime,
            _ => time_of(lost.parent).unwrap_or(inode.attr.ctime),
        };
        self.keep(ino, lost, at, Some(inode));
    }

    fn keep(&mut self, ino: Ino, lost: Lost, at: Timestamp, inode: Option<Inode>) {
        // Replay may free again what a snapshot says is deleted.
        if inode.is_some() && self.bodies.contains_key(&ino) {
            return;
        }
        let cost = cost(&lost.name, inode.as_ref());
        if inode.is_some() {
            self.bodies.insert(ino, self.gone + self.kept.len() as u64);
        }
        self.cost += cost;
        self.kept.push_back(Kept {
            ino,
            parent: lost.parent,
            name: lost.name,
            at,
            inode,
            cost,
        });
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.cost as u64 > self.limit
            && let Some(oldest) = self.kept.pop_front()
        {
            self.cost -= oldest.cost;
            if self.bodies.get(&oldest.ino) == Some(&self.gone) {
                self.bodies.remove(&oldest.ino);
            }
            self.gone += 1;
        }
        if self.limit == 0 {
            self.lost.clear();
        }
    }

    fn body(&self, ino: Ino) -> Option<&Inode> {
        let at = self.bodies.get(&ino)?.checked_sub(self.gone)?;
        self.kept.get(at as usize)?.inode.as_ref()
    }
}

/// Memory of one name that is kept, about: the queue, which has room for half as many again, an
/// allocation for the name, the place in `bodies`, and what the inode holds (`tests/memory.rs`).
fn cost(name: &[u8], inode: Option<&Inode>) -> usize {
    const QUEUE: usize = size_of::<Kept>() * 3 / 2;
    const PER_BODY: usize = 32;
    QUEUE + allocated(name.len()) + inode.map_or(0, |i| PER_BODY + i.memory())
}

/// One name that is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    pub ino: Ino,
    /// The directory in which it was; may be gone as well.
    pub parent: Ino,
    pub name: Vec<u8>,
    pub at: Timestamp,
    /// None: it was one of several names of a file of which nothing is known any more.
    pub attr: Option<Attr>,
    /// The file itself is not gone: this was one of several names.
    pub alive: bool,
}

impl Index {
    /// How much memory may be used to remember what was deleted; 0: nothing is remembered.
    pub fn limit_deleted(&mut self, bytes: u64) {
        self.deleted.limit = bytes;
        self.deleted.shrink();
    }

    /// About how much memory is used to remember what was deleted.
    pub fn deleted_memory(&self) -> usize {
        self.deleted.cost
    }

    /// Everything that is remembered, in the order of deletion. Last comes what is still open.
    pub fn deleted(&self) -> Vec<Deleted> {
        let item = |ino: Ino, parent: Ino, name: &[u8], at: Timestamp| {
            let living = self.attr(ino).filter(|a| a.nlink > 0);
            Deleted {
                ino,
                parent,
                name: name.to_vec(),
                at,
                attr: self.remembered(ino).map(|i| i.attr),
                alive: living.is_some(),
            }
        };
        let kept = self.deleted.kept.iter();
        let mut all: Vec<Deleted> = kept.map(|k| item(k.ino, k.parent, &k.name, k.at)).collect();
        let mut open: Vec<Deleted> = (self.deleted.lost.iter())
            .filter_map(|(ino, lost)| {
                let attr = self.attr(*ino).filter(|a| a.nlink == 0)?;
                Some(item(*ino, lost.parent, &lost.name, attr.ctime))
            })
            .collect();
        open.sort_by_key(|d| (d.at, d.ino));
        all.append(&mut open);
        all
    }

    /// An inode that exists, or that was deleted.
    fn remembered(&self, ino: Ino) -> Option<&Inode> {
        self.inode(ino).or_else(|| self.deleted.body(ino))
    }

    /// Where a directory that was deleted was, and what it was called.
    pub fn deleted_name(&self, dir: Ino) -> Option<(Ino, &[u8])> {
        if let Some(lost) = self.deleted.lost.get(&dir) {
            return Some((lost.parent, &lost.name));
        }
        let at = self
            .deleted
            .bodies
            .get(&dir)?
            .checked_sub(self.deleted.gone)?;
        let kept = self.deleted.kept.get(at as usize)?;
        Some((kept.parent, &kept.name))
    }

    /// Bytes of a deleted file that are not holes.
    pub fn deleted_bytes(&self, ino: Ino) -> u64 {
        let extents = self.remembered(ino).and_then(Inode::extents);
        extents.map_or(0, |x| x.bytes())
    }

    /// The plain files that a deleted file has bytes in.
    pub fn deleted_plain(&self, ino: Ino) -> Vec<StreamId> {
        let extents = self.remembered(ino).and_then(Inode::extents);
        let all = extents.into_iter().flat_map(|x| x.iter());
        let mut plain: Vec<_> = all.filter(|e| e.frame == 0).map(|e| e.stream).collect();
        plain.dedup();
        plain
    }

    /// Why a deleted file cannot be brought back whole, if it cannot.
    pub fn damage_of_deleted(&self, ino: Ino) -> Option<String> {
        let Some(inode) = self.remembered(ino) else {
            return Some("nothing but its name is remembered".into());
        };
        let mut all = inode.extents()?.iter();
        all.find_map(|e| Some(format!("bytes at {} are {}", e.off, self.misplaced(e)?)))
    }

    /// The rows that make a deleted inode anew, under another number and with these attributes.
    pub fn revive(&self, ino: Ino, new: Ino, attr: Attr, f: &mut impl FnMut(Row)) {
        if let Some(inode) = self.remembered(ino) {
            inode.rows(new, attr, f);
        }
    }

    /// Rows that make and delete again what is remembered: `most` items from number `from` on. To be
    /// applied when all directories exist and have no entries yet. Returns the number to go on with.
    /// `made`: directories that exist for what was in them; the rows end with their end.
    pub fn deleted_rows(
        &self,
        from: u64,
        most: usize,
        made: &mut FxHashSet<Ino>,
        f: &mut impl FnMut(Row),
    ) -> Option<u64> {
        let table = &self.deleted;
        let from = from.max(table.gone);
        let skip = usize::try_from(from - table.gone).unwrap_or(usize::MAX);
        for kept in table.kept.iter().skip(skip).take(most) {
            self.delete_again(kept, made, f);
        }
        let next = from.saturating_add(most as u64);
        if next < table.gone + table.kept.len() as u64 {
            return Some(next);
        }
        // Those that are forgotten by now, or still open.
        let left = std::mem::take(made);
        left.into_iter().for_each(|ino| f(Row::Free { ino }));
        None
    }

    fn delete_again(&self, kept: &Kept, made: &mut FxHashSet<Ino>, f: &mut impl FnMut(Row)) {
        let Kept {
            ino, parent, name, ..
        } = kept;
        let (ino, parent) = (*ino, *parent);
        // One name of several: what matters is the file.
        let Some(inode) = &kept.inode else { return };
        if self.damage_of_deleted(ino).is_some() {
            return;
        }
        if self.inode(parent).is_none() && !made.contains(&parent) {
            let Some(dir) = self.deleted.body(parent) else {
                return;
            };
            dir.rows(parent, dir.attr, f);
            made.insert(parent);
        }
        if !made.remove(&ino) {
            inode.rows(ino, inode.attr, f);
        }
        let name = name.to_vec();
        f(Row::Entry {
            parent,
            name: name.clone(),
            ino,
        });
        f(Row::NoEntry { parent, name });
        let attr = Attr {
            nlink: 0,
            ctime: kept.at,
            ..inode.attr
        };
        f(Row::Inode { ino, attr });
        f(Row::Free { ino });
    }
}
