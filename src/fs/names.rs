//! Names: finding, making and removing them.

use super::errno::{Errno, Result};
use super::types::{Caller, Entry, Fh, Opened, SetAttr};
use super::{Fs, Pin, attr_of};
use crate::base::{Ino, Timestamp};
use crate::format::{Attr, Row};
use crate::index::Index;
use crate::volume::Change;
use bytes::Bytes;

pub(super) const MAX_NAME: usize = 255;
/// PATH_MAX with its NUL.
const MAX_TARGET: usize = 4095;

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Errno::ENOENT),
        [b'.'] | [b'.', b'.'] => Err(Errno::EINVAL),
        _ if name.len() > MAX_NAME => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// The attributes of a directory in which a name is looked for.
fn directory(index: &Index, ino: Ino) -> Result<Attr> {
    let attr = attr_of(index, ino)?;
    attr.is_dir().then_some(attr).ok_or(Errno::ENOTDIR)
}

/// The attributes of a directory that takes a new name: one that was removed takes none.
pub(super) fn living_directory(index: &Index, ino: Ino) -> Result<Attr> {
    let attr = directory(index, ino)?;
    (attr.nlink > 0).then_some(attr).ok_or(Errno::ENOENT)
}

/// What a name is for.
pub(super) fn find(index: &Index, parent: Ino, name: &[u8]) -> Result<(Ino, Attr)> {
    directory(index, parent)?;
    check_name(name)?;
    let ino = index.lookup(parent, name).ok_or(Errno::ENOENT)?;
    Ok((ino, attr_of(index, ino)?))
}

/// A change of a directory's entries, as its attributes show it.
fn touch(change: &mut Change, ino: Ino, mut attr: Attr, subdirs: i32, now: Timestamp) {
    attr.nlink = attr.nlink.saturating_add_signed(subdirs);
    attr.mtime = now;
    attr.ctime = now;
    change.row(Row::Inode { ino, attr });
}

impl Fs {
    pub async fn lookup(&self, parent: Ino, name: Bytes) -> Result<Entry> {
        let ino = self.volume.read(|index| {
            let (ino, _) = find(index, parent, &name)?;
            self.table.remember(ino);
            Ok::<_, Errno>(ino)
        })?;
        self.entry(ino)
    }

    /// The entry of an inode that was remembered for the caller.
    fn entry(&self, ino: Ino) -> Result<Entry> {
        match self.stat(ino) {
            Ok(stat) => Ok(Entry {
                ino,
                stat,
                generation: 0,
            }),
            Err(e) => {
                self.forget(ino, 1);
                Err(e)
            }
        }
    }

    pub async fn mknod(
        &self,
        caller: Caller,
        parent: Ino,
        name: Bytes,
        mode: u32,
        _umask: u32,
        rdev: u32,
    ) -> Result<Entry> {
        self.volume.room().await?;
        let kind = match mode & libc::S_IFMT {
            0 => libc::S_IFREG,
            kind => kind,
        };
        if kind == libc::S_IFDIR || kind == libc::S_IFLNK {
            return Err(Errno::EINVAL);
        }
        let mode = kind | (mode & 0o7777);
        let (_pin, entry) = self.make(caller, parent, &name, mode, rdev, None)?;
        Ok(entry)
    }

