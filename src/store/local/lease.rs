//! Asks the kernel whether a file is open for writing.

use crate::base::Result;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Not in the crate libc; the same on every architecture of Linux.
const F_SETSIG: i32 = 10;

/// A read lease is refused while anybody has the file open for writing. Where leases cannot be had
/// (of another user's file, on some filesystems) nobody can tell.
pub(super) fn is_open_for_writing(path: &Path) -> Result<bool> {
    let file = File::open(path)?;
    // Who opens the file for writing while the lease is held makes the kernel send a signal; this
    // one is ignored by default, the usual one ends the process.
    fcntl(&file, F_SETSIG, libc::SIGURG)?;
    match fcntl(&file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            fcntl(&file, libc::F_SETLEASE, libc::F_UNLCK)?;
            Ok(false)
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(e) => {
            tracing::debug!("whether {} is open: {e}", path.display());
            Ok(false)
        }
    }
}

fn fcntl(file: &File, command: i32, argument: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these commands take a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_shows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        assert!(is_open_for_writing(&path).unwrap());
        drop(writer);
        assert!(!is_open_for_writing(&path).unwrap());
        let _reader = File::open(&path).unwrap();
        assert!(!is_open_for_writing(&path).unwrap());
    }
}
