//! Extended attributes, and the virtual one that shows where a file's bytes are.

use super::errno::{Errno, Result};
use super::types::Caller;
use super::{Fs, attr_of};
use crate::base::Ino;
use crate::format::segment::HEADER_LEN;
use crate::format::{Extent, Row};
use crate::index::Index;
use bytes::Bytes;
use serde::Serialize;

/// The committed extents of a file, as JSON. Read-only, and not listed, so that nothing copies it.
const EXTENTS: &[u8] = b"user.stowfs.extents";

/// Limits of the kernel.
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 * 1024;
const MAX_LIST: usize = 64 * 1024;

/// The namespaces that there are. `system.` has POSIX ACLs: the kernel would have to enforce them,
/// and it was told that we have none.
fn check_namespace(name: &[u8]) -> Result<()> {
    let namespaces = [&b"user."[..], b"trusted.", b"security."];
    match namespaces.iter().find(|n| name.starts_with(n)) {
        Some(namespace) if name.len() == namespace.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

impl Fs {
    pub async fn setxattr(
        &self,
        _caller: Caller,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        flags: i32,
    ) -> Result<()> {
        self.volume.room().await?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Errno::ERANGE);
        }
        if value.len() > MAX_VALUE {
            return Err(Errno::E2BIG);
        }
        self.change_xattr(ino, &name, Some(&value), flags)
    }

    pub async fn removexattr(&self, _caller: Caller, ino: Ino, name: Bytes) -> Result<()> {
        self.volume.room().await?;
        self.change_xattr(ino, &name, None, libc::XATTR_REPLACE)
    }

    fn change_xattr(&self, ino: Ino, name: &[u8], value: Option<&[u8]>, flags: i32) -> Result<()> {
        if name == EXTENTS {
            return Err(Errno::EPERM);
        }
        check_namespace(name)?;
        let now = self.volume.now();
        let (_, pos) = self.change(|index, change| {
            let mut attr = attr_of(index, ino)?;
            let exists = index.xattr(ino, name).is_some();
            if exists && flags & libc::XATTR_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            if !exists && flags & libc::XATTR_REPLACE != 0 {
                return Err(Errno::ENODATA);
            }
            let listed: usize = index.xattrs(ino).map(|n| n.len() + 1).sum();
            if !exists && listed + name.len() + 1 > MAX_LIST {
                return Err(Errno::ENOSPC);
            }
            change.row(Row::Xattr {
                ino,
                name: name.to_vec(),
                value: value.map(<[u8]>::to_vec),
            });
            attr.ctime = now;
            change.row(Row::Inode { ino, attr });
            Ok(())
        })?;
        self.note(ino, pos);
        Ok(())
    }

    pub async fn getxattr(&self, ino: Ino, name: Bytes) -> Result<Bytes> {
        check_namespace(&name)?;
        self.volume.read(|index| {
            let attr = attr_of(index, ino)?;
            if name == EXTENTS && attr.is_file() {
                return extents(index, ino);
            }
            let value = index.xattr(ino, &name).ok_or(Errno::ENODATA)?;
            Ok(Bytes::copy_from_slice(value))
        })
    }

    pub async fn listxattr(&self, ino: Ino) -> Result<Bytes> {
        self.volume.read(|index| {
            attr_of(index, ino)?;
            let mut list = Vec::new();
            for name in index.xattrs(ino) {
                list.extend_from_slice(name);
                list.push(0);
            }
            Ok(list.into())
        })
    }
}

#[derive(Serialize)]
struct Shown {
    offset: u64,
    length: u32,
    /// None while it is in memory only.
    segment: Option<String>,
    segment_offset: Option<u64>,
}

fn show(index: &Index, e: &Extent) -> Shown {
    let place = match index.foreign(e.stream) {
        Some(f) => Some((String::from_utf8_lossy(&f.path).into_owned(), e.start())),
        None => index.segment_at(e.stream, e.pos).map(|u| {
            let offset = HEADER_LEN as u64 + (e.start() - u.row.base);
            (u.row.name.to_string(), offset)
        }),
    };
    let (segment, segment_offset) = place.unzip();
    Shown {
        offset: e.off,
        length: e.len,
        segment,
        segment_offset,
    }
}

/// As many extents as fit into an attribute.
fn extents(index: &Index, ino: Ino) -> Result<Bytes> {
    let mut json = Vec::from(*b"[");
    for e in index.extents(ino, 0, u64::MAX) {
        let one = serde_json::to_vec(&show(index, &e)).map_err(|_| Errno::EIO)?;
        if json.len() + one.len() + 2 > MAX_VALUE {
            break;
        }
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend_from_slice(&one);
    }
    json.push(b']');
    Ok(json.into())
}
