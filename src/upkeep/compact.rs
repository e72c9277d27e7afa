//! Compaction: copies what is still used out of segments that are mostly dead, so that garbage
//! collection can take them.

use super::Root;
pub use super::choice::{Victim, Why, plan};
use crate::base::{ErrorKind, Ino, Pos, Result, SegmentName, StreamId};
use crate::format::{DataFrame, Extent, MAX_PAYLOAD, Row};
use crate::index::Index;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct CompactOptions {
    /// Segment bytes per live byte above which compaction begins.
    pub target: f64,
    /// Bytes copied per second; 0: as fast as it goes.
    pub rate: u64,
    /// Segments are not made smaller than this, however little is live.
    pub smallest_segment: u64,
    /// Segments are not made larger, however much is live.
    pub largest_segment: u64,
}

/// Bytes copied between two commits, and extents: a record holds only so many rows.
const BATCH: usize = 4 << 20;
const BATCH_EXTENTS: usize = 4096;
/// The longest that a batch waits for a moment in which no writer waits for the store.
const PATIENCE: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Inodes looked at under one lock.
const SLICE: usize = 2048;
/// Copies that are remembered, for files that share bytes: some 6 MiB.
const SHARED_MOST: usize = 1 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub extents: u64,
    pub bytes: u64,
}

/// Copies the live extents of the victims elsewhere. What changes meanwhile is left to the change.
pub async fn execute(
    root: &dyn Root,
    victims: &[Victim],
    options: &CompactOptions,
) -> Result<Copied> {
    let names: BTreeSet<SegmentName> = victims.iter().map(|v| v.name).collect();
    let inside = |index: &Index, e: &Extent| {
        let segment = index.segment_at(e.stream, e.pos);
        e.frame != 0 && segment.is_some_and(|s| names.contains(&s.row.name))
    };
    copy_out(root, &inside, options, &mut |_| ()).await
}

/// Copies the extents that are `wanted` to the lane of compaction. `progress` hears after each
/// commit what was copied so far.
pub(super) async fn copy_out(
    root: &dyn Root,
    wanted: Wanted<'_>,
    options: &CompactOptions,
    progress: &mut (dyn FnMut(Copied) + Send),
) -> Result<Copied> {
    let mut inos = Vec::new();
    root.view(&mut |index| inos = index.inos());
    let mut copied = Copied::default();
    let mut batch = Batch::default();
    let mut shared = Shared::default();
    for slice in inos.chunks(SLICE) {
        let mut found = Vec::new();
        root.view(&mut |index| found = extents_in(index, slice, wanted));
        for (ino, extent, path) in found {
            if batch.moves.is_empty() {
                batch.begin(root).await;
            }
            let mut done = batch.copy(root, &mut shared, ino, extent, path).await;
            if done.is_ok() && batch.is_full() {
                done = batch.commit(root, &mut copied, options).await;
                shared.batch += 1;
                progress(copied);
            }
            if let Err(e) = done {
                batch.give_up(root);
                return Err(e);
            }
        }
    }
    batch.commit(root, &mut copied, options).await?;
    progress(copied);
    Ok(copied)
}

/// Chooses extents to copy.
pub(super) type Wanted<'a> = &'a (dyn Fn(&Index, &Extent) -> bool + Sync);

type Found = Vec<(Ino, Extent, Vec<u8>)>;

/// The extents of these inodes that are wanted, in pieces that a frame can hold.
fn extents_in(index: &Index, inos: &[Ino], wanted: Wanted<'_>) -> Found {
    let mut found = Vec::new();
    for ino in inos {
        for e in index.extents(*ino, 0, u64::MAX) {
            if !wanted(index, &e) {
                continue;
            }
            let path = index.path(*ino).unwrap_or_default();
            let pieces = (e.off..e.end()).step_by(MAX_PAYLOAD);
            found.extend(pieces.map(|off| {
                let piece = e.clip(off, off.saturating_add(MAX_PAYLOAD as u64));
                (*ino, piece, path.clone())
            }));
        }
    }
    found
}

/// Copies that were made in this run, by what they are copies of: files that share bytes go on
/// sharing them. Bounded: what is forgotten is copied twice.
#[derive(Default)]
struct Shared {
    copies: FxHashMap<Source, (Extent, u64)>,
    /// Counts batches.
    batch: u64,
}

type Source = (StreamId, Pos, u32, u32, u32);

impl Shared {
    fn source(e: &Extent) -> Source {
        (e.stream, e.pos, e.frame, e.skip, e.len)
    }

    /// A copy of the same bytes, for another file; and whether it was committed by an earlier batch.
    fn find(&self, old: &Extent) -> Option<(Extent, bool)> {
        let (copy, batch) = self.copies.get(&Self::source(old))?;
        let new = Extent {
            off: old.off,
            ..*copy
        };
        Some((new, *batch < self.batch))
    }

    fn add(&mut self, old: &Extent, new: &Extent) {
        if self.copies.len() >= SHARED_MOST {
            self.copies.clear();
        }
        self.copies.insert(Self::source(old), (*new, self.batch));
    }
}

