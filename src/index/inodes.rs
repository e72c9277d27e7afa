//! The table of inodes, in the order of their numbers.

use super::inode::Inode;
use crate::base::Ino;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Numbers of one page, a bit of a `u64` for each. They are given out in order, so pages are mostly
/// full, and what is made together lies together.
const PAGE: u64 = 64;
/// A page grows by so many inodes, and shrinks when so many times as many would fit.
const STEP: usize = 8;
const SLACK: usize = 2;

#[derive(Default)]
pub(super) struct Inodes {
    /// By number / PAGE. None is empty.
    pages: BTreeMap<u64, Page>,
    len: usize,
}

/// The inodes that exist, in order; a bit for each number says which these are.
#[derive(Default)]
struct Page {
    present: u64,
    inodes: Vec<Inode>,
}

impl Page {
    /// Where an inode is, or the place where it belongs.
    fn find(&self, ino: Ino) -> Result<usize, usize> {
        let bit = ino.0 % PAGE;
        let at = (self.present & ((1 << bit) - 1)).count_ones() as usize;
        match self.present >> bit & 1 {
            1 => Ok(at),
            _ => Err(at),
        }
    }

    fn insert(&mut self, at: usize, ino: Ino, inode: Inode) {
        if self.inodes.len() == self.inodes.capacity() {
            self.inodes.reserve_exact(STEP);
        }
        self.inodes.insert(at, inode);
        self.present |= 1 << (ino.0 % PAGE);
    }

    fn remove(&mut self, at: usize, ino: Ino) -> Inode {
        let inode = self.inodes.remove(at);
        self.present &= !(1 << (ino.0 % PAGE));
        if self.inodes.capacity() > SLACK * self.inodes.len() + STEP {
            self.inodes.shrink_to(self.inodes.len() + STEP);
        }
        inode
    }

    fn iter(&self, page: u64) -> impl Iterator<Item = (Ino, &Inode)> {
        let bits = (0..PAGE).filter(|bit| self.present >> bit & 1 == 1);
        bits.map(move |bit| Ino(page * PAGE + bit))
            .zip(&self.inodes)
    }
}

impl Inodes {
    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        let page = self.pages.get(&(ino.0 / PAGE))?;
        page.inodes.get(page.find(ino).ok()?)
    }

    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        let page = self.pages.get_mut(&(ino.0 / PAGE))?;
        let at = page.find(ino).ok()?;
        page.inodes.get_mut(at)
    }

    pub fn insert(&mut self, ino: Ino, inode: Inode) {
        let page = self.pages.entry(ino.0 / PAGE).or_default();
        match page.find(ino) {
            Ok(at) => page.inodes[at] = inode,
            Err(at) => {
                page.insert(at, ino, inode);
                self.len += 1;
            }
        }
    }

    pub fn remove(&mut self, ino: Ino) -> Option<Inode> {
        let number = ino.0 / PAGE;
        let page = self.pages.get_mut(&number)?;
        let at = page.find(ino).ok()?;
        let gone = page.remove(at, ino);
        if page.inodes.is_empty() {
            self.pages.remove(&number);
        }
        self.len -= 1;
        Some(gone)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// In the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.pages.iter().flat_map(|(n, page)| page.iter(*n))
    }

    /// Those with higher numbers than `after`, in order.
    pub fn after(&self, after: Ino) -> impl Iterator<Item = (Ino, &Inode)> {
        let from = Bound::Included(after.0 / PAGE);
        let pages = self.pages.range((from, Bound::Unbounded));
        let all = pages.flat_map(|(n, page)| page.iter(*n));
        all.skip_while(move |(ino, _)| *ino <= after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Attr;

    fn inode(n: u64) -> Inode {
        Inode::new(Attr {
            size: n,
            ..Attr::default()
        })
    }

    #[test]
    fn it_is_an_ordered_map_whatever_the_numbers() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        for spread in [1, 40, 1 << 30] {
            let (mut inodes, mut model) = (Inodes::default(), BTreeMap::new());
            for _ in 0..20_000 {
                let ino = random(500) * spread;
                match random(5) {
                    0 | 1 => {
                        let gone = inodes.remove(Ino(ino)).map(|i| i.attr.size);
                        assert_eq!(gone, model.remove(&ino));
                    }
                    _ => {
                        let size = random(1000);
                        inodes.insert(Ino(ino), inode(size));
                        model.insert(ino, size);
                    }
                }
                let ino = random(500) * spread;
                let found = inodes.get(Ino(ino)).map(|i| i.attr.size);
                assert_eq!(found, model.get(&ino).copied());
                assert_eq!(inodes.len(), model.len());
            }
            let seen = inodes.iter().map(|(ino, i)| (ino.0, i.attr.size));
            assert!(seen.eq(model.iter().map(|(k, v)| (*k, *v))));
            for after in (0..500).map(|n| n * spread) {
                let next = inodes.after(Ino(after)).next().map(|(ino, _)| ino.0);
                let right = model.range(after + 1..).next().map(|(k, _)| *k);
                assert_eq!(next, right, "after {after}");
            }
        }
    }
}
