//! The table of inodes.

use super::inode::Inode;
use crate::base::Ino;
use rustc_hash::FxHashMap;

/// One hash table per shard, so that growing moves few inodes at a time: a single table of ten
/// million would stop the filesystem for a second.
const SHARDS: usize = 256;

pub(super) struct Inodes {
    shards: Vec<FxHashMap<Ino, Inode>>,
    len: usize,
}

impl Default for Inodes {
    fn default() -> Inodes {
        let shards = (0..SHARDS).map(|_| FxHashMap::default()).collect();
        Inodes { shards, len: 0 }
    }
}

impl Inodes {
    fn shard(ino: Ino) -> usize {
        ino.0 as usize % SHARDS
    }

    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        self.shards[Self::shard(ino)].get(&ino)
    }

    pub fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        self.shards[Self::shard(ino)].get_mut(&ino)
    }

    pub fn insert(&mut self, ino: Ino, inode: Inode) {
        let old = self.shards[Self::shard(ino)].insert(ino, inode);
        self.len += old.is_none() as usize;
    }

    pub fn remove(&mut self, ino: Ino) -> Option<Inode> {
        let shard = &mut self.shards[Self::shard(ino)];
        let gone = shard.remove(&ino)?;
        // A mass deletion gives its memory back.
        if shard.len() < shard.capacity() / 8 {
            shard.shrink_to(shard.len() * 2);
        }
        self.len -= 1;
        Some(gone)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.shards
            .iter()
            .flat_map(|s| s.iter().map(|(k, v)| (*k, v)))
    }

    pub fn sorted(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> = self.shards.iter().flat_map(|s| s.keys().copied()).collect();
        all.sort_unstable();
        all
    }
}
