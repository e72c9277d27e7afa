//! An inode that is open or has uncommitted bytes.

use super::errno::Errno;
use super::runs::Runs;
use crate::base::{Ino, Pos, Timestamp};
use crate::format::Attr;
use crate::index::Extents;
use crate::volume::BufferPermit;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

pub struct Node {
    pub ino: Ino,
    /// Taken before the index's lock, and never held across an await.
    pub state: Mutex<State>,
    /// Held while bytes are on their way to a lane or from there into a record, and by whatever
    /// must not meet them half-way. Taken before `state`.
    pub staging: tokio::sync::Mutex<()>,
}

/// What a reader sees is, from the top: `dirty`, `moving`, `staged`, the index.
#[derive(Default)]
pub struct State {
    /// Written, in memory only.
    pub dirty: Runs,
    /// Write-buffer budget for `dirty`.
    pub permit: Option<BufferPermit>,
    /// On the way to a lane; empty unless `staging` is held.
    pub moving: Vec<(u64, Bytes)>,
    /// In a lane, perhaps not durable; in no record.
    pub staged: Extents,
    /// The size with all of the above, if that is not the committed one.
    pub size: Option<u64>,
    /// When bytes were written last, if that is not committed.
    pub written: Option<Timestamp>,
    /// When the background commits what is uncommitted.
    pub due: Option<Instant>,
    /// All that concerns this inode is in the log before this position.
    pub pos: Pos,
    /// Goes up with each change of the committed bytes.
    pub version: u64,
    /// A commit in the background failed; the next fsync or close says so.
    pub error: Option<Errno>,
    /// Open handles.
    pub handles: u64,
}

impl Node {
    pub fn new(ino: Ino) -> Node {
        Node {
            ino,
            state: Mutex::default(),
            staging: tokio::sync::Mutex::default(),
        }
    }

    /// Notes that a change of this inode is in the log before `pos`.
    pub fn logged(&self, pos: Pos) {
        let mut state = self.state.lock();
        state.pos = state.pos.max(pos);
    }
}

impl State {
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.moving.is_empty()
            && self.staged.count() == 0
            && self.size.is_none()
            && self.written.is_none()
    }

    /// Whether bytes are in a lane or on the way there.
    pub fn has_staged(&self) -> bool {
        self.staged.count() > 0 || !self.moving.is_empty()
    }

    /// Puts what is not committed on top of committed attributes.
    pub fn overlay(&self, attr: &mut Attr) {
        attr.size = self.size.unwrap_or(attr.size);
        if let Some(t) = self.written {
            attr.mtime = t;
            attr.ctime = attr.ctime.max(t);
        }
    }

    /// Bytes that are not committed; those that replace committed ones count as well.
    pub fn uncommitted(&self) -> u64 {
        let moving: usize = self.moving.iter().map(|(_, b)| b.len()).sum();
        self.dirty.bytes() as u64 + moving as u64 + self.staged.bytes()
    }

    /// Forgets everything that is not committed.
    pub fn discard(&mut self) {
        self.dirty.clear();
        self.moving.clear();
        self.staged = Extents::default();
        self.committed();
        self.permit = None;
    }

    /// Everything is committed now.
    pub fn committed(&mut self) {
        self.dirty.clear();
        self.staged = Extents::default();
        self.size = None;
        self.written = None;
        self.due = None;
    }

    /// Gives budget back that overwritten or cut bytes no longer need.
    pub fn trim_permit(&mut self) {
        let need = self.dirty.bytes();
        if let Some(permit) = &mut self.permit {
            let extra = permit.num_permits().saturating_sub(need);
            drop(permit.split(extra));
        }
    }

    /// Takes the budget of `bytes` bytes that leave `dirty`.
    pub fn take_permit(&mut self, bytes: usize) -> Option<BufferPermit> {
        let permit = self.permit.as_mut()?;
        permit.split(bytes.min(permit.num_permits()))
    }
}
