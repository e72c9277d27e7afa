//! What upkeep needs of the volume, and how it is begun.

use super::{Change, Volume};
use crate::base::config::Config;
use crate::base::{Epoch, Error, ErrorKind, Ino, Pos, Result, SegmentName, StreamId, Timestamp};
use crate::format::{DataFrame, Extent, Origin, Row, SegmentRow};
use crate::index::Index;
use crate::store::Store;
use crate::upkeep::Root;
use crate::upkeep::compact::CompactOptions;
use crate::upkeep::deletion::DeletionRate;
use crate::upkeep::duty::{Duty, DutyOptions};
use crate::upkeep::gc::GcOptions;
use crate::upkeep::scrub::{Scrub, ScrubOptions};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames in lanes that somebody is about to commit: their segments must stay.
#[derive(Default)]
pub(super) struct Staged(Mutex<StagedFrames>);

#[derive(Default)]
struct StagedFrames {
    places: BTreeSet<(StreamId, Pos)>,
    by_file: FxHashMap<Ino, Vec<(StreamId, Pos)>>,
}

impl Staged {
    /// `file`: whose bytes they are; None for a copy made by compaction.
    pub(super) fn add(&self, extent: &Extent, file: Option<Ino>) {
        let place = (extent.stream, extent.pos);
        let mut staged = self.0.lock();
        staged.places.insert(place);
        if let Some(ino) = file {
            staged.by_file.entry(ino).or_default().push(place);
        }
    }

    pub(super) fn forget_file(&self, ino: Ino) {
        let mut staged = self.0.lock();
        for place in staged.by_file.remove(&ino).into_iter().flatten() {
            staged.places.remove(&place);
        }
    }

    fn remove(&self, copies: &[Extent]) {
        let mut staged = self.0.lock();
        for e in copies {
            staged.places.remove(&(e.stream, e.pos));
        }
    }

    fn any_in(&self, row: &SegmentRow) -> bool {
        let range = (row.stream, row.base)..(row.stream, row.end.max(row.base));
        self.0.lock().places.range(range).next().is_some()
    }
}

/// Reads under way, by the position of the log at which they planned.
#[derive(Default)]
pub(super) struct Reads(Mutex<BTreeMap<Pos, usize>>);

/// While it lives, no segment that the index named when it was made is deleted.
pub struct ReadGuard<'a> {
    reads: &'a Reads,
    since: Pos,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        let mut reads = self.reads.0.lock();
        if let Some(n) = reads.get_mut(&self.since) {
            *n -= 1;
            if *n == 0 {
                reads.remove(&self.since);
            }
        }
    }
}

impl Volume {
    /// To be held from planning a read (taking extents from the index) to its end.
    pub fn reading(&self) -> ReadGuard<'_> {
        let mut reads = self.reads.0.lock();
        let since = self.log.next();
        *reads.entry(since).or_default() += 1;
        ReadGuard {
            reads: &self.reads,
            since,
        }
    }

    /// Nothing that was appended to a lane for this file waits to be committed any more: it is in
    /// the index, or was given up. Without this call it holds its segment.
    pub fn lane_forget(&self, file: Ino) {
        self.staged.forget_file(file);
    }

    /// For tests and statistics: frames in lanes that wait to be committed.
    pub fn staged_frames(&self) -> usize {
        self.staged.0.lock().places.len()
    }

    pub(super) fn begin_upkeep(self: &Arc<Volume>, last_snapshot: Pos) {
        if self.read_only.load(Ordering::Relaxed) {
            return;
        }
        let duty = Arc::new(Duty::new(duty_options(self), last_snapshot));
        let duty = self.duty.get_or_init(|| duty).clone();
        let task = tokio::spawn(duty.run(Arc::downgrade(self)));
        let _ = self.duty_task.set(task.abort_handle());
        self.background.lock().push(task);
        let options = scrub_options(&self.config, self.is_remote());
        if let Some(every) = options.every {
            let (scrub, me) = (self.scrub.clone(), Arc::downgrade(self));
            let task = tokio::spawn(async move { scrub.run(me, &options, every).await });
            self.background.lock().push(task);
        }
    }

    pub fn scrub(&self) -> &Arc<Scrub> {
        &self.scrub
    }

    /// Upkeep, for commands. A mount that cannot write has none.
    pub fn duty(&self) -> Result<Arc<Duty>> {
        self.check_writable()?;
        let none = || Error::new(ErrorKind::Unavailable, "the mount is not ready yet");
        self.duty.get().cloned().ok_or_else(none)
    }
}

