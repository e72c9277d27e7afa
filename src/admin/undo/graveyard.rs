//! What was deleted, as trees.

use super::plain::PlainFiles;
use crate::base::Ino;
use crate::index::{Deleted, Index};
use rustc_hash::{FxHashMap, FxHashSet};

/// Deeper ones have no path.
const MAX_DEPTH: usize = 10_000;

/// Why something cannot be brought back whole.
pub(super) enum Damage {
    /// Garbage collection gave its space back.
    Given(String),
    /// What it lies in is not stowfs's, and is not what it was.
    Plain(String),
}

pub(super) struct Graveyard<'a> {
    pub index: &'a Index,
    /// What is known of plain files; None: they are taken for good.
    plain: Option<&'a PlainFiles>,
    /// In the order of deletion.
    pub items: Vec<Deleted>,
    /// Items by the directory in which they were.
    within: FxHashMap<Ino, Vec<usize>>,
}

impl<'a> Graveyard<'a> {
    pub fn new(index: &'a Index, plain: Option<&'a PlainFiles>) -> Graveyard<'a> {
        let items = index.deleted();
        let mut within: FxHashMap<Ino, Vec<usize>> = FxHashMap::default();
        for (n, item) in items.iter().enumerate() {
            within.entry(item.parent).or_default().push(n);
        }
        Graveyard {
            index,
            plain,
            items,
            within,
        }
    }

    fn is_living(&self, dir: Ino) -> bool {
        self.index.attr(dir).is_some_and(|a| a.nlink > 0)
    }

    /// Whether the directory in which it was is still there.
    pub fn is_top(&self, item: &Deleted) -> bool {
        self.is_living(item.parent)
    }

    pub fn is_dir(item: &Deleted) -> bool {
        item.attr.is_some_and(|a| a.is_dir())
    }

    /// Where it was. A directory above it that was renamed since has its new name here. None if
    /// such a directory is gone and not remembered.
    pub fn path(&self, item: &Deleted) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = vec![&item.name];
        let mut at = item.parent;
        while !self.is_living(at) {
            let (parent, name) = self.index.deleted_name(at)?;
            names.push(name);
            at = parent;
            if names.len() > MAX_DEPTH {
                return None;
            }
        }
        let mut path = self.index.path(at)?;
        for name in names.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Some(path)
    }

    fn is_at(&self, item: &Deleted, path: &[u8]) -> bool {
        let name = path.rsplit(|c| *c == b'/').next();
        name == Some(&item.name[..]) && self.path(item).is_some_and(|p| p == path)
    }

    /// What was deleted last at a path, of that with this inode number.
    pub fn find(&self, path: &[u8], id: Option<u64>) -> Option<usize> {
        let there = |item: &Deleted| id.is_none_or(|id| item.ino.0 == id) && self.is_at(item, path);
        self.items.iter().rposition(there)
    }

    /// Everything that was deleted at a path, in the order of deletion.
    pub fn all_at(&self, path: &[u8]) -> Vec<usize> {
        let all = self.items.iter().enumerate();
        let here = all.filter(|(_, item)| self.is_at(item, path));
        here.map(|(n, _)| n).collect()
    }

    /// What was deleted in a directory, in the order of deletion.
    pub fn within(&self, dir: Ino) -> &[usize] {
        self.within.get(&dir).map_or(&[], Vec::as_slice)
    }

    /// What a directory held: of each name that which was deleted last.
    pub fn held(&self, dir: Ino) -> Vec<usize> {
        let mut names: FxHashSet<&[u8]> = FxHashSet::default();
        let all = self.within(dir).iter().rev();
        let mut held: Vec<usize> = all
            .copied()
            .filter(|n| names.insert(&self.items[*n].name))
            .collect();
        held.reverse();
        held
    }

    /// An item and everything below it, parents first. With each item the place in this list of
    /// its directory.
    pub fn tree(&self, top: usize) -> Vec<(usize, Option<usize>)> {
        let mut all = vec![(top, None)];
        let mut seen = FxHashSet::from_iter([top]);
        let mut at = 0;
        while let Some((n, _)) = all.get(at).copied() {
            if Self::is_dir(&self.items[n]) {
                let below = self.held(self.items[n].ino);
                let fresh = below.into_iter().filter(|n| seen.insert(*n));
                all.extend(fresh.map(|n| (n, Some(at))));
            }
            at += 1;
        }
        all
    }

    /// Why an item cannot be brought back whole.
    pub fn damage(&self, item: &Deleted) -> Option<Damage> {
        if item.alive {
            return None;
        }
        if let Some(given) = self.index.damage_of_deleted(item.ino) {
            return Some(Damage::Given(given));
        }
        let (plain, streams) = (self.plain?, self.index.deleted_plain(item.ino));
        let why = streams.into_iter().find_map(|s| plain.damage(s));
        why.map(|why| Damage::Plain(why.to_string()))
    }
}
