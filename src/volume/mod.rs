//! Layer 6: one mounted root. Owns the index, the log, the lanes and the reader; starts up by
//! taking the root over, and shuts down by sealing and releasing it.

mod adopt;
mod change;
mod host;
mod lanes;
mod lives;
mod memory;
mod open;
pub mod owner;
pub mod root;
mod upkept;
mod watch;

pub use adopt::{Adopted, Plain, Plan, Refused, plan};
pub use change::Change;
pub use memory::Memory;
pub use open::{Begin, OpenOptions, Recovered, Recovery, fence_past_epochs, recover};
pub use upkept::{ReadGuard, duty_options};

use crate::base::config::Config;
use crate::base::error::Context;
use crate::base::{
    Clock, Epoch, Error, ErrorKind, Ino, Pos, Result, SessionId, StreamId, Timestamp,
};
use crate::format::segment::HEADER_LEN;
use crate::format::{DataFrame, Extent, Row, SegmentState};
use crate::index::Index;
use crate::read::{FrameReader, Place};
use crate::segment;
use crate::store::{Store, Usage};
use crate::stream::{Counters, Identity, Stream, StreamOptions};
use crate::upkeep::duty::Duty;
use crate::upkeep::lives::Lives;
use crate::upkeep::scrub::Scrub;
use bytes::Bytes;
use host::VolumeHost;
use lanes::Lanes;
use owner::Ownership;
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch as watch_channel};
use tokio::task::{AbortHandle, JoinHandle};
use upkept::{Reads, Staged};

/// Memory that a writer has taken from the write buffer.
pub type BufferPermit = OwnedSemaphorePermit;

/// Inode numbers that a session takes at once.
const INO_RANGE: u64 = 1 << 16;

/// Bytes of records, beside data that the write buffer bounds, that may wait to become durable.
const LOG_BACKLOG: usize = 32 << 20;

pub struct Volume {
    store: Arc<dyn Store>,
    config: Config,
    clock: Arc<dyn Clock>,
    identity: Identity,
    stream_options: StreamOptions,
    host: Arc<VolumeHost>,
    counters: Arc<Counters>,
    /// Taken before any lock of a stream.
    index: RwLock<Index>,
    log: Stream,
    lanes: Lanes,
    staged: Staged,
    lives: Mutex<Lives>,
    reads: Reads,
    reader: FrameReader,
    scrub: Arc<Scrub>,
    inos: Mutex<Range<u64>>,
    ops: AtomicU64,
    buffer: Arc<Semaphore>,
    buffer_size: usize,
    usage: Mutex<Usage>,
    ownership: Arc<Ownership>,
    fenced: OnceLock<Error>,
    stopped: watch_channel::Sender<bool>,
    background: Mutex<Vec<JoinHandle<()>>>,
    /// Set once start-up, which begins a session in the log, is over.
    read_only: AtomicBool,
    recovered: OnceLock<Recovered>,
    duty: OnceLock<Arc<Duty>>,
    duty_task: OnceLock<AbortHandle>,
}

impl Volume {
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether each file on the store, and each sync, costs calls to a service.
    pub fn is_remote(&self) -> bool {
        self.store.open_visibility().is_remote()
    }

    pub fn epoch(&self) -> Epoch {
        self.identity.epoch
    }

    pub fn session(&self) -> SessionId {
        self.identity.session
    }

    pub fn root_uuid(&self) -> [u8; 16] {
        self.identity.root
    }

