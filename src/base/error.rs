//! One error type for layers 0 to 6. `fs` (layer 7) turns a kind into an errno; nothing else does.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The thing named does not exist on the store.
    NotFound,
    /// The thing named exists already.
    AlreadyExists,
    /// The store refuses by permission.
    Denied,
    /// The store is full or a quota is used up. Waiting or deleting may help.
    NoSpace,
    /// The call did not end in time. Whether it was carried out is unknown.
    TimedOut,
    /// The store could not be reached or answered that it cannot serve now. Worth a retry; whether
    /// the call was carried out is unknown.
    Unavailable,
    /// A higher epoch owns the root. Final.
    Fenced,
    /// The root is gone from the store under its owner. Final.
    Vanished,
    /// Another live mount owns the root.
    Owned,
    /// Bytes on the store are not what was written.
    Corrupt,
    /// The root was written by a newer stowfs.
    NewerFormat,
    /// The caller asked for something that cannot be.
    Invalid,
    /// What was written on a command line, in the environment or in a configuration file cannot be
    /// meant: whatever the store says, it is wrong.
    Usage,
    /// The store cannot do this at all.
    Unsupported,
    /// Anything else.
    Other,
}

/// An error with a kind (for the program) and a text (for a person): what was being done, to what,
/// and why it failed.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

impl Error {
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error {
            kind,
            text: text.into(),
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == kind
    }

    /// Whether the call may or may not have been carried out.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self.kind, ErrorKind::TimedOut | ErrorKind::Unavailable)
    }

    /// The same error, with what was being done put before it.
    pub fn context(self, doing: impl fmt::Display) -> Error {
        Error {
            kind: self.kind,
            text: format!("{doing}: {}", self.text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        use std::io::ErrorKind as Io;
        let kind = match e.kind() {
            // A path that leads through a file leads nowhere.
            Io::NotFound | Io::NotADirectory => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
            Io::StorageFull | Io::QuotaExceeded => ErrorKind::NoSpace,
            Io::TimedOut => ErrorKind::TimedOut,
            Io::InvalidInput => ErrorKind::Invalid,
            Io::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        Error::new(kind, e.to_string())
    }
}

/// Adds what was being done to an error.
pub trait Context<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.into().context(doing))
    }
}
