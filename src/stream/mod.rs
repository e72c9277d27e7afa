//! Layer 4: an append-only stream of frames, stored in a chain of segments.
//!
//! The log and the lanes are both streams. A frame gets its position when it is queued, before
//! anything is written; from then on its bytes at that position never change. One task per stream
//! writes the queue to the open segment and syncs it. When a segment fails, the task *rolls*: it
//! begins a new segment at the last durable position and writes everything later again, byte for
//! byte. A position therefore names the same bytes in whichever segment they are found.
//!
//! Frames stay in memory until the store can show them to a reader (see `OpenVisibility`).

mod beginning;
mod claims;
mod joining;
mod queue;
mod segment_writer;
mod tail;
mod task;

pub use claims::Claims;
pub use queue::QueuedFrame;

use crate::base::{Clock, Epoch, Error, ErrorKind, Pos, Result, SessionId, StreamId};
use crate::format::{Origin, SegmentRow};
use crate::store::Store;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use queue::Queue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tail::Tail;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a stream needs of its surroundings.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// A segment was begun or sealed. Called before any later frame is acknowledged.
    fn segment_changed(&self, row: SegmentRow);

    /// Fails with `Fenced` if a higher epoch owns the root. Asked before bytes in a new segment are
    /// acknowledged, and after failures.
    async fn check_owner(&self) -> Result<()>;

    /// The stream stopped for good.
    fn stream_failed(&self, error: &Error);
}

#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// A segment is sealed when its file is this large (bytes).
    pub segment_size: u64,
    /// It is sealed when only this is left (bytes, at most a sixteenth): what a last write and the footer add
    /// shall not begin another block.
    pub spare: u64,
    /// Frames without a waiter are synced after this time.
    pub commit_interval: Duration,
    /// The longest that a sync waits for others to join it; see `joining`.
    pub commit_wait: Duration,
    /// A sync that takes longer has failed.
    pub sync_timeout: Duration,
    /// A sync that takes longer than this, and much longer than lately usual, is raced by a roll.
    /// None: never (a local disk gains nothing by writing the same bytes again).
    pub hedge_after: Option<Duration>,
    /// A segment that was not written for this time is sealed.
    pub idle_seal: Duration,
    /// A segment that was open for this time is sealed.
    pub max_age: Duration,
    /// Unsynced bytes after which the stream syncs without being asked.
    pub sync_bytes: usize,
    /// Queued bytes that are handed to the store before anybody waits for them. On a remote store they
    /// travel meanwhile; fewer are not worth waking the task for.
    pub eager_bytes: usize,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            segment_size: 256 << 20,
            spare: 0,
            commit_interval: Duration::from_secs(1),
            commit_wait: Duration::ZERO,
            sync_timeout: Duration::from_secs(10),
            hedge_after: None,
            idle_seal: Duration::from_secs(30),
            max_age: Duration::from_secs(900),
            sync_bytes: 16 << 20,
            eager_bytes: 1 << 20,
        }
    }
}

/// Whose stream it is; goes into each segment's header.
#[derive(Clone)]
pub struct Identity {
    pub root: [u8; 16],
    pub stream: StreamId,
    pub epoch: Epoch,
    pub session: SessionId,
    pub origin: Origin,
}

/// Numbers that all streams of a session share.
#[derive(Default)]
pub struct Counters {
    /// Number of the session's next lane segment.
    pub next_lane_segment: AtomicU32,
    /// Files that have bytes to commit: siblings of those that wait for a sync already.
    pub writers: AtomicUsize,
    pub syncs: AtomicU64,
    /// Segments are sealed at this size (bytes), if that is below the configured one; 0: not set.
    pub small_segment: AtomicU64,
    pub rolls: AtomicU64,
    /// Bytes that compaction copied.
    pub copied: AtomicU64,
    pub claims: Arc<Claims>,
}

