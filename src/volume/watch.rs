//! Background duties that are not upkeep of the data: watching the ownership, refreshing statfs.

use super::owner::LOOK_EVERY;
use super::{ErrorKind, Volume};
use std::sync::Weak;
use std::time::Duration;
use tokio::task::JoinHandle;

const USAGE_EVERY: Duration = Duration::from_secs(15);

/// An idle owner learns only here that it was fenced.
pub(super) fn ownership(volume: Weak<Volume>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(volume) = volume.upgrade() else {
                return;
            };
            match volume.ownership.watch(&*volume.store).await {
                Err(e) if e.is(ErrorKind::Fenced) => return volume.fail(e),
                Err(e) => tracing::warn!("watching the ownership of the root: {e}"),
                Ok(()) => {}
            }
        }
    })
}

pub(super) fn usage(volume: Weak<Volume>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let Some(v) = volume.upgrade() else { return };
            match v.store.usage().await {
                Ok(usage) => *v.usage.lock() = usage,
                Err(e) => tracing::debug!("asking the store for its free space: {e}"),
            }
            drop(v);
            tokio::time::sleep(USAGE_EVERY).await;
        }
    })
}
