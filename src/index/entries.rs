//! An ordered map from keys to names and inodes, in pages: there are millions of entries, so one
//! must not cost an allocation of its own.

use super::dir::DirEntry;
use crate::base::Ino;
use std::collections::BTreeMap;

/// A page that has so many entries is divided.
const FULL: usize = 64;
/// Neighbours that have no more than this together become one when one of them has few.
const JOINED: usize = 48;
const FEW: usize = 16;
/// Entries by which a page grows.
const STEP: usize = 8;

#[derive(Default)]
pub(super) struct Entries {
    /// By a bound: the keys of a page are at or above it, and below that of the next page. None is
    /// empty.
    pages: BTreeMap<u64, Box<Page>>,
    len: usize,
}

#[derive(Default)]
struct Page {
    /// In the order of their keys.
    slots: Vec<Slot>,
    /// The names, one after the other.
    names: Vec<u8>,
}

struct Slot {
    key: u64,
    ino: Ino,
    /// Where its name ends.
    end: u32,
}

impl Page {
    fn place(&self, key: u64) -> usize {
        self.slots.partition_point(|s| s.key < key)
    }

    fn find(&self, key: u64) -> Option<usize> {
        let at = self.place(key);
        (self.slots.get(at)?.key == key).then_some(at)
    }

    /// Where the name of the entry at a place begins; also of one past the last.
    fn begin(&self, at: usize) -> usize {
        match at.checked_sub(1) {
            Some(before) => self.slots[before].end as usize,
            None => 0,
        }
    }

    fn entry(&self, at: usize) -> DirEntry<'_> {
        let slot = &self.slots[at];
        DirEntry {
            cookie: slot.key,
            name: &self.names[self.begin(at)..slot.end as usize],
            ino: slot.ino,
        }
    }

    fn insert(&mut self, at: usize, key: u64, name: &[u8], ino: Ino) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(STEP);
        }
        if self.names.capacity() - self.names.len() < name.len() {
            self.names.reserve_exact(STEP * name.len());
        }
        let (begin, old) = (self.begin(at), self.names.len());
        self.names.resize(old + name.len(), 0);
        self.names.copy_within(begin..old, begin + name.len());
        self.names[begin..begin + name.len()].copy_from_slice(name);
        let end = begin as u32;
        self.slots.insert(at, Slot { key, ino, end });
        self.slots[at..]
            .iter_mut()
            .for_each(|s| s.end += name.len() as u32);
    }

    fn remove(&mut self, at: usize) -> Ino {
        let (begin, end) = (self.begin(at), self.begin(at + 1));
        self.names.drain(begin..end);
        let gone = self.slots.remove(at);
        let later = &mut self.slots[at..];
        later.iter_mut().for_each(|s| s.end -= (end - begin) as u32);
        if self.slots.capacity() > 2 * self.slots.len() + STEP {
            self.fit();
        }
        gone.ino
    }

    fn fit(&mut self) {
        self.slots.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    /// Takes the entries from a place on out.
    fn divide(&mut self, at: usize) -> Page {
        let begin = self.begin(at);
        let mut upper = Page {
            slots: self.slots.split_off(at),
            names: self.names.split_off(begin),
        };
        upper.slots.iter_mut().for_each(|s| s.end -= begin as u32);
        self.fit();
        upper
    }

    fn append(&mut self, upper: Page) {
        let begin = self.names.len() as u32;
        self.names.extend_from_slice(&upper.names);
        let moved = upper.slots.into_iter().map(|s| Slot {
            end: s.end + begin,
            ..s
        });
        self.slots.extend(moved);
    }
}

