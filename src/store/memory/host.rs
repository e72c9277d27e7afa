//! A host's way to the store: every call takes time to arrive and time to be answered, and a
//! host may crash or be cut off in between.

use super::world::World;
use super::{LastCall, Shared};
use crate::base::{Result, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Up,
    Frozen,
    Dead,
}

pub(super) struct Host {
    pub life: watch::Sender<Life>,
    pub calls: u64,
    pub crash_at: Option<(u64, LastCall)>,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            life: watch::Sender::new(Life::Up),
            calls: 0,
            crash_at: None,
        }
    }
}

/// One host's handle onto the store.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    index: usize,
    pub(super) url: String,
    pub(super) block_size: u64,
}

/// What was decided about a call when it began.
struct Journey {
    there: Duration,
    back: Duration,
    last: Option<LastCall>,
}

impl MemoryStore {
    pub(super) fn new(shared: Arc<Shared>, index: usize, block_size: u64, name: &str) -> Self {
        MemoryStore {
            shared,
            index,
            url: format!("memory://{name}"),
            block_size,
        }
    }

    /// Carries out one atomic step on the store. It runs in a task of its own: a caller that gives
    /// up does not take the call back, it only no longer hears the answer.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut World, Timestamp) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if let Some(journey) = self.begin() {
            let host = self.clone();
            let task = tokio::spawn(async move { host.travel(journey, step).await });
            if let Ok(Some(answer)) = task.await {
                return answer;
            }
        }
        // The host is dead (or the runtime is ending): a process that is gone hears nothing.
        std::future::pending().await
    }

    async fn travel<T>(
        &self,
        journey: Journey,
        step: impl FnOnce(&mut World, Timestamp) -> Result<T>,
    ) -> Option<Result<T>> {
        delay(journey.there).await;
        self.until(|life| life != Life::Frozen).await;
        if !self.arrives(journey.last) {
            return None;
        }
        let now = self.shared.now();
        let answer = step(&mut self.shared.inner.lock().world, now);
        delay(journey.back).await;
        self.until(|life| life != Life::Frozen).await;
        (!self.is_crashed()).then_some(answer)
    }

    /// Counts the call; `None` for a dead host.
    fn begin(&self) -> Option<Journey> {
        let mut inner = self.shared.inner.lock();
        let latency = inner.world.config.latency.clone();
        let random = &mut inner.world.random;
        // A quarter of the ways takes no time at all, so that calls also overtake each other.
        let mut way = || {
            if random.one_in(4) {
                Duration::ZERO
            } else {
                random.duration(&latency)
            }
        };
        let (there, back) = (way(), way());
        let host = &mut inner.hosts[self.index];
        if *host.life.borrow() == Life::Dead {
            return None;
        }
        host.calls += 1;
        let last = host
            .crash_at
            .filter(|(n, _)| *n == host.calls)
            .map(|(_, last)| last);
        if last.is_some() {
            host.life.send_replace(Life::Dead);
        }
        Some(Journey { there, back, last })
    }

    /// Whether a call that set out reaches the store. What a dying host had sent may or may not.
    fn arrives(&self, last: Option<LastCall>) -> bool {
        match last {
            Some(last) => last == LastCall::Done,
            None => !self.is_crashed() || self.shared.inner.lock().world.random.one_in(2),
        }
    }

    pub(super) fn with_host<T>(&self, f: impl FnOnce(&mut Host) -> T) -> T {
        f(&mut self.shared.inner.lock().hosts[self.index])
    }

    /// The dead stay dead.
    pub(super) fn set_life(&self, to: Life) {
        self.with_host(|host| {
            host.life.send_if_modified(|life| {
                let change = *life != Life::Dead && *life != to;
                if change {
                    *life = to;
                }
                change
            })
        });
    }

    pub(super) async fn until(&self, holds: impl Fn(Life) -> bool) {
        let mut life = self.with_host(|host| host.life.subscribe());
        // The sender lives as long as `self.shared`, so this cannot fail.
        let _ = life.wait_for(|life| holds(*life)).await;
    }
}

async fn delay(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
