//! `fsck`: is everything on the store as the log says? Reads only.
//!
//! Each segment is read once, from its start to its end, and its frames are compared with its
//! footer, with the rows about it, and with the extents of files that lie in it.

use super::report::{Problem, Report};
use super::segment_check::{Checked, Job};
use super::survey::{Found, Survey, identify, survey};
use super::text;
use crate::base::{Epoch, Error, ErrorKind, Ino, Result, SegmentName, StreamId};
use crate::format::segment::HEADER_LEN;
use crate::format::{Extent, ForeignRow, Origin, Row, SegmentRow, SegmentState};
use crate::index::Index;
use crate::log;
use crate::segment::{self, FORMAT_FILE, META_DIR, OWNER_DIR};
use crate::store::Store;
use crate::upkeep::orphans::{Listing, Scope, TEMPORARY};
use crate::volume::root::{RootFormat, read_format};
use crate::volume::{self, owner};
use futures::StreamExt;
use futures::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Orphans that a note names.
const NAMED: usize = 5;

/// Plain files that are looked at at the same time.
const LOOKS_AT_ONCE: usize = 16;

#[derive(Clone, Debug)]
pub struct FsckOptions {
    /// Segments that are read at the same time; each takes some 30 MiB of memory.
    pub parallel: usize,
}

impl Default for FsckOptions {
    fn default() -> FsckOptions {
        FsckOptions { parallel: 4 }
    }
}

/// An error means that the check could not be made; what is wrong with the root is in the report.
pub async fn fsck(store: Arc<dyn Store>, options: &FsckOptions) -> Result<Report> {
    let mut report = Report::default();
    let format = check_format(&*store, &mut report).await?;
    let unreleased = check_owner(&*store, &mut report).await?;
    let survey = survey(&*store).await?;
    note_survey(&survey, &mut report);
    let root = match &format {
        Some(format) => Some(format.uuid.into_bytes()),
        None => identify(&*store, &survey).await?.map(|(root, _)| root),
    };
    let log = read_log(&*store, root.unwrap_or_default(), &survey, &mut report).await?;
    check_snapshots(&*store, root, log.origin, &mut report).await?;
    if log.good {
        note_orphans(&*store, &log, &mut report).await?;
    }
    let mut wanted = log.wanted();
    check_foreign(&*store, &mut wanted, &log.index, &mut report).await?;
    let check = |found: &Found| {
        let job = Job {
            found: found.clone(),
            root,
            row: log.index.segment(&found.name).map(|s| s.row.clone()),
            log_is_good: log.good,
            // What earlier owners left open was closed by the next one.
            may_be_open: unreleased == Some(found.epoch()) && store.open_visibility().is_remote(),
            origin: log.origin,
            extents: wanted.segments.remove(&found.name).unwrap_or_default(),
        };
        let store = store.clone();
        async move { job.run(&*store).await }
    };
    let jobs: Vec<_> = survey.segments.iter().map(check).collect();
    let done: Vec<Result<Checked>> = futures::stream::iter(jobs)
        .buffered(options.parallel.max(1))
        .collect()
        .await;
    for checked in done {
        let checked = checked?;
        report.merge(checked.report);
        for (mut problem, ino) in checked.damaged {
            problem.file = Some(label(&log.index, ino));
            report.problems.push(problem);
        }
    }
    for (ino, e) in wanted.nowhere {
        report.problems.push(Problem {
            path: segment::LOG_DIR.into(),
            offset: None,
            file: Some(label(&log.index, ino)),
            what: format!("no segment of the log has position {}", e.pos),
        });
    }
    for (name, extents) in wanted.segments {
        log.missing(name, &extents, &mut report);
    }
    Ok(report)
}

async fn check_format(store: &dyn Store, report: &mut Report) -> Result<Option<RootFormat>> {
    match read_format(store).await {
        Ok(format) => Ok(Some(format)),
        Err(e) if e.is(ErrorKind::Corrupt) => {
            report.problem(FORMAT_FILE, Some(0), e.to_string());
            Ok(None)
        }
        Err(e) if e.is(ErrorKind::NotFound) => match store.stat(META_DIR).await {
            Ok(_) => {
                report.problem(FORMAT_FILE, None, "the file is missing");
                Ok(None)
            }
            Err(e) if e.is(ErrorKind::NotFound) => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no stowfs root at {}", store.url()),
            )),
            Err(e) => Err(e.context(format_args!("looking at {}", store.url()))),
        },
        Err(e) => Err(e.context(format_args!("opening {}", store.url()))),
    }
}

