//! The kernel's requests, one method each: decode, call the operation of `fs`, encode the reply.
//! Nothing is decided here. `task` has how an operation runs, `reply` how results are encoded.

use super::convert::{Squash, set_time};
use super::granted::{Dir, File};
use super::kernel::{self, DIR_ITEMS, DIR_PLUS_ITEMS};
use super::reply::{
    copied, created, data, done, listed, listed_plus, opened, opened_dir, sought, usage, written,
    xattr,
};
use super::task::{Op, Runner};
use crate::base::Ino;
use crate::fs::{Caller, Fh, SetAttr, WriteMode};
use bytes::Bytes;
use fuser::{
    CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, KernelConfig, LockOwner, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long the kernel may remember what it is told.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub entry: Duration,
    pub attr: Duration,
}

pub struct Adapter {
    pub(super) runner: Runner,
    pub(super) squash: Squash,
    pub(super) timeouts: Timeouts,
    /// Dropped with the adapter, which tells [`super::session::Mounted`] that the session ended.
    pub(super) _alive: tokio::sync::oneshot::Sender<()>,
}

fn op(name: &'static str, ino: INodeNo) -> Op {
    Op { name, ino: ino.0 }
}

/// Runs one operation of `fs`, named for log lines, and replies with its result.
macro_rules! serve {
    ($self:ident, $name:ident of $ino:ident: |$fs:ident| $call:expr => $reply:expr) => {
        $self.runner.run(
            op(stringify!($name), $ino),
            move |$fs| async move { $call.await },
            $reply,
        )
    };
}

fn caller(req: &Request) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
    }
}

