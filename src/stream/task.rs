//! The task of a stream: writes what is queued, syncs, acknowledges, rolls when a segment fails.

use super::beginning::Beginning;
use super::joining::{Joining, Wait};
use super::segment_writer::SegmentWriter;
use super::{Alarm, Sealing, Shared, State, StreamOptions};
use crate::base::{Error, ErrorKind, Pos, Result};
use crate::format::{SegmentRow, SegmentState};
use crate::store::Writer;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::panic::AssertUnwindSafe;
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
    joining: Joining,
    /// Steps that were given up early since the last success: each doubles the patience, or a store
    /// that is slow as a whole would never get anything done.
    hedges: u32,
    /// Syncs that were overtaken by a roll and are still under way.
    stragglers: Arc<AtomicUsize>,
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
        joining: Joining::new(shared.options.commit_wait),
        shared,
        segment: None,
        pause: FIRST_PAUSE,
        hedges: 0,
        stragglers: Arc::default(),
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
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        if state.health.dead.is_some() {
            return Step::End;
        }
        let durable = state.queue.durable();
        let appended = self.segment.as_ref().map_or(durable, |s| s.appended);
        // A straggler acknowledged more than this segment has: it cannot go on without a gap.
        if appended < durable {
            return Step::Overtaken;
        }
        let (unsynced, pending) = (appended - durable, state.queue.next() - appended);
        if self.must_seal(now)
            || (state.sealing.is_some() && pending == 0 && self.segment.is_some())
        {
            return if unsynced > 0 { Step::Sync } else { Step::Seal };
        }
        if unsynced + pending == 0 {
            return self.idle_step(&mut state, now);
        }
        let options = &shared.options;
        if unsynced >= options.sync_bytes as u64 {
            return Step::Sync;
        }
        if pending >= options.eager_bytes as u64 || (state.sealing.is_some() && pending > 0) {
            return Step::Write;
        }
        self.sync_step(&mut state, appended, now)
    }

    /// Whether the open segment is large or old enough.
    fn must_seal(&self, now: Instant) -> bool {
        let options = &self.shared.options;
        let largest = match self.beginning.is_a_gamble() {
            true => options.segment_size,
            false => self.shared.counters.segment_size(options.segment_size),
        };
        let enough = largest - options.spare.min(largest / 16);
        self.segment
            .as_ref()
            .is_some_and(|s| s.file_len() >= enough || now >= s.opened + options.max_age)
    }

    /// Something is not durable, but it is little: syncs if somebody waits for it or it has waited
    /// long, and gives files that are being written a moment to join.
    fn sync_step(&mut self, state: &mut State, appended: Pos, now: Instant) -> Step {
        let options = &self.shared.options;
        let queue = &state.queue;
        let due = queue.oldest().map_or(now, |t| t + options.commit_interval);
        let mut alarm = Alarm {
            next: appended + options.eager_bytes as u64,
            waiting: 1,
        };
        let mut until = due;
        if due > now && queue.is_awaited() {
            let siblings = self.shared.counters.writers.load(Ordering::Relaxed);
            until = match self.joining.wait(now, queue.waiting(), siblings) {
                Some(Wait { until, waiting }) => {
                    alarm.waiting = waiting;
                    due.min(until)
                }
                None => now,
            };
        }
        if until > now {
            state.alarm = alarm;
            return Step::Wait(Some(until));
        }
        // Whoever came to wait while bytes were on their way joins: one more append costs less than one
        // more sync. What nobody waits for does not keep it from beginning.
        let covered = appended > queue.durable() && queue.awaited().is_none_or(|p| p <= appended);
        if covered { Step::Sync } else { Step::Write }
    }

    /// Everything is durable.
    fn idle_step(&mut self, state: &mut State, now: Instant) -> Step {
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
        let options = &self.shared.options;
        let until = self
            .segment
            .as_ref()
            .map(|s| (s.used + options.idle_seal).min(s.opened + options.max_age));
        if until.is_some_and(|until| until <= now) {
            return Step::Seal;
        }
        state.alarm = Alarm {
            next: state.queue.next() + 1,
            waiting: 1,
        };
        Step::Wait(until)
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
        self.joining.begin();
        let limit = self.step_limit();
        let Some(segment) = self.segment.as_mut() else {
            return Ok(());
        };
        let Some(mut writer) = segment.writer.take() else {
            return Ok(());
        };
        let (upto, started) = (segment.appended, Instant::now());
        Shared::count(&self.shared.counters.syncs);
        let running = async move {
            let result = writer.sync().await;
            (writer, result)
        };
        let mut running: Running = AssertUnwindSafe(running).catch_unwind().boxed();
        match timeout(limit, &mut running).await {
            Ok(Ok((writer, result))) => {
                segment.writer = Some(writer);
                result.map_err(|e| e.context(format_args!("syncing {}", segment.path)))?;
            }
            Ok(Err(_panic)) => {
                let text = format!("the store's client panicked while syncing {}", segment.path);
                return Err(Error::new(ErrorKind::Other, text));
            }
            Err(_) => {
                let e = overdue("syncing", &segment.path, limit);
                self.leave_straggler(running, upto);
                return Err(e);
            }
        }
        let took = started.elapsed();
        self.hedges = 0;
        if !segment.checked {
            self.shared.host.check_owner().await?;
            segment.checked = true;
        }
        // Only now: what is not acknowledged is written again, and counts where it is then.
        segment.synced = upto;
        let visible = segment.base..segment.visible(self.shared.store.open_visibility());
        let (joined, waiting) = self.shared.acknowledge(upto);
        self.joining.done(took, joined, waiting);
        self.shared.state.lock().tail.release(segment.name, visible);
        Ok(())
    }

    /// After this time a step of the open segment is given up, or raced by a roll if that may help.
    fn step_limit(&self) -> Duration {
        let limit = self.shared.options.sync_timeout;
        match self.shared.options.hedge_after {
            // Few hedges at a time: if every sync is slow, more writing makes it worse. More than one,
            // as the next block of the new segment may be placed on the replica that hangs, too.
            Some(hedge) if self.stragglers.load(Ordering::Relaxed) < STRAGGLERS => {
                let usual = hedge.max(self.joining.usual_sync() * 8);
                usual.saturating_mul(1 << self.hedges.min(8)).min(limit)
            }
            _ => limit,
        }
    }

    /// A sync that was overtaken may still succeed, and then acknowledges what it covers: its bytes
    /// are durable in the old segment. Replay takes the union of both.
    fn leave_straggler(&mut self, running: Running, upto: Pos) {
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

/// A sync that is under way, with its writer.
type Running = BoxFuture<'static, std::thread::Result<(Box<dyn Writer>, Result<()>)>>;

pub(super) fn overdue(doing: &str, what: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("{doing} {what} took longer than {limit:?}"),
    )
}
