//! What goes in and out of the operations.

use crate::base::{Ino, Timestamp};
use crate::format::Attr;
use bytes::Bytes;

/// Who asks. Permissions are checked by the kernel (`default_permissions`); this says who owns
/// what is made, and whether set-user-id bits survive a change.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A handle of an open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fh(pub u64);

#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub fh: Fh,
}

/// Attributes with what is written but not committed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    pub attr: Attr,
    /// Allocated, in units of 512 bytes.
    pub blocks: u64,
}

/// A name that was found or made. Counts one reference of the kernel; `Fs::forget` gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub ino: Ino,
    pub stat: Stat,
    pub generation: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<SetTime>,
    pub fh: Option<Fh>,
}

impl SetAttr {
    /// Whether this is a chown. One that names neither owner nor group (`chown(-1, -1)`) arrives
    /// from the kernel as a request that sets nothing, and no other call does.
    pub fn is_chown(&self) -> bool {
        let nothing_else = self.mode.is_none()
            && self.size.is_none()
            && self.atime.is_none()
            && self.mtime.is_none()
            && self.ctime.is_none();
        self.uid.is_some() || self.gid.is_some() || nothing_else
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WriteMode {
    /// The handle was opened with O_APPEND. The kernel has chosen the offset already.
    pub append: bool,
    /// From the page cache (a mapping), perhaps through another handle and after its close.
    pub cached: bool,
    /// Clear the set-user-id and set-group-id bits.
    pub kill_suid: bool,
}

#[derive(Clone, Debug)]
pub struct DirItem {
    pub ino: Ino,
    /// Where a listing goes on after this item.
    pub cookie: u64,
    /// The S_IFMT bits.
    pub kind: u32,
    pub name: Bytes,
    pub attr: Option<Stat>,
}

#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

#[derive(Clone, Debug, Default)]
pub struct FsOptions {}
