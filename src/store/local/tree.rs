//! Names: directories, listings, deletion.

use super::{DIR_MODE, sync_parent};
use crate::base::{Context, Error, ErrorKind, Result, Timestamp};
use crate::store::{FileInfo, LeftOut, Usage};
use nix::unistd::{Gid, Group, Uid, User};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{DirBuilder, File, FileTimes, Metadata, Permissions};
use std::io::ErrorKind as Io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

pub(super) fn stat(path: &Path, name: String, names: &Names) -> Result<FileInfo> {
    Ok(info(name, &path.metadata()?, names))
}

/// Plain files and directories; anything else (links, sockets, devices) is no part of a store.
pub(super) fn list(path: &Path, names: &Names) -> Result<Vec<FileInfo>> {
    let mut entries = Vec::new();
    if path.is_file() {
        return Err(Error::new(ErrorKind::Invalid, "a file, not a directory"));
    }
    for entry in path.read_dir()? {
        let entry = entry?;
        let found = match entry.metadata() {
            Err(e) if e.kind() == Io::NotFound => continue, // deleted since
            found => found?,
        };
        if found.is_file() || found.is_dir() {
            // One such file must not keep a whole root from being used.
            match entry.file_name().into_string() {
                Ok(name) => entries.push(info(name, &found, names)),
                Err(name) => tracing::debug!("{name:?} is left out: its name is not UTF-8"),
            }
        }
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// What `list` leaves out.
pub(super) fn left_out(path: &Path) -> Result<Vec<LeftOut>> {
    let mut found = Vec::new();
    for entry in path.read_dir()? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let (name, is_text) = match entry.file_name().into_string() {
            Ok(name) => (name, true),
            Err(name) => (name.as_bytes().escape_ascii().to_string(), false),
        };
        let what = match (kind.is_file() || kind.is_dir(), kind.is_symlink()) {
            (true, _) if is_text => continue,
            (true, _) => "its name is not UTF-8",
            (false, true) => "a symbolic link, which may lead out of the root",
            (false, false) => "a fifo, socket or device",
        };
        found.push(LeftOut { name, what });
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

pub(super) fn mkdir(path: &Path) -> Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "exists and is no directory",
            ));
        }
        Err(_) => {
            if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                mkdir(parent)?;
            }
            match DirBuilder::new().mode(DIR_MODE).create(path) {
                Err(e) if e.kind() == Io::AlreadyExists && path.is_dir() => {}
                made => made.context(path.display())?,
            }
        }
    }
    // One that existed may have been made a moment ago by somebody who has not synced it yet.
    sync_parent(path)
}

pub(super) fn delete(path: &Path) -> Result<()> {
    let deleted = match path.symlink_metadata()?.is_dir() {
        true => std::fs::remove_dir(path),
        false => std::fs::remove_file(path),
    };
    match deleted {
        Err(e) if e.kind() == Io::DirectoryNotEmpty => {
            Err(Error::new(ErrorKind::Invalid, "the directory is not empty"))
        }
        deleted => {
            deleted?;
            // Somebody who deletes the directory as well has no need of it.
            match sync_parent(path) {
                Err(e) if e.is(ErrorKind::NotFound) => Ok(()),
                synced => synced,
            }
        }
    }
}

pub(super) fn set_attr(path: &Path, mode: u32, mtime: Timestamp) -> Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode & 0o7777))?;
    let time = UNIX_EPOCH + Duration::from_nanos(mtime.max(0) as u64);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    Ok(File::open(path)?.set_times(times)?)
}

pub(super) fn usage(path: &Path) -> Result<Usage> {
    let found = nix::sys::statvfs::statvfs(path).map_err(std::io::Error::from)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Ok(Usage {
        capacity: bytes(found.blocks()),
        available: bytes(found.blocks_available()),
    })
}

fn info(name: String, found: &Metadata, names: &Names) -> FileInfo {
    FileInfo {
        name,
        is_dir: found.is_dir(),
        len: if found.is_dir() { 0 } else { found.len() },
        mtime: found.mtime() as Timestamp * 1_000_000_000 + found.mtime_nsec() as Timestamp,
        mode: found.mode() & 0o7777,
        owner: names.user(found.uid()),
        group: names.group(found.gid()),
        ids: Some((found.uid(), found.gid())),
    }
}

/// Names of users and groups, remembered: looking one up may ask a directory server.
#[derive(Default)]
pub(super) struct Names {
    users: Mutex<HashMap<u32, String>>,
    groups: Mutex<HashMap<u32, String>>,
}

impl Names {
    fn user(&self, id: u32) -> String {
        remember(&self.users, id, || {
            User::from_uid(Uid::from_raw(id)).ok()?.map(|u| u.name)
        })
    }

    fn group(&self, id: u32) -> String {
        remember(&self.groups, id, || {
            Group::from_gid(Gid::from_raw(id)).ok()?.map(|g| g.name)
        })
    }
}

fn remember(
    known: &Mutex<HashMap<u32, String>>,
    id: u32,
    look_up: impl FnOnce() -> Option<String>,
) -> String {
    if let Some(name) = known.lock().get(&id) {
        return name.clone();
    }
    let name = look_up().unwrap_or_else(|| id.to_string());
    known.lock().insert(id, name.clone());
    name
}
