//! Layer 3: what was read from the store, kept within a budget of bytes.

use crate::base::{Pos, StreamId};
use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// One checksummed block of a frame, or of a foreign file (`pos` 0).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockKey {
    pub stream: StreamId,
    /// Position of the frame's payload.
    pub pos: Pos,
    pub block: u32,
}

const SHARDS: usize = 16;
/// What an entry costs beside its bytes.
const OVERHEAD: usize = 128;

/// Least recently used blocks go first. The budget covers the bytes and the map.
pub struct BlockCache {
    shards: Vec<Mutex<Shard>>,
}

/// A block that was found.
pub struct Hit {
    pub bytes: Bytes,
    /// It was fetched ahead, and nobody had read it yet.
    pub was_ahead: bool,
}

struct Entry {
    bytes: Bytes,
    ahead: bool,
}

struct Shard {
    blocks: LruCache<BlockKey, Entry, FxBuildHasher>,
    bytes: usize,
    budget: usize,
}

impl BlockCache {
    pub fn new(budget: u64) -> BlockCache {
        let budget = usize::try_from(budget).unwrap_or(usize::MAX) / SHARDS;
        let shard = || Shard {
            blocks: LruCache::unbounded_with_hasher(FxBuildHasher),
            bytes: 0,
            budget,
        };
        BlockCache {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
        }
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<Shard> {
        // The high bits: the map inside a shard uses the low ones.
        let hash = FxBuildHasher.hash_one(key);
        &self.shards[(hash >> 57) as usize % SHARDS]
    }

    pub fn get(&self, key: &BlockKey) -> Option<Hit> {
        let mut shard = self.shard(key).lock();
        let entry = shard.blocks.get_mut(key)?;
        Some(Hit {
            bytes: entry.bytes.clone(),
            was_ahead: std::mem::take(&mut entry.ahead),
        })
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.shard(key).lock().blocks.contains(key)
    }

    /// The block must not share memory with anything larger, or the budget would lie.
    pub fn put(&self, key: BlockKey, block: Bytes) {
        self.insert(key, block, false);
    }

    /// The same for a block that nobody asked for.
    pub fn put_ahead(&self, key: BlockKey, block: Bytes) {
        self.insert(key, block, true);
    }

    fn insert(&self, key: BlockKey, bytes: Bytes, ahead: bool) {
        let mut shard = self.shard(&key).lock();
        shard.bytes += bytes.len() + OVERHEAD;
        if let Some(old) = shard.blocks.put(key, Entry { bytes, ahead }) {
            shard.bytes -= old.bytes.len() + OVERHEAD;
        }
        while shard.bytes > shard.budget {
            match shard.blocks.pop_lru() {
                Some((_, old)) => shard.bytes -= old.bytes.len() + OVERHEAD,
                None => break,
            }
        }
    }

    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|s| s.lock().bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u32) -> BlockKey {
        BlockKey {
            stream: StreamId(1),
            pos: 7,
            block,
        }
    }

    #[test]
    fn the_budget_holds_and_the_last_used_stay() {
        let cache = BlockCache::new(16 * 4 * (1000 + OVERHEAD as u64));
        for i in 0..1000 {
            cache.put(key(i), vec![i as u8; 1000].into());
            cache.put(key(i), vec![i as u8; 1000].into());
            assert!(cache.bytes() <= 16 * 4 * (1000 + OVERHEAD));
        }
        assert_eq!(cache.get(&key(999)).unwrap().bytes[0], 999u32 as u8);
        assert!(cache.get(&key(0)).is_none());
    }
}