    /// What start-up found.
    pub fn recovered(&self) -> Recovered {
        self.recovered.get().cloned().unwrap_or_default()
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// By the wall clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Looks at the index. `f` must be short and must not wait.
    pub fn read<R>(&self, f: impl FnOnce(&Index) -> R) -> R {
        f(&self.index.read())
    }

    /// Makes one atomic change: `f` sees the index as it is and states what is new. Applied and
    /// queued for the log under one lock, so the order of the log is the order of application.
    /// Returns the position to wait for. After an error nothing has happened.
    pub fn change<R, E: From<Error>>(
        &self,
        f: impl FnOnce(&Index, &mut Change) -> Result<R, E>,
    ) -> Result<(R, Pos), E> {
        self.check_writable()?;
        let mut index = self.index.write();
        let mut change = Change::new(self.identity.epoch, self.log.next());
        let value = f(&index, &mut change)?;
        if change.is_empty() {
            return Ok((value, self.log.durable_pos()));
        }
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        let (frames, rows, end) =
            change.finish(self.identity.session, op, self.log.durable_pos())?;
        self.log.push(frames)?;
        self.observe(&index, &rows);
        for row in &rows {
            // It is queued already, and replay will apply it as well: an index that refuses it is a
            // bug, and going on with half of a change would be worse than stopping.
            if let Err(e) = index.apply(row) {
                let e = e.context("the index refused a row; this is a bug of stowfs");
                drop(index);
                self.fail(e.clone());
                return Err(e.into());
            }
        }
        Ok((value, end))
    }

    fn check_writable(&self) -> Result<()> {
        if let Some(e) = self.fenced.get() {
            return Err(e.clone());
        }
        if self.read_only.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Denied,
                "the root is mounted read-only",
            ));
        }
        Ok(())
    }

    /// An inode number that was never used.
    pub fn new_ino(&self) -> Result<Ino> {
        loop {
            let next = {
                let mut inos = self.inos.lock();
                if let Some(ino) = inos.next() {
                    return Ok(Ino(ino));
                }
                inos.end
            };
            self.take_inos(next)?;
        }
    }

    /// Takes a further range of inode numbers for this session.
    fn take_inos(&self, seen_end: u64) -> Result<()> {
        self.change(|index, change| {
            let mut inos = self.inos.lock();
            if inos.end == seen_end && inos.is_empty() {
                let first = index.next_ino().0.max(inos.end);
                *inos = first..first + INO_RANGE;
                change.row(Row::InoRange {
                    next: Ino(inos.end),
                });
            }
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// Everything that was queued so far is before this position.
    pub fn last_pos(&self) -> Pos {
        self.log.next()
    }

    /// Waits until the log is durable up to `pos`. An error means: not yet, and perhaps later.
    pub async fn durable(&self, pos: Pos) -> Result<()> {
        if let Some(e) = self.fenced.get() {
            return Err(e.clone());
        }
        self.log.wait_durable(pos, self.config.op_timeout).await
    }

    /// Waits while very much of the log is not durable yet: namespace changes wait for nothing, so
    /// without this a store that is away would let them fill the memory.
    pub async fn room(&self) -> Result<()> {
        let most = self.buffer_size.saturating_add(LOG_BACKLOG);
        self.log.wait_for_room(most, self.config.op_timeout).await
    }

    /// Takes memory for bytes that are about to be written.
    pub async fn buffer(&self, bytes: usize) -> Result<BufferPermit> {
        self.check_writable()?;
        let n = bytes.min(self.buffer_size).min(u32::MAX as usize) as u32;
        let wait = self.buffer.clone().acquire_many_owned(n);
        match tokio::time::timeout(self.config.op_timeout, wait).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(self.fence_error()),
            Err(_) => Err(Error::new(
                ErrorKind::TimedOut,
                "the write buffer is full and the store does not take it; see the log for why",
            )),
        }
    }

    /// The same, but only if there is room now.
    pub fn try_buffer(&self, bytes: usize) -> Option<BufferPermit> {
        let n = bytes.min(self.buffer_size).min(u32::MAX as usize) as u32;
        self.buffer.clone().try_acquire_many_owned(n).ok()
    }

    /// Appends a part of a long file to a lane. Its bytes may be put into a record once
    /// `lane_sync` has returned. The permit is released when they are durable.
    pub async fn lane_append(
        &self,
        frame: DataFrame,
        permit: Option<BufferPermit>,
    ) -> Result<Extent> {
        self.check_writable()?;
        self.lanes.append(self, frame, permit).await
    }

    /// The same, for a file that `will_last`.
    pub async fn lane_append_lasting(
        &self,
        frame: DataFrame,
        permit: Option<BufferPermit>,
    ) -> Result<Extent> {
        self.check_writable()?;
        self.lanes.append_lasting(self, frame, permit).await
    }

    pub async fn lane_sync(&self, extents: &[Extent]) -> Result<()> {
        self.lanes.sync(extents, self.config.op_timeout).await
    }

    /// The bytes of an extent, verified: from memory, the cache or the store.
    pub async fn fetch(&self, extent: &Extent) -> Result<Bytes> {
        self.fetch_from(extent, self.place(extent)).await
    }

    /// The same for somebody who goes through segments of which most is garbage: nothing is read ahead,
    /// nor does that count against those for whom it pays.
    pub async fn fetch_alone(&self, extent: &Extent) -> Result<Bytes> {
        let alone = |place| Place {
            sealed: None,
            ..place
        };
        self.fetch_from(extent, self.place(extent).map(alone)).await
    }

    async fn fetch_from(&self, extent: &Extent, place: Result<Place>) -> Result<Bytes> {
        if let Some(e) = self.fenced.get() {
            return Err(e.clone());
        }
        if let Some(bytes) = self.in_memory(extent) {
            return Ok(bytes);
        }
        let place = place?;
        let fetch = self.reader.fetch(extent, &place);
        match tokio::time::timeout(self.config.op_timeout, fetch).await {
            Ok(done) => done,
            Err(_) => Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "reading {} took longer than {:?}",
                    place.path, self.config.op_timeout
                ),
            )),
        }
    }

    /// Whether the plain files that a file still has bytes in are what they were. Asks the store.
    pub async fn check_plain_files(&self, ino: Ino) -> Result<()> {
        // What is packed meanwhile stays until it was looked at.
        let _reading = self.reading();
        let mut streams = self.read(|index| index.foreign_of(ino));
        streams.dedup();
        for stream in streams {
            let Some(foreign) = self.read(|index| index.foreign(stream).cloned()) else {
                continue;
            };
            let place = Place {
                path: segment::utf8(&foreign.path)?.to_string(),
                offset: 0,
                expected: Some((foreign.len, foreign.mtime)),
                sealed: None,
            };
            self.reader.check(&place).await?;
        }
        Ok(())
    }

    fn in_memory(&self, extent: &Extent) -> Option<Bytes> {
        let payload = match extent.stream {
            StreamId::LOG => self.log.payload(extent.pos),
            lane => self.lanes.payload(lane, extent.pos),
        }?;
        let from = extent.skip as usize;
        (from + extent.len as usize <= payload.len())
            .then(|| payload.slice(from..from + extent.len as usize))
    }

    /// Where an extent's frame is on the store.
    fn place(&self, extent: &Extent) -> Result<Place> {
        place(&self.index.read(), self.identity.epoch, extent)
    }

    /// Capacity and free space of the store, as of a short while ago.
    pub fn usage(&self) -> Usage {
        *self.usage.lock()
    }

    pub fn is_fenced(&self) -> bool {
        self.fenced.get().is_some()
    }

    fn fence_error(&self) -> Error {
        let shut = || Error::new(ErrorKind::Unavailable, "the mount is shutting down");
        self.fenced.get().cloned().unwrap_or_else(shut)
    }

    /// Stops everything for good.
    fn fail(&self, error: Error) {
        if self.fenced.set(error.clone()).is_err() {
            return;
        }
        tracing::error!("{error}; every operation fails from now on");
        self.log.kill(error.clone());
        self.lanes.kill(&error);
        self.buffer.close();
        self.stopped.send_replace(true);
    }

    /// Waits until the volume has failed for good; returns why.
    pub async fn failed(&self) -> Error {
        let mut stopped = self.stopped.subscribe();
        while self.fenced.get().is_none() {
            if stopped.changed().await.is_err() {
                break;
            }
        }
        self.fence_error()
    }

    /// Makes everything durable, seals all segments, and releases the root. The caller has flushed
    /// its files and makes no more changes.
    pub async fn shutdown(&self) -> Result<()> {
        let limit = self.config.op_timeout;
        if let Some(duty) = self.duty_task.get() {
            duty.abort();
        }
        let done = async {
            self.lanes.shutdown(limit).await?;
            self.log.shutdown(limit).await
        }
        .await;
        for task in self.background.lock().drain(..) {
            task.abort();
        }
        if let Some(e) = self.fenced.get() {
            return Err(e.clone());
        }
        done?;
        self.ownership
            .release(&*self.store, self.log.durable_pos())
            .await
            .context("releasing the root")
    }
}

/// Where an extent's frame is on the store during an epoch.
pub fn place(index: &Index, epoch: Epoch, extent: &Extent) -> Result<Place> {
    if let Some(foreign) = index.foreign(extent.stream) {
        return Ok(Place {
            path: segment::utf8(&foreign.path)?.to_string(),
            offset: 0,
            expected: Some((foreign.len, foreign.mtime)),
            sealed: None,
        });
    }
    let Some(found) = index.segment_at(extent.stream, extent.pos) else {
        let text = format!(
            "no segment has position {} of {:?}",
            extent.pos, extent.stream
        );
        return Err(Error::new(ErrorKind::Corrupt, text));
    };
    Ok(Place {
        path: segment::path(&found.row.name, epoch),
        offset: HEADER_LEN as u64 + (extent.pos - found.row.base),
        expected: None,
        sealed: (found.row.state == SegmentState::Sealed).then_some(found.row.base..found.row.end),
    })
}

impl Drop for Volume {
    /// Without `shutdown` this is what a crash is: nothing more is written.
    fn drop(&mut self) {
        for task in self.background.lock().drain(..) {
            task.abort();
        }
    }
}
