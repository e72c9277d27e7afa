//! What upkeep would do, and what it did, for people and programs that ask.

use crate::format::SegmentRow;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A segment, and what is planned with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub segment: String,
    pub size: u64,
    pub live_bytes: u64,
    /// Size / live bytes; none if nothing is live.
    pub amplification: Option<f64>,
    pub action: String,
}

impl Line {
    pub fn new(row: &SegmentRow, live_bytes: u64, action: impl Into<String>) -> Line {
        Line {
            segment: row.name.to_string(),
            size: row.size,
            live_bytes,
            amplification: ratio(row.size, live_bytes),
            action: action.into(),
        }
    }
}

pub fn ratio(size: u64, live: u64) -> Option<f64> {
    (live > 0).then(|| size as f64 / live as f64)
}

/// For people: rounded up.
pub(super) fn whole_seconds(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(time.as_secs() + 1))
}

/// A file or directory that is of no use any more and that no index knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanLine {
    pub path: String,
    pub size: u64,
    pub what: String,
    pub action: String,
}

/// A plain file or directory from before stowfs that nothing refers to any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainLine {
    pub path: String,
    pub size: u64,
    pub action: String,
}

/// Bytes in segments and bytes of them that files use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Space {
    pub size: u64,
    pub live_bytes: u64,
    pub amplification: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub segments: Vec<Line>,
    pub orphans: Vec<OrphanLine>,
    #[serde(default)]
    pub plain_files: Vec<PlainLine>,
    /// Of all segments.
    pub space: Space,
}

/// What `gc` gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Collected {
    pub deleted_segments: u64,
    pub deleted_bytes: u64,
    pub orphans: u64,
    /// Plain files from before stowfs that nothing referred to.
    #[serde(default)]
    pub plain_files: u64,
    #[serde(default)]
    pub plain_bytes: u64,
    /// Unreferenced segments that wait for the end of their grace.
    pub waiting_segments: u64,
    pub waiting_bytes: u64,
    pub space: Space,
}

/// What `compact` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compacted {
    pub segments: u64,
    /// Copied.
    pub extents: u64,
    pub bytes: u64,
    /// Bytes of segments in which nothing is live now, beyond what was copied.
    pub gained: u64,
    /// After which emptied segments are deleted.
    pub grace_seconds: f64,
    /// It ended before all was done, because nobody listened any more.
    pub stopped: bool,
    pub space: Space,
}

/// How far something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub doing: String,
    pub done: u64,
    pub total: u64,
}

/// Is told of progress; says whether anybody listens.
pub type Tell<'a> = &'a (dyn Fn(Step) -> bool + Send + Sync);
