//! Where to mount: checks, the mount table, and unmounting.

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An absolute path without symbolic links that can be mounted on or is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mountpoint(PathBuf);

impl fmt::Display for Mountpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Mountpoint {
    /// The mountpoint that the user means. Its last component is not looked at: it may be a mount
    /// that hangs or is dead.
    pub fn named(path: &Path) -> Result<Mountpoint> {
        let naming = |e: std::io::Error| Error::from(e).context(path.display());
        let path = std::path::absolute(path).map_err(naming)?;
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let whole = parent.canonicalize().map_err(naming)?.join(name);
                // A symbolic link is followed; a mount is no symbolic link.
                let is_link = whole.symlink_metadata().is_ok_and(|m| m.is_symlink());
                let whole = if is_link {
                    whole.canonicalize().map_err(naming)?
                } else {
                    whole
                };
                Ok(Mountpoint(whole))
            }
            _ => Ok(Mountpoint(path.canonicalize().map_err(naming)?)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes sure that this is a directory to mount on, or what a crash left dead on one.
    pub fn prepare(&self) -> Result<()> {
        match self.look() {
            Ok(m) if m.is_dir() => Ok(()),
            Ok(_) => Err(refused(format!("mountpoint {self} is not a directory"))),
            Err(e) if self.is_dead_mount(&e) => Ok(()),
            Err(e) => Err(Error::from(e).context(format!("mountpoint {self}"))),
        }
    }

    /// Whether the process of the mount here is gone.
    pub fn is_dead(&self) -> bool {
        self.look().is_err_and(|e| self.is_dead_mount(&e))
    }

    /// Opened, because the kernel answers a stat of a dead mount from its cache for a while.
    fn look(&self) -> std::io::Result<std::fs::Metadata> {
        File::open(&self.0)?.metadata()
    }

    fn is_dead_mount(&self, e: &std::io::Error) -> bool {
        is_dead(e) && self.is_fuse_mount()
    }

    /// A mount inside its own store, or a store inside its own mount, would feed on itself.
    pub fn refuse_overlap(&self, store_root: &Path) -> Result<()> {
        let root = store_root
            .canonicalize()
            .unwrap_or_else(|_| store_root.to_path_buf());
        let overlap = if self.0.starts_with(&root) {
            "is inside the store"
        } else if root.starts_with(&self.0) {
            "contains the store"
        } else {
            return Ok(());
        };
        let root = root.display();
        Err(refused(format!(
            "mountpoint {self} {overlap} {root}; choose another directory"
        )))
    }

    /// Device number of what is mounted exactly here, topmost.
    pub fn mounted_device(&self) -> Option<String> {
        self.top().map(|m| m.device)
    }

    /// Whether a FUSE filesystem is mounted exactly here.
    pub fn is_fuse_mount(&self) -> bool {
        self.top().is_some_and(|m| m.is_fuse())
    }

    pub fn detach(&self) -> Result<()> {
        unmount(self, true)
    }

    fn top(&self) -> Option<MountEntry> {
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        table
            .split(|b| *b == b'\n')
            .rev()
            .filter_map(MountEntry::parse)
            .find(|m| m.target == self.0)
    }
}

fn refused(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

fn is_dead(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Unmounts, by fusermount3 when the kernel wants a privilege for it. A lazy unmount takes the
/// mount out of the namespace even if files in it are open.
pub fn unmount(mountpoint: &Mountpoint, lazy: bool) -> Result<()> {
    let flags = if lazy {
        MntFlags::MNT_DETACH
    } else {
        MntFlags::empty()
    };
    match umount2(mountpoint.path(), flags | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => unmount_by_helper(mountpoint, lazy),
        Err(e) => Err(failed(
            mountpoint,
            &e.desc().to_lowercase(),
            e == Errno::EBUSY,
        )),
    }
}

fn unmount_by_helper(mountpoint: &Mountpoint, lazy: bool) -> Result<()> {
    let flags: &[&str] = if lazy { &["-u", "-z"] } else { &["-u"] };
    let output = Command::new("fusermount3")
        .args(flags)
        .arg("--")
        .arg(mountpoint.path())
        .output()
        .context("cannot run fusermount3 (package fuse3), which unmounts for users")?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(failed(mountpoint, text.trim(), text.contains("busy")))
}

fn failed(mountpoint: &Mountpoint, why: &str, busy: bool) -> Error {
    let hint = if busy {
        "; close what uses it (fuser -m lists it), or unmount with -l"
    } else {
        ""
    };
    Error::new(
        ErrorKind::Other,
        format!("cannot unmount {mountpoint}: {why}{hint}"),
    )
}

/// One line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct MountEntry {
    device: String,
    target: PathBuf,
    fstype: String,
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut fields = line.split(|b| *b == b' ');
        let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
        let target = PathBuf::from(unescape(fields.nth(1)?));
        let fstype = String::from_utf8(fields.skip_while(|f| *f != b"-").nth(1)?.to_vec()).ok()?;
        Some(MountEntry {
            device,
            target,
            fstype,
        })
    }

    fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype.starts_with("fuse.")
    }
}

/// Undoes the kernel's `\040` for blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_of_mountinfo_with_a_blank_and_optional_fields() {
        let line =
            br"42 1 0:51 / /mnt/a\040b\134c rw,nosuid shared:7 master:1 - fuse.stowfs file:///x rw";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!(entry.device, "0:51");
        assert_eq!(entry.target.as_os_str().as_bytes(), br"/mnt/a b\c");
        assert!(entry.is_fuse());
        assert_eq!(MountEntry::parse(b""), None);
        assert_eq!(MountEntry::parse(b"1 2 3 4"), None);
    }

    #[test]
    fn a_mount_and_its_store_must_not_contain_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let inside = store.join("mnt");
        let beside = dir.path().join("store-mnt");
        for d in [&inside, &beside] {
            std::fs::create_dir_all(d).unwrap();
        }
        let at = |p: &Path| Mountpoint::named(p).unwrap();
        assert!(at(&inside).refuse_overlap(&store).is_err());
        assert!(at(dir.path()).refuse_overlap(&store).is_err());
        assert!(at(&store).refuse_overlap(&store).is_err());
        assert!(at(&beside).refuse_overlap(&store).is_ok());
        // The store need not exist yet.
        assert!(at(&inside).refuse_overlap(&inside.join("new")).is_err());
    }

    #[test]
    fn a_mountpoint_is_a_directory_and_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
        assert_eq!(
            Mountpoint::named(&dir.path().join("link")).unwrap().path(),
            real
        );
        assert!(Mountpoint(real).prepare().is_ok());
        let file = Mountpoint::named(&dir.path().join("file")).unwrap();
        assert!(
            file.prepare()
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        let none = Mountpoint::named(&dir.path().join("none")).unwrap();
        assert!(none.prepare().unwrap_err().is(ErrorKind::NotFound));
    }
}
