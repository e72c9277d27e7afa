//! One inode.

use super::dir::Dir;
use super::extents::Extents;
use crate::base::Ino;
use crate::format::Attr;
use std::collections::BTreeMap;

pub(super) type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// What an inode has besides attributes. The kind in `attr.mode` decides which it is.
pub(super) enum Body {
    File(Extents),
    Dir(Box<Dir>),
    Link(Box<[u8]>),
    /// Fifo, socket, device.
    Nothing,
}

impl Body {
    fn of(attr: &Attr) -> Body {
        match attr.kind() {
            libc::S_IFREG => Body::File(Extents::None),
            libc::S_IFDIR => Body::Dir(Box::default()),
            libc::S_IFLNK => Body::Link(Box::default()),
            _ => Body::Nothing,
        }
    }
}

pub(super) struct Inode {
    pub attr: Attr,
    /// Directory and key of the entry that named this inode last; directory 0 is none. A hint:
    /// the entry may be gone or name another inode by now.
    hint: (u64, u64),
    pub body: Body,
    pub xattrs: Option<Box<Xattrs>>,
}

// What a file costs, and the map's own byte and slack: see `memory_per_file` in the tests.
const _: () = assert!(size_of::<Inode>() <= 128);

impl Inode {
    pub fn new(attr: Attr) -> Inode {
        Inode {
            attr,
            hint: (0, 0),
            body: Body::of(&attr),
            xattrs: None,
        }
    }

    pub fn hint(&self) -> Option<(Ino, u64)> {
        (self.hint.0 != 0).then_some((Ino(self.hint.0), self.hint.1))
    }

    pub fn set_hint(&mut self, parent: Ino, key: u64) {
        self.hint = (parent.0, key);
    }

    pub fn clear_hint(&mut self, parent: Ino, key: u64) {
        if self.hint == (parent.0, key) {
            self.hint = (0, 0);
        }
    }

    pub fn dir(&self) -> Option<&Dir> {
        match &self.body {
            Body::Dir(d) => Some(d),
            _ => None,
        }
    }

    pub fn dir_mut(&mut self) -> Option<&mut Dir> {
        match &mut self.body {
            Body::Dir(d) => Some(d),
            _ => None,
        }
    }

    pub fn extents(&self) -> Option<&Extents> {
        match &self.body {
            Body::File(x) => Some(x),
            _ => None,
        }
    }

    pub fn extents_mut(&mut self) -> Option<&mut Extents> {
        match &mut self.body {
            Body::File(x) => Some(x),
            _ => None,
        }
    }

    /// Memory besides the inode itself, about. A directory is taken for an empty one.
    pub fn memory(&self) -> usize {
        let body = match &self.body {
            Body::File(x) => x.memory(),
            Body::Dir(_) => allocated(size_of::<Dir>()) + tree(1, size_of::<(u64, usize)>()),
            Body::Link(target) => allocated(target.len()),
            Body::Nothing => 0,
        };
        let Some(xattrs) = &self.xattrs else {
            return body;
        };
        let each = size_of::<(Box<[u8]>, Box<[u8]>)>();
        let held = xattrs.iter();
        let held: usize = held
            .map(|(k, v)| allocated(k.len()) + allocated(v.len()))
            .sum();
        body + allocated(size_of::<Xattrs>()) + tree(xattrs.len(), each) + held
    }
}

/// What an allocation takes of the heap.
pub(super) fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        n => (n + 8).next_multiple_of(16).max(32),
    }
}

/// What the nodes of a `BTreeMap` take: they have room for 11 items, and are mostly half full.
pub(super) fn tree(items: usize, each: usize) -> usize {
    items.div_ceil(6).max(1) * allocated(11 * each + 16)
}
