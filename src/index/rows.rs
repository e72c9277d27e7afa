//! The index as rows: applied to an empty index in this order, they make it again.

use super::inode::{Body, Inode};
use super::{Index, Session};
use crate::base::{Ino, StreamId};
use crate::format::{Attr, Extent, Row};

impl Index {
    /// Every row, in an order that depends on nothing but the content.
    pub fn rows(&self, mut f: impl FnMut(Row)) {
        self.table_rows(&mut f);
        let inos = self.inos();
        inos.iter().for_each(|ino| self.inode_rows(*ino, &mut f));
        inos.iter().for_each(|ino| self.entry_rows(*ino, &mut f));
    }

    /// Counters, segments and foreign files.
    pub fn table_rows(&self, f: &mut impl FnMut(Row)) {
        self.counter_rows(f);
        self.foreign_files().for_each(|x| x.rows(f));
    }

    /// Counters and segments: they are few.
    pub fn counter_rows(&self, f: &mut impl FnMut(Row)) {
        let next = self.next_ino();
        f(Row::InoRange { next });
        let next = self.next_stream();
        f(Row::StreamRange { next });
        if let Some(Session {
            epoch,
            session,
            started,
        }) = self.session
        {
            f(Row::Session {
                epoch,
                session,
                started,
            });
        }
        if self.adopted {
            f(Row::Adopted);
        }
        let oldest = self.log_needed;
        f(Row::Snapshots { oldest });
        self.segments().for_each(|s| f(Row::Segment(s.row.clone())));
    }

    /// What an inode is, without the entries of a directory.
    pub fn inode_rows(&self, ino: Ino, f: &mut impl FnMut(Row)) {
        let Some(inode) = self.inode(ino) else { return };
        inode.rows(ino, inode.attr, f);
    }

    /// The foreign files with higher numbers than `after`, as far as they make about `most` bytes.
    /// Returns where to go on; None: that was all. In slices because there may be millions.
    pub fn foreign_slice(
        &self,
        after: StreamId,
        most: usize,
        f: &mut impl FnMut(Row),
    ) -> Option<StreamId> {
        let mut bytes = 0;
        for foreign in self.foreign_after(after) {
            foreign.rows(&mut |row| give(row, &mut bytes, f));
            if bytes >= most {
                return Some(foreign.row.stream);
            }
        }
        None
    }

    /// The same with inodes, without the entries of directories.
    pub fn inode_slice(&self, after: Ino, most: usize, f: &mut impl FnMut(Row)) -> Option<Ino> {
        let mut bytes = 0;
        for (ino, inode) in self.inodes.after(after) {
            inode.rows(ino, inode.attr, &mut |row| give(row, &mut bytes, f));
            if bytes >= most {
                return Some(ino);
            }
        }
        None
    }

    /// The same with the entries of all directories, after a cookie of a directory.
    pub fn entry_slice(
        &self,
        (dir, cookie): (Ino, u64),
        most: usize,
        f: &mut impl FnMut(Row),
    ) -> Option<(Ino, u64)> {
        let mut bytes = 0;
        let begun = self.inode(dir).map(|inode| (dir, inode, cookie));
        let others = self.inodes.after(dir).map(|(dir, inode)| (dir, inode, 0));
        for (parent, inode, after) in begun.into_iter().chain(others) {
            for e in inode.dir().into_iter().flat_map(|d| d.after(after)) {
                let (name, ino) = (e.name.to_vec(), e.ino);
                give(Row::Entry { parent, name, ino }, &mut bytes, f);
                if bytes >= most {
                    return Some((parent, e.cookie));
                }
            }
            // Looking takes time as well. Never back to where it began: each slice gets on.
            bytes += LOOK;
            if bytes >= most && parent != dir {
                return Some((parent, u64::MAX));
            }
        }
        None
    }

    /// The entries of a directory. Inodes that they name must be there already.
    pub fn entry_rows(&self, parent: Ino, f: &mut impl FnMut(Row)) {
        let Some(dir) = self.inode(parent).and_then(Inode::dir) else {
            return;
        };
        for e in dir.after(0) {
            f(Row::Entry {
                parent,
                name: e.name.to_vec(),
                ino: e.ino,
            });
        }
    }
}

fn give(row: Row, bytes: &mut usize, f: &mut impl FnMut(Row)) {
    *bytes += row.size_hint();
    f(row);
}

impl Inode {
    /// What an inode is, without the entries of a directory.
    pub fn rows(&self, ino: Ino, attr: Attr, f: &mut impl FnMut(Row)) {
        f(Row::Inode { ino, attr });
        for (name, value) in self.xattrs.iter().flat_map(|x| x.iter()) {
            let (name, value) = (name.to_vec(), Some(value.to_vec()));
            f(Row::Xattr { ino, name, value });
        }
        match &self.body {
            Body::Link(target) => f(Row::Target {
                ino,
                target: target.to_vec(),
            }),
            // One row for each batch: a row must fit into a record.
            Body::File(x) => {
                let all: Vec<Extent> = x.iter().copied().collect();
                for batch in all.chunks(EXTENTS_PER_ROW) {
                    let (off, end) = (batch[0].off, batch[batch.len() - 1].end());
                    f(Row::Extents {
                        ino,
                        off,
                        len: end - off,
                        extents: batch.to_vec(),
                    });
                }
            }
            Body::Dir(_) | Body::Nothing => {}
        }
    }
}

const EXTENTS_PER_ROW: usize = 10_000;
/// An inode that has no entries counts like so many bytes of rows.
const LOOK: usize = 8;
