//! The only place that knows which error number a program gets for a failure below.

use crate::base::{Error, ErrorKind};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Result<T, E = Errno> = std::result::Result<T, E>;

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    E2BIG EACCES EBADF EEXIST EFBIG EINVAL EIO EISDIR EMLINK ENAMETOOLONG ENODATA ENOENT ENOSPC
    ENOTDIR ENOTEMPTY ENXIO EOPNOTSUPP EPERM ERANGE EROFS ESTALE
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Names are looked up in the index, so an error of the store is never "no such file": a missing
/// segment is damage.
impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        let errno = match e.kind() {
            ErrorKind::NoSpace => Errno::ENOSPC,
            ErrorKind::Denied => Errno::EACCES,
            ErrorKind::Fenced => Errno::ESTALE,
            ErrorKind::Unsupported => Errno::EOPNOTSUPP,
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::TimedOut
            | ErrorKind::Unavailable
            | ErrorKind::Owned
            | ErrorKind::Vanished
            | ErrorKind::Usage
            | ErrorKind::Corrupt
            | ErrorKind::NewerFormat
            | ErrorKind::Invalid
            | ErrorKind::Other => Errno::EIO,
        };
        match e.kind() {
            // Said once, by the volume; every call fails with it from then on.
            ErrorKind::Fenced | ErrorKind::Vanished => {
                tracing::debug!("{errno} for a program: {e}")
            }
            _ => tracing::error!("{errno} for a program: {e}"),
        }
        errno
    }
}
