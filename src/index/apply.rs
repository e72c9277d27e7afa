//! Changing the index, row by row.

use super::inode::{Body, Inode};
use super::usage::Recount;
use super::{Index, Session};
use crate::base::{Ino, Result, StreamId};
use crate::format::codec::corrupt;
use crate::format::{Attr, Extent, Row, SegmentRow};

impl Index {
    /// Makes the index say what the row says. Applying a row again changes nothing, and so does
    /// applying all rows of a log once more. A row about an inode that does not exist is left
    /// out and counted. Fails only on rows that no decoder lets through, and then changes nothing.
    pub fn apply(&mut self, row: &Row) -> Result<()> {
        match row {
            Row::Inode { ino, attr } => self.put_inode(*ino, attr),
            Row::Free { ino } => self.free(*ino),
            Row::Entry { parent, name, ino } => return self.enter(*parent, name, *ino),
            Row::NoEntry { parent, name } => self.leave(*parent, name),
            Row::Extents {
                ino,
                off,
                len,
                extents,
            } => {
                let end = off.saturating_add(*len);
                check_run(*off, end, extents)?;
                self.put_extents(*ino, *off, end, extents);
            }
            Row::Target { ino, target } => match self.inodes.get_mut(*ino).map(|i| &mut i.body) {
                Some(Body::Link(t)) => *t = target[..].into(),
                _ => self.strays += 1,
            },
            Row::Xattr { ino, name, value } => self.put_xattr(*ino, name, value.as_deref()),
            Row::Segment(s) => self.put_segment(s),
            Row::Foreign(f) => self.put_foreign(f),
            Row::ForeignHold(h) => self.put_hold(h),
            Row::InoRange { next } => self.next_ino = self.next_ino.max(next.0),
            Row::StreamRange { next } => self.next_stream = self.next_stream.max(next.0),
            Row::Adopted => self.adopted = true,
            Row::Snapshots { oldest } => self.log_needed = self.log_needed.max(*oldest),
            Row::Session {
                epoch,
                session,
                started,
            } => {
                let new = Session {
                    epoch: *epoch,
                    session: *session,
                    started: *started,
                };
                if self.session.is_none_or(|s| s.session <= new.session) {
                    self.session = Some(new);
                }
            }
        }
        Ok(())
    }

    fn put_inode(&mut self, ino: Ino, attr: &Attr) {
        self.next_ino = self.next_ino.max(ino.0.saturating_add(1));
        self.deleted.stated(ino, attr);
        match self.inodes.get_mut(ino) {
            Some(i) if i.attr.kind() == attr.kind() => i.attr = *attr,
            Some(_) => {
                // Numbers are never reused, so only damaged rows change a kind.
                self.free(ino);
                self.inodes.insert(ino, Inode::new(*attr));
            }
            None => {
                self.inodes.insert(ino, Inode::new(*attr));
                self.sort_foreign_of(ino);
            }
        }
    }

    fn free(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.remove(ino) else {
            return;
        };
        if let Body::File(x) = &inode.body {
            x.iter().for_each(|e| self.use_less(e));
        }
        let time_of = |dir| self.inodes.get(dir).map(|d: &Inode| d.attr.ctime);
        self.deleted.freed(ino, inode, time_of);
        self.sort_foreign_of(ino);
    }

    fn enter(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let Some(dir) = self.inodes.get_mut(parent).and_then(Inode::dir_mut) else {
            self.strays += 1;
            return Ok(());
        };
        let (key, before) = dir.put(name, ino)?;
        if let Some(before) = before.filter(|before| *before != ino) {
            self.lose(before, parent, key, name);
        }
        self.deleted.named(ino);
        match self.inodes.get_mut(ino) {
            Some(i) => i.set_hint(parent, key),
            None => self.strays += 1,
        }
        Ok(())
    }

    fn leave(&mut self, parent: Ino, name: &[u8]) {
        let dir = self.inodes.get_mut(parent).and_then(Inode::dir_mut);
        if let Some((key, ino)) = dir.and_then(|d| d.remove(name)) {
            self.lose(ino, parent, key, name);
        }
    }

    /// An inode loses the name that had this key.
    fn lose(&mut self, ino: Ino, parent: Ino, key: u64, name: &[u8]) {
        if let Some(i) = self.inodes.get_mut(ino) {
            i.clear_hint(parent, key);
            self.deleted.lose(ino, parent, name, i.attr.nlink);
        }
    }

    fn put_extents(&mut self, ino: Ino, off: u64, end: u64, new: &[Extent]) {
        let Some(x) = self.inodes.get_mut(ino).and_then(Inode::extents_mut) else {
            self.strays += 1;
            return;
        };
        if x.begin(new) {
            new.iter().for_each(|e| self.use_more(e));
            return;
        }
        let (out, put) = x.replace(off, end, new);
        out.iter().for_each(|e| self.use_less(e));
        put.iter().for_each(|e| self.use_more(e));
    }

    fn use_more(&mut self, e: &Extent) {
        self.usage.add(e);
        if e.frame == 0 {
            self.sort_foreign(e.stream);
        }
    }

    fn use_less(&mut self, e: &Extent) {
        self.usage.sub(e);
        if e.frame == 0 {
            self.sort_foreign(e.stream);
        }
    }

    fn put_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) {
        let Some(i) = self.inodes.get_mut(ino) else {
            self.strays += 1;
            return;
        };
        match (value, &mut i.xattrs) {
            (Some(v), x) => {
                x.get_or_insert_default().insert(name.into(), v.into());
            }
            (None, Some(x)) => {
                x.remove(name);
                if x.is_empty() {
                    i.xattrs = None;
                }
            }
            (None, None) => {}
        }
    }

    fn put_segment(&mut self, row: &SegmentRow) {
        self.use_stream(row.stream);
        if let Recount::Stream(stream) = self.usage.apply(row) {
            self.usage.reset(stream);
            for (_, inode) in self.inodes.iter() {
                let all = inode.extents().into_iter().flat_map(|x| x.iter());
                all.filter(|e| e.stream == stream)
                    .for_each(|e| self.usage.add(e));
            }
        }
    }

    pub(super) fn use_stream(&mut self, stream: StreamId) {
        self.next_stream = self.next_stream.max(stream.0.saturating_add(1));
    }
}

/// The same as a decoder checks, for rows that were made in memory.
fn check_run(from: u64, to: u64, extents: &[Extent]) -> Result<()> {
    let mut at = from;
    for e in extents {
        let end = e.off.checked_add(e.len as u64);
        let limit = if e.frame == 0 { u32::MAX } else { e.frame };
        let in_frame = e.skip.checked_add(e.len).is_some_and(|n| n <= limit);
        if e.len == 0 || e.off < at || !in_frame || end.is_none_or(|end| end > to) {
            return Err(corrupt(format!(
                "impossible extent {e:?} in [{from}, {to})"
            )));
        }
        at = e.end();
    }
    Ok(())
}