/// The DataNodes of HDFS look at all replicas by themselves, which a client that reads one of them
/// cannot; nobody looks after a local disk.
fn scrub_options(config: &Config, remote: bool) -> ScrubOptions {
    let by_default = (!remote).then_some(LOCAL_SCRUB);
    ScrubOptions {
        rate: config.scrub_rate,
        every: match config.scrub_every {
            Some(Duration::ZERO) => None,
            given => given.or(by_default),
        },
    }
}

const LOCAL_SCRUB: Duration = Duration::from_secs(30 * 24 * 3600);

/// A segment costs HDFS several calls to the NameNode, and what a small root wastes in large ones is
/// little; on a local disk a roll is cheap.
const SMALLEST_ON_HDFS: u64 = 128 << 20;
const SMALLEST_LOCAL: u64 = 4 << 20;

pub fn duty_options(volume: &Volume) -> DutyOptions {
    let config = &volume.config;
    let smallest = match volume.is_remote() {
        true => SMALLEST_ON_HDFS,
        false => SMALLEST_LOCAL,
    };
    DutyOptions {
        gc: GcOptions {
            grace: config.gc_grace,
            keep: config.gc_keep,
        },
        deletion: DeletionRate {
            files: config.delete_rate,
            bytes: config.delete_bytes_rate,
        },
        compact: CompactOptions {
            target: config.compact_target,
            rate: config.compact_rate,
            smallest_segment: config.smallest_segment.unwrap_or(smallest),
            largest_segment: config.segment_size,
        },
        orphan_age: config.orphan_age,
        snapshot_bytes: config.snapshot_bytes,
        every: config.upkeep_every,
    }
}

#[async_trait]
impl Root for Volume {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn uuid(&self) -> [u8; 16] {
        self.identity.root
    }

    fn epoch(&self) -> Epoch {
        self.identity.epoch
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn forget_reader(&self, path: &str) {
        self.reader.forget(path);
    }

    fn origin(&self) -> Origin {
        self.identity.origin
    }

    fn is_claimed(&self, segment: &SegmentName) -> bool {
        self.counters.claims.has(segment)
    }

    fn view(&self, look: &mut dyn FnMut(&Index)) {
        look(&self.index.read())
    }

    fn commit(&self, make: &mut dyn FnMut(&Index) -> Vec<Row>) -> Result<Pos> {
        let ((), pos) = self.change(|index, change: &mut Change| {
            make(index).into_iter().for_each(|row| change.row(row));
            Ok::<_, Error>(())
        })?;
        Ok(pos)
    }

    fn log_end(&self) -> Pos {
        self.log.next()
    }

    async fn durable(&self, pos: Pos) -> Result<()> {
        Volume::durable(self, pos).await
    }

    fn oldest_read(&self) -> Pos {
        self.reads
            .0
            .lock()
            .keys()
            .next()
            .copied()
            .unwrap_or(Pos::MAX)
    }

    fn is_staged(&self, segment: &SegmentRow) -> bool {
        self.staged.any_in(segment)
    }

    fn is_busy(&self) -> bool {
        self.log.is_awaited()
    }

    async fn fetch(&self, extent: &Extent) -> Result<Bytes> {
        self.fetch_alone(extent).await
    }

    async fn copy(&self, frame: DataFrame) -> Result<Extent> {
        let bytes = frame.payload.len() as u64;
        self.counters.copied.fetch_add(bytes, Ordering::Relaxed);
        self.lanes.append_copy(self, frame).await
    }

    async fn sync_copies(&self, copies: &[Extent]) -> Result<()> {
        self.lane_sync(copies).await
    }

    fn set_segment_size(&self, bytes: u64) {
        self.counters.small_segment.store(bytes, Ordering::Relaxed);
    }

    fn stop(&self, error: Error) {
        self.fail(error);
    }

    fn has_readers(&self) -> bool {
        !self.reads.0.lock().is_empty()
    }

    fn drop_copies(&self, copies: &[Extent]) {
        self.staged.remove(copies);
    }
}
