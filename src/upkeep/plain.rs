//! Deletes plain files and directories from before stowfs that nothing refers to any more.
//!
//! The rules are those of segments (`gc`): unreferenced for the grace period, the change that took
//! the last reference durable, no read from before it under way, all confirmed in the step that
//! condemns; then deleted, then forgotten. One more: what somebody else has changed is not
//! stowfs's to delete, and stays.

use super::Root;
use super::deletion::Deletion;
use super::gc::GcOptions;
use super::plan::{PlainLine, whole_seconds};
use crate::base::{Error, ErrorKind, Pos, Result, StreamId};
use crate::format::{ForeignHold, ForeignState, Row};
use crate::index::{Foreign, Index};
use crate::segment;
use crate::store::path;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Rows in one record.
const BATCH: usize = 4096;
/// Deletions in one pass, so that others get a look in between.
const DELETED_AT_ONCE: u64 = 32;
/// When nothing was left but directories with something in them, they are looked at again after this:
/// that is a look at all plain files.
const DIRECTORIES_AGAIN: Duration = Duration::from_secs(60);

/// Since when, and since which position of the log, nothing refers to it.
#[derive(Clone, Copy)]
struct Idle {
    since: Instant,
    pos: Pos,
    /// `Foreign::begun`: another number means that it was in use again meanwhile.
    begun: u32,
}

/// What is remembered between passes. Losing it costs a further grace period.
#[derive(Default)]
pub struct PlainGc {
    waiting: BTreeMap<StreamId, Idle>,
    /// Directories are not looked at before this.
    directories: Option<Instant>,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub bytes: u64,
    /// Left alone, because somebody has changed them.
    pub kept: u64,
    pub directories: u64,
    /// Directories that wait for what is in them.
    stuck: u64,
}

impl Removed {
    /// Whether there may be more to do at once.
    pub fn any(&self) -> bool {
        self.files + self.kept + self.directories > 0
    }

    pub fn add(&mut self, other: &Removed) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.kept += other.kept;
        self.directories += other.directories;
    }
}

enum End {
    Deleted,
    Kept,
}

impl PlainGc {
    /// One pass: notes what nothing refers to, condemns what is due, deletes what is condemned.
    pub async fn pass(
        &mut self,
        root: &dyn Root,
        options: &GcOptions,
        deletion: &Deletion,
    ) -> Result<Removed> {
        self.note(root);
        let due = self.due(root, options).await?;
        for some in due.chunks(BATCH) {
            let pos = root.commit(&mut |index| condemn(index, some, &self.waiting))?;
            root.durable(pos).await?;
        }
        let with_directories = self.directories.is_none_or(|at| Instant::now() >= at);
        let removed = delete_condemned(root, deletion, with_directories).await?;
        if removed.any() {
            self.directories = None;
        } else if with_directories && removed.stuck > 0 {
            self.directories = Some(Instant::now() + DIRECTORIES_AGAIN);
        }
        Ok(removed)
    }

    /// What a pass would do now, and what it waits for.
    pub fn plan(&mut self, root: &dyn Root, options: &GcOptions) -> Vec<PlainLine> {
        self.note(root);
        let oldest = root.oldest_read();
        let mut lines = Vec::new();
        root.view(&mut |index| {
            for foreign in index.condemned_foreign() {
                lines.push(line(foreign, "delete (condemned already)".into()));
            }
            for foreign in index.idle_foreign() {
                let Some(idle) = self.waiting.get(&foreign.row.stream) else {
                    continue;
                };
                let grace = options.grace.saturating_sub(idle.since.elapsed());
                let action = match grace.is_zero() {
                    false => format!("delete in {}", whole_seconds(grace)),
                    true if oldest < idle.pos => "delete when a read has ended".into(),
                    true => "delete".into(),
                };
                lines.push(line(foreign, action));
            }
        });
        lines
    }

    fn note(&mut self, root: &dyn Root) {
        let mut seen = BTreeMap::new();
        root.view(&mut |index| {
            for foreign in index.idle_foreign() {
                let new = Idle {
                    since: Instant::now(),
                    pos: root.log_end(),
                    begun: foreign.begun,
                };
                let known = self.waiting.get(&foreign.row.stream).copied();
                let known = known.filter(|idle| idle.begun == foreign.begun);
                seen.insert(foreign.row.stream, known.unwrap_or(new));
            }
        });
        self.waiting = seen;
    }

    async fn due(&self, root: &dyn Root, options: &GcOptions) -> Result<Vec<StreamId>> {
        let oldest = root.oldest_read();
        let ready = |idle: &Idle| idle.since.elapsed() >= options.grace && oldest >= idle.pos;
        let due: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, idle)| ready(idle))
            .collect();
        if let Some(pos) = due.iter().map(|(_, idle)| idle.pos).max() {
            root.durable(pos).await?;
        }
        Ok(due.into_iter().map(|(stream, _)| *stream).collect())
    }
}

