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

struct Shard {
    blocks: LruCache<BlockKey, Bytes, FxBuildHasher>,
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

    pub fn get(&self, key: &BlockKey) -> Option<Bytes> {
        self.shard(key).lock().blocks.get(key).cloned()
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.shard(key).lock().blocks.contains(key)
    }

    /// The block must not share memory with anything larger, or the budget would lie.
    pub fn put(&self, key: BlockKey, block: Bytes) {
        let mut shard = self.shard(&key).lock();
        shard.bytes += block.len() + OVERHEAD;
        if let Some(old) = shard.blocks.put(key, block) {
            shard.bytes -= old.len() + OVERHEAD;
        }
        while shard.bytes > shard.budget {
            match shard.blocks.pop_lru() {
                Some((_, old)) => shard.bytes -= old.len() + OVERHEAD,
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
        assert_eq!(cache.get(&key(999)).unwrap()[0], 999u32 as u8);
        assert!(cache.get(&key(0)).is_none());
    }
}
