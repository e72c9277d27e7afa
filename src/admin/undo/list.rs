//! The list of what was deleted.

use super::graveyard::Graveyard;
use super::{age, is_older, reason, trimmed};
use crate::admin::{shown, size, text};
use crate::base::Result;
use crate::format::{Attr, SegmentState};
use crate::index::{Deleted, SegmentUse};
use crate::volume::Volume;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime};

/// One thing that was deleted; of a directory with all that it held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeletedLine {
    pub path: String,
    /// Tells it from other things that were deleted at this path: its inode number.
    pub id: u64,
    pub kind: String,
    pub size: u64,
    /// Files and other things that are not directories.
    pub files: u64,
    pub deleted: String,
    pub seconds_ago: f64,
    /// For how long it is kept, unless `gc_keep` is exceeded. 0: it may go at any time.
    pub seconds_left: f64,
    /// Why it, or a part of it, cannot be brought back.
    pub lost: Option<String>,
    /// Something has this path now.
    pub exists: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeletedList {
    /// In the order of deletion.
    pub deleted: Vec<DeletedLine>,
    pub gc_grace_seconds: f64,
    /// The path that was asked for.
    #[serde(default)]
    pub below: Option<String>,
    /// What nothing refers to takes more than `gc_keep` of the live bytes, as far as it goes: the
    /// oldest of it is given back before its grace is over.
    #[serde(default)]
    pub beyond_keep: Option<BeyondKeep>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BeyondKeep {
    pub unreferenced_bytes: u64,
    /// How much of it may wait.
    pub keep_bytes: u64,
}

/// What was deleted at a path or below it; without one, everything, a deleted tree as one line.
pub fn deleted(volume: &Volume, path: Option<&str>) -> Result<DeletedList> {
    let below = path.map(|p| text(trimmed(p)));
    let path = path.map(trimmed);
    let lines = volume.read(|index| {
        let yard = Graveyard::new(index, None);
        let shown = |item: &&Deleted| path.is_some() || yard.is_top(item);
        let some = yard.items.iter().enumerate().filter(|(_, i)| shown(i));
        some.filter_map(|(n, item)| {
            let at = yard.path(item)?;
            let below = path.is_none_or(|p| is_at_or_below(&at, p));
            below.then(|| line(volume, &yard, n, &at))
        })
        .collect()
    });
    Ok(DeletedList {
        deleted: lines,
        gc_grace_seconds: volume.config().gc_grace.as_secs_f64(),
        below,
        beyond_keep: beyond_keep(volume),
    })
}

fn beyond_keep(volume: &Volume) -> Option<BeyondKeep> {
    let idle = |s: &SegmentUse| s.row.state == SegmentState::Sealed && s.live.extents == 0;
    let (live_bytes, unreferenced_bytes) = volume.read(|index| {
        let idle = index.segments().filter(|s| idle(s));
        (index.live_bytes(), idle.map(|s| s.row.size).sum())
    });
    let keep_bytes = volume.duty().ok()?.keep_bytes(live_bytes);
    (unreferenced_bytes > keep_bytes).then_some(BeyondKeep {
        unreferenced_bytes,
        keep_bytes,
    })
}

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    match path.strip_prefix(top) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || top.is_empty(),
        None => false,
    }
}

fn line(volume: &Volume, yard: &Graveyard<'_>, n: usize, path: &[u8]) -> DeletedLine {
    let item = &yard.items[n];
    let now = volume.now();
    let grace = volume.config().gc_grace;
    let mut found = DeletedLine {
        path: text(path),
        id: item.ino.0,
        kind: kind(item).into(),
        size: 0,
        files: 0,
        deleted: time(now, age(item, now)),
        seconds_ago: age(item, now).as_secs_f64(),
        seconds_left: f64::MAX,
        lost: None,
        exists: yard.index.lookup(item.parent, &item.name).is_some(),
    };
    let tree = yard.tree(n);
    for (at, _) in &tree {
        let item = &yard.items[*at];
        if is_older(volume, &yard.items[n], item) {
            continue;
        }
        if !Graveyard::is_dir(item) {
            found.files += 1;
            found.size += item.attr.map_or(0, |a| a.size);
        }
        let left = grace.saturating_sub(age(item, now)).as_secs_f64();
        found.seconds_left = found.seconds_left.min(left);
        if let Some(damage) = yard.damage(item) {
            found.lost.get_or_insert_with(|| match tree.len() {
                1 => reason(volume, item, &damage),
                _ => format!("{}: {}", text(&item.name), reason(volume, item, &damage)),
            });
        }
    }
    found
}

fn kind(item: &Deleted) -> &'static str {
    match item.attr.as_ref().map(Attr::kind) {
        _ if item.alive => "name",
        Some(libc::S_IFREG) => "file",
        Some(libc::S_IFDIR) => "directory",
        Some(libc::S_IFLNK) => "symlink",
        Some(_) => "special",
        None => "name",
    }
}

fn time(now: i64, age: Duration) -> String {
    let since = Duration::from_nanos(u64::try_from(now).unwrap_or(0)).saturating_sub(age);
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string()
}

/// Whole seconds.
fn span(seconds: f64) -> String {
    humantime::format_duration(Duration::from_secs(seconds.max(0.0) as u64)).to_string()
}

impl fmt::Display for DeletedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.deleted.is_empty() {
            return match self.below.as_deref() {
                None | Some("") => write!(f, "nothing that was deleted is remembered"),
                Some(path) => write!(
                    f,
                    "nothing that was deleted at or below /{} is remembered; `stowfs deleted` without a \
                     path lists everything that is",
                    shown(path)
                ),
            };
        }
        writeln!(
            f,
            "{:>12}  {:>8}  {:9}  {:>14}  {:>7}  {:24}  PATH",
            "DELETED", "ID", "KIND", "SIZE", "FILES", "KEPT"
        )?;
        for line in &self.deleted {
            let kept = match (&line.lost, line.seconds_left) {
                (Some(_), _) => "no".to_string(),
                (None, left) if left < 1.0 => "may go at any time".to_string(),
                (None, left) if self.beyond_keep.is_some() => format!("for at most {}", span(left)),
                (None, left) => format!("for {}", span(left)),
            };
            write!(
                f,
                "{:>12}  {:>8}  {:9}  {:>14}  {:>7}  {kept:24}  /{}",
                format!("{} ago", span(line.seconds_ago)),
                line.id,
                line.kind,
                line.size,
                line.files,
                shown(&line.path)
            )?;
            match &line.lost {
                Some(why) => writeln!(f, " ({})", shown(why))?,
                None if line.exists => writeln!(f, " (something has this path now)")?,
                None => writeln!(f)?,
            }
        }
        if let Some(beyond) = &self.beyond_keep {
            write!(
                f,
                "what nothing refers to takes {}, more than the {} that gc-keep allows: the oldest goes \
                 before its time",
                size(beyond.unreferenced_bytes),
                size(beyond.keep_bytes)
            )?;
        }
        Ok(())
    }
}