impl Counters {
    fn segment_size(&self, configured: u64) -> u64 {
        match self.small_segment.load(Ordering::Relaxed) {
            0 => configured,
            small => configured.min(small),
        }
    }
}

/// One stream. Dropping it stops its task at once, as a crash would.
pub struct Stream {
    shared: Arc<Shared>,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

struct Shared {
    identity: Identity,
    options: StreamOptions,
    store: Arc<dyn Store>,
    host: Arc<dyn Host>,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// The task has something new to look at.
    wake: Notify,
    /// Room was made in the queue.
    room: Notify,
}

struct State {
    queue: Queue,
    tail: Tail,
    health: Health,
    sealing: Option<Sealing>,
    alarm: Alarm,
}

/// What the task sleeps for, beside its time. Waking it costs a switch of threads, so it is not woken
/// for a frame or a waiter that changes nothing.
#[derive(Clone, Copy)]
struct Alarm {
    /// The queue's end has come this far.
    next: Pos,
    /// So many wait.
    waiting: usize,
}

impl Alarm {
    /// The task is awake and looks before it sleeps.
    const OFF: Alarm = Alarm {
        next: Pos::MAX,
        waiting: usize::MAX,
    };

    fn rings(&self, queue: &Queue) -> bool {
        queue.next() >= self.next || queue.waiting() >= self.waiting
    }
}

#[derive(Default)]
struct Health {
    /// Final: fenced, or shut down.
    dead: Option<Error>,
    /// Why the last attempt failed; cleared by a success.
    trouble: Option<Error>,
}

/// A request to seal the open segment.
#[derive(Clone, Copy, PartialEq)]
enum Sealing {
    /// Seal, and go on with a new segment when there is something to write.
    Roll,
    /// Seal and end the task.
    Shutdown,
}

impl Stream {
    /// Starts a stream whose next frame has position `next`; everything before is durable.
    pub fn start(
        identity: Identity,
        next: Pos,
        options: StreamOptions,
        store: Arc<dyn Store>,
        host: Arc<dyn Host>,
        clock: Arc<dyn Clock>,
        counters: Arc<Counters>,
    ) -> Stream {
        let state = State {
            queue: Queue::new(next),
            tail: Tail::default(),
            health: Health::default(),
            sealing: None,
            alarm: Alarm::OFF,
        };
        let shared = Arc::new(Shared {
            identity,
            options,
            store,
            host,
            clock,
            counters,
            state: Mutex::new(state),
            wake: Notify::new(),
            room: Notify::new(),
        });
        let task = tokio::spawn(task::run(shared.clone()));
        Stream {
            shared,
            task: Mutex::new(Some(task)),
        }
    }

    pub fn id(&self) -> StreamId {
        self.shared.identity.stream
    }

    /// The position that the next frame will have. Stable only while the caller keeps others from
    /// queueing.
    pub fn next(&self) -> Pos {
        self.shared.state.lock().queue.next()
    }

    pub fn durable_pos(&self) -> Pos {
        self.shared.state.lock().queue.durable()
    }

    /// Whether somebody waits for what was queued to become durable.
    pub fn is_awaited(&self) -> bool {
        self.shared.state.lock().queue.is_awaited()
    }

    /// Queues frames that were encoded for the positions from `next()` on.
    pub fn push(&self, frames: Vec<QueuedFrame>) -> Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(dead) = &state.health.dead {
            return Err(dead.clone());
        }
        for frame in frames {
            if let Some((pos, payload)) = frame.payload() {
                state.tail.insert(pos, payload);
            }
            state.queue.push(frame, Instant::now());
        }
        self.ring(state);
        Ok(())
    }

