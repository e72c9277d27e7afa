//! Layer 0: words shared by every layer. Nothing here does I/O.

pub mod clock;
pub mod config;
pub mod error;
pub mod random;
pub mod types;
pub mod xattr;

pub use clock::{Clock, SystemClock};
pub use config::Config;
pub use error::{Context, Error, ErrorKind, Result};
pub use random::Random;
pub use types::{Epoch, Ino, Pos, SegmentName, SessionId, StreamId, Timestamp};
