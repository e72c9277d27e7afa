//! The entries of one directory, ordered by a key that serves as the cookie of readdir: it
//! depends on the name, so it stays while others come and go.

use super::entries::Entries;
use crate::base::{Error, ErrorKind, Ino, Result};
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

/// Names whose hashes are equal differ in the low bits of their keys.
const SLOT_BITS: u32 = 8;
const SLOTS: u64 = 1 << SLOT_BITS;
/// Keys stay below 2^63: some programs take telldir's result for a signed number.
const HASH_BITS: u32 = 55;

/// No entry has a cookie below this; `.` and `..` need some.
pub const FIRST_COOKIE: u64 = SLOTS;

pub struct DirEntry<'a> {
    pub cookie: u64,
    pub name: &'a [u8],
    pub ino: Ino,
}

#[derive(Default)]
pub(super) struct Dir {
    entries: Entries,
}

/// The first key for a name. Keyed hashing (SipHash) because names come from users: 256 of them
/// with one hash cannot be made on purpose. Nothing on the store depends on it.
fn first_key(name: &[u8]) -> u64 {
    let mut h = DefaultHasher::new();
    h.write(name);
    (h.finish() >> (64 - HASH_BITS)).max(1) << SLOT_BITS
}

impl Dir {
    /// The entries whose names have the hash that belongs to this first key.
    fn alike(&self, first: u64) -> impl Iterator<Item = DirEntry<'_>> {
        self.entries
            .from(first)
            .take_while(move |e| e.cookie < first + SLOTS)
    }

    pub fn find(&self, name: &[u8]) -> Option<DirEntry<'_>> {
        self.alike(first_key(name)).find(|e| e.name == name)
    }

    pub fn at(&self, key: u64) -> Option<DirEntry<'_>> {
        self.entries.get(key)
    }

    /// Adds or replaces an entry. Returns its key, and what it named before.
    pub fn put(&mut self, name: &[u8], ino: Ino) -> Result<(u64, Option<Ino>)> {
        let first = first_key(name);
        let (mut free, mut same) = (first, None);
        for e in self.alike(first) {
            if e.name == name {
                same = Some(e.cookie);
                break;
            }
            free += u64::from(e.cookie == free);
        }
        if let Some(key) = same {
            return Ok((key, self.entries.set(key, ino)));
        }
        if free == first + SLOTS {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("{SLOTS} names of one directory have the same hash"),
            ));
        }
        self.entries.insert(free, name, ino);
        Ok((free, None))
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<(u64, Ino)> {
        let key = self.find(name)?.cookie;
        Some((key, self.entries.remove(key)?))
    }

    pub fn after(&self, cookie: u64) -> impl Iterator<Item = DirEntry<'_>> {
        self.entries.from(cookie.saturating_add(1))
    }

    pub fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts an entry where a name with the same hash would have put it.
    fn occupy(d: &mut Dir, key: u64) {
        let name = format!("other {key}").into_bytes();
        d.entries.insert(key, &name, Ino(9));
    }

    #[test]
    fn names_with_equal_hashes_live_side_by_side_until_the_slots_are_used_up() {
        let mut d = Dir::default();
        let first = first_key(b"a");
        occupy(&mut d, first);
        occupy(&mut d, first + 2);
        assert_eq!(d.put(b"a", Ino(1)).unwrap(), (first + 1, None));
        // Freeing an earlier slot must not make a second entry of the same name.
        d.entries.remove(first);
        let put = d.put(b"a", Ino(2)).unwrap();
        assert_eq!(put, (first + 1, Some(Ino(1))));
        assert_eq!(d.find(b"a").unwrap().ino, Ino(2));
        assert_eq!(d.remove(b"a"), Some((first + 1, Ino(2))));
        assert!(d.find(b"a").is_none());
        let taken = |d: &Dir, s| d.at(first + s).is_some();
        (0..SLOTS).for_each(|s| {
            if !taken(&d, s) {
                occupy(&mut d, first + s)
            }
        });
        assert_eq!(d.put(b"a", Ino(1)).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(first >= FIRST_COOKIE && first + SLOTS < 1 << 63);
    }
}
