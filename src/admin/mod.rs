//! Layer 7: looking at a root from outside, and saving what can be saved of a broken one.
//!
//! `fsck` and `segments` only read. `rebuild` owns the root while it works, like a mount. `undo`
//! works on a mounted root.

mod adopt;
mod export;
mod fsck;
mod rebuild;
mod report;
mod segment_check;
mod segments;
mod survey;
mod undo;
mod walk;

pub use adopt::{AdoptReport, AdoptRequest, Packed, adopt, adopt_dry, normal_path};
pub use export::{
    Dest, ExportOptions, ExportReport, MountSource, RootSource, Source, export,
    split as split_destination,
};
pub use fsck::{FsckOptions, fsck};
pub use rebuild::{RebuildOptions, RebuildReport, rebuild};
pub use report::{Problem, Report};
pub use segments::{SegmentLine, Segments, segments_of_store, segments_of_volume};
pub use undo::{DeletedLine, DeletedList, UndeleteOptions, Undeleted, deleted, undelete};

/// A number of bytes for a person.
fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).to_string()
}

/// Names and paths are bytes; people and JSON get text.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// A name or a path as it may be printed: control characters would move the cursor, or look like a
/// line of their own.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}
