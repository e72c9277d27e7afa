//! Identifiers. Each is a number with one meaning, so that the compiler keeps them apart.

use std::fmt;

/// An inode number of the virtual filesystem. Never reused for the life of a root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory; FUSE fixes this number.
    pub const ROOT: Ino = Ino(1);
}

/// One ownership of a root. A higher epoch fences all lower ones.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// One run of one mount. Today a session begins with an epoch and has its number; records keep
/// both apart so that several sessions can share an epoch later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

/// An append-only sequence of bytes that is cut into segments. Stream 0 is the log; the others
/// are lanes (data only) or foreign files (plain files that were on the store before).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u32);

impl StreamId {
    pub const LOG: StreamId = StreamId(0);
}

/// A byte position in a stream. In the log, the position of a record is its log sequence number
/// (LSN): bytes at a position never change, in whichever segment they are stored.
pub type Pos = u64;

/// Nanoseconds since 1970-01-01 UTC; negative before. Covers the years 1677 to 2262.
pub type Timestamp = i64;

/// The name of a segment: which file on the store it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SegmentName {
    /// `log/<epoch>/<n>.seg` (`log/<epoch>.fenced/<n>.seg` once a higher epoch exists).
    Log { epoch: Epoch, n: u32 },
    /// `data/<session>/<n>.seg`
    Lane { session: SessionId, n: u32 },
}

macro_rules! number_text {
    ($t:ident, $prefix:literal) => {
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_text!(Ino, "ino ");
number_text!(Epoch, "epoch ");
number_text!(SessionId, "session ");
number_text!(StreamId, "stream ");

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentName::Log { epoch, n } => write!(f, "log/{epoch}/{n}"),
            SegmentName::Lane { session, n } => write!(f, "data/{session}/{n}"),
        }
    }
}