impl Entries {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, key: u64) -> Option<DirEntry<'_>> {
        let (_, page) = self.pages.range(..=key).next_back()?;
        Some(page.entry(page.find(key)?))
    }

    /// The entries whose keys are at or above this, in order.
    pub fn from(&self, key: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let bound = self.pages.range(..=key).next_back().map_or(0, |(b, _)| *b);
        let pages = self.pages.range(bound..).map(|(_, page)| page);
        pages.flat_map(move |page| {
            let places = page.place(key)..page.slots.len();
            places.map(|at| page.entry(at))
        })
    }

    /// Changes what an entry names. Returns what it named before; None: there is no such entry.
    pub fn set(&mut self, key: u64, ino: Ino) -> Option<Ino> {
        let (_, page) = self.pages.range_mut(..=key).next_back()?;
        let at = page.find(key)?;
        Some(std::mem::replace(&mut page.slots[at].ino, ino))
    }

    /// Adds an entry; there must be none with this key.
    pub fn insert(&mut self, key: u64, name: &[u8], ino: Ino) {
        self.len += 1;
        let last = self.pages.last_key_value().map(|(bound, _)| *bound);
        let Some((bound, page)) = self.pages.range_mut(..=key).next_back() else {
            let mut page = Box::<Page>::default();
            page.insert(0, key, name, ino);
            self.pages.insert(0, page);
            return;
        };
        let at = page.place(key);
        if page.slots.len() < FULL {
            page.insert(at, key, name, ino);
            return;
        }
        // What comes in order, as from a snapshot, leaves full pages behind.
        let half = match at == FULL && Some(*bound) == last {
            true => FULL,
            false => FULL / 2,
        };
        let mut upper = page.divide(half);
        let upper_bound = upper.slots.first().map_or(key, |s| s.key);
        match at.checked_sub(half) {
            Some(at) if half == FULL || at > 0 => upper.insert(at, key, name, ino),
            _ => page.insert(at, key, name, ino),
        }
        self.pages.insert(upper_bound, Box::new(upper));
    }

    pub fn remove(&mut self, key: u64) -> Option<Ino> {
        let (bound, page) = self.pages.range_mut(..=key).next_back()?;
        let bound = *bound;
        let at = page.find(key)?;
        let gone = page.remove(at);
        self.len -= 1;
        match page.slots.len() {
            0 => drop(self.pages.remove(&bound)),
            left if left <= FEW => self.join(bound),
            _ => {}
        }
        Some(gone)
    }

    /// Joins a page with the next one if that makes a page that is not nearly full.
    fn join(&mut self, bound: u64) {
        let mut two = self.pages.range_mut(bound..);
        let (Some((_, page)), Some((next, upper))) = (two.next(), two.next()) else {
            return;
        };
        if page.slots.len() + upper.slots.len() <= JOINED {
            let next = *next;
            page.append(std::mem::take(upper));
            self.pages.remove(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &Entries, model: &BTreeMap<u64, (Vec<u8>, u64)>) {
        assert_eq!(entries.len(), model.len());
        let seen = entries
            .from(0)
            .map(|e| (e.cookie, (e.name.to_vec(), e.ino.0)));
        assert!(seen.eq(model.iter().map(|(k, v)| (*k, v.clone()))));
        let mut bounds = entries.pages.keys().skip(1).chain([&u64::MAX]);
        for (bound, page) in &entries.pages {
            let below = bounds.next().unwrap();
            assert!((1..=FULL).contains(&page.slots.len()));
            let keys = || page.slots.iter().map(|s| s.key);
            assert!(keys().all(|k| k >= *bound && k < *below));
            assert_eq!(page.begin(page.slots.len()), page.names.len());
        }
    }

    #[test]
    fn it_is_an_ordered_map() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
        for round in 0..60 {
            // By turns it grows and shrinks.
            let removed = if round % 2 == 0 { 2 } else { 8 };
            for _ in 0..300 {
                let key = random(2000) + 256;
                let old = model.get(&key).map(|(_, ino)| Ino(*ino));
                assert_eq!(entries.get(key).map(|e| e.ino), old);
                let ino = random(1000);
                if random(10) < removed {
                    assert_eq!(entries.remove(key), old);
                    model.remove(&key);
                } else if let Some(named) = model.get_mut(&key) {
                    assert_eq!(entries.set(key, Ino(ino)), old);
                    named.1 = ino;
                } else {
                    let name = vec![ino as u8; random(50) as usize];
                    entries.insert(key, &name, Ino(ino));
                    model.insert(key, (name, ino));
                }
            }
            check(&entries, &model);
            let from = random(2300);
            let next = entries.from(from).next().map(|e| e.cookie);
            assert_eq!(next, model.range(from..).next().map(|(k, _)| *k));
        }
        while let Some(key) = model.keys().next().copied() {
            entries.remove(key);
            model.remove(&key);
        }
        check(&entries, &model);
        assert!(entries.pages.is_empty());
    }

    #[test]
    fn what_comes_in_order_fills_its_pages() {
        let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
        for key in 0..10_000 {
            entries.insert(key * 3, b"name", Ino(key));
            model.insert(key * 3, (b"name".to_vec(), key));
        }
        check(&entries, &model);
        assert_eq!(entries.pages.len(), 10_000_usize.div_ceil(FULL));
    }
}
