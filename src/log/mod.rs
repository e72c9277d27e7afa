//! Layer 4: reading the log back. (Writing it is `stream`.)

mod replay;
mod scan;

pub use replay::{LogEnd, LogFile, discover, replay};
pub use scan::{Scan, SegmentFile, open_segment, scan};
