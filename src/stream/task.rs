//! The task of a stream: writes what is queued, syncs, acknowledges, rolls when a segment fails.

use super::beginning::Beginning;
use super::segment_writer::SegmentWriter;
use super::{Sealing, Shared, StreamOptions};
use crate::base::{Error, ErrorKind, Pos, Result};
use crate::format::{SegmentRow, SegmentState};
use crate::store::Writer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info, warn};

/// Bytes handed to the store between two looks at what else there is to do.
const BATCH: usize = 4 << 20;
/// Syncs that may be under way beside the open segment's before the next is not hedged.
const STRAGGLERS: usize = 3;
/// Segments that may be in the course of being sealed at the same time.
const SEALS_AT_ONCE: usize = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

struct Task {
    shared: Arc<Shared>,
    segment: Option<SegmentWriter>,
    beginning: Beginning,
    pause: Duration,
    /// How long a sync takes lately.
    usual_sync: Duration,
    /// Steps that were given up early since the last success: each doubles the patience, or a store
    /// that is slow as a whole would never get anything done.
    hedges: u32,
    /// Syncs that were overtaken by a roll and are still under way.
    stragglers: Arc<AtomicUsize>,
    /// The coming sync has waited for siblings already.
    waited: bool,
    /// Segments that are being sealed.
    seals: JoinSet<()>,
    /// The task ends because it was asked to.
    shut_down: bool,
}

enum Step {
    Write,
    Sync,
    Seal,
    Overtaken,
    /// Nothing to do before this time, if any.
    Wait(Option<Instant>),
    End,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut task = Task {
        beginning: Beginning::new(shared.clone()),
        shared,
        segment: None,
        pause: FIRST_PAUSE,
        usual_sync: Duration::ZERO,
        hedges: 0,
        stragglers: Arc::default(),
        waited: false,
        seals: JoinSet::new(),
        shut_down: false,
    };
    loop {
        let done = match task.next_step() {
            Step::Write => task.write().await,
            Step::Sync => task.sync().await,
            Step::Seal => task.seal().await,
            Step::Overtaken => {
                task.give_up_overtaken();
                continue;
            }
            Step::Wait(until) => {
                task.wait(until).await;
                continue;
            }
            Step::End => {
                // A clean shutdown leaves nothing open; a stream that was stopped waits for nothing.
                while task.shut_down && task.seals.join_next().await.is_some() {}
                return;
            }
        };
        match done {
            Ok(()) => task.pause = FIRST_PAUSE,
            Err(error) => task.broken(error).await,
        }
    }
}

impl Task {
    fn next_step(&mut self) -> Step {
        let now = Instant::now();
        let options = &self.shared.options;
        let largest = match self.beginning.is_a_gamble() {
            true => options.segment_size,
            false => self.shared.counters.segment_size(options.segment_size),
        };
        let mut state = self.shared.state.lock();
        if state.health.dead.is_some() {
            return Step::End;
        }
        let queue = &state.queue;
        // A straggler acknowledged more than this segment has: it cannot go on without a gap.
        if self
            .segment
            .as_ref()
            .is_some_and(|s| s.appended < queue.durable())
        {
            return Step::Overtaken;
        }
        let appended = self
            .segment
            .as_ref()
            .map_or(queue.durable(), |s| s.appended);
        let unsynced = (appended - queue.durable().min(appended)) as usize;
        let must_seal = self
            .segment
            .as_ref()
            .is_some_and(|s| s.file_len() >= largest || now >= s.opened + options.max_age)
            || (state.sealing.is_some() && queue.next() == appended);
        if self.segment.is_some() && must_seal {
            return if unsynced > 0 { Step::Sync } else { Step::Seal };
        }
        if queue.next() > appended {
            return if unsynced >= options.sync_bytes {
                Step::Sync
            } else {
                Step::Write
            };
        }
        if unsynced > 0 {
            let due = queue
                .oldest()
                .map(|t| t + options.commit_interval)
                .unwrap_or(now);
            if queue.is_awaited() || due <= now || unsynced >= options.sync_bytes {
                return Step::Sync;
            }
            return Step::Wait(Some(due));
        }
        match state.sealing.take() {
            Some(Sealing::Shutdown) => {
                state.health.dead = Some(Error::new(
                    ErrorKind::Unavailable,
                    "the mount is shutting down",
                ));
                self.shut_down = true;
                return Step::End;
            }
            Some(Sealing::Roll) | None => {}
        }
        let Some(segment) = &self.segment else {
            return Step::Wait(None);
        };
        let until = (segment.used + options.idle_seal).min(segment.opened + options.max_age);
        if until <= now {
            Step::Seal
        } else {
            Step::Wait(Some(until))
        }
    }

