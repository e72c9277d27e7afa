//! Extended attributes of files on this host.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The value of one, not following a symbolic link.
pub fn get(path: &Path, name: &CStr) -> io::Result<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both strings end with NUL, and the buffer has the length that is given.
    whole(|at, len| unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), at.cast(), len) })
}

/// The names of all, each followed by NUL, not following a symbolic link.
pub fn list(path: &Path) -> io::Result<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with NUL, and the buffer has the length that is given.
    whole(|at, len| unsafe { libc::llistxattr(path.as_ptr(), at.cast(), len) })
}

/// An empty buffer only asks for the length, which may have grown until the bytes are asked for.
fn whole(ask: impl Fn(*mut u8, usize) -> isize) -> io::Result<Vec<u8>> {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        match usize::try_from(ask(buffer.as_mut_ptr(), buffer.len())) {
            Ok(n) if n > buffer.len() => buffer.resize(n, 0),
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(_) => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ERANGE) => buffer.clear(),
                e => return Err(e),
            },
        }
    }
}
