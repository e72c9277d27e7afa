//! Closing a file on behalf of its writer.
//!
//! The first step revokes the owner's write permission. Every sync checks it last, so whatever any
//! sync acknowledged was on the disk before, and no later one succeeds. What remains is that the
//! writer's process may live (frozen, say) and append later on, unacknowledged, to a file whose
//! length somebody relies on. If its lock is gone it does not live. If it does, the path gets a new
//! inode with a copy of the bytes, and the writer keeps the old one. Each step can be repeated.

use super::sync_parent;
use super::writer::{create_new, temporary_beside};
use crate::base::{Context, Error, ErrorKind, Result};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long another recovery in the same directory is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

pub(super) fn recover(path: &Path) -> Result<()> {
    let found = path.symlink_metadata()?;
    if !found.is_file() {
        return Err(Error::new(ErrorKind::Invalid, "not a plain file"));
    }
    let parent = path.parent().unwrap_or(path);
    // One at a time, or a slow one might put its older copy over a finished one.
    let _turn = lock_patiently(File::open(parent)?)?;
    let file = File::open(path)?;
    file.set_permissions(Permissions::from_mode(0o400))
        .context("revoking write permission")?;
    file.sync_all()?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_nobody_writes) => sync_parent(path),
        Err((mut file, nix::Error::EWOULDBLOCK)) => replace_with_copy(path, &mut file),
        Err((_, e)) => Err(std::io::Error::from(e)).context("locking the file"),
    }
}

fn lock_patiently(mut dir: File) -> Result<Flock<File>> {
    let start = Instant::now();
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, e)) if e != nix::Error::EWOULDBLOCK => {
                return Err(std::io::Error::from(e)).context("locking the directory");
            }
            Err(_) if start.elapsed() > PATIENCE => {
                let text = "another process is recovering files in this directory and does not \
                            finish; if it is frozen, end it";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Err((back, _)) => dir = back,
        }
        std::thread::sleep(POLL);
    }
}

fn replace_with_copy(path: &Path, file: &mut File) -> Result<()> {
    let temporary = temporary_beside(path);
    let replace = || {
        let mut copy = create_new(&temporary)?;
        // Not to the end: the writer may go on, faster than this. Nothing of that was acknowledged.
        let len = file.metadata()?.len();
        std::io::copy(&mut (&*file).take(len), &mut copy)?;
        copy.set_permissions(Permissions::from_mode(0o400))?;
        copy.sync_all()?;
        std::fs::rename(&temporary, path)?;
        Ok(())
    };
    let replaced: Result<()> = replace();
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced.context("copying the file away from its writer")?;
    sync_parent(path)
}
