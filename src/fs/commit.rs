//! Putting what was written into the log: one change with the bytes, where they are, and the size
//! and times that go with them.
//!
//! Rows carry committed sizes only. Whatever else changes a file's content (truncate, punch,
//! clone) goes into the same change as the bytes written before it.

use super::attr::{drop_capability, without_suid};
use super::errno::{Errno, Result};
use super::node::{Node, State};
use super::types::Caller;
use super::{Fs, Pin, attr_of};
use crate::base::{Ino, Pos};
use crate::format::{Attr, DataFrame, Extent, Row};
use crate::index::Index;
use crate::volume::Change;
use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering;

/// A node whose bytes in lanes are durable, if there are any, and which nobody else changes now.
pub(super) struct Locked<'a> {
    node: &'a Node,
    pub state: MutexGuard<'a, State>,
    _staging: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl Locked<'_> {
    /// Forgets uncommitted bytes from `size` on.
    pub fn cut(&mut self, size: u64) {
        self.state.dirty.cut(size, u64::MAX);
        self.state.staged.replace(size, u64::MAX, &[]);
        self.state.trim_permit();
    }
}

/// A change of one file. `attr` becomes its attributes.
pub(super) struct Edit<'a> {
    pub index: &'a Index,
    pub attr: Attr,
    ino: Ino,
    change: &'a mut Change,
}

impl Edit<'_> {
    /// The bytes `[from, to)` become a hole.
    pub fn hole(&mut self, from: u64, to: u64) {
        self.extents(from, to - from, Vec::new());
    }

    /// The bytes `[off, off + len)` become these extents.
    pub fn extents(&mut self, off: u64, len: u64, extents: Vec<Extent>) {
        let ino = self.ino;
        self.change.row(Row::Extents {
            ino,
            off,
            len,
            extents,
        });
    }

    /// What a change of content takes from a program file. Root keeps set-user-id bits.
    pub fn drop_privileges(&mut self, caller: Caller) {
        if caller.uid != 0 {
            self.attr.mode = without_suid(self.attr.mode);
        }
        drop_capability(self.index, self.change, self.ino);
    }

    fn data(&mut self, frame: DataFrame) {
        let (off, len) = (frame.off, frame.payload.len() as u64);
        let extent = self.change.data(frame);
        self.extents(off, len, vec![extent]);
    }
}

impl Fs {
    /// Locks a node for a change of its content.
    pub(super) async fn settle<'a>(&self, node: &'a Node) -> Result<Locked<'a>> {
        if let Some(state) = Some(node.state.lock()).filter(|s| !s.has_staged()) {
            return Ok(Locked {
                node,
                state,
                _staging: None,
            });
        }
        let staging = node.staging.lock().await;
        let staged: Vec<Extent> = node.state.lock().staged.iter().copied().collect();
        self.volume.lane_sync(&staged).await?;
        Ok(Locked {
            node,
            state: node.state.lock(),
            _staging: Some(staging),
        })
    }

    /// Queues everything uncommitted and what `f` adds, as one change. Not durable yet.
    pub(super) fn commit_with<R>(
        &self,
        locked: &mut Locked<'_>,
        f: impl FnOnce(&mut Edit<'_>) -> Result<R>,
    ) -> Result<R> {
        let ino = locked.node.ino;
        let state = &mut *locked.state;
        // Checksums are made before the index is locked, the path is known only then.
        let frame = |(off, bytes)| DataFrame::new(ino, off, bytes, Vec::new());
        let frames: Vec<DataFrame> = state.dirty.pieces().into_iter().map(frame).collect();
        let (value, pos) = self.change(|index, change| {
            let mut attr = attr_of(index, ino)?;
            state.overlay(&mut attr);
            let mut edit = Edit {
                index,
                attr,
                ino,
                change,
            };
            for e in state.staged.iter() {
                edit.extents(e.off, e.len as u64, vec![*e]);
            }
            let path = match frames.is_empty() {
                true => Vec::new(),
                false => index.path(ino).unwrap_or_default(),
            };
            for mut frame in frames {
                frame.path = path.clone();
                edit.data(frame);
            }
            let value = f(&mut edit)?;
            let attr = edit.attr;
            change.row(Row::Inode { ino, attr });
            if let Some(permit) = state.permit.take() {
                change.hold(permit);
            }
            Ok(value)
        })?;
        state.committed();
        state.version += 1;
        state.pos = state.pos.max(pos);
        self.no_longer_dirty(ino);
        Ok(value)
    }

    pub(super) fn now_dirty(&self, ino: Ino) {
        self.in_dirty(|dirty| {
            dirty.entry(ino).or_insert_with(|| self.pin(ino));
        });
    }

    /// The caller holds a pin, so that the node outlives this.
    pub(super) fn no_longer_dirty(&self, ino: Ino) {
        let pin = self.in_dirty(|dirty| dirty.remove(&ino));
        drop(pin);
        self.volume.lane_forget(ino);
    }

    /// Changes the inodes that have uncommitted bytes; a sync waits for as many siblings.
    fn in_dirty<R>(&self, change: impl FnOnce(&mut FxHashMap<Ino, Pin>) -> R) -> R {
        let mut dirty = self.dirty.lock();
        let done = change(&mut dirty);
        let writers = &self.volume.counters().writers;
        writers.store(dirty.len(), Ordering::Relaxed);
        done
    }

    /// Queues what is uncommitted, if anything.
    pub(super) async fn commit(&self, node: &Node) -> Result<()> {
        self.place(node).await;
        let tail = self.tail_to_rewrite(node).await;
        let mut locked = self.settle(node).await?;
        if locked.state.is_clean() {
            return Ok(());
        }
        if let Some(tail) = tail {
            tail.put_below(&mut locked.state);
        }
        self.commit_with(&mut locked, |_| Ok(()))
    }

    /// Commits and waits until all that concerns the inode, and the log up to `upto`, is durable.
    pub(super) async fn sync(&self, node: &Node, upto: Pos) -> Result<()> {
        let late = node.state.lock().error.take();
        self.commit(node).await?;
        let pos = node.state.lock().pos.max(upto);
        self.volume.durable(pos).await?;
        late.map_or(Ok(()), Err)
    }

    /// Commits everything and waits until it is durable.
    pub async fn sync_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        let dirty: Vec<Ino> = self.dirty.lock().keys().copied().collect();
        for ino in dirty {
            let pin = self.pin(ino);
            if let Err(e) = self.commit(&pin).await {
                tracing::error!("{e}: {} is not committed", self.label(ino));
                outcome = Err(e);
            }
        }
        self.volume.durable(self.volume.last_pos()).await?;
        outcome
    }

    /// An inode for a log line.
    pub(super) fn label(&self, ino: Ino) -> String {
        let path = self.volume.read(|index| index.path(ino));
        match path {
            Some(p) => format!("/{} ({ino:?})", String::from_utf8_lossy(&p)),
            None => format!("{ino:?}"),
        }
    }

    /// Whether the inode has lost its last name; what is written to it then is for its holders
    /// only, so no close needs to wait for it.
    pub(super) fn is_nameless(&self, ino: Ino) -> bool {
        self.volume
            .read(|index| index.attr(ino).is_none_or(|a| a.nlink == 0))
    }
}

/// Keeps the error of a commit that nobody waits for.
pub(super) fn stick(node: &Node, error: Errno) {
    node.state.lock().error.get_or_insert(error);
}
