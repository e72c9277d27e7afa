//! Finds and removes what is of no use any more and in no index: segments that writers made and
//! never announced, unfinished snapshots, names of past owners, empty directories.
//!
//! Removed is only what is older than an age by the store's own clock; what cannot come to be used
//! any more, whatever is still under way; and only once a record of this owner is durable that was
//! written after the listing. A segment is condemned by that record and goes like any other.

use super::Root;
use super::deletion::Deletion;
use crate::base::error::Context;
use crate::base::{Epoch, ErrorKind, Result, SegmentName, StreamId, Timestamp};
use crate::format::segment::HEADER_LEN;
use crate::format::{Origin, Row, SegmentRow, SegmentState};
use crate::index::{Index, Session};
use crate::segment::{self, DATA_DIR, LOG_DIR, META_DIR, OWNER_DIR, SNAPSHOT_DIR};
use crate::store::{FileInfo, Store};
use std::time::Duration;
use tracing::{debug, info};

/// Claims, answers and files that are being put live for seconds; one of this age is left over,
/// however low the age limit.
const SHORT_LIVED: Duration = Duration::from_secs(120);

/// How stores begin the names of files that they make on the way to another name.
pub const TEMPORARY: &str = ".stowfs-";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub path: String,
    pub size: u64,
    pub mtime: Timestamp,
    pub what: &'static str,
    /// None: a file or directory of another kind.
    pub segment: Option<SegmentName>,
    /// Lives for seconds when all is well.
    short: bool,
    /// Every mount leaves one, and a later mount removes it.
    pub usual: bool,
}

impl Orphan {
    fn new(path: String, file: &FileInfo, what: &'static str) -> Orphan {
        Orphan {
            path,
            size: file.len,
            mtime: file.mtime,
            what,
            segment: None,
            short: false,
            usual: false,
        }
    }

    /// How long it must still lie there.
    pub fn wait(&self, now: Timestamp, age: Duration) -> Duration {
        let limit = if self.short {
            age.max(SHORT_LIVED)
        } else {
            age
        };
        // One from the future is young.
        let lies = u64::try_from(now.saturating_sub(self.mtime)).unwrap_or(0);
        limit.saturating_sub(Duration::from_nanos(lies))
    }
}

/// Who looks.
pub struct Scope<'a> {
    /// The owner. Everything of lower epochs is of the dead.
    pub epoch: Epoch,
    pub origin: Origin,
    /// Whether a segment that no index knows may still be announced.
    pub claimed: &'a dyn Fn(&SegmentName) -> bool,
}

/// A directory of segments.
struct Dir {
    path: String,
    info: FileInfo,
    epoch: u32,
    is_log: bool,
    files: Vec<FileInfo>,
}

/// All that stowfs has on a store.
pub struct Listing {
    meta: Vec<FileInfo>,
    owner: Vec<FileInfo>,
    snapshots: Vec<FileInfo>,
    dirs: Vec<Dir>,
}

impl Listing {
    /// A listing that fails ends the search: what it lacks might look unused.
    pub async fn of(store: &dyn Store) -> Result<Listing> {
        let mut listing = Listing {
            meta: list(store, META_DIR).await?,
            owner: list(store, OWNER_DIR).await?,
            snapshots: list(store, SNAPSHOT_DIR).await?,
            dirs: Vec::new(),
        };
        for info in list(store, LOG_DIR).await? {
            if let Some((epoch, _)) = segment::parse_log_dir(&info.name) {
                listing.add(store, LOG_DIR, info, epoch.0).await?;
            }
        }
        for info in list(store, DATA_DIR).await? {
            if let Some(session) = segment::parse_data_dir(&info.name) {
                listing.add(store, DATA_DIR, info, session.0).await?;
            }
        }
        Ok(listing)
    }

    async fn add(
        &mut self,
        store: &dyn Store,
        above: &str,
        info: FileInfo,
        epoch: u32,
    ) -> Result<()> {
        let path = format!("{above}/{}", info.name);
        self.dirs.push(Dir {
            files: list(store, &path).await?,
            is_log: above == LOG_DIR,
            path,
            info,
            epoch,
        });
        Ok(())
    }

