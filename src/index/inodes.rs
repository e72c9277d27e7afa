//! The table of inodes.

use super::inode::Inode;
use crate::base::Ino;
use rustc_hash::FxHashMap;

/// One hash table per shard, so that growing moves few entries at a time: a single table of ten
/// million would stop the filesystem for a second.
const SHARDS: usize = 256;
/// Inodes that are allocated together. A hash table of whole inodes would be half empty.
const CHUNK: usize = 256;

pub(super) struct Inodes {
    shards: Vec<FxHashMap<Ino, u32>>,
    chunks: Vec<Vec<Option<Inode>>>,
    free: Vec<u32>,
    len: usize,
}

// `None` costs nothing.
const _: () = assert!(size_of::<Option<Inode>>() == size_of::<Inode>());

impl Default for Inodes {
    fn default() -> Inodes {
        Inodes {
            shards: (0..SHARDS).map(|_| FxHashMap::default()).collect(),
            chunks: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }
}

impl Inodes {
    fn shard(ino: Ino) -> usize {
        ino.0 as usize % SHARDS
    }

    fn slot(&self, ino: Ino) -> Option<u32> {
        self.shards[Self::shard(ino)].get(&ino).copied()
    }

    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        let slot = self.slot(ino)? as usize;
        self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)?.as_ref()
    }

    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        let slot = self.slot(ino)? as usize;
        let chunk = self.chunks.get_mut(slot / CHUNK)?;
        chunk.get_mut(slot % CHUNK)?.as_mut()
    }

    pub fn insert(&mut self, ino: Ino, inode: Inode) {
        if let Some(old) = self.get_mut(ino) {
            *old = inode;
            return;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => self.grow(),
        };
        self.chunks[slot / CHUNK][slot % CHUNK] = Some(inode);
        self.shards[Self::shard(ino)].insert(ino, slot as u32);
        self.len += 1;
    }

    /// Adds one slot. There are fewer than 2^32: that many inodes take 500 GiB.
    fn grow(&mut self) -> usize {
        if self.chunks.last().is_none_or(|c| c.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(None);
        last * CHUNK + self.chunks[last].len() - 1
    }

    pub fn remove(&mut self, ino: Ino) -> Option<Inode> {
        let slot = self.shards[Self::shard(ino)].remove(&ino)?;
        let at = slot as usize;
        let gone = self.chunks[at / CHUNK][at % CHUNK].take();
        self.free.push(slot);
        self.len -= 1;
        gone
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        let keys = self.shards.iter().flat_map(|s| s.keys());
        keys.filter_map(|ino| Some((*ino, self.get(*ino)?)))
    }

    pub fn sorted(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> = self.shards.iter().flat_map(|s| s.keys().copied()).collect();
        all.sort_unstable();
        all
    }
}
