//! Background duties that are not upkeep of the data: watching the ownership, refreshing statfs.

use super::owner::{LOOK_EVERY, Ownership};
use super::{ErrorKind, Volume};
use crate::store::Store;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

const USAGE_EVERY: Duration = Duration::from_secs(15);

/// A store that has vanished for so many looks does not come back by itself.
const GONE: u32 = 2;

/// Answers claims until it is dropped.
pub(super) struct Answering(JoinHandle<()>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn while_starting(store: Arc<dyn Store>, ownership: Arc<Ownership>) -> Answering {
    Answering(tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Whatever is wrong, start-up or the first commit finds it too.
            if let Err(e) = ownership.watch(&*store).await {
                tracing::debug!("watching the ownership while starting: {e}");
            }
        }
    }))
}

/// An idle owner learns only here that it was fenced.
pub(super) fn ownership(volume: Weak<Volume>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut gone = 0;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(volume) = volume.upgrade() else {
                return;
            };
            gone = match volume.ownership.watch(&*volume.store).await {
                Err(e) if e.is(ErrorKind::Fenced) => return volume.fail(e),
                Err(e) if e.is(ErrorKind::Vanished) && gone + 1 == GONE => return volume.fail(e),
                Err(e) => {
                    tracing::warn!("watching the ownership of the root: {e}");
                    gone + u32::from(e.is(ErrorKind::Vanished))
                }
                Ok(()) => 0,
            };
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