    /// What is of no use any more, whatever its age.
    pub fn orphans(&self, index: &Index, scope: &Scope<'_>) -> Vec<Orphan> {
        let mut found = Vec::new();
        temporary(META_DIR, &self.meta, &mut found);
        self.owners(scope, &mut found);
        self.snapshots(index, scope, &mut found);
        for dir in self.dirs.iter().filter(|d| d.epoch <= scope.epoch.0) {
            dir.orphans(index, scope, &mut found);
        }
        found
    }

    fn owners(&self, scope: &Scope<'_>, found: &mut Vec<Orphan>) {
        temporary(OWNER_DIR, &self.owner, found);
        let parse = |file: &FileInfo| {
            let (number, kind) = match file.name.split_once('.') {
                Some((number, kind)) => (number.to_string(), Some(kind.to_string())),
                None => (file.name.clone(), None),
            };
            Some((number.parse::<u32>().ok()?, kind))
        };
        let names: Vec<_> = self
            .owner
            .iter()
            .filter_map(|f| Some((f, parse(f)?)))
            .collect();
        let released = |kind: &Option<String>| kind.as_deref() == Some("released");
        let ends = names.iter().filter(|(_, (_, kind))| released(kind));
        let last_released = ends.map(|(_, (epoch, _))| *epoch).max();
        for (file, (epoch, kind)) in &names {
            let (what, short) = match kind.as_deref() {
                None if *epoch < scope.epoch.0 => ("the name of a past owner", false),
                // The last one says where the log ends.
                Some("released") if Some(*epoch) < last_released && *epoch < scope.epoch.0 => {
                    ("the end of a past owner", false)
                }
                Some(kind) if kind.starts_with("claim.") || kind.starts_with("answer.") => {
                    ("a claim of the root that is over", true)
                }
                _ => continue,
            };
            if *epoch <= scope.epoch.0 {
                let path = format!("{OWNER_DIR}/{}", file.name);
                let orphan = Orphan::new(path, file, what);
                let usual = !short;
                found.push(Orphan {
                    short,
                    usual,
                    ..orphan
                });
            }
        }
    }

    fn snapshots(&self, index: &Index, scope: &Scope<'_>, found: &mut Vec<Orphan>) {
        temporary(SNAPSHOT_DIR, &self.snapshots, found);
        for file in &self.snapshots {
            let what = if let Some(from) = segment::parse_snapshot_name(&file.name) {
                // From before a rebuild: left for whoever tries another one.
                if from < scope.origin.pos || from >= index.log_needed() {
                    continue;
                }
                "a superseded snapshot"
            // One of this owner may be the one that is being written.
            } else if segment::parse_unfinished_snapshot(&file.name)
                .is_some_and(|epoch| epoch < scope.epoch)
            {
                "an unfinished snapshot"
            } else {
                continue;
            };
            let path = format!("{SNAPSHOT_DIR}/{}", file.name);
            found.push(Orphan::new(path, file, what));
        }
    }
}

impl Dir {
    fn orphans(&self, index: &Index, scope: &Scope<'_>, found: &mut Vec<Orphan>) {
        let dead = self.epoch < scope.epoch.0;
        if self.files.is_empty() && dead {
            let orphan = Orphan::new(self.path.clone(), &self.info, "an empty directory");
            found.push(Orphan {
                usual: true,
                ..orphan
            });
        }
        temporary(&self.path, &self.files, found);
        for file in self.files.iter().filter(|f| !f.is_dir) {
            let path = format!("{}/{}", self.path, file.name);
            if self.is_log && dead && file.name.ends_with(".seg.rebuilding") {
                found.push(Orphan::new(path, file, "an unfinished rebuild"));
                continue;
            }
            let Some(name) = segment::parse_file_name(&file.name).map(|n| self.name(n)) else {
                continue;
            };
            // Where a path depends on it, a directory that was not fenced holds nothing of ours.
            let ours = !dead || segment::path(&name, scope.epoch) == path;
            if ours && self.is_unused(&name, file, index, scope) {
                let orphan = Orphan::new(path, file, "a segment that no index knows");
                let segment = Some(name);
                found.push(Orphan { segment, ..orphan });
            }
        }
    }

    fn name(&self, n: u32) -> SegmentName {
        match self.is_log {
            true => SegmentName::Log {
                epoch: Epoch(self.epoch),
                n,
            },
            false => SegmentName::Lane {
                session: crate::base::SessionId(self.epoch),
                n,
            },
        }
    }

