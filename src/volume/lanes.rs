//! Lanes: streams for data only, where long files go while they are being written.

use super::change::place;
use super::{BufferPermit, Volume};
use crate::base::{Error, ErrorKind, Pos, Result, StreamId};
use crate::format::{DataFrame, Extent, Row};
use crate::stream::{Identity, Stream};
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Lanes that take turns: while one syncs, the other is written.
const LANES: u64 = 2;
/// The lane of small files that will probably live long.
const LASTING: u64 = LANES;
/// The lane of compaction. It is not that of new files: those wait for each sync of theirs.
const SURVIVORS: u64 = LANES + 1;

/// Bytes of a lane that may wait to become durable before its writers wait.
const UNSYNCED: usize = 32 << 20;

#[derive(Default)]
pub(super) struct Lanes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_turn: BTreeMap<u64, Arc<Lane>>,
    by_stream: BTreeMap<StreamId, Arc<Lane>>,
}

struct Lane {
    stream: Stream,
    /// Held while frames get their positions.
    order: Mutex<()>,
}

impl Lanes {
    pub(super) async fn append(
        &self,
        volume: &Volume,
        frame: DataFrame,
        permit: Option<BufferPermit>,
    ) -> Result<Extent> {
        // A file stays on its lane for a while, so that its extents lie together.
        let turn = (frame.ino.0 + (frame.off >> 26)) % LANES;
        self.append_to(volume, turn, frame, permit).await
    }

    pub(super) async fn append_lasting(
        &self,
        volume: &Volume,
        frame: DataFrame,
        permit: Option<BufferPermit>,
    ) -> Result<Extent> {
        self.append_to(volume, LASTING, frame, permit).await
    }

    /// Appends to the lane of compaction: what survived once is likely to live on.
    pub(super) async fn append_copy(&self, volume: &Volume, frame: DataFrame) -> Result<Extent> {
        self.append_to(volume, SURVIVORS, frame, None).await
    }

    async fn append_to(
        &self,
        volume: &Volume,
        turn: u64,
        mut frame: DataFrame,
        permit: Option<BufferPermit>,
    ) -> Result<Extent> {
        let lane = self.lane(volume, turn)?;
        lane.stream
            .wait_for_room(UNSYNCED, volume.config.op_timeout)
            .await?;
        frame.lsn = volume.last_pos();
        let _order = lane.order.lock();
        let (mut queued, extent) = place(
            &frame,
            lane.stream.id(),
            lane.stream.next(),
            volume.identity.epoch,
        );
        queued.held = permit.map(|p| Arc::new(p) as Arc<_>);
        let file = (turn != SURVIVORS).then_some(frame.ino);
        volume.staged.add(&extent, file);
        lane.stream.push(vec![queued])?;
        Ok(extent)
    }

    fn lane(&self, volume: &Volume, turn: u64) -> Result<Arc<Lane>> {
        if let Some(lane) = self.state.lock().by_turn.get(&turn) {
            return Ok(lane.clone());
        }
        let (id, _) = volume.change(|index, change| {
            let id = index.next_stream();
            change.row(Row::StreamRange {
                next: StreamId(id.0 + 1),
            });
            Ok::<_, Error>(id)
        })?;
        let identity = Identity {
            stream: id,
            ..volume.identity.clone()
        };
        let stream = volume.start_stream(identity, 0);
        let lane = Arc::new(Lane {
            stream,
            order: Mutex::new(()),
        });
        let mut state = self.state.lock();
        // Another caller may have been faster; then this stream ends unused.
        let chosen = state.by_turn.entry(turn).or_insert(lane).clone();
        state.by_stream.insert(chosen.stream.id(), chosen.clone());
        Ok(chosen)
    }

    fn find(&self, stream: StreamId) -> Option<Arc<Lane>> {
        self.state.lock().by_stream.get(&stream).cloned()
    }

    fn all(&self) -> Vec<Arc<Lane>> {
        self.state.lock().by_stream.values().cloned().collect()
    }

    pub(super) fn tail_bytes(&self) -> usize {
        self.all().iter().map(|lane| lane.stream.tail_bytes()).sum()
    }

    pub(super) fn payload(&self, stream: StreamId, pos: Pos) -> Option<Bytes> {
        self.find(stream)?.stream.payload(pos)
    }

    pub(super) async fn sync(&self, extents: &[Extent], limit: Duration) -> Result<()> {
        let mut upto: BTreeMap<StreamId, Pos> = BTreeMap::new();
        for e in extents {
            let end = upto.entry(e.stream).or_default();
            *end = (*end).max(e.pos + e.frame as u64);
        }
        // At the same time: a file that goes to two lanes waits for the slower one, not for both.
        let syncs = upto.into_iter().map(async |(stream, pos)| {
            let lane = self.find(stream).ok_or_else(|| {
                let text = format!("{stream:?} is not a lane of this session");
                Error::new(ErrorKind::Invalid, text)
            })?;
            lane.stream.wait_durable(pos, limit).await
        });
        try_join_all(syncs).await.map(drop)
    }

    pub(super) fn kill(&self, error: &Error) {
        self.all()
            .iter()
            .for_each(|lane| lane.stream.kill(error.clone()));
    }

    pub(super) async fn shutdown(&self, limit: Duration) -> Result<()> {
        for lane in self.all() {
            lane.stream.shutdown(limit).await?;
        }
        Ok(())
    }
}
