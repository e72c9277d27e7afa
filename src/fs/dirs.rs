//! Listing directories.

use super::errno::{Errno, Result};
use super::types::{DirItem, Fh};
use super::{Fs, attr_of};
use crate::base::Ino;
use crate::index::Index;
use bytes::Bytes;

/// Cookies of the two entries that are in no index; those of real ones are higher.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

impl Fs {
    pub async fn opendir(&self, ino: Ino, _flags: i32) -> Result<Fh> {
        let pin = self.pin(ino);
        let attr = self.volume.read(|index| attr_of(index, ino))?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok(self.add_handle(pin, false))
    }

    pub async fn releasedir(&self, ino: Ino, fh: Fh) -> Result<()> {
        self.release(ino, fh).await
    }

    /// Everything that was done in the directory, and everywhere else, is durable.
    pub async fn fsyncdir(&self, _ino: Ino, _fh: Fh, _datasync: bool) -> Result<()> {
        Ok(self.volume.durable(self.volume.last_pos()).await?)
    }

    /// Up to `max` entries after a cookie; 0 is the start. An entry that exists all the while is
    /// listed exactly once, whatever happens to others.
    pub async fn readdir(
        &self,
        ino: Ino,
        _fh: Fh,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirItem>> {
        self.volume.read(|index| list(index, ino, cookie, max))
    }

    /// The same with attributes. The caller calls `remember` for each item that it passes on.
    pub async fn readdirplus(
        &self,
        ino: Ino,
        fh: Fh,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirItem>> {
        let mut items = self.readdir(ino, fh, cookie, max).await?;
        for item in &mut items {
            // None if it was removed just now.
            item.attr = self.stat(item.ino).ok();
        }
        Ok(items)
    }
}

fn list(index: &Index, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirItem>> {
    let dir = attr_of(index, ino)?;
    if !dir.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    if dir.nlink == 0 {
        return Ok(Vec::new());
    }
    let up = index.parent(ino).unwrap_or(ino);
    let dots = [(DOT, ino, &b"."[..]), (DOT_DOT, up, &b".."[..])];
    let dots = dots.into_iter().filter(|(c, ..)| *c > cookie);
    let entries = index
        .readdir(ino, cookie.max(DOT_DOT))
        .map(|e| (e.cookie, e.ino, e.name));
    let items = dots
        .chain(entries)
        .take(max)
        .map(|(cookie, ino, name)| DirItem {
            ino,
            cookie,
            kind: index.attr(ino).map_or(0, |a| a.kind()),
            name: Bytes::copy_from_slice(name),
            attr: None,
        });
    Ok(items.collect())
}