/// Returns the last epoch if it did not end cleanly.
async fn check_owner(store: &dyn Store, report: &mut Report) -> Result<Option<u32>> {
    let found = match owner::look(store).await {
        Err(e) if e.is(ErrorKind::NotFound) => {
            report.problem(OWNER_DIR, None, "the directory is missing");
            return Ok(None);
        }
        found => found?,
    };
    // Files that were being put are orphans, or will be.
    let strange = found.strange.iter().filter(|n| !n.starts_with(TEMPORARY));
    for name in strange {
        report.note(format!("{OWNER_DIR}/{name} is not stowfs's"));
    }
    if found.highest == 0 {
        return Ok(None);
    }
    match owner::read_owner(store, found.highest).await {
        Ok(owner) if owner.epoch != found.highest => {
            let text = format!("it is about epoch {}", owner.epoch);
            report.problem(&format!("{OWNER_DIR}/{}", found.highest), Some(0), text);
        }
        Ok(owner) if !found.released => report.note(format!(
            "the root was not released: it is mounted now, or its owner died ({}). If it is \
             mounted, what is being written may look damaged here; unmount it and run fsck again",
            owner.describe()
        )),
        Ok(_) => {}
        Err(e) if e.is(ErrorKind::Corrupt) => {
            report.problem(
                &format!("{OWNER_DIR}/{}", found.highest),
                Some(0),
                e.to_string(),
            );
        }
        Err(e) => return Err(e),
    }
    Ok((!found.released).then_some(found.highest))
}

fn note_survey(survey: &Survey, report: &mut Report) {
    for dir in &survey.missing {
        report.problem(dir, None, "the directory is missing");
    }
    for path in &survey.strange {
        report.note(format!("{path} is not a segment"));
    }
}

/// What the log says.
struct Log {
    index: Index,
    /// Whether all of the log could be replayed.
    good: bool,
    origin: Origin,
}

async fn read_log(
    store: &dyn Store,
    root: [u8; 16],
    survey: &Survey,
    report: &mut Report,
) -> Result<Log> {
    let volume::Recovery {
        mut index,
        log,
        origin,
        ..
    } = match volume::recover(store, &root, None).await {
        Ok(found) => found,
        Err(e) if e.is(ErrorKind::Corrupt) || e.is(ErrorKind::NotFound) => {
            report.problem("", None, e.to_string());
            report.note("without the log, the extents of files were not checked");
            let index = Index::new();
            return Ok(Log {
                index,
                good: false,
                origin: Origin::default(),
            });
        }
        Err(e) => return Err(e),
    };
    close_open_lanes(&mut index, survey)?;
    report.records = log.records;
    report.inodes = index.inodes() as u64;
    for what in index.check() {
        report.problem("", None, what);
    }
    Ok(Log {
        index,
        good: true,
        origin,
    })
}

