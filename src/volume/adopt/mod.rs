//! Plain files that were below the root before stowfs came: registered, and read where they are.
//!
//! Look (what is there), plan (what of it is new), register. One record takes in a directory's files,
//! some hundred at a time, so a crash leaves each file registered or not; the next adoption goes on.

mod look;
mod plan;
mod register;

pub use look::{Plain, Refused};
pub use plan::Plan;

use super::Volume;
use crate::base::{Error, Result};
use crate::format::Row;
use crate::index::Index;
use crate::store::Store;

/// What an adoption has done.
#[derive(Clone, Debug, Default)]
pub struct Adopted {
    pub files: u64,
    pub bytes: u64,
    /// Names that appeared in the mount while it was under way.
    pub skipped: Vec<Refused>,
}

/// What adopting the plain files at and below a path would do. Only reads.
pub async fn plan(store: &dyn Store, index: &Index, at: &str) -> Result<Plan> {
    let look = look::look(store, at).await?;
    Ok(plan::sort_out(index, look))
}

impl Volume {
    /// What adopting the plain files at and below a path would do.
    pub async fn plan_adoption(&self, at: &str) -> Result<Plan> {
        let look = look::look(&*self.store, at).await?;
        Ok(self.read(|index| plan::sort_out(index, look)))
    }

    /// Registers what a plan says, durably.
    pub async fn adopt(&self, plan: &Plan) -> Result<Adopted> {
        register::register(self, plan).await
    }

    /// Every plain file below the root is registered, or was refused.
    pub fn note_adopted(&self) -> Result<()> {
        if self.read(Index::adopted) {
            return Ok(());
        }
        self.change(|_, change| {
            change.row(Row::Adopted);
            Ok::<_, Error>(())
        })?;
        Ok(())
    }
}

/// What was left out that the log names.
const NAMED: usize = 50;

/// Registers every plain file and directory below the root, once in the life of a root; what a
/// crash interrupted goes on where it was. Files that are being written are left out. Returns how
/// many files.
pub(super) async fn register_plain_files(volume: &Volume) -> Result<u64> {
    if volume.read(Index::adopted) {
        return Ok(0);
    }
    let plan = volume.plan_adoption("").await?;
    let left = plan.refused.iter().chain(&plan.notes);
    for Refused { path, why } in left.clone().take(NAMED) {
        tracing::warn!(
            "/{path} is not readable through the mount: {why}; `stowfs adopt` takes in later what can be"
        );
    }
    if left.clone().count() > NAMED {
        let more = left.count() - NAMED;
        tracing::warn!("{more} more are not readable; `stowfs adopt --dry-run` tells which");
    }
    let done = volume.adopt(&plan).await?;
    volume.note_adopted()?;
    if done.files > 0 {
        tracing::info!("{} plain files are readable through the mount", done.files);
    }
    Ok(done.files + plan.known)
}
