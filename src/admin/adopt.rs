//! `adopt`: takes plain files in that are not known yet, and on request packs them.

use super::{shown, size};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use crate::index::Index;
use crate::store::Store;
use crate::upkeep::compact::Copied;
use crate::upkeep::pack::pack;
use crate::volume::{self, Plan, Refused, Volume};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AdoptRequest {
    /// Path below the root; empty: everything.
    pub path: String,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Move the bytes of plain files into segments.
    pub pack: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AdoptReport {
    pub dry_run: bool,
    /// Plain files that were taken in, or would be.
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    /// Plain files that were known already.
    pub known: u64,
    /// With `dry_run`: which.
    pub new: Vec<String>,
    /// What was left out, and why.
    pub refused: Vec<Refused>,
    /// Known plain files that are not what they were.
    pub notes: Vec<Refused>,
    /// How many of these somebody has changed.
    #[serde(default)]
    pub changed: u64,
    pub packed: Option<Packed>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Packed {
    /// Bytes that were moved into segments; with `dry_run` those that would be.
    pub bytes: u64,
    /// Bytes that are still in plain files, because they cannot be read or were added meanwhile.
    pub left: u64,
    /// Plain files that nothing refers to any more.
    pub unneeded: u64,
}

impl AdoptReport {
    /// Whether everything was, or could be, taken in and packed.
    pub fn is_complete(&self) -> bool {
        let left = self.packed.as_ref().map_or(0, |packed| packed.left);
        self.refused.is_empty() && self.changed == 0 && left == 0
    }

    fn of(request: &AdoptRequest, plan: Plan) -> AdoptReport {
        let paths = plan.new.iter().filter(|plain| !plain.info.is_dir);
        AdoptReport {
            dry_run: request.dry_run,
            files: plan.files,
            bytes: plan.bytes,
            directories: plan.directories,
            known: plan.known,
            new: match request.dry_run {
                true => paths.map(|plain| plain.path.clone()).collect(),
                false => Vec::new(),
            },
            refused: plan.refused,
            notes: plan.notes,
            changed: plan.changed,
            packed: None,
        }
    }
}

/// What a person writes as a path below the root.
pub fn normal_path(path: &str) -> String {
    let parts = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.collect::<Vec<_>>().join("/")
}

/// Through a root that is open. What cannot be taken in is left out and named; `progress` hears how
/// many bytes were packed, of how many.
pub async fn adopt(
    volume: &Volume,
    request: &AdoptRequest,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<AdoptReport> {
    let plan = volume.plan_adoption(&request.path).await?;
    if request.dry_run {
        let mut report = AdoptReport::of(request, plan);
        report.packed = request.pack.then(|| Packed {
            bytes: volume.read(|index| plain_bytes(index, &request.path)) + report.bytes,
            ..Packed::default()
        });
        return Ok(report);
    }
    let done = volume
        .adopt(&plan)
        .await
        .context("registering plain files")?;
    if request.path.is_empty() {
        volume.note_adopted()?;
        volume.durable(volume.last_pos()).await?;
    }
    let mut report = AdoptReport::of(request, plan);
    (report.files, report.bytes) = (done.files, done.bytes);
    report.refused.extend(done.skipped);
    if request.pack {
        report.packed = Some(pack_plain(volume, &request.path, progress).await?);
    }
    Ok(report)
}

/// From the store alone, which is only read.
pub async fn adopt_dry(store: &dyn Store, request: &AdoptRequest) -> Result<AdoptReport> {
    let index = match volume::root::read_format(store).await {
        Ok(format) => {
            let found = volume::recover(store, format.uuid.as_bytes(), None).await;
            found?.index
        }
        Err(e) if e.is(ErrorKind::NotFound) => Index::new(),
        Err(e) => return Err(e.context(format_args!("opening {}", store.url()))),
    };
    let plan = volume::plan(store, &index, &request.path).await?;
    let mut report = AdoptReport::of(request, plan);
    report.packed = request.pack.then(|| Packed {
        bytes: plain_bytes(&index, &request.path) + report.bytes,
        ..Packed::default()
    });
    Ok(report)
}

async fn pack_plain(
    volume: &Volume,
    path: &str,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Packed> {
    let all = volume.read(|index| plain_bytes(index, path));
    let options = volume::duty_options(volume).compact;
    let mut heard = |copied: Copied| progress(copied.bytes, all);
    let packed = pack(volume, path.as_bytes(), &options, &mut heard)
        .await
        .map_err(|e: Error| e.context("packing plain files; run it again to go on"))?;
    Ok(Packed {
        bytes: packed.bytes,
        left: volume.read(|index| plain_bytes(index, path)),
        unneeded: volume.read(|index| index.idle_foreign().count() as u64),
    })
}

/// Bytes that files have in plain files at or below a path.
fn plain_bytes(index: &Index, path: &str) -> u64 {
    let at = path.as_bytes();
    let below = index
        .foreign_files()
        .filter(|f| crate::upkeep::pack::is_at_or_below(&f.row.path, at));
    below.map(|f| index.live_outside(f.row.stream).bytes).sum()
}

/// More lines than this help nobody.
const SHOWN: usize = 20;

fn list(f: &mut fmt::Formatter<'_>, what: &str, all: &[Refused]) -> fmt::Result {
    for Refused { path, why } in all.iter().take(SHOWN) {
        writeln!(f, "{what}: /{}: {}", shown(path), shown(why))?;
    }
    match all.len() {
        0..=SHOWN => Ok(()),
        n => writeln!(f, "{what}: and {} more", n - SHOWN),
    }
}

impl fmt::Display for AdoptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.new {
            writeln!(f, "/{}", shown(path))?;
        }
        list(f, "note", &self.notes)?;
        list(f, "left out", &self.refused)?;
        let verb = match self.dry_run {
            true => "would be adopted",
            false => "adopted",
        };
        write!(
            f,
            "{} plain files ({}) and {} directories {verb}; {} known already",
            self.files,
            size(self.bytes),
            self.directories,
            self.known
        )?;
        let out = self.refused.len() as u64 + self.changed;
        if out > 0 {
            write!(f, "; {out} were LEFT OUT, see above")?;
        }
        let Some(packed) = &self.packed else {
            return Ok(());
        };
        if self.dry_run {
            return write!(f, "\n{} would be packed", size(packed.bytes));
        }
        write!(f, "\n{} packed", size(packed.bytes))?;
        if packed.left > 0 {
            write!(
                f,
                "; {} are still in plain files (see the log)",
                size(packed.left)
            )?;
        }
        write!(
            f,
            "\n{} plain files are no longer needed; a mount deletes them when gc-grace is over",
            packed.unneeded
        )
    }
}