    async fn wait(&mut self, until: Option<Instant>) {
        let woken = self.shared.wake.notified();
        match until {
            // Being woken early is fine: the next step is chosen anew.
            Some(until) => drop(timeout_at(until, woken).await),
            None => woken.await,
        }
    }

    async fn write(&mut self) -> Result<()> {
        if self.segment.is_none() {
            self.segment = self.open().await?;
        }
        let Some(segment) = &self.segment else {
            return Ok(());
        };
        let batch = self
            .shared
            .state
            .lock()
            .queue
            .batch(segment.appended, BATCH);
        if batch.first().is_none_or(|f| f.pos != segment.appended) {
            // A straggler acknowledged more meanwhile: the next step finds it overtaken.
            return Ok(());
        }
        let limit = self.step_limit();
        let Some(segment) = self.segment.as_mut() else {
            return Ok(());
        };
        match timeout(limit, segment.append(&batch)).await {
            Ok(result) => result.map_err(|e| e.context(format_args!("writing {}", segment.path))),
            Err(_) => Err(overdue("writing", &segment.path, limit)),
        }
    }

    /// Begins a segment at the first position that is not durable.
    async fn open(&mut self) -> Result<Option<SegmentWriter>> {
        let base = self.shared.state.lock().queue.durable();
        let segment = self.beginning.begin(base).await?;
        debug!("segment {} begins at {base}", segment.path);
        // While it was created a straggler may have acknowledged more; then it must not claim those
        // positions even for a moment, as their payloads may have left the memory.
        if self.shared.state.lock().queue.durable() > base {
            self.retire(
                segment.row(&self.shared, SegmentState::Sealed, base, 0),
                segment.path,
            );
            return Ok(None);
        }
        self.shared
            .announce(segment.row(&self.shared, SegmentState::Open, base, 0));
        Ok(Some(segment))
    }

    async fn sync(&mut self) -> Result<()> {
        if self.wait_for_siblings().await {
            return Ok(());
        }
        self.waited = false;
        let limit = self.step_limit();
        let Some(segment) = self.segment.as_mut() else {
            return Ok(());
        };
        let Some(mut writer) = segment.writer.take() else {
            return Ok(());
        };
        let (upto, started) = (segment.appended, Instant::now());
        Shared::count(&self.shared.counters.syncs);
        let mut running = tokio::spawn(async move {
            let result = writer.sync().await;
            (writer, result)
        });
        match timeout(limit, &mut running).await {
            Ok(Ok((writer, result))) => {
                segment.writer = Some(writer);
                result.map_err(|e| e.context(format_args!("syncing {}", segment.path)))?;
            }
            Ok(Err(e)) => return Err(Error::new(ErrorKind::Other, format!("sync task: {e}"))),
            Err(_) => {
                let e = overdue("syncing", &segment.path, limit);
                self.leave_straggler(running, upto);
                return Err(e);
            }
        }
        let took = started.elapsed();
        self.usual_sync = (self.usual_sync * 7 + took) / 8;
        self.hedges = 0;
        if !segment.checked {
            self.shared.host.check_owner().await?;
            segment.checked = true;
        }
        // Only now: what is not acknowledged is written again, and counts where it is then.
        segment.synced = upto;
        let visible = segment.base..segment.visible(self.shared.store.open_visibility());
        self.shared.acknowledge(upto);
        self.shared.state.lock().tail.release(segment.name, visible);
        Ok(())
    }