async fn check_snapshots(
    store: &dyn Store,
    root: Option<[u8; 16]>,
    origin: Origin,
    report: &mut Report,
) -> Result<()> {
    for from in log::list_snapshots(store).await? {
        let path = segment::snapshot_path(from);
        if from < origin.pos {
            report.note(format!("{path} is from before a rebuild and is not used"));
            continue;
        }
        match log::visit_snapshot(store, &path, &mut |_| Ok(())).await {
            Ok(header) if header.from != from || root.is_some_and(|root| root != header.root) => {
                report.problem(&path, Some(0), "it is another root's, or was renamed");
            }
            Ok(_) => {}
            Err(e) if e.is(ErrorKind::Corrupt) => report.problem(&path, None, e.to_string()),
            // A mount that goes on deletes old ones.
            Err(e) if e.is(ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Files of no use that the next mount removes; segments among them are noted one by one.
async fn note_orphans(store: &dyn Store, log: &Log, report: &mut Report) -> Result<()> {
    let scope = Scope {
        epoch: Epoch(owner::look(store).await?.highest),
        origin: log.origin,
        claimed: &|_| true,
    };
    let mut orphans = Listing::of(store).await?.orphans(&log.index, &scope);
    orphans.retain(|o| !o.usual);
    if orphans.is_empty() {
        return Ok(());
    }
    let bytes: u64 = orphans.iter().map(|o| o.size).sum();
    let some = orphans.iter().take(NAMED);
    let some: Vec<String> = some.map(|o| format!("{} ({})", o.path, o.what)).collect();
    let more = if orphans.len() > NAMED { ", …" } else { "" };
    report.note(format!(
        "{} orphans ({bytes} bytes), which a mount removes when they are older than orphan-age: {}{more}",
        orphans.len(),
        some.join(", ")
    ));
    Ok(())
}

/// What the next mount does with lanes that a dead session left open, without writing it down.
pub(super) fn close_open_lanes(index: &mut Index, survey: &Survey) -> Result<()> {
    for found in survey.segments.iter().filter(|f| !f.is_log()) {
        let row = index.segment(&found.name).map(|s| s.row.clone());
        if let Some(row) = row.filter(|r| r.state == SegmentState::Open) {
            let end = row.base + found.size.saturating_sub(HEADER_LEN as u64);
            index.apply(&Row::Segment(SegmentRow {
                end,
                state: SegmentState::Sealed,
                // Not known to be final, so not compared.
                size: 0,
                ..row
            }))?;
        }
    }
    Ok(())
}

/// Where the bytes of files must be.
#[derive(Default)]
struct Wanted {
    /// In the log, but in none of its segments. (`Index::check` takes them for the open segment's;
    /// those of other streams it finds.)
    nowhere: Vec<(Ino, Extent)>,
    segments: BTreeMap<SegmentName, Vec<(Ino, Extent)>>,
    foreign: BTreeMap<StreamId, BTreeSet<Ino>>,
}

impl Log {
    fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        for ino in self.index.inos() {
            for e in self.index.extents(ino, 0, u64::MAX) {
                if e.frame == 0 {
                    wanted.foreign.entry(e.stream).or_default().insert(ino);
                } else if let Some(s) = self.index.segment_at(e.stream, e.pos) {
                    wanted
                        .segments
                        .entry(s.row.name)
                        .or_default()
                        .push((ino, e));
                } else if e.stream == StreamId::LOG {
                    wanted.nowhere.push((ino, e));
                }
            }
        }
        wanted
    }

    /// A segment that files need, and that is not on the store.
    fn missing(&self, name: SegmentName, extents: &[(Ino, Extent)], report: &mut Report) {
        let epoch = self.index.session().map(|s| s.epoch).unwrap_or_default();
        let inos: BTreeSet<Ino> = extents.iter().map(|(ino, _)| *ino).collect();
        for ino in inos {
            report.problems.push(Problem {
                path: segment::path(&name, epoch),
                offset: None,
                file: Some(label(&self.index, ino)),
                what: "the segment is missing".into(),
            });
        }
    }
}

fn label(index: &Index, ino: Ino) -> String {
    match index.path(ino) {
        Some(path) => format!("/{}", text(&path)),
        None => format!("inode {ino}"),
    }
}

async fn check_foreign(
    store: &dyn Store,
    wanted: &mut Wanted,
    index: &Index,
    report: &mut Report,
) -> Result<()> {
    let foreign: Vec<_> = std::mem::take(&mut wanted.foreign).into_iter().collect();
    for some in foreign.chunks(LOOKS_AT_ONCE) {
        let jobs = some
            .iter()
            .filter_map(|(stream, inos)| Some((index.foreign(*stream)?, inos)))
            .map(|(foreign, inos)| async move {
                Ok::<_, Error>((foreign, inos, changed(store, foreign).await?))
            });
        for (foreign, inos, what) in try_join_all(jobs).await? {
            let Some(what) = what else { continue };
            let path = text(&foreign.path);
            report.problems.extend(inos.iter().map(|ino| Problem {
                path: path.clone(),
                offset: None,
                file: Some(label(index, *ino)),
                what: format!("a plain file from before stowfs: {what}"),
            }));
        }
    }
    Ok(())
}

/// What is wrong with a plain file.
async fn changed(store: &dyn Store, foreign: &ForeignRow) -> Result<Option<String>> {
    let path = segment::utf8(&foreign.path)?;
    Ok(match store.stat(path).await {
        Ok(info) if info.len != foreign.len => Some(format!(
            "it has {} bytes instead of {}",
            info.len, foreign.len
        )),
        Ok(info) if info.mtime != foreign.mtime => {
            Some("it was changed after it was taken in".into())
        }
        Ok(_) => None,
        Err(e) if e.is(ErrorKind::NotFound) => Some("it is missing".into()),
        Err(e) => return Err(e.context(format_args!("looking at {path}"))),
    })
}