    /// Waits until at most `bytes` wait to become durable.
    pub async fn wait_for_room(&self, bytes: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let room = self.shared.room.notified();
            {
                let state = self.shared.state.lock();
                if let Some(dead) = &state.health.dead {
                    return Err(dead.clone());
                }
                if state.queue.bytes() <= bytes {
                    return Ok(());
                }
            }
            if tokio::time::timeout_at(deadline, room).await.is_err() {
                return Err(self.overdue("a place in the queue"));
            }
        }
    }

    /// Waits until everything before `pos` is durable. An error leaves the frames queued: they may
    /// become durable later. A full store is reported at once, other trouble after `limit`.
    pub async fn wait_durable(&self, pos: Pos, limit: Duration) -> Result<()> {
        let waiter = {
            let mut state = self.shared.state.lock();
            if state.queue.durable() >= pos {
                return Ok(());
            }
            if let Some(dead) = &state.health.dead {
                return Err(dead.clone());
            }
            debug_assert!(pos <= state.queue.next(), "nothing is queued up to {pos}");
            let waiter = state.queue.wait(pos);
            self.ring(state);
            waiter
        };
        match tokio::time::timeout(limit, waiter).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "the mount is shutting down",
            )),
            Err(_) => Err(self.overdue("a commit")),
        }
    }

    /// Wakes the task if that is what it sleeps for.
    fn ring(&self, mut state: MutexGuard<'_, State>) {
        if state.alarm.rings(&state.queue) {
            state.alarm = Alarm::OFF;
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    fn overdue(&self, what: &str) -> Error {
        let id = self.id();
        match &self.shared.state.lock().health.trouble {
            Some(e) => e
                .clone()
                .context(format!("{what} on stream {id} is overdue")),
            None => Error::new(
                ErrorKind::TimedOut,
                format!("{what} on stream {id} is overdue: the store is slow"),
            ),
        }
    }

    /// The payload of the frame whose payload starts at `pos`, if it is still in memory.
    pub fn payload(&self, pos: Pos) -> Option<Bytes> {
        self.shared.state.lock().tail.get(pos)
    }

    /// Bytes that are kept in memory because the store cannot show them yet.
    pub fn tail_bytes(&self) -> usize {
        self.shared.state.lock().tail.bytes()
    }

    /// Asks for the open segment to be sealed soon; the stream goes on in a new one.
    pub fn request_seal(&self) {
        let mut state = self.shared.state.lock();
        state.sealing.get_or_insert(Sealing::Roll);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Makes everything durable, seals the open segment and ends the task. After a time-out the
    /// task is stopped where it is.
    pub async fn shutdown(&self, limit: Duration) -> Result<()> {
        let Some(mut task) = self.task.lock().take() else {
            return Ok(());
        };
        let pos = self.next();
        self.shared.state.lock().sealing = Some(Sealing::Shutdown);
        self.shared.wake.notify_one();
        let ended = tokio::time::timeout(limit, &mut task).await.is_ok();
        task.abort();
        match (ended, self.durable_pos() >= pos) {
            (true, true) => Ok(()),
            (_, false) => Err(self.overdue("the last commit")),
            (false, true) => Err(self.overdue("sealing the last segment")),
        }
    }

    /// Ends the stream for good: everybody who waits gets the error.
    pub fn kill(&self, error: Error) {
        self.shared.die(error);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Shared {
    fn die(&self, error: Error) {
        let mut state = self.state.lock();
        if state.health.dead.is_none() {
            state.health.dead = Some(error.clone());
            state.queue.fail_waiters(&error);
        }
        drop(state);
        self.wake.notify_one();
        self.room.notify_waiters();
    }

    /// Tells whoever resolves positions which segment has which.
    fn announce(&self, row: SegmentRow) {
        self.host.segment_changed(row.clone());
        self.state.lock().tail.place(&row);
    }

    /// Everything before `pos` is durable. Returns how many waited for that, and how many wait for more.
    fn acknowledge(&self, pos: Pos) -> (usize, usize) {
        let mut state = self.state.lock();
        state.health.trouble = None;
        let done = state.queue.acknowledge(pos);
        let counts = (done.count(), state.queue.waiting());
        drop(state);
        done.tell();
        self.room.notify_waiters();
        counts
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
