//! `fsck --rebuild`: saves the namespace of a root whose log is damaged.
//!
//! Takes the root over like a mount, reads every segment there is, and writes what it could save as
//! the first segment of a log that begins anew (see `Origin`). That segment appears under its name
//! by one rename when it is whole, so a rebuild that is interrupted changes nothing. No segment is
//! changed or deleted; each becomes a stream of its own, of which the new log says what is in use.

mod names;
mod places;
mod salvage;
mod write;

use super::report::Problem;
use super::shown;
use super::survey::{Found, identify, survey};
use super::walk::{Walk, walk};
use crate::base::error::Context;
use crate::base::{Clock, Epoch, Error, ErrorKind, Pos, Result, SessionId};
use crate::format::FORMAT_VERSION;
use crate::log;
use crate::segment::{self, DATA_DIR, FORMAT_FILE, LOG_DIR, META_DIR, OWNER_DIR};
use crate::store::Store;
use crate::volume::owner::{self, Claimant};
use crate::volume::root::{RootFormat, read_format};
use crate::volume::{self, fence_past_epochs};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

pub struct RebuildOptions {
    pub clock: Arc<dyn Clock>,
    pub host: String,
    pub pid: u32,
    pub lock_dir: Option<std::path::PathBuf>,
    pub takeover: bool,
    /// Segments that are read at the same time.
    pub parallel: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RebuildReport {
    pub epoch: u32,
    pub segments: u64,
    pub records: u64,
    pub files: u64,
    pub directories: u64,
    /// Files and directories that are in `lost+found` now.
    pub lost_and_found: u64,
    /// Files some of whose bytes are gone: reading those is an error.
    pub damaged: Vec<Problem>,
    /// What was lost or doubtful.
    pub notes: Vec<String>,
}

impl fmt::Display for RebuildReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.damaged {
            writeln!(f, "damaged: {problem}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {}", shown(note))?;
        }
        write!(
            f,
            "rebuilt as epoch {} from {} segments and {} records: {} files, {} directories; {} in \
             lost+found, {} damaged",
            self.epoch,
            self.segments,
            self.records,
            self.files,
            self.directories,
            self.lost_and_found,
            self.damaged.len()
        )
    }
}

/// A segment file and everything in it that can be read.
struct Source {
    found: Found,
    walk: Walk,
}

pub async fn rebuild(store: Arc<dyn Store>, options: &RebuildOptions) -> Result<RebuildReport> {
    let mut report = RebuildReport::default();
    let format = settle_format(&*store, &*options.clock, &mut report).await?;
    let who = Claimant {
        host: &options.host,
        pid: options.pid,
        since: options.clock.now(),
        lock_dir: options.lock_dir.as_deref(),
        takeover: options.takeover,
    };
    let ownership = owner::acquire(&*store, &format.uuid, who).await?;
    let epoch = ownership.epoch();
    report.epoch = epoch.0;
    fence_past_epochs(&*store, epoch).await?;
    let sources = read_everything(&store, options.parallel).await?;
    report.segments = sources.len() as u64;
    let start = salvage::start(&*store, format.uuid.as_bytes(), &sources, &mut report).await?;
    let snapshots = log::list_snapshots(&*store).await?;
    // A damaged promise is no reason to stop: the new log begins above all that exists anyway.
    let promised = owner::promised_end(&*store).await.unwrap_or(0);
    let known = sources.iter().map(end_of).chain(snapshots);
    let base = known.chain([promised]).max().unwrap_or(0) + 1;
    let rows = salvaged_rows(&sources, start, epoch, options.clock.now(), &mut report)?;
    let header = write::Header {
        root: format.uuid.into_bytes(),
        epoch,
        session: SessionId(epoch.0),
        base,
        created: options.clock.now(),
    };
    let end = write::publish(&*store, &header, &rows).await?;
    // What a mount will do; better to learn here that it cannot.
    let volume::Recovery { index, .. } = volume::recover(&*store, format.uuid.as_bytes(), None)
        .await
        .context("reading the rebuilt log")?;
    report.notes.extend(unexpected(&index, &report));
    ownership
        .release(&*store, end)
        .await
        .context("releasing the root")?;
    Ok(report)
}

/// No position of the old log may lie above this one.
fn end_of(source: &Source) -> Pos {
    source.walk.base.unwrap_or(0) + source.walk.len
}

