//! Where an export reads: a running mount, like any program.

use super::blocking;
use super::source::{Entry, Item, Kind, Source, below};
use crate::base::error::Context;
use crate::base::{Result, Timestamp, xattr};
use async_trait::async_trait;
use bytes::Bytes;
use nix::unistd::{Whence, lseek64};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

pub struct MountSource {
    /// What is exported.
    top: PathBuf,
    /// The path below the mountpoint.
    path: String,
}

impl MountSource {
    pub fn new(mountpoint: &Path, path: &str) -> MountSource {
        MountSource {
            top: mountpoint.join(path),
            path: path.to_string(),
        }
    }

    fn at(&self, item: &Item) -> PathBuf {
        // Joining an empty path would add a slash.
        match item.path.is_empty() {
            true => self.top.clone(),
            false => self.top.join(OsStr::from_bytes(&item.path)),
        }
    }
}

fn item(at: &Path, path: Vec<u8>) -> Result<Item> {
    let found = at.symlink_metadata().context(at.display())?;
    let kind = match found.mode() & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        _ => Kind::Special,
    };
    let target = match kind {
        Kind::Symlink => at.read_link().context(at.display())?,
        _ => PathBuf::new(),
    };
    Ok(Item {
        path,
        kind,
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        size: if kind == Kind::File { found.len() } else { 0 },
        mtime: mtime(&found),
        id: found.ino(),
        nlink: found.nlink() as u32,
        target: target.as_os_str().as_bytes().to_vec(),
        xattrs: match kind {
            Kind::File | Kind::Directory => count_xattrs(at).context(at.display())?,
            _ => 0,
        },
    })
}

fn count_xattrs(at: &Path) -> Result<u64> {
    Ok(xattr::list(at)?.iter().filter(|b| **b == 0).count() as u64)
}

fn mtime(found: &Metadata) -> Timestamp {
    found.mtime() * 1_000_000_000 + found.mtime_nsec()
}

#[async_trait]
impl Source for MountSource {
    async fn find(&self, path: &str) -> Result<Item> {
        debug_assert_eq!(path, self.path);
        let top = self.top.clone();
        blocking(move || item(&top, Vec::new())).await
    }

    async fn list(&self, dir: &Item) -> Result<Vec<Entry>> {
        let (at, path) = (self.at(dir), dir.path.clone());
        blocking(move || {
            let mut found = Vec::new();
            for entry in at.read_dir().context(at.display())? {
                let entry = entry.context(at.display())?;
                let path = below(&path, entry.file_name().as_bytes());
                found.push((path, entry.path()));
            }
            found.sort();
            let looked = found.into_iter().map(|(path, at)| {
                let item = item(&at, path.clone());
                item.map_err(|e| (path, e))
            });
            Ok(looked.collect())
        })
        .await
    }

    async fn data(&self, file: &Item) -> Result<Vec<Range<u64>>> {
        let (at, size) = (self.at(file), file.size);
        blocking(move || {
            let file = File::open(&at).context(at.display())?;
            data_ranges(&file, size)
                .map_err(std::io::Error::from)
                .context(at.display())
        })
        .await
    }

    async fn read(&self, file: &Item, range: Range<u64>) -> Result<Bytes> {
        let (at, item) = (self.at(file), file.clone());
        blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let file = File::open(&at).context(at.display())?;
            match file.read_exact_at(&mut bytes, range.start) {
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(super::short(&item)),
                read => read.map(|()| bytes.into()).context(at.display()),
            }
        })
        .await
    }

    async fn check(&self, file: &Item) -> Result<()> {
        let (at, was) = (self.at(file), file.clone());
        blocking(move || {
            let now = at.symlink_metadata().context(at.display())?;
            match (now.len(), mtime(&now)) == (was.size, was.mtime) {
                true => Ok(()),
                false => Err(super::short(&was)),
            }
        })
        .await
    }
}

fn data_ranges(file: &File, size: u64) -> nix::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match lseek64(file, at as i64, Whence::SeekData) {
            Ok(start) => start as u64,
            // Nothing but a hole is left.
            Err(nix::Error::ENXIO) => break,
            Err(e) => return Err(e),
        };
        let end = lseek64(file, start as i64, Whence::SeekHole)? as u64;
        ranges.push(start..end.min(size));
        at = end;
    }
    ranges.retain(|r| !r.is_empty());
    Ok(ranges)
}
