//! `segments`: what each segment holds and how much of it is still in use.

use super::fsck::close_open_lanes;
use super::survey::survey;
use crate::base::error::Context;
use crate::base::{Epoch, ErrorKind, Ino, Result, SegmentName};
use crate::format::SegmentState;
use crate::index::Index;
use crate::segment;
use crate::store::Store;
use crate::upkeep::orphans::{self, Listing, Orphan, Scope};
use crate::volume::{self, Volume, owner};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Inodes that are looked at under one lock.
const INODES_AT_ONCE: usize = 4096;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentLine {
    pub name: String,
    /// The file on the store.
    pub path: String,
    pub state: String,
    pub size: u64,
    pub live_bytes: u64,
    pub files: u64,
    /// Size / live bytes; none if nothing is live.
    pub amplification: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segments {
    pub segments: Vec<SegmentLine>,
    pub size: u64,
    pub live_bytes: u64,
    pub files: u64,
    pub amplification: Option<f64>,
    /// Files that are of no use any more and that no index knows, but for those that each mount leaves.
    pub orphans: Vec<String>,
}

/// Counts files per segment, some inodes at a time.
#[derive(Default)]
struct Files {
    per_segment: BTreeMap<SegmentName, u64>,
    total: u64,
}

impl Files {
    fn add(&mut self, index: &Index, inos: &[Ino]) {
        for ino in inos {
            let extents = index.extents(*ino, 0, u64::MAX);
            let names: BTreeSet<SegmentName> = extents
                .iter()
                .filter(|e| e.frame != 0)
                .filter_map(|e| Some(index.segment_at(e.stream, e.pos)?.row.name))
                .collect();
            self.total += u64::from(index.attr(*ino).is_some_and(|a| a.is_file()));
            for name in names {
                *self.per_segment.entry(name).or_default() += 1;
            }
        }
    }
}

/// From the store, without touching it.
pub async fn segments_of_store(store: &dyn Store) -> Result<Segments> {
    // A store without a root has no segments to show.
    let format = volume::root::read_format(store)
        .await
        .context(format_args!("opening {}", store.url()))?;
    let survey = survey(store).await?;
    let volume::Recovery {
        mut index, origin, ..
    } = volume::recover(store, format.uuid.as_bytes(), None).await?;
    let scope = Scope {
        epoch: Epoch(owner::look(store).await?.highest),
        origin,
        claimed: &|_| false,
    };
    let unused = Listing::of(store).await?.orphans(&index, &scope);
    close_open_lanes(&mut index, &survey)?;
    let mut files = Files::default();
    files.add(&index, &index.inos());
    let sizes: BTreeMap<_, _> = survey.segments.iter().map(|f| (f.name, f.size)).collect();
    let epoch = index.session().map(|s| s.epoch).unwrap_or_default();
    // The path of the last epoch's log depends on whether anybody followed.
    let paths: BTreeMap<_, _> = survey.segments.iter().map(|f| (f.name, &f.path)).collect();
    let mut table = table(&index, epoch, &files);
    for (line, name) in table.segments.iter_mut().zip(names(&index)) {
        if let Some(path) = paths.get(&name) {
            line.path = path.to_string();
        }
        if line.size == 0 {
            line.set_size(sizes.get(&name).copied().unwrap_or(0));
        }
    }
    table.add_up();
    let known: BTreeSet<SegmentName> = names(&index).collect();
    let unknown = survey.segments.iter().filter(|f| !known.contains(&f.name));
    let mut orphans: BTreeSet<String> = unknown.map(|f| f.path.clone()).collect();
    orphans.extend(paths_of(unused));
    table.orphans = orphans.into_iter().collect();
    Ok(table)
}

/// From a running mount. Does not stop it for long, so the numbers are not of one moment.
pub async fn segments_of_volume(volume: &Volume) -> Result<Segments> {
    let mut files = Files::default();
    let inos = volume.read(Index::inos);
    for some in inos.chunks(INODES_AT_ONCE) {
        volume.read(|index| files.add(index, some));
        tokio::task::yield_now().await;
    }
    let epoch = volume.epoch();
    let (mut table, names) = volume.read(|index| {
        (
            table(index, epoch, &files),
            names(index).collect::<Vec<_>>(),
        )
    });
    for (line, _) in table.segments.iter_mut().zip(names) {
        if line.size == 0 {
            match volume.store().stat(&line.path).await {
                Ok(info) => line.set_size(info.len),
                Err(e) if e.is(ErrorKind::NotFound) => {}
                Err(e) => return Err(e.context(format_args!("looking at {}", line.path))),
            }
        }
    }
    table.add_up();
    let (unused, _) = orphans::look(volume).await?;
    table.orphans = paths_of(unused).collect();
    table.orphans.sort();
    Ok(table)
}

fn paths_of(orphans: Vec<Orphan>) -> impl Iterator<Item = String> {
    let strange = orphans.into_iter().filter(|o| !o.usual);
    strange.map(|o| o.path)
}

fn names(index: &Index) -> impl Iterator<Item = SegmentName> {
    index.segments().map(|s| s.row.name)
}

fn table(index: &Index, epoch: Epoch, files: &Files) -> Segments {
    let line = |s: &crate::index::SegmentUse| {
        let mut line = SegmentLine {
            name: s.row.name.to_string(),
            path: segment::path(&s.row.name, epoch),
            state: state(s.row.state).into(),
            size: s.row.size,
            live_bytes: s.live.bytes,
            files: files.per_segment.get(&s.row.name).copied().unwrap_or(0),
            amplification: None,
        };
        line.set_size(s.row.size);
        line
    };
    Segments {
        segments: index.segments().map(line).collect(),
        files: files.total,
        ..Segments::default()
    }
}

fn state(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Open => "open",
        SegmentState::Sealed => "sealed",
        SegmentState::Condemned => "condemned",
        SegmentState::Deleted => "deleted",
    }
}

fn ratio(size: u64, live: u64) -> Option<f64> {
    (live > 0).then(|| size as f64 / live as f64)
}

impl SegmentLine {
    fn set_size(&mut self, size: u64) {
        self.size = size;
        self.amplification = ratio(self.size, self.live_bytes);
    }
}

impl Segments {
    fn add_up(&mut self) {
        self.size = self.segments.iter().map(|s| s.size).sum();
        self.live_bytes = self.segments.iter().map(|s| s.live_bytes).sum();
        self.amplification = ratio(self.size, self.live_bytes);
    }
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |a: Option<f64>| a.map_or("-".to_string(), |a| format!("{a:.2}"));
        let names = self.segments.iter().map(|s| s.name.len());
        let width = names.max().unwrap_or(0).max("SEGMENT".len());
        writeln!(
            f,
            "{:width$}  {:9}  {:>14}  {:>14}  {:>9}  {:>13}",
            "SEGMENT", "STATE", "SIZE", "LIVE", "FILES", "AMPLIFICATION"
        )?;
        let mut row = |name: &str, state: &str, size, live, files, amplification| {
            let a = shown(amplification);
            writeln!(
                f,
                "{name:width$}  {state:9}  {size:>14}  {live:>14}  {files:>9}  {a:>13}"
            )
        };
        for s in &self.segments {
            row(
                &s.name,
                &s.state,
                s.size,
                s.live_bytes,
                s.files,
                s.amplification,
            )?;
        }
        row(
            "total",
            "",
            self.size,
            self.live_bytes,
            self.files,
            self.amplification,
        )?;
        for path in &self.orphans {
            writeln!(f, "orphan: {}", super::shown(path))?;
        }
        Ok(())
    }
}
