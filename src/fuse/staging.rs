//! Mounting where a dead mount is, so that its place is at no moment the directory below: a program
//! that retries would write into that directory, be told that all is well, and find its files hidden
//! under the new mount.

use super::mountpoint::Mountpoint;
use crate::base::error::Context;
use crate::base::{Error, Result};
use nix::mount::{MntFlags, umount2};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Put the mount under the topmost one of its place. Linux 6.5 and later.
const MOVE_MOUNT_BENEATH: u32 = 0x200;

/// A directory of our own, on which a mount is made before it goes to its place.
pub struct Staging {
    dir: PathBuf,
}

impl Staging {
    /// Makes one in a directory that only we use. None without the right to move mounts.
    pub fn make(parent: &Path) -> Result<Option<Staging>> {
        if open_clone(Path::new("/")).is_err() {
            return Ok(None);
        }
        let staging = Staging {
            dir: parent.join(format!("staging-{}", std::process::id())),
        };
        // What a process of the same number left when it was killed.
        staging.clear();
        let dir = &staging.dir;
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(dir)
            .context(format!("cannot make {}", dir.display()))?;
        Ok(Some(staging))
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Puts what is mounted here where a dead mount is, which goes away.
    pub fn replace(self, dead: &Mountpoint) -> Result<()> {
        let doing = || format!("cannot mount on {dead}");
        let tree = open_clone(&self.dir)
            .map_err(Error::from)
            .context(doing())?;
        if let Err(e) = move_to(&tree, dead.path(), MOVE_MOUNT_BENEATH) {
            tracing::debug!("{dead}: not put beneath the dead mount: {e}");
            dead.detach()?;
            move_to(&tree, dead.path(), 0)
                .map_err(Error::from)
                .context(doing())?;
            return Ok(());
        }
        // Ours shows from here on.
        dead.detach()
    }

    /// Neither is an error: most of the time there is nothing.
    fn clear(&self) {
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        let _ = std::fs::remove_dir(&self.dir);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.clear();
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A second, unattached mount of what is mounted at a path.
fn open_clone(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn move_to(tree: &OwnedFd, target: &Path, flags: u32) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: both paths are C strings that outlive the call, and the descriptor is open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH | flags,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
