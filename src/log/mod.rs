//! Layer 4: reading the log back. (Writing it is `stream`.)

mod replay;
mod scan;
mod snapshot;
mod window;

pub use replay::{LogEnd, LogFile, discover, find_origin, replay};
pub use scan::{Scan, SegmentFile, open_segment, read_footer, scan};
pub use snapshot::{list_snapshots, load, load_newest, visit_snapshot};
pub use window::Window;
