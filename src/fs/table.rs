//! Which inodes the kernel or we still need: those that the kernel remembers, and those that are
//! open, written, or being worked on.
//!
//! An inode whose last name is gone lives on while it is in this table. Names are found, and the
//! table asked, under the index's lock, so that nobody gets hold of an inode that is being freed.

use super::Fs;
use super::node::Node;
use crate::base::Ino;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};

const SHARDS: u64 = 64;

#[derive(Default)]
struct Known {
    /// Times that the kernel was told of the inode and has not forgotten it.
    lookups: u64,
    /// How many `Pin`s there are.
    pins: u64,
    node: Option<Arc<Node>>,
}

pub struct Table {
    shards: Vec<Mutex<FxHashMap<Ino, Known>>>,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Table {
    fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, Known>> {
        &self.shards[(ino.0 % SHARDS) as usize]
    }

    pub fn remember(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_default().lookups += 1;
    }

    /// Whether nobody needs the inode any more.
    pub fn forget(&self, ino: Ino, n: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(known) = shard.get_mut(&ino) else {
            return false;
        };
        known.lookups = known.lookups.saturating_sub(n);
        let gone = known.lookups == 0 && known.pins == 0;
        if gone {
            shard.remove(&ino);
        }
        gone
    }

    pub fn is_known(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    pub fn node(&self, ino: Ino) -> Option<Arc<Node>> {
        self.shard(ino).lock().get(&ino)?.node.clone()
    }

    fn pin(&self, ino: Ino) -> Arc<Node> {
        let mut shard = self.shard(ino).lock();
        let known = shard.entry(ino).or_default();
        known.pins += 1;
        let node = known.node.get_or_insert_with(|| Arc::new(Node::new(ino)));
        node.clone()
    }

    fn unpin(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(known) = shard.get_mut(&ino) else {
            return false;
        };
        known.pins = known.pins.saturating_sub(1);
        if known.pins > 0 {
            return false;
        }
        known.node = None;
        let gone = known.lookups == 0;
        if gone {
            shard.remove(&ino);
        }
        gone
    }

    /// How many inodes are known, and how many of them have a node.
    pub fn counts(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(known, nodes), shard| {
            let shard = shard.lock();
            let with_node = shard.values().filter(|k| k.node.is_some()).count();
            (known + shard.len(), nodes + with_node)
        })
    }
}

/// Keeps an inode's node. An open handle holds one, and so do uncommitted bytes.
pub struct Pin {
    /// Weak, because handles are kept in `Fs` itself.
    fs: Weak<Fs>,
    node: Arc<Node>,
}

impl Deref for Pin {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade()
            && fs.table.unpin(self.node.ino)
        {
            fs.free_if_nameless(self.node.ino);
        }
    }
}

impl Fs {
    /// The node of an inode, made if there is none. Whether the inode exists is for the caller to
    /// see, under the index's lock.
    pub(super) fn pin(&self, ino: Ino) -> Pin {
        Pin {
            fs: self.me.clone(),
            node: self.table.pin(ino),
        }
    }
}