    pub async fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: Bytes,
        mode: u32,
        _umask: u32,
    ) -> Result<Entry> {
        self.volume.room().await?;
        let mode = libc::S_IFDIR | (mode & 0o7777);
        let (_pin, entry) = self.make(caller, parent, &name, mode, 0, None)?;
        Ok(entry)
    }

    pub async fn symlink(
        &self,
        caller: Caller,
        parent: Ino,
        name: Bytes,
        target: Bytes,
    ) -> Result<Entry> {
        self.volume.room().await?;
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > MAX_TARGET {
            return Err(Errno::ENAMETOOLONG);
        }
        let mode = libc::S_IFLNK | 0o777;
        let (_pin, entry) = self.make(caller, parent, &name, mode, 0, Some(&target))?;
        Ok(entry)
    }

    pub async fn readlink(&self, ino: Ino) -> Result<Bytes> {
        self.volume.read(|index| {
            attr_of(index, ino)?;
            let target = index.target(ino).ok_or(Errno::EINVAL)?;
            Ok(Bytes::copy_from_slice(target))
        })
    }

    /// Makes a file and opens it. An existing one is opened, unless O_EXCL is set.
    pub async fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: Bytes,
        mode: u32,
        _umask: u32,
        flags: i32,
    ) -> Result<(Entry, Fh)> {
        self.volume.room().await?;
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let mode = libc::S_IFREG | (mode & 0o7777);
        match self.make(caller, parent, &name, mode, 0, None) {
            Ok((pin, entry)) => Ok((entry, self.add_handle(pin, writable))),
            Err(Errno::EEXIST) if flags & libc::O_EXCL == 0 => {
                let ino = self.lookup(parent, name).await?.ino;
                match self.open_existing(caller, ino, flags).await {
                    Ok(opened) => Ok((self.entry(ino)?, opened.fh)),
                    Err(e) => {
                        self.forget(ino, 1);
                        Err(e)
                    }
                }
            }
            Err(e) => Err(e),
        }
    }

    async fn open_existing(&self, caller: Caller, ino: Ino, flags: i32) -> Result<Opened> {
        if flags & libc::O_TRUNC != 0 {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            self.setattr(caller, ino, set).await?;
        }
        self.open(ino, flags).await
    }

    /// Makes an inode and its first name.
    fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        target: Option<&[u8]>,
    ) -> Result<(Pin, Entry)> {
        check_name(name)?;
        let ino = self.volume.new_ino()?;
        let now = self.volume.now();
        // Keeps the inode until the kernel has heard of it.
        let pin = self.pin(ino);
        let (_, pos) = self.change(|index, change| {
            let dir = living_directory(index, parent)?;
            if index.lookup(parent, name).is_some() {
                return Err(Errno::EEXIST);
            }
            let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
            let inherits = dir.mode & libc::S_ISGID != 0;
            let attr = Attr {
                mode: mode | if inherits && is_dir { libc::S_ISGID } else { 0 },
                uid: caller.uid,
                gid: if inherits { dir.gid } else { caller.gid },
                nlink: 1 + is_dir as u32,
                rdev,
                size: target.map_or(0, |t| t.len() as u64),
                atime: now,
                mtime: now,
                ctime: now,
                crtime: now,
            };
            change.row(Row::Inode { ino, attr });
            if let Some(target) = target {
                let target = target.to_vec();
                change.row(Row::Target { ino, target });
            }
            let name = name.to_vec();
            change.row(Row::Entry { parent, name, ino });
            touch(change, parent, dir, is_dir as i32, now);
            Ok(())
        })?;
        pin.logged(pos);
        self.table.remember(ino);
        let entry = self.entry(ino)?;
        Ok((pin, entry))
    }

    pub async fn link(&self, ino: Ino, newparent: Ino, newname: Bytes) -> Result<Entry> {
        self.volume.room().await?;
        check_name(&newname)?;
        let now = self.volume.now();
        let pin = self.pin(ino);
        let (_, pos) = self.change(|index, change| {
            let mut attr = attr_of(index, ino)?;
            if attr.is_dir() {
                return Err(Errno::EPERM);
            }
            if attr.nlink == 0 {
                return Err(Errno::ENOENT);
            }
            let dir = living_directory(index, newparent)?;
            if index.lookup(newparent, &newname).is_some() {
                return Err(Errno::EEXIST);
            }
            attr.nlink = attr.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
            attr.ctime = now;
            change.row(Row::Inode { ino, attr });
            change.row(Row::Entry {
                parent: newparent,
                name: newname.to_vec(),
                ino,
            });
            touch(change, newparent, dir, 0, now);
            Ok(())
        })?;
        pin.logged(pos);
        self.table.remember(ino);
        self.entry(ino)
    }

    pub async fn unlink(&self, _caller: Caller, parent: Ino, name: Bytes) -> Result<()> {
        self.volume.room().await?;
        let now = self.volume.now();
        let (ino, pos) = self.change(|index, change| {
            let (ino, mut attr) = find(index, parent, &name)?;
            if attr.is_dir() {
                return Err(Errno::EISDIR);
            }
            let dir = directory(index, parent)?;
            let name = name.to_vec();
            change.row(Row::NoEntry { parent, name });
            touch(change, parent, dir, 0, now);
            attr.nlink = attr.nlink.saturating_sub(1);
            attr.ctime = now;
            self.put_or_free(change, ino, attr);
            Ok(ino)
        })?;
        self.note(ino, pos);
        Ok(())
    }

    pub async fn rmdir(&self, _caller: Caller, parent: Ino, name: Bytes) -> Result<()> {
        self.volume.room().await?;
        let now = self.volume.now();
        self.change(|index, change| {
            let (ino, mut attr) = find(index, parent, &name)?;
            if !attr.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            if index.entries(ino) > 0 {
                return Err(Errno::ENOTEMPTY);
            }
            let dir = directory(index, parent)?;
            let name = name.to_vec();
            change.row(Row::NoEntry { parent, name });
            touch(change, parent, dir, -1, now);
            attr.nlink = 0;
            attr.ctime = now;
            self.put_or_free(change, ino, attr);
            Ok(())
        })?;
        Ok(())
    }

    /// States attributes; an inode without a name that nobody needs is freed instead.
    pub(super) fn put_or_free(&self, change: &mut Change, ino: Ino, attr: Attr) {
        match attr.nlink == 0 && !self.table.is_known(ino) {
            true => change.row(Row::Free { ino }),
            false => change.row(Row::Inode { ino, attr }),
        }
    }

    /// Notes a change of an inode, so that an fsync of an open file waits for it.
    pub(super) fn note(&self, ino: Ino, pos: crate::base::Pos) {
        if let Some(node) = self.table.node(ino) {
            node.logged(pos);
        }
    }
}
