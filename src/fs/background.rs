//! Commits that nobody waits for: of bytes that were written some time ago and neither closed nor
//! synced (`dirty_age`, or a second for what a mapping wrote after its file was closed), and of
//! everything when the write buffer is full.

use super::Fs;
use super::commit::stick;
use crate::base::Ino;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const AT_ONCE: usize = 16;
/// The oldest that bytes from a mapping get.
pub(super) const CACHED_AGE: Duration = Duration::from_secs(1);

/// The task ends when the filesystem is dropped.
pub(super) fn start(fs: &Arc<Fs>) {
    let (weak, pressure) = (Arc::downgrade(fs), fs.pressure.clone());
    let age = fs.volume.config().dirty_age.min(CACHED_AGE);
    let tick = (age / 4).max(Duration::from_millis(10));
    tokio::spawn(async move {
        loop {
            let all = tokio::time::timeout(tick, pressure.notified())
                .await
                .is_ok();
            match weak.upgrade() {
                Some(fs) => fs.commit_old(all).await,
                None => return,
            }
        }
    });
}

impl Fs {
    async fn commit_old(&self, all: bool) {
        let now = Instant::now();
        let dirty: Vec<Ino> = self.dirty.lock().keys().copied().collect();
        let old = dirty.into_iter().map(|ino| async move {
            let pin = self.pin(ino);
            if !all && pin.state.lock().due.is_none_or(|due| due > now) {
                return;
            }
            if let Err(e) = self.commit(&pin).await {
                tracing::warn!(
                    "{e}: {} is not committed yet; trying again in a while",
                    self.label(ino)
                );
                stick(&pin, e);
                pin.state.lock().due = Some(now + self.volume.config().dirty_age);
            }
        });
        futures::stream::iter(old)
            .for_each_concurrent(AT_ONCE, |commit| commit)
            .await;
    }
}
