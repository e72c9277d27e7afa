//! What the streams need of the volume.

use super::Volume;
use crate::base::{Error, ErrorKind, Pos, Result, StreamId};
use crate::format::{Row, SegmentRow};
use crate::stream::{Host, Identity, Stream};
use async_trait::async_trait;
use std::sync::Weak;
use std::time::Duration;

/// Weak: the streams belong to the volume, not the other way round.
pub(super) struct VolumeHost(pub(super) Weak<Volume>);

#[async_trait]
impl Host for VolumeHost {
    fn segment_changed(&self, row: SegmentRow) {
        let Some(volume) = self.0.upgrade() else {
            return;
        };
        let done = if row.stream == StreamId::LOG {
            // Not logged: a log that records its own segments would never become idle. Start-up
            // finds the files.
            volume.index.write().apply(&Row::Segment(row))
        } else {
            volume
                .change(|_, change| {
                    change.row(Row::Segment(row));
                    Ok::<_, Error>(())
                })
                .map(|_| ())
        };
        if let Err(e) = done {
            tracing::debug!("a change of a segment was not noted: {e}");
        }
    }

    async fn check_owner(&self) -> Result<()> {
        match self.0.upgrade() {
            Some(volume) => volume.ownership.check(&*volume.store).await,
            None => Err(Error::new(ErrorKind::Unavailable, "the volume is closed")),
        }
    }

    fn stream_failed(&self, error: &Error) {
        if let Some(volume) = self.0.upgrade() {
            volume.fail(error.clone());
        }
    }
}

impl Volume {
    pub(super) fn start_stream(&self, identity: Identity, next: Pos) -> Stream {
        let mut options = self.stream_options.clone();
        if identity.stream != StreamId::LOG {
            // A file whose bytes in a lane are synced is a writer until its record is in the log: it
            // would wait for itself.
            options.commit_wait = Duration::ZERO;
        }
        Stream::start(
            identity,
            next,
            options,
            self.store.clone(),
            self.host.clone(),
            self.clock.clone(),
            self.counters.clone(),
        )
    }
}