fn name(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn ino(ino: INodeNo) -> Ino {
    Ino(ino.0)
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        kernel::configure(config);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, n: &OsStr, reply: ReplyEntry) {
        let n = name(n);
        serve!(self, lookup of parent: |fs| fs.lookup(ino(parent), n) => self.entry_reply(reply));
    }

    fn forget(&self, _req: &Request, i: INodeNo, nlookup: u64) {
        self.runner
            .quietly(op("forget", i), |fs| fs.forget(ino(i), nlookup));
    }

    fn getattr(&self, _req: &Request, i: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        serve!(self, getattr of i: |fs| fs.getattr(ino(i)) => self.attr_reply(i, reply));
    }

    fn setattr(
        &self,
        req: &Request,
        i: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if self.squash.refuses(uid, gid) {
            return reply.error(Errno::EPERM);
        }
        let who = caller(req);
        let set = SetAttr {
            mode,
            // An owner that the mount fixes is not stored: the change is to what is shown already.
            uid: uid.filter(|_| self.squash.uid.is_none()),
            gid: gid.filter(|_| self.squash.gid.is_none()),
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(|t| set_time(TimeOrNow::SpecificTime(t))),
            fh: fh.map(|fh| Fh(fh.0)),
        };
        serve!(self, setattr of i: |fs| fs.setattr(who, ino(i), set) => self.attr_reply(i, reply));
    }

    fn readlink(&self, _req: &Request, i: INodeNo, reply: ReplyData) {
        serve!(self, readlink of i: |fs| fs.readlink(ino(i)) => data(reply));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        n: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (who, n) = (caller(req), name(n));
        serve!(self, mknod of parent:
            |fs| fs.mknod(who, ino(parent), n, mode, umask, rdev) => self.entry_reply(reply));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        n: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (who, n) = (caller(req), name(n));
        serve!(self, mkdir of parent:
            |fs| fs.mkdir(who, ino(parent), n, mode, umask) => self.entry_reply(reply));
    }

    fn unlink(&self, req: &Request, parent: INodeNo, n: &OsStr, reply: ReplyEmpty) {
        let (who, n) = (caller(req), name(n));
        serve!(self, unlink of parent: |fs| fs.unlink(who, ino(parent), n) => done(reply));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, n: &OsStr, reply: ReplyEmpty) {
        let (who, n) = (caller(req), name(n));
        serve!(self, rmdir of parent: |fs| fs.rmdir(who, ino(parent), n) => done(reply));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, n: &OsStr, target: &Path, reply: ReplyEntry) {
        let (who, n, target) = (caller(req), name(n), name(target.as_os_str()));
        serve!(self, symlink of parent:
            |fs| fs.symlink(who, ino(parent), n, target) => self.entry_reply(reply));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        n: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (who, n, newname) = (caller(req), name(n), name(newname));
        self.runner.run(
            op("rename", parent),
            |fs| async move {
                fs.rename(who, ino(parent), n, ino(newparent), newname, flags.bits())
                    .await
            },
            done(reply),
        );
    }

    fn link(&self, _req: &Request, i: INodeNo, newparent: INodeNo, n: &OsStr, reply: ReplyEntry) {
        let n = name(n);
        serve!(self, link of i: |fs| fs.link(ino(i), ino(newparent), n) => self.entry_reply(reply));
    }

    fn open(&self, _req: &Request, i: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.runner.run(
            op("open", i),
            move |fs| async move { fs.open(ino(i), flags.0).await.map(|o| File(ino(i), o.fh)) },
            opened(reply, flags.0),
        );
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        n: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (who, n) = (caller(req), name(n));
        let ttl = self.timeouts.entry.min(self.timeouts.attr);
        serve!(self, create of parent:
            |fs| fs.create(who, ino(parent), n, mode, umask, flags) => created(reply, self.squash, ttl));
    }

    fn read(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if size > kernel::MAX_IO {
            return reply.error(Errno::EINVAL);
        }
        serve!(self, read of i:
            |fs| fs.read(ino(i), Fh(fh.0), offset, size as usize) => data(reply));
    }

    fn write(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = Bytes::copy_from_slice(bytes);
        let mode = WriteMode {
            append: flags.0 & libc::O_APPEND != 0,
            cached: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_suid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        serve!(self, write of i:
            |fs| fs.write(ino(i), Fh(fh.0), offset, bytes, mode) => written(reply));
    }

    fn flush(&self, _r: &Request, i: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        serve!(self, flush of i: |fs| fs.flush(ino(i), Fh(fh.0), owner.0) => done(reply));
    }

    fn fsync(&self, _r: &Request, i: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        serve!(self, fsync of i: |fs| fs.fsync(ino(i), Fh(fh.0), datasync) => done(reply));
    }

    fn release(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        serve!(self, release of i: |fs| fs.release(ino(i), Fh(fh.0)) => done(reply));
    }

    fn opendir(&self, _req: &Request, i: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.runner.run(
            op("opendir", i),
            move |fs| async move { fs.opendir(ino(i), flags.0).await.map(|fh| Dir(ino(i), fh)) },
            opened_dir(reply),
        );
    }

    fn readdir(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        serve!(self, readdir of i:
            |fs| fs.readdir(ino(i), Fh(fh.0), offset, DIR_ITEMS) => listed(reply));
    }

    fn readdirplus(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let ttl = self.timeouts.entry.min(self.timeouts.attr);
        let encode = listed_plus(reply, self.runner.fs().clone(), self.squash, ttl);
        serve!(self, readdirplus of i:
            |fs| fs.readdirplus(ino(i), Fh(fh.0), offset, DIR_PLUS_ITEMS) => encode);
    }

    fn releasedir(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        serve!(self, releasedir of i: |fs| fs.releasedir(ino(i), Fh(fh.0)) => done(reply));
    }

    fn fsyncdir(&self, _r: &Request, i: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty) {
        serve!(self, fsyncdir of i: |fs| fs.fsyncdir(ino(i), Fh(fh.0), data) => done(reply));
    }

    fn statfs(&self, _req: &Request, i: INodeNo, reply: ReplyStatfs) {
        serve!(self, statfs of i: |fs| fs.statfs() => usage(reply));
    }

    fn setxattr(
        &self,
        req: &Request,
        i: INodeNo,
        n: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (who, n, value) = (caller(req), name(n), Bytes::copy_from_slice(value));
        serve!(self, setxattr of i: |fs| fs.setxattr(who, ino(i), n, value, flags) => done(reply));
    }

    fn getxattr(&self, _req: &Request, i: INodeNo, n: &OsStr, size: u32, reply: ReplyXattr) {
        let n = name(n);
        serve!(self, getxattr of i: |fs| fs.getxattr(ino(i), n) => xattr(size, reply));
    }

    fn listxattr(&self, _req: &Request, i: INodeNo, size: u32, reply: ReplyXattr) {
        serve!(self, listxattr of i: |fs| fs.listxattr(ino(i)) => xattr(size, reply));
    }

    fn removexattr(&self, req: &Request, i: INodeNo, n: &OsStr, reply: ReplyEmpty) {
        let (who, n) = (caller(req), name(n));
        serve!(self, removexattr of i: |fs| fs.removexattr(who, ino(i), n) => done(reply));
    }

    fn fallocate(
        &self,
        req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let who = caller(req);
        serve!(self, fallocate of i:
            |fs| fs.fallocate(who, ino(i), Fh(fh.0), offset, length, mode) => done(reply));
    }

    fn lseek(
        &self,
        _req: &Request,
        i: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        serve!(self, lseek of i:
            |fs| fs.lseek(ino(i), Fh(fh.0), offset, whence) => sought(reply));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        from: INodeNo,
        fh_from: FileHandle,
        offset_from: u64,
        to: INodeNo,
        fh_to: FileHandle,
        offset_to: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The reply has 32 bits; the caller asks again for the rest.
        let (who, len) = (caller(req), len.min(1 << 30));
        serve!(self, copy_file_range of from: |fs| fs.copy_file_range(
            who, ino(from), Fh(fh_from.0), offset_from, ino(to), Fh(fh_to.0), offset_to, len
        ) => copied(reply));
    }

    /// Files are always ready, and the kernel says so itself from now on.
    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notify: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: fuser::IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