/// Problems of the new index that are not about bytes known to be lost.
fn unexpected(index: &crate::index::Index, report: &RebuildReport) -> Vec<String> {
    match report.damaged.is_empty() {
        true => index.check(),
        false => Vec::new(),
    }
}

fn salvaged_rows(
    sources: &[Source],
    start: salvage::Start,
    epoch: Epoch,
    now: crate::base::Timestamp,
    report: &mut RebuildReport,
) -> Result<Vec<crate::format::Row>> {
    let mut salvage = salvage::from_records(sources, start, report)?;
    let places = places::Places::new(sources, &salvage);
    names::repair(&mut salvage.index, now, report)?;
    names::add_lost_frames(&mut salvage, sources, &places, now, report)?;
    names::count_links(&mut salvage.index, report)?;
    places.rows(&salvage.index, sources, epoch, now, report)
}

/// Reads FORMAT; makes it again if it is damaged or gone, by what the segments say.
async fn settle_format(
    store: &dyn Store,
    clock: &dyn Clock,
    report: &mut RebuildReport,
) -> Result<RootFormat> {
    let damaged = match read_format(store).await {
        Ok(format) => return Ok(format),
        Err(e) if e.is(ErrorKind::Corrupt) => true,
        Err(e) if e.is(ErrorKind::NotFound) => false,
        Err(e) => return Err(e.context(format_args!("opening {}", store.url()))),
    };
    let missing = format!("there is no stowfs root at {}", store.url());
    store.stat(META_DIR).await.context(missing)?;
    for dir in [OWNER_DIR, LOG_DIR, DATA_DIR] {
        store
            .mkdir(dir)
            .await
            .context(format_args!("making {dir}"))?;
    }
    let (uuid, created) = identify_or_invent(store, clock).await?;
    if damaged {
        let aside = format!("{FORMAT_FILE}.damaged.{}", clock.now());
        store
            .rename(FORMAT_FILE, &aside)
            .await
            .context(format_args!("moving {FORMAT_FILE} aside"))?;
    }
    let format = RootFormat {
        format_version: FORMAT_VERSION,
        uuid,
        created,
    };
    store
        .put(FORMAT_FILE, format.encode().into())
        .await
        .context(format_args!("writing {FORMAT_FILE}"))?;
    report.notes.push(format!(
        "{FORMAT_FILE} was {} and was written again",
        if damaged { "damaged" } else { "missing" }
    ));
    Ok(format)
}

async fn identify_or_invent(
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(uuid::Uuid, crate::base::Timestamp)> {
    let survey = survey(store).await?;
    if survey.segments.is_empty() {
        let text = format!("{} has no segments to rebuild from", store.url());
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    Ok(match identify(store, &survey).await? {
        Some((root, created)) => (uuid::Uuid::from_bytes(root), created),
        None => (uuid::Uuid::new_v4(), clock.now()),
    })
}

/// Closes what dead sessions left open, and reads every segment.
async fn read_everything(store: &Arc<dyn Store>, parallel: usize) -> Result<Vec<Source>> {
    let mut jobs = Vec::new();
    for mut found in survey(&**store).await?.segments {
        let store = store.clone();
        jobs.push(async move {
            let sealed = match walk(&*store, &found).await {
                Ok(walk) if matches!(walk.footer, Some(Ok(_))) => Some(walk),
                Ok(_) => None,
                Err(e) => return Err(e),
            };
            let walk = match sealed {
                Some(walk) => walk,
                None => {
                    let closing = format!("closing {}", found.path);
                    store.recover(&found.path).await.context(closing)?;
                    walk(&*store, &found).await?
                }
            };
            found.size = walk.len;
            Ok(Source { found, walk })
        });
    }
    futures::stream::iter(jobs)
        .buffered(parallel.max(1))
        .try_collect()
        .await
}

/// The epoch that fences a segment's session.
fn epoch_of(found: &Found) -> Epoch {
    match found.name {
        crate::base::SegmentName::Log { epoch, .. } => epoch,
        crate::base::SegmentName::Lane { session, .. } => Epoch(session.0),
    }
}

/// The path a segment will have for the mounts to come.
fn path_of(found: &Found, epoch: Epoch) -> String {
    segment::path(&found.name, epoch)
}
