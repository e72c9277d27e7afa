//! Layer 3: where segment files are on the store.

use crate::base::{Epoch, Error, ErrorKind, Pos, Result, SegmentName, SessionId, Timestamp};

pub const META_DIR: &str = ".stowfs";
pub const FORMAT_FILE: &str = ".stowfs/FORMAT";
pub const OWNER_DIR: &str = ".stowfs/owner";
pub const LOG_DIR: &str = ".stowfs/log";
pub const DATA_DIR: &str = ".stowfs/data";
pub const SNAPSHOT_DIR: &str = ".stowfs/snapshot";

/// Suffix of a log directory whose epoch is over.
const FENCED: &str = ".fenced";

/// The directory of an epoch's log. That of a past epoch was renamed when the next one began, so
/// that its owner cannot create in it any more.
pub fn log_dir(epoch: Epoch, current: Epoch) -> String {
    if epoch < current {
        format!("{LOG_DIR}/{epoch}{FENCED}")
    } else {
        format!("{LOG_DIR}/{epoch}")
    }
}

/// The epoch that a directory below `log/` belongs to, and whether it is fenced.
pub fn parse_log_dir(name: &str) -> Option<(Epoch, bool)> {
    let (number, fenced) = match name.strip_suffix(FENCED) {
        Some(number) => (number, true),
        None => (name, false),
    };
    Some((Epoch(canonical(number)?), fenced))
}

/// The session that a directory below `data/` belongs to.
pub fn parse_data_dir(name: &str) -> Option<SessionId> {
    Some(SessionId(canonical(name)?))
}

/// The path of a segment as it is during `current`.
pub fn path(name: &SegmentName, current: Epoch) -> String {
    match name {
        SegmentName::Log { epoch, n } => format!("{}/{n}.seg", log_dir(*epoch, current)),
        SegmentName::Lane { session, n } => format!("{DATA_DIR}/{session}/{n}.seg"),
    }
}

/// The path of the snapshot that contains everything before a position of the log.
pub fn snapshot_path(from: Pos) -> String {
    format!("{SNAPSHOT_DIR}/{from}.idx")
}

/// The position in a snapshot's file name `<from>.idx`.
pub fn parse_snapshot_name(name: &str) -> Option<Pos> {
    let text = name.strip_suffix(".idx")?;
    let from: Pos = text.parse().ok()?;
    (from.to_string() == text).then_some(from)
}

/// Where a snapshot is written before it gets its name: `<from>.<epoch>.<time>.part`.
pub fn unfinished_snapshot_path(from: Pos, epoch: Epoch, now: Timestamp) -> String {
    format!("{SNAPSHOT_DIR}/{from}.{epoch}.{now}.part")
}

/// The epoch in the name of an unfinished snapshot.
pub fn parse_unfinished_snapshot(name: &str) -> Option<Epoch> {
    let mut parts = name.strip_suffix(".part")?.split('.');
    parts.nth(1)?.parse().ok().map(Epoch)
}

/// The number in a segment's file name `<n>.seg`.
pub fn parse_file_name(name: &str) -> Option<u32> {
    canonical(name.strip_suffix(".seg")?)
}

/// A number as this module writes it: decimal, no sign, no leading zeros.
fn canonical(text: &str) -> Option<u32> {
    let n: u32 = text.parse().ok()?;
    (n.to_string() == text).then_some(n)
}

/// Turns a path below the store's root into text; stowfs can only name files on a store so.
pub fn utf8(path: &[u8]) -> Result<&str> {
    std::str::from_utf8(path).map_err(|_| {
        let shown = String::from_utf8_lossy(path);
        Error::new(
            ErrorKind::Invalid,
            format!("the path {shown} on the store is not UTF-8"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths_and_come_back() {
        let old = SegmentName::Log {
            epoch: Epoch(2),
            n: 7,
        };
        assert_eq!(path(&old, Epoch(2)), ".stowfs/log/2/7.seg");
        assert_eq!(path(&old, Epoch(3)), ".stowfs/log/2.fenced/7.seg");
        let lane = SegmentName::Lane {
            session: SessionId(4),
            n: 0,
        };
        assert_eq!(path(&lane, Epoch(9)), ".stowfs/data/4/0.seg");
        assert_eq!(parse_log_dir("2.fenced"), Some((Epoch(2), true)));
        assert_eq!(parse_log_dir("02"), None);
        assert_eq!(parse_file_name("7.seg"), Some(7));
        assert_eq!(parse_file_name("7.seg.tmp"), None);
    }
}
