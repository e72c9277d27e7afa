//! Layer 7: POSIX operations on a volume, and the only place that knows errno.
//!
//! Every operation that needs only memory ends at its first poll; whatever waits for the store
//! awaits. Permissions are left to the kernel (`default_permissions`); access times change only
//! when a program sets them.
//!
//! Locks, in order: a node's `staging`, its `state`, the index (in `Volume::read` and
//! `Volume::change`), the table of known inodes. Only `staging` is held across an await. Where two
//! nodes are locked, the one with the lower inode number comes first.

mod attr;
mod background;
mod commit;
mod dirs;
mod errno;
mod files;
mod names;
mod node;
mod place;
mod range;
mod read;
mod rename;
mod runs;
mod table;
mod tail;
mod types;
mod write;
mod xattr;

pub use errno::{Errno, Result};
pub use types::{
    Caller, DirItem, Entry, Fh, FsOptions, Opened, SetAttr, SetTime, Stat, StatFs, WriteMode,
};

use crate::base::{Ino, Pos};
use crate::format::{Attr, Row};
use crate::index::Index;
use crate::volume::{Change, Volume};
use files::Handles;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};
use table::{Pin, Table};
use tokio::sync::Notify;

pub struct Fs {
    volume: Arc<Volume>,
    me: Weak<Fs>,
    table: Table,
    handles: Handles,
    /// Inodes with uncommitted bytes.
    dirty: Mutex<FxHashMap<Ino, Pin>>,
    /// Wakes the background when the write buffer is full.
    pressure: Arc<Notify>,
}

impl Fs {
    /// Begins to serve a volume. Inodes that a crash left without a name are freed now. Must be
    /// called in a tokio runtime.
    pub fn new(volume: Arc<Volume>, _options: FsOptions) -> Arc<Fs> {
        let fs = Arc::new_cyclic(|me| Fs {
            volume,
            me: me.clone(),
            table: Table::default(),
            handles: Handles::default(),
            dirty: Mutex::default(),
            pressure: Arc::default(),
        });
        for batch in fs.volume.read(Index::nameless).chunks(FREED_AT_ONCE) {
            let freed = fs.volume.change(|_, change| {
                batch
                    .iter()
                    .for_each(|ino| change.row(Row::Free { ino: *ino }));
                Ok::<_, crate::base::Error>(())
            });
            if let Err(e) = freed {
                // A read-only mount cannot, and need not: nobody sees them.
                tracing::debug!("not freeing inodes without a name: {e}");
                break;
            }
        }
        background::start(&fs);
        fs
    }

    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// One change, with errors as a program sees them.
    fn change<R>(&self, f: impl FnOnce(&Index, &mut Change) -> Result<R>) -> Result<(R, Pos)> {
        self.volume.change(f)
    }

    /// Frees an inode that has no name and that nobody needs.
    fn free_if_nameless(&self, ino: Ino) {
        let nameless = |index: &Index| index.attr(ino).is_some_and(|a| a.nlink == 0);
        if !self.volume.read(nameless) {
            return;
        }
        let freed = self.volume.change(|index, change| {
            if nameless(index) && !self.table.is_known(ino) {
                change.row(Row::Free { ino });
            }
            Ok::<_, crate::base::Error>(())
        });
        if let Err(e) = freed {
            // The next mount frees it.
            tracing::debug!("not freeing {ino:?}: {e}");
        }
    }

    /// The kernel forgets `n` of its references to an inode.
    pub fn forget(&self, ino: Ino, n: u64) {
        if self.table.forget(ino, n) {
            self.free_if_nameless(ino);
        }
    }

    /// Counts one reference of the kernel (an item of `readdirplus` that it was given).
    pub fn remember(&self, ino: Ino) {
        self.table.remember(ino);
    }

    /// For tests and statistics: inodes the kernel or we know, nodes, inodes with uncommitted bytes,
    /// open handles.
    pub fn held(&self) -> [usize; 4] {
        let (known, nodes) = self.table.counts();
        [known, nodes, self.dirty.lock().len(), self.handles.count()]
    }
}

const FREED_AT_ONCE: usize = 10_000;

/// The attributes of an inode that must exist.
fn attr_of(index: &Index, ino: Ino) -> Result<Attr> {
    index.attr(ino).ok_or(Errno::ESTALE)
}