    fn is_unused(
        &self,
        name: &SegmentName,
        file: &FileInfo,
        index: &Index,
        scope: &Scope<'_>,
    ) -> bool {
        // A rebuild leaves what it could not read, for whoever tries another one.
        if self.epoch < scope.origin.epoch.0 || !is_unknown(name, index, scope) {
            return false;
        }
        // A log segment of the past with a whole header is known, or damaged: then `fsck` says so.
        !self.is_log || self.epoch == scope.epoch.0 || file.len < HEADER_LEN as u64
    }
}

fn is_unknown(name: &SegmentName, index: &Index, scope: &Scope<'_>) -> bool {
    index.segment(name).is_none() && !(scope.claimed)(name)
}

fn temporary(dir: &str, files: &[FileInfo], found: &mut Vec<Orphan>) {
    for file in files.iter().filter(|f| f.name.starts_with(TEMPORARY)) {
        let path = format!("{dir}/{}", file.name);
        let orphan = Orphan::new(path, file, "a file that was not finished");
        found.push(Orphan {
            short: true,
            ..orphan
        });
    }
}

async fn list(store: &dyn Store, dir: &str) -> Result<Vec<FileInfo>> {
    match store.list(dir).await {
        Err(e) if e.is(ErrorKind::NotFound) => Ok(Vec::new()),
        listed => listed.context(format_args!("listing {dir}")),
    }
}

/// What a mounted root has, and the store's time.
pub async fn look(root: &dyn Root) -> Result<(Vec<Orphan>, Timestamp)> {
    let listing = Listing::of(&**root.store()).await?;
    let mut found = Vec::new();
    root.view(&mut |index| {
        found = listing.orphans(index, &scope_of(root, &|n| root.is_claimed(n)))
    });
    let now = match found.is_empty() {
        true => 0,
        false => root.store().now().await?,
    };
    Ok((found, now))
}

fn scope_of<'a>(root: &dyn Root, claimed: &'a dyn Fn(&SegmentName) -> bool) -> Scope<'a> {
    Scope {
        epoch: root.epoch(),
        origin: root.origin(),
        claimed,
    }
}

/// Removes what is older than `age`: segments are condemned, everything else is deleted. Returns
/// how many.
pub async fn sweep(root: &dyn Root, deletion: &Deletion, age: Duration) -> Result<u64> {
    let (mut found, now) = look(root).await?;
    found.retain(|o| o.wait(now, age).is_zero());
    if found.is_empty() {
        return Ok(0);
    }
    let pos = root.commit(&mut |index| {
        let claimed = |n: &SegmentName| root.is_claimed(n);
        record(index, &scope_of(root, &claimed), &found)
    })?;
    root.durable(pos).await?;
    let mut gone = 0;
    for orphan in &found {
        debug!(
            "orphan {}: {}, {} bytes",
            orphan.path, orphan.what, orphan.size
        );
        gone += match orphan.segment {
            Some(_) => 1,
            None => u64::from(deletion.file(root, &orphan.path).await?),
        };
    }
    info!("{gone} files and directories of no use were removed or condemned");
    Ok(gone)
}

/// What must be durable before any of these goes.
fn record(index: &Index, scope: &Scope<'_>, orphans: &[Orphan]) -> Vec<Row> {
    // A segment row needs a stream; in this one there is nothing.
    let stream = index.next_stream();
    let segments = orphans.iter().filter_map(|o| Some((o.segment?, o.size)));
    let mut rows: Vec<Row> = segments
        .filter(|(name, _)| is_unknown(name, index, scope))
        .map(|(name, size)| {
            Row::Segment(SegmentRow {
                name,
                stream,
                base: 0,
                end: 0,
                state: SegmentState::Condemned,
                size,
            })
        })
        .collect();
    if !rows.is_empty() {
        let next = StreamId(stream.0.saturating_add(1));
        rows.insert(0, Row::StreamRange { next });
    }
    // It says nothing new; that it became durable shows that no other owner had begun.
    if let Some(Session {
        epoch,
        session,
        started,
    }) = index.session()
    {
        rows.push(Row::Session {
            epoch,
            session,
            started,
        });
    }
    rows
}
