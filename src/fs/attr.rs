//! Attributes.

use super::errno::{Errno, Result};
use super::node::Node;
use super::types::{Caller, SetAttr, SetTime, Stat, StatFs};
use super::{Fs, attr_of};
use crate::base::{Ino, Timestamp};
use crate::format::{Attr, Row};
use crate::index::Index;
use crate::volume::Change;

/// The largest size: the kernel's offsets are signed.
pub(super) const MAX_SIZE: u64 = i64::MAX as u64;

const STAT_BLOCK: u64 = 512;
const FS_BLOCK: u64 = 4096;
/// Inodes are not limited; programs want a number.
const FREE_INODES: u64 = 1 << 32;

/// What a change of content or owner does to the mode of a file that is not a directory.
pub(super) fn without_suid(mode: u32) -> u32 {
    if mode & libc::S_IFMT == libc::S_IFDIR {
        return mode;
    }
    let group_exec = mode & libc::S_IXGRP != 0;
    let gone = libc::S_ISUID | if group_exec { libc::S_ISGID } else { 0 };
    mode & !gone
}

/// The xattr with the capabilities that a program gets.
const CAPABILITY: &[u8] = b"security.capability";

pub(super) fn has_capability(index: &Index, ino: Ino) -> bool {
    index.xattr(ino, CAPABILITY).is_some()
}

/// Whoever changes a file's content or owner, its capabilities go. With HANDLE_KILLPRIV_V2 the
/// kernel leaves this to us.
pub(super) fn drop_capability(index: &Index, change: &mut Change, ino: Ino) {
    if has_capability(index, ino) {
        change.row(Row::Xattr {
            ino,
            name: CAPABILITY.to_vec(),
            value: None,
        });
    }
}

fn committed_stat(index: &Index, ino: Ino) -> Option<Stat> {
    Some(Stat {
        attr: index.attr(ino)?,
        blocks: index.allocated(ino).div_ceil(STAT_BLOCK),
    })
}

impl Fs {
    pub async fn getattr(&self, ino: Ino) -> Result<Stat> {
        self.stat(ino)
    }

    pub(super) fn stat(&self, ino: Ino) -> Result<Stat> {
        match self.table.node(ino) {
            Some(node) => self.node_stat(&node),
            None => self
                .volume
                .read(|index| committed_stat(index, ino))
                .ok_or(Errno::ESTALE),
        }
    }

    fn node_stat(&self, node: &Node) -> Result<Stat> {
        let state = node.state.lock();
        let stat = self.volume.read(|index| committed_stat(index, node.ino));
        let mut stat = stat.ok_or(Errno::ESTALE)?;
        if !state.is_clean() {
            state.overlay(&mut stat.attr);
            // Uncommitted bytes may replace committed ones; a file has no more than its size.
            let bytes = state.uncommitted().div_ceil(STAT_BLOCK);
            let most = stat.attr.size.div_ceil(STAT_BLOCK);
            stat.blocks = (stat.blocks + bytes).min(most.max(stat.blocks));
        }
        Ok(stat)
    }

    pub async fn setattr(&self, caller: Caller, ino: Ino, set: SetAttr) -> Result<Stat> {
        self.volume.room().await?;
        let now = self.volume.now();
        if set.size.is_some() {
            self.truncate(caller, ino, &set, now).await?;
        } else if let Some(node) = self.table.node(ino) {
            let mut state = node.state.lock();
            let (_, pos) = self.change(|index, change| restate(index, change, ino, &set, now))?;
            state.pos = state.pos.max(pos);
            if set.mtime.is_some() {
                // The explicit time stands, though bytes that were written before come later.
                state.written = None;
            }
        } else {
            self.change(|index, change| restate(index, change, ino, &set, now))?;
        }
        self.stat(ino)
    }

    /// Sets the size, and everything else that came with it. What was written before goes into the
    /// same change, so that a crash does not leave the new size with old bytes.
    async fn truncate(
        &self,
        caller: Caller,
        ino: Ino,
        set: &SetAttr,
        now: Timestamp,
    ) -> Result<()> {
        let size = set.size.unwrap_or_default();
        if size > MAX_SIZE {
            return Err(Errno::EFBIG);
        }
        let kind = self.volume.read(|index| attr_of(index, ino))?;
        match kind.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let pin = self.pin(ino);
        let mut locked = self.settle(&pin).await?;
        locked.cut(size);
        self.commit_with(&mut locked, |edit| {
            let old = edit.attr.size;
            if size < old {
                edit.hole(size, u64::MAX);
            }
            edit.attr.size = size;
            edit.attr.mtime = now;
            edit.drop_privileges(caller);
            apply(&mut edit.attr, set, now);
            Ok(())
        })?;
        Ok(())
    }

    pub async fn statfs(&self) -> Result<StatFs> {
        let usage = self.volume.usage();
        let files = self.volume.read(|index| index.inodes() as u64);
        let free = usage.available / FS_BLOCK;
        Ok(StatFs {
            blocks: usage.capacity / FS_BLOCK,
            bfree: free,
            bavail: free,
            files: files + FREE_INODES,
            ffree: FREE_INODES,
            bsize: FS_BLOCK as u32,
            namelen: super::names::MAX_NAME as u32,
            frsize: FS_BLOCK as u32,
        })
    }
}

/// Everything but a new size.
fn restate(
    index: &Index,
    change: &mut Change,
    ino: Ino,
    set: &SetAttr,
    now: Timestamp,
) -> Result<()> {
    let mut attr = attr_of(index, ino)?;
    apply(&mut attr, set, now);
    change.row(Row::Inode { ino, attr });
    if set.is_chown() {
        drop_capability(index, change, ino);
    }
    Ok(())
}

fn apply(attr: &mut Attr, set: &SetAttr, now: Timestamp) {
    let time = |t: SetTime| match t {
        SetTime::Now => now,
        SetTime::At(t) => t,
    };
    if set.is_chown() {
        attr.mode = without_suid(attr.mode);
    }
    if let Some(mode) = set.mode {
        attr.mode = attr.kind() | (mode & 0o7777);
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    attr.ctime = set.ctime.map_or(now, time);
}
