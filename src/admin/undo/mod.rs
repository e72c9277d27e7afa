//! Undo: lists what was deleted lately, and brings it back while its bytes are there.
//!
//! Nothing is kept for it beyond what garbage collection keeps anyway. A file comes back as a new
//! inode with the old extents, in one atomic change that first looks whether their segments are
//! still good; from then on they are referred to like any others.

mod graveyard;
mod list;
mod plain;
mod plan;
mod revive;

pub use list::{DeletedLine, DeletedList, deleted};
pub use revive::{UndeleteOptions, Undeleted, undelete};

use crate::base::Timestamp;
use crate::index::Deleted;
use crate::volume::Volume;
use graveyard::Damage;
use std::time::Duration;

/// A path below the root, without slashes at its ends.
fn trimmed(path: &str) -> &[u8] {
    path.trim_matches('/').as_bytes()
}

fn age(item: &Deleted, now: Timestamp) -> Duration {
    let nanos = now.saturating_sub(item.at);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// Whether something in a tree went so much earlier than the tree that its grace is over and that of
/// the tree is not: an engine deletes files all the time, and these nobody misses.
fn is_older(volume: &Volume, top: &Deleted, item: &Deleted) -> bool {
    let (grace, now) = (volume.config().gc_grace, volume.now());
    age(item, now) >= grace && age(top, now) < grace
}

/// Why something is not there any more.
fn reason(volume: &Volume, item: &Deleted, damage: &Damage) -> String {
    let config = volume.config();
    let grace = humantime::format_duration(config.gc_grace);
    let given = match damage {
        Damage::Plain(why) => return why.clone(),
        Damage::Given(why) => why,
    };
    match item.attr {
        None => given.clone(),
        Some(_) if age(item, volume.now()) >= config.gc_grace => {
            format!("its grace (gc-grace {grace}) is over and its space was given back")
        }
        // Which of the two it was is not remembered.
        Some(_) => format!(
            "its space was given back early: by `stowfs gc --now`, or because what nothing refers to \
             took more than gc-keep ({}) of the live bytes",
            config.gc_keep
        ),
    }
}