    /// Gives files that are being written a moment to join the coming sync. Returns whether it
    /// waited: then what to do is chosen anew.
    async fn wait_for_siblings(&mut self) -> bool {
        let longest = self.shared.options.commit_wait;
        if self.waited || longest.is_zero() {
            return false;
        }
        self.waited = true;
        let until = Instant::now() + longest.min(self.usual_sync / 2);
        let alone = |shared: &Shared| {
            let waiting = shared.state.lock().queue.waiter_count();
            waiting == 0 || waiting >= shared.counters.writers.load(Ordering::Relaxed)
        };
        let mut waited = false;
        while !alone(&self.shared) {
            waited = true;
            if timeout_at(until, self.shared.wake.notified())
                .await
                .is_err()
            {
                break;
            }
        }
        waited
    }

    /// After this time a step of the open segment is given up, or raced by a roll if that may help.
    fn step_limit(&self) -> Duration {
        let limit = self.shared.options.sync_timeout;
        match self.shared.options.hedge_after {
            // Few hedges at a time: if every sync is slow, more writing makes it worse. More than one,
            // as the next block of the new segment may be placed on the replica that hangs, too.
            Some(hedge) if self.stragglers.load(Ordering::Relaxed) < STRAGGLERS => {
                let usual = hedge.max(self.usual_sync * 8);
                usual.saturating_mul(1 << self.hedges.min(8)).min(limit)
            }
            _ => limit,
        }
    }