fn line(foreign: &Foreign, action: String) -> PlainLine {
    PlainLine {
        path: String::from_utf8_lossy(&foreign.row.path).into_owned(),
        size: foreign.row.len,
        action,
    }
}

/// Deletes some of what is condemned. Nothing is deleted before the record that condemns it is
/// durable: an owner that was fenced cannot write one.
async fn delete_condemned(
    root: &dyn Root,
    deletion: &Deletion,
    with_directories: bool,
) -> Result<Removed> {
    let (mut condemned, mut pos): (Vec<Foreign>, _) = (Vec::new(), 0);
    // How many that are not gone yet lie in a directory.
    let mut inside: FxHashMap<Vec<u8>, u64> = FxHashMap::default();
    root.view(&mut |index| {
        pos = root.log_end();
        let those = index.condemned_foreign();
        condemned.extend(
            those
                .filter(|f| with_directories || !f.hold.is_dir)
                .cloned(),
        );
        if condemned.iter().any(|f| f.hold.is_dir) {
            for foreign in index.foreign_files() {
                *inside.entry(parent(&foreign.row.path)).or_default() += 1;
            }
        }
    });
    if condemned.is_empty() {
        return Ok(Removed::default());
    }
    root.durable(pos).await?;
    // Files first, then directories, and of these the innermost first.
    condemned.sort_by_key(|f| (f.hold.is_dir, Reverse(f.row.path.clone())));
    let mut removed = Removed::default();
    for foreign in condemned {
        let left = inside.get(&foreign.row.path).is_some_and(|n| *n > 0);
        if foreign.hold.is_dir && left {
            removed.stuck += 1;
            continue;
        }
        if removed.files + removed.kept + removed.directories >= DELETED_AT_ONCE {
            break;
        }
        deletion.turn(foreign.row.len).await;
        match delete(root, &foreign).await? {
            End::Kept => removed.kept += 1,
            End::Deleted => {
                removed.files += u64::from(!foreign.hold.is_dir);
                removed.directories += u64::from(foreign.hold.is_dir);
                removed.bytes += foreign.row.len;
            }
        }
        let gone = hold(&foreign, ForeignState::Gone);
        root.commit(&mut |_| vec![gone.clone()])?;
        if let Some(n) = inside.get_mut(&parent(&foreign.row.path)) {
            *n -= 1;
        }
    }
    Ok(removed)
}

fn parent(path: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    path[..end].to_vec()
}

fn hold(foreign: &Foreign, state: ForeignState) -> Row {
    Row::ForeignHold(ForeignHold {
        state,
        ..foreign.hold.clone()
    })
}

/// The rows that condemn those of `due` that nothing refers to even now, nor did meanwhile.
fn condemn(index: &Index, due: &[StreamId], waiting: &BTreeMap<StreamId, Idle>) -> Vec<Row> {
    let still = due.iter().filter(|stream| index.is_idle_foreign(**stream));
    still
        .filter_map(|stream| index.foreign_use(*stream))
        .filter(|f| {
            waiting
                .get(&f.row.stream)
                .is_some_and(|idle| idle.begun == f.begun)
        })
        .map(|foreign| hold(foreign, ForeignState::Condemned))
        .collect()
}

async fn delete(root: &dyn Root, foreign: &Foreign) -> Result<End> {
    let at = segment::utf8(&foreign.row.path)?;
    path::check(at)?;
    let store = root.store();
    let what = match store.stat(at).await {
        Err(e) if e.is(ErrorKind::NotFound) => return Ok(End::Deleted),
        Err(e) => return Err(e.context(format_args!("looking at {at}"))),
        Ok(info) if info.is_dir && foreign.hold.is_dir => None,
        Ok(info) if info.is_dir => Some("it is a directory now"),
        // Deleting it by its name would delete somebody's file.
        Ok(_) if foreign.hold.is_dir => Some("it is a file now"),
        Ok(info) if info.len != foreign.row.len => Some("its length is another"),
        Ok(info) if info.mtime != foreign.row.mtime => Some("it was written again"),
        Ok(_) => None,
    };
    if let Some(what) = what {
        tracing::warn!(
            "/{at} was removed from the mount, but what has its name on the store stays: somebody has \
             changed it since ({what}); delete it on the store if nobody needs it"
        );
        return Ok(End::Kept);
    }
    root.forget_reader(at);
    match store.delete(at).await {
        Err(e) if e.is(ErrorKind::NotFound) => Ok(End::Deleted),
        // Something is in it that stowfs does not know.
        Err(e) if e.is(ErrorKind::Invalid) && foreign.hold.is_dir => Ok(End::Kept),
        Err(e) if e.is(ErrorKind::Denied) => {
            tracing::warn!("the plain file /{at} stays, though nothing refers to it: {e}");
            Ok(End::Kept)
        }
        deleted => deleted
            .map(|()| End::Deleted)
            .map_err(|e: Error| e.context(format_args!("deleting {at}"))),
    }
}