struct Move {
    ino: Ino,
    old: Extent,
    new: Extent,
    made: Made,
}

/// When the copy that a file moves to was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// For this file.
    Here,
    /// For another file, in the same batch.
    InBatch,
    /// In an earlier batch: it may be garbage by now.
    Before,
}

#[derive(Default)]
struct Batch {
    moves: Vec<Move>,
    bytes: usize,
    begun: Option<Instant>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes >= BATCH || self.moves.len() >= BATCH_EXTENTS
    }

    /// Lets writers go first: waits for a moment in which none waits for the store, but not for ever,
    /// or a busy root would never shrink.
    async fn begin(&mut self, root: &dyn Root) {
        let until = Instant::now() + PATIENCE;
        while root.is_busy() && Instant::now() < until {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.begun = Some(Instant::now());
    }

    /// Rests after a batch, so that copying keeps its rate; and while writers are busy it takes at
    /// most half of the time, so a slow store slows copying down, not them.
    async fn rest(&mut self, root: &dyn Root, options: &CompactOptions) {
        let took = self.begun.take().map_or(Duration::ZERO, |t| t.elapsed());
        let by_rate = match options.rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(self.bytes as f64 / rate as f64).saturating_sub(took),
        };
        let by_turns = if root.is_busy() { took } else { Duration::ZERO };
        self.bytes = 0;
        tokio::time::sleep(by_rate.max(by_turns)).await;
    }

    async fn copy(
        &mut self,
        root: &dyn Root,
        shared: &mut Shared,
        ino: Ino,
        old: Extent,
        path: Vec<u8>,
    ) -> Result<()> {
        if let Some((new, before)) = shared.find(&old) {
            let made = if before { Made::Before } else { Made::InBatch };
            self.moves.push(Move {
                ino,
                old,
                new,
                made,
            });
            return Ok(());
        }
        // It may be gone by now; then its segment may be gone too, and there is nothing to copy.
        let bytes = match root.fetch(&old).await {
            Ok(bytes) => bytes,
            Err(_) if !is_current(root, ino, &old) => return Ok(()),
            // It stays where it is, for whoever repairs it; the rest can move.
            Err(e) if !e.is_ambiguous() && !e.is(ErrorKind::Fenced) => {
                tracing::warn!("compaction leaves a damaged extent of {ino:?} alone: {e}");
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let new = root.copy(DataFrame::new(ino, old.off, bytes, path)).await?;
        self.bytes += old.len as usize;
        shared.add(&old, &new);
        self.moves.push(Move {
            ino,
            old,
            new,
            made: Made::Here,
        });
        Ok(())
    }

    fn give_up(&mut self, root: &dyn Root) {
        let moves = std::mem::take(&mut self.moves);
        root.drop_copies(&copies(&moves));
    }

    /// Makes the copies durable, then lets every file that still uses an old extent use its copy.
    async fn commit(
        &mut self,
        root: &dyn Root,
        copied: &mut Copied,
        options: &CompactOptions,
    ) -> Result<()> {
        if self.moves.is_empty() {
            return Ok(());
        }
        let moves = std::mem::take(&mut self.moves);
        let copies = copies(&moves);
        let synced = root.sync_copies(&copies).await;
        let done = match synced {
            Ok(()) => root.commit(&mut |index| {
                // What became garbage since stays so: the next run copies these bytes anew.
                let good = |m: &&Move| m.made != Made::Before || index.is_placed(&m.new);
                let moves = moves.iter().filter(good);
                moves.flat_map(|m| swap(index, m)).collect()
            }),
            Err(e) => Err(e),
        };
        root.drop_copies(&copies);
        root.durable(done?).await?;
        copied.extents += moves.len() as u64;
        copied.bytes += self.bytes as u64;
        self.rest(root, options).await;
        Ok(())
    }
}

/// Those that were made for these moves.
fn copies(moves: &[Move]) -> Vec<Extent> {
    let made = moves.iter().filter(|m| m.made == Made::Here);
    made.map(|m| m.new).collect()
}

fn is_current(root: &dyn Root, ino: Ino, old: &Extent) -> bool {
    let mut current = false;
    root.view(&mut |index| current = !still_used(index, ino, old).is_empty());
    current
}

/// The parts of a file that use the bytes of an old extent at the same place.
fn still_used(index: &Index, ino: Ino, old: &Extent) -> Vec<Extent> {
    let mut parts = index.extents(ino, old.off, old.end());
    parts.retain(|e| {
        let same_frame = (e.stream, e.pos, e.frame) == (old.stream, old.pos, old.frame);
        same_frame && e.off - old.off == (e.skip as u64).wrapping_sub(old.skip as u64)
    });
    parts
}

/// Rows that replace what is still used of an old extent by the copy.
fn swap(index: &Index, m: &Move) -> Vec<Row> {
    let parts = still_used(index, m.ino, &m.old);
    let row = |e: Extent| Row::Extents {
        ino: m.ino,
        off: e.off,
        len: e.len as u64,
        extents: vec![m.new.clip(e.off, e.end())],
    };
    parts.into_iter().map(row).collect()
}
