//! Layer 3: the namespace in memory. Names, inodes, extents and the usage of segments, built from
//! rows and nothing else: a mount replays them, a change appends them.
//!
//! No I/O, no locks, no clock. The volume guards an index with one reader-writer lock.

mod apply;
mod check;
mod deleted;
mod dir;
mod entries;
mod extents;
mod foreign;
mod inode;
mod inodes;
mod rows;
mod usage;

pub use deleted::{DELETED_MEMORY, Deleted};
pub use dir::{DirEntry, FIRST_COOKIE};
pub use extents::Extents;
pub use foreign::Foreign;
pub use usage::{Live, SegmentUse};

use crate::base::{Epoch, Ino, Pos, SegmentName, SessionId, StreamId, Timestamp};
use crate::format::{Attr, Extent};
use deleted::DeletedTable;
use foreign::ForeignTable;
use inode::{Body, Inode};
use inodes::Inodes;
use usage::UsageTable;

/// The youngest session that a log names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    pub epoch: Epoch,
    pub session: SessionId,
    pub started: Timestamp,
}

#[derive(Default)]
pub struct Index {
    inodes: Inodes,
    usage: UsageTable,
    foreign: ForeignTable,
    next_ino: u64,
    next_stream: u32,
    session: Option<Session>,
    log_needed: Pos,
    adopted: bool,
    /// Rows about inodes that do not exist. Replaying rows older than a snapshot makes some;
    /// otherwise there are none.
    strays: u64,
    deleted: DeletedTable,
}

/// Reading. An inode that does not exist, or is of another kind, has nothing.
impl Index {
    pub fn new() -> Index {
        Index::default()
    }

    fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(ino)
    }

    pub fn attr(&self, ino: Ino) -> Option<Attr> {
        self.inode(ino).map(|i| i.attr)
    }

    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.inode(parent)?.dir()?.find(name).map(|e| e.ino)
    }

    /// The entries of a directory whose cookie is above `after`, in the order of their cookies. A
    /// cookie stays the same while its entry exists.
    pub fn readdir(&self, dir: Ino, after: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let dir = self.inode(dir).and_then(Inode::dir);
        dir.into_iter().flat_map(move |d| d.after(after))
    }

    /// How many entries a directory has.
    pub fn entries(&self, dir: Ino) -> usize {
        self.inode(dir)
            .and_then(Inode::dir)
            .map_or(0, |d| d.entries())
    }

    /// The directory that holds the name by which the inode was entered last, if it still does.
    /// For a directory this is exact; of a file's several names it knows only that one.
    pub fn parent(&self, ino: Ino) -> Option<Ino> {
        let (parent, _) = self.hint(ino)?;
        Some(parent)
    }

    fn hint(&self, ino: Ino) -> Option<(Ino, &[u8])> {
        let (parent, key) = self.inode(ino)?.hint()?;
        let entry = self.inode(parent)?.dir()?.at(key)?;
        (entry.ino == ino).then_some((parent, entry.name))
    }

    /// The path of an inode below the root, without a leading slash; the root's is empty. None if
    /// it has no name that is known (see `parent`).
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let (parent, name) = self.hint(at)?;
            names.push(name);
            at = parent;
            if names.len() > MAX_DEPTH {
                return None; // or a cycle, which only damaged rows make
            }
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// The extents that overlap `[from, to)` of a file, clipped to it, in order.
    pub fn extents(&self, ino: Ino, from: u64, to: u64) -> Vec<Extent> {
        match self.inode(ino).and_then(Inode::extents) {
            Some(x) => x.within(from, to),
            None => Vec::new(),
        }
    }

    pub fn extent_count(&self, ino: Ino) -> usize {
        self.inode(ino)
            .and_then(Inode::extents)
            .map_or(0, |x| x.count())
    }

    /// The first extent that ends after an offset.
    pub fn next_extent(&self, ino: Ino, from: u64) -> Option<Extent> {
        self.inode(ino)?.extents()?.next(from)
    }

    /// The last `n` extents, the last one first.
    pub fn last_extents(&self, ino: Ino, n: usize) -> Vec<Extent> {
        match self.inode(ino).and_then(Inode::extents) {
            Some(x) => x.last(n),
            None => Vec::new(),
        }
    }

    /// Bytes of a file that are not holes.
    pub fn allocated(&self, ino: Ino) -> u64 {
        self.inode(ino)
            .and_then(Inode::extents)
            .map_or(0, |x| x.bytes())
    }

    pub fn target(&self, ino: Ino) -> Option<&[u8]> {
        match &self.inode(ino)?.body {
            Body::Link(target) => Some(target),
            _ => None,
        }
    }

    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Option<&[u8]> {
        let value = self.inode(ino)?.xattrs.as_ref()?.get(name)?;
        Some(value)
    }

    /// Names of extended attributes, in order.
    pub fn xattrs(&self, ino: Ino) -> impl Iterator<Item = &[u8]> {
        let map = self.inode(ino).and_then(|i| i.xattrs.as_ref());
        map.into_iter().flat_map(|m| m.keys().map(|k| &k[..]))
    }

    /// How many inodes exist.
    pub fn inodes(&self) -> usize {
        self.inodes.len()
    }

    /// All inode numbers, ascending.
    pub fn inos(&self) -> Vec<Ino> {
        self.inodes.iter().map(|(ino, _)| ino).collect()
    }

    /// Inodes without a name: they were unlinked while open, and nobody holds them after a crash.
    pub fn nameless(&self) -> Vec<Ino> {
        let unnamed = self.inodes.iter().filter(|(_, i)| i.attr.nlink == 0);
        unnamed.map(|(ino, _)| ino).collect()
    }

    /// Every inode number in use or given to a session is below this.
    pub fn next_ino(&self) -> Ino {
        Ino(self.next_ino.max(Ino::ROOT.0 + 1))
    }

    /// Every stream number in use is below this. 0 is the log's.
    pub fn next_stream(&self) -> StreamId {
        StreamId(self.next_stream.max(1))
    }

    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// No snapshot that is kept needs the log before this position.
    pub fn log_needed(&self) -> Pos {
        self.log_needed
    }

    /// Whether the plain files that were below the root are all registered.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// The segments that exist or are about to go, by name.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentUse> {
        self.usage.segments()
    }

    /// What files use of all segments together.
    pub fn live_bytes(&self) -> u64 {
        self.segments().map(|s| s.live.bytes).sum()
    }

    pub fn segment(&self, name: &SegmentName) -> Option<&SegmentUse> {
        self.usage.segment(name)
    }

    /// The segment that holds a position of a stream: the last one that begins at or before it and
    /// that, if it is sealed, ends after it.
    pub fn segment_at(&self, stream: StreamId, pos: Pos) -> Option<&SegmentUse> {
        self.usage.at(stream, pos)
    }

    /// What files use of a stream where no segment is; of a foreign file: all of it.
    pub fn live_outside(&self, stream: StreamId) -> Live {
        self.usage.outside(stream)
    }
}

/// PATH_MAX allows 2,048 levels in one path; relative calls can go deeper. What is below has no path.
const MAX_DEPTH: usize = 10_000;

#[cfg(test)]
mod tests;
