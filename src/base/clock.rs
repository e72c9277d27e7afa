//! The wall clock, injected so that simulations decide what time it is. Sleeping and time-outs use
//! `tokio::time`, which a simulation pauses.

use super::types::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since 1970, for file timestamps and messages. May step; never use it to order
    /// events or to decide that something on the store is old (the store's own clock does that).
    fn now(&self) -> Timestamp;
}

pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => d.as_nanos() as Timestamp,
            Err(e) => -(e.duration().as_nanos() as Timestamp),
        }
    }
}