    /// A sync that was overtaken may still succeed, and then acknowledges what it covers: its bytes
    /// are durable in the old segment. Replay takes the union of both.
    fn leave_straggler(&mut self, running: SyncTask, upto: Pos) {
        let Some(segment) = self.segment.take() else {
            return;
        };
        let (shared, running_late) = (self.shared.clone(), self.stragglers.clone());
        let mut row = segment.row(&shared, SegmentState::Sealed, segment.synced, 0);
        shared.announce(row.clone());
        running_late.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let limit = shared.options.sync_timeout;
            if let Ok(Ok((_, Ok(())))) = timeout(limit, running).await
                && shared.host.check_owner().await.is_ok()
            {
                row.end = upto;
                shared.announce(row.clone());
                shared.acknowledge(upto);
            }
            running_late.fetch_sub(1, Ordering::Relaxed);
            close_lost(shared, row, segment.path.clone()).await;
        });
    }

    /// Seals the open segment in the background: closing a file can take long, and whoever waits
    /// for a commit has no part in it. The next segment begins where this one ends.
    async fn seal(&mut self) -> Result<()> {
        let Some(segment) = self.segment.take() else {
            return Ok(());
        };
        while self.seals.len() >= SEALS_AT_ONCE {
            self.seals.join_next().await;
        }
        self.seals.spawn(seal(self.shared.clone(), segment));
        Ok(())
    }

    /// The open segment cannot be used any more: finds out why, and lets the next step begin a new
    /// one after a pause.
    async fn broken(&mut self, error: Error) {
        let fenced = match error.kind() {
            ErrorKind::Fenced => Some(error.clone()),
            _ => self
                .shared
                .host
                .check_owner()
                .await
                .err()
                .filter(|e| e.is(ErrorKind::Fenced)),
        };
        if let Some(e) = fenced {
            self.shared.die(e.clone());
            self.shared.host.stream_failed(&e);
            return;
        }
        warn!(
            "stream {}: {error}; what is not durable is written again to a new segment",
            self.shared.identity.stream
        );
        Shared::count(&self.shared.counters.rolls);
        self.hedges = self.hedges.saturating_add(1);
        if let Some(segment) = self.segment.take() {
            // What the queue knows to be durable may be so in another segment.
            let row = segment.row(&self.shared, SegmentState::Sealed, segment.synced, 0);
            self.retire(row, segment.path.clone());
        }
        {
            let mut state = self.shared.state.lock();
            if error.is(ErrorKind::NoSpace) {
                state.queue.fail_waiters(&error);
            }
            state.health.trouble = Some(error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Everything in this segment is in the one before it too, durably, and more: none of it
    /// counts.
    fn give_up_overtaken(&mut self) {
        if let Some(segment) = self.segment.take() {
            let row = segment.row(&self.shared, SegmentState::Sealed, segment.base, 0);
            self.retire(row, segment.path.clone());
        }
    }

    fn retire(&self, row: SegmentRow, path: String) {
        retire(&self.shared, row, path);
    }
}

/// How long a segment may take to be sealed. Where replicas can hang, not as long as a sync may: a
/// footer only shortens start-up, and a stream whose seals all hang must wait for one of them.
fn seal_limit(options: &StreamOptions) -> Duration {
    let remote = options.hedge_after.map(|hedge| hedge * 3);
    remote.map_or(options.sync_timeout, |limit| {
        limit.min(options.sync_timeout)
    })
}

async fn seal(shared: Arc<Shared>, segment: SegmentWriter) {
    let (path, name) = (segment.path.clone(), segment.name);
    let (base, end) = (segment.base, segment.synced);
    let limit = seal_limit(&shared.options);
    let full = segment.row(&shared, SegmentState::Sealed, end, 0);
    let why = match timeout(limit, segment.seal(&shared)).await {
        Ok(Ok(row)) => {
            debug!("segment {path} sealed at {end}, {} bytes", row.size);
            shared.announce(row);
            shared.state.lock().tail.release(name, base..end);
            return;
        }
        Ok(Err(e)) => e,
        Err(_) => overdue("sealing", &path, limit),
    };
    // Its frames are durable, so this costs nothing but the footer.
    info!("segment {name} is closed without a footer: {why}");
    retire(&shared, full, path);
}

/// Closes a segment whose writer is lost, in the background. Its positions are final at once: what
/// it lacks must be looked for elsewhere. Its size follows.
fn retire(shared: &Arc<Shared>, row: SegmentRow, path: String) {
    shared.announce(row.clone());
    tokio::spawn(close_lost(shared.clone(), row, path));
}

/// Closes a segment whose writer is lost: tries until it succeeds. `row.end` says how much of it
/// counts.
pub(super) async fn close_lost(shared: Arc<Shared>, mut row: SegmentRow, path: String) {
    let mut pause = FIRST_PAUSE;
    let size = loop {
        if shared.state.lock().health.dead.is_some() {
            return;
        }
        let closed = match shared.store.recover(&path).await {
            Ok(()) => shared.store.stat(&path).await.map(|info| info.len),
            Err(e) => Err(e),
        };
        match closed {
            Err(e) if !e.is(ErrorKind::NotFound) => {
                warn!("closing the lost segment {path}: {e}; trying again");
            }
            // Where nothing was written there is nothing to remember. Its file, if there is one, is
            // an orphan from now on; with a row it would count as still being closed, for ever.
            Ok(0) | Err(_) => {
                if row.end == row.base {
                    row.state = SegmentState::Deleted;
                }
                break 0;
            }
            Ok(size) => break size,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    shared.state.lock().tail.close(row.name, row.base..row.end);
    row.size = size;
    shared.host.segment_changed(row);
}

type SyncTask = tokio::task::JoinHandle<(Box<dyn Writer>, Result<()>)>;

pub(super) fn overdue(doing: &str, what: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("{doing} {what} took longer than {limit:?}"),
    )
}
