//! How results are encoded: one function for each kind of reply.

use super::adapter::Adapter;
use super::convert::{Squash, file_attr, file_type};
use super::granted::{Dir, File};
use crate::base::Ino;
use crate::fs::{DirItem, Entry, Fh, Fs, Stat, StatFs};
use bytes::Bytes;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// All changes of a file go through this kernel, as a root has one owner: what the kernel has
/// cached stays right from one open to the next.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE;

/// Closing a file that was only read has nothing to commit: one request less for each file.
fn open_flags(flags: i32) -> FopenFlags {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => OPEN_FLAGS | FopenFlags::FOPEN_NOFLUSH,
        _ => OPEN_FLAGS,
    }
}

type Outcome<T> = Result<T, Errno>;

/// A write may clear the set-user-id bits below the kernel, which must not go on using them: it
/// asks each time for the attributes of a file that has them.
fn attr_ttl(ttl: Duration, attr: &FileAttr) -> Duration {
    let has_set_id = u32::from(attr.perm) & (libc::S_ISUID | libc::S_ISGID) != 0;
    if has_set_id && attr.kind == FileType::RegularFile {
        Duration::ZERO
    } else {
        ttl
    }
}

impl Adapter {
    pub(super) fn entry_reply(
        &self,
        reply: ReplyEntry,
    ) -> impl FnOnce(Outcome<Entry>) + Send + use<> {
        let (squash, ttl) = (self.squash, self.timeouts);
        move |result| match result {
            Ok(e) => {
                let attr = file_attr(e.ino, &e.stat, &squash);
                let attr_ttl = attr_ttl(ttl.attr, &attr);
                reply.entry_with_ttls(&attr_ttl, &ttl.entry, &attr, Generation(e.generation));
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn attr_reply(
        &self,
        ino: INodeNo,
        reply: ReplyAttr,
    ) -> impl FnOnce(Outcome<Stat>) + Send + use<> {
        let (squash, ttl) = (self.squash, self.timeouts.attr);
        move |result| match result {
            Ok(stat) => {
                let attr = file_attr(Ino(ino.0), &stat, &squash);
                reply.attr(&attr_ttl(ttl, &attr), &attr);
            }
            Err(e) => reply.error(e),
        }
    }
}

pub fn done(reply: ReplyEmpty) -> impl FnOnce(Outcome<()>) + Send {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

pub fn data(reply: ReplyData) -> impl FnOnce(Outcome<Bytes>) + Send {
    move |result| match result {
        Ok(bytes) => reply.data(&bytes),
        Err(e) => reply.error(e),
    }
}

pub fn written(reply: ReplyWrite) -> impl FnOnce(Outcome<u32>) + Send {
    move |result| match result {
        Ok(n) => reply.written(n),
        Err(e) => reply.error(e),
    }
}

pub fn copied(reply: ReplyWrite) -> impl FnOnce(Outcome<u64>) + Send {
    move |result| match result.map(u32::try_from) {
        Ok(Ok(n)) => reply.written(n),
        Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
        Err(e) => reply.error(e),
    }
}

pub fn sought(reply: ReplyLseek) -> impl FnOnce(Outcome<u64>) + Send {
    move |result| match result.map(i64::try_from) {
        Ok(Ok(offset)) => reply.offset(offset),
        Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
        Err(e) => reply.error(e),
    }
}

pub fn usage(reply: ReplyStatfs) -> impl FnOnce(Outcome<StatFs>) + Send {
    move |result| match result {
        Ok(s) => reply.statfs(
            s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
        ),
        Err(e) => reply.error(e),
    }
}

pub fn opened(reply: ReplyOpen, flags: i32) -> impl FnOnce(Outcome<File>) + Send {
    move |result| match result {
        Ok(File(_, fh)) => reply.opened(FileHandle(fh.0), open_flags(flags)),
        Err(e) => reply.error(e),
    }
}

pub fn opened_dir(reply: ReplyOpen) -> impl FnOnce(Outcome<Dir>) + Send {
    move |result| match result {
        Ok(Dir(_, fh)) => reply.opened(FileHandle(fh.0), FopenFlags::empty()),
        Err(e) => reply.error(e),
    }
}

pub fn created(
    reply: ReplyCreate,
    squash: Squash,
    ttl: Duration,
) -> impl FnOnce(Outcome<(Entry, Fh)>) + Send {
    move |result| match result {
        Ok((e, fh)) => {
            let attr = file_attr(e.ino, &e.stat, &squash);
            let (generation, fh) = (Generation(e.generation), FileHandle(fh.0));
            reply.created(&attr_ttl(ttl, &attr), &attr, generation, fh, OPEN_FLAGS);
        }
        Err(e) => reply.error(e),
    }
}

/// Answers a request for a value of unknown length: its size, or its bytes if they fit.
pub fn xattr(size: u32, reply: ReplyXattr) -> impl FnOnce(Outcome<Bytes>) + Send {
    move |result| match result {
        Ok(value) if size == 0 => match u32::try_from(value.len()) {
            Ok(len) => reply.size(len),
            Err(_) => reply.error(Errno::E2BIG),
        },
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(e),
    }
}

/// As many entries as the kernel's buffer holds; it asks again from the last cookie.
pub fn listed(mut reply: ReplyDirectory) -> impl FnOnce(Outcome<Vec<DirItem>>) + Send {
    move |result| match result {
        Ok(items) => {
            for item in items {
                let (kind, name) = (file_type(item.kind), OsStr::from_bytes(&item.name));
                if reply.add(INodeNo(item.ino.0), item.cookie, kind, name) {
                    break;
                }
            }
            reply.ok();
        }
        Err(e) => reply.error(e),
    }
}

pub fn listed_plus(
    mut reply: ReplyDirectoryPlus,
    fs: Arc<Fs>,
    squash: Squash,
    ttl: Duration,
) -> impl FnOnce(Outcome<Vec<DirItem>>) + Send {
    move |result| match result {
        Ok(items) => {
            for item in items {
                // No attributes: unlinked while the directory was read.
                let Some(stat) = &item.attr else { continue };
                let (ino, name) = (INodeNo(item.ino.0), OsStr::from_bytes(&item.name));
                let attr = file_attr(item.ino, stat, &squash);
                let ttl = attr_ttl(ttl, &attr);
                if reply.add(ino, item.cookie, name, &ttl, &attr, Generation(0)) {
                    break;
                }
                // The kernel counts a lookup for each entry but these two. It is counted here
                // before the reply, which a forget may follow at once.
                if !matches!(&item.name[..], b"." | b"..") {
                    fs.remember(item.ino);
                }
            }
            reply.ok();
        }
        Err(e) => reply.error(e),
    }
}
