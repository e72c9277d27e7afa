//! Frames from the moment they get a position until they are durable.

use crate::base::{Error, Pos, Result};
use crate::format::frame::head_len;
use bytes::Bytes;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// An encoded frame and where it goes.
#[derive(Clone)]
pub struct QueuedFrame {
    pub pos: Pos,
    /// The whole record, or a data frame up to its payload.
    pub head: Bytes,
    /// Empty for a record.
    pub payload: Bytes,
    /// What follows the payload.
    pub trail: Bytes,
    /// Dropped when the frame is durable: buffer permits.
    pub held: Option<std::sync::Arc<dyn Any + Send + Sync>>,
}

impl QueuedFrame {
    pub fn size(&self) -> usize {
        self.head.len() + self.payload.len() + self.trail.len()
    }

    pub fn end(&self) -> Pos {
        self.pos + self.size() as u64
    }

    /// A data frame's payload and its position.
    pub fn payload(&self) -> Option<(Pos, Bytes)> {
        if self.payload.is_empty() {
            return None;
        }
        Some((
            self.pos + head_len(self.payload.len()) as u64,
            self.payload.clone(),
        ))
    }
}

pub(super) struct Queue {
    /// In order, gapless: the first starts at or before `durable`, the last ends at `next`.
    frames: VecDeque<(QueuedFrame, Instant)>,
    bytes: usize,
    next: Pos,
    durable: Pos,
    waiters: BTreeMap<Pos, Vec<Waiter>>,
    waiting: usize,
}

type Waiter = oneshot::Sender<Result<()>>;

/// What an acknowledgement ends. Both are let go outside of the queue's lock: permits and wakers
/// run code of others.
#[must_use]
pub(super) struct Acknowledged {
    _frames: Vec<QueuedFrame>,
    waiters: Vec<Waiter>,
}

impl Acknowledged {
    /// Those who waited for it.
    pub(super) fn count(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn tell(self) {
        for waiter in self.waiters {
            // A waiter that gave up is fine.
            let _ = waiter.send(Ok(()));
        }
    }
}

impl Queue {
    pub(super) fn new(next: Pos) -> Queue {
        Queue {
            frames: VecDeque::new(),
            bytes: 0,
            next,
            durable: next,
            waiters: BTreeMap::new(),
            waiting: 0,
        }
    }

    pub(super) fn next(&self) -> Pos {
        self.next
    }

    pub(super) fn durable(&self) -> Pos {
        self.durable
    }

    /// Bytes that are not durable yet.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Since when the oldest frame that is not durable waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.frames.front().map(|(_, since)| *since)
    }

    pub(super) fn push(&mut self, frame: QueuedFrame, now: Instant) {
        debug_assert_eq!(
            frame.pos, self.next,
            "a frame was encoded for another position"
        );
        self.next = frame.end();
        self.bytes += frame.size();
        self.frames.push_back((frame, now));
    }

    /// Frames from position `from` on, up to about `limit` bytes (at least one).
    pub(super) fn batch(&self, from: Pos, limit: usize) -> Vec<QueuedFrame> {
        let start = self.frames.partition_point(|(f, _)| f.pos < from);
        let mut size = 0;
        let mut batch = Vec::new();
        for (f, _) in self.frames.range(start..) {
            if !batch.is_empty() && size + f.size() > limit {
                break;
            }
            size += f.size();
            batch.push(f.clone());
        }
        batch
    }

    pub(super) fn wait(&mut self, pos: Pos) -> oneshot::Receiver<Result<()>> {
        let (tx, rx) = oneshot::channel();
        self.waiters.entry(pos).or_default().push(tx);
        self.waiting += 1;
        rx
    }

    /// Whether somebody waits for what is not durable.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting > 0
    }

    /// The last position that somebody waits for.
    pub(super) fn awaited(&self) -> Option<Pos> {
        self.waiters.last_key_value().map(|(pos, _)| *pos)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Everything before `pos` is durable.
    pub(super) fn acknowledge(&mut self, pos: Pos) -> Acknowledged {
        let mut done = Acknowledged {
            _frames: Vec::new(),
            waiters: Vec::new(),
        };
        if pos <= self.durable {
            return done;
        }
        self.durable = pos;
        while self.frames.front().is_some_and(|(f, _)| f.end() <= pos) {
            if let Some((f, _)) = self.frames.pop_front() {
                self.bytes -= f.size();
                done._frames.push(f);
            }
        }
        let later = self.waiters.split_off(&(pos + 1));
        let now = std::mem::replace(&mut self.waiters, later);
        done.waiters = now.into_values().flatten().collect();
        self.waiting -= done.waiters.len();
        done
    }

    pub(super) fn fail_waiters(&mut self, error: &Error) {
        self.waiting = 0;
        for waiter in std::mem::take(&mut self.waiters).into_values().flatten() {
            let _ = waiter.send(Err(error.clone()));
        }
    }
}
