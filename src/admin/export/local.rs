//! Writing to a local filesystem, where names are any bytes, holes are holes, and links exist.

use super::blocking;
use super::dest::pieces;
use super::source::{Item, Source};
use crate::base::{Result, Timestamp};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) async fn make_dir(at: PathBuf) -> Result<()> {
    blocking(move || Ok(std::fs::create_dir(at)?)).await
}

/// Their modes are those that the umask leaves.
pub(super) async fn make_parents(dir: PathBuf) -> Result<()> {
    blocking(move || {
        let missing: Vec<&Path> = dir.ancestors().take_while(|d| !d.exists()).collect();
        std::fs::create_dir_all(&dir)?;
        for made in missing {
            if let Some(above) = made.parent() {
                File::open(above)?.sync_all()?;
            }
        }
        Ok(())
    })
    .await
}

pub(super) async fn remove(at: PathBuf) -> Result<()> {
    blocking(move || Ok(std::fs::remove_file(at)?)).await
}

/// Returns a checksum of all data.
pub(super) async fn write(
    at: PathBuf,
    source: &dyn Source,
    item: &Item,
    data: &[Range<u64>],
) -> Result<u32> {
    let create = move || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        Ok(Arc::new(options.open(at)?))
    };
    let file: Arc<File> = blocking(create).await?;
    let mut crc = 0;
    for piece in pieces(data) {
        let (file, off) = (file.clone(), piece.start);
        let bytes = source.read(item, piece).await?;
        crc = crc32c::crc32c_append(crc, &bytes);
        blocking(move || Ok(file.write_all_at(&bytes, off)?)).await?;
    }
    let size = item.size;
    let end = move || {
        file.set_len(size)?;
        Ok(file.sync_all()?)
    };
    blocking(end).await?;
    Ok(crc)
}

/// Length and checksum of what was written.
pub(super) async fn read_back(at: PathBuf, data: &[Range<u64>]) -> Result<(u64, u32)> {
    let pieces = pieces(data);
    let read = move || {
        let file = File::open(at)?;
        let (mut crc, mut bytes) = (0, Vec::new());
        for piece in pieces {
            bytes.resize((piece.end - piece.start) as usize, 0);
            file.read_exact_at(&mut bytes, piece.start)?;
            crc = crc32c::crc32c_append(crc, &bytes);
        }
        Ok((file.metadata()?.len(), crc))
    };
    blocking(read).await
}

/// Owner, mode and time; of a directory durably, with the names in it.
pub(super) async fn dress(at: PathBuf, owners: bool, item: &Item) -> Result<()> {
    let (uid, gid, mode, mtime) = (item.uid, item.gid, item.mode, item.mtime);
    let dress = move || {
        let file = File::open(&at)?;
        if owners {
            fchown(&file, Some(uid), Some(gid))?;
        }
        set_time(&at, mtime)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file.sync_all()?)
    };
    blocking(dress).await
}

pub(super) async fn symlink(at: PathBuf, owners: bool, item: &Item) -> Result<()> {
    let item = item.clone();
    let link = move || {
        std::os::unix::fs::symlink(OsStr::from_bytes(&item.target), &at)?;
        if owners {
            let (uid, gid) = (Uid::from_raw(item.uid), Gid::from_raw(item.gid));
            lchown(&at, Some(uid.as_raw()), Some(gid.as_raw()))?;
        }
        set_time(&at, item.mtime)
    };
    blocking(link).await
}

pub(super) async fn hard_link(from: PathBuf, to: PathBuf) -> Result<()> {
    blocking(move || Ok(std::fs::hard_link(from, to)?)).await
}

/// Of the thing itself: a link is not followed.
fn set_time(at: &Path, mtime: Timestamp) -> Result<()> {
    let second = 1_000_000_000;
    let time = TimeSpec::new(mtime.div_euclid(second), mtime.rem_euclid(second));
    let flag = UtimensatFlags::NoFollowSymlink;
    utimensat(AT_FDCWD, at, &time, &time, flag).map_err(std::io::Error::from)?;
    Ok(())
}
