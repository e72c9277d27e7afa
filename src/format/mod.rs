//! Layer 1: pure bytes. Encodes and decodes every structure that stowfs writes to a store.
//! No I/O, no state. FORMAT.md has the byte tables; golden files keep the two together.

pub mod codec;
pub mod foreign;
pub mod frame;
pub mod record;
pub mod row;
pub mod segment;
pub mod snapshot;

pub use foreign::{ForeignHold, ForeignRow, ForeignState};
pub use frame::{DataFrame, Frame, RecordFrame};
pub use record::RecordBuilder;
pub use row::{Attr, Extent, Row, SegmentRow, SegmentState};
pub use segment::{Footer, Origin, SegmentHeader};

/// The version of everything below. A root with a higher one is refused.
pub const FORMAT_VERSION: u16 = 1;

/// Data is checksummed in blocks of this many bytes, counted from the start of a frame's payload,
/// so that a part of a frame can be verified without reading all of it.
pub const BLOCK: usize = 64 * 1024;

/// No stream gets longer, so sums of positions and lengths do not overflow.
pub const MAX_POS: crate::base::Pos = 1 << 62;

/// The most payload in one data frame.
pub const MAX_PAYLOAD: usize = 4 * 1024 * 1024;
