//! Decides what of a segment to read ahead.
//!
//! An engine that restores reads thousands of small files that lie side by side in a few segments;
//! one request per file is what makes that slow. So the stream's positions are cut into regions, and
//! once two reads have missed in one region, or one has in the region after one that was read, the rest of
//! it is fetched at once. Whether that pays is watched: as long as most of what was fetched ahead stays
//! unread, single blocks are read, as a store of random reads wants it.

use super::window::Cursor;
use crate::base::{Pos, StreamId};
use crate::format::BLOCK;
use lru::LruCache;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Bytes of a region: what one request fetches.
pub(super) const REGION: u64 = 4 << 20;
const REGIONS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Requests under way at once, each with up to a region in memory.
const AT_ONCE: usize = 8;
/// Blocks that are fetched ahead before the share that is read counts.
const TRIAL: u64 = 8 * REGION / BLOCK as u64;
/// One block in so many must be read for the others to be worth fetching.
const WORTH: u64 = 3;
/// While it is not worth it, one chance in so many is taken nevertheless: times change.
const PROBE: u64 = 64;
/// Older experience counts half from here on, in blocks.
const MEMORY: u64 = 8192;
/// Blocks of a region that were read before the next one is fetched.
const BEGUN: u32 = (REGION / BLOCK as u64 / 4) as u32;
/// Misses within what was covered after which it counts as evicted.
const EVICTED: u32 = 8;

#[derive(Default)]
struct Region {
    misses: u32,
    /// Blocks that were fetched ahead and then read.
    used: u32,
    /// What was fetched; both 0 if nothing was.
    from: Pos,
    to: Pos,
    /// Where the fetch of the next region begins.
    next: Option<Cursor>,
    flight: Option<Flight>,
}

#[derive(Clone)]
struct Flight {
    from: Pos,
    turn: Arc<Turn<()>>,
}

impl Region {
    fn covers(&self, at: Pos) -> bool {
        self.from < at && at <= self.to
    }
}

pub(super) enum Step {
    /// Fetch what is wanted, and nothing else.
    Alone,
    /// It is being fetched: look again when this can be locked.
    Wait(Arc<Turn<()>>),
    /// Fetch what is wanted and all up to `to`.
    Window(Ticket),
}

/// The right to fetch a part of a region. Those who wait for it go on when it is dropped.
pub(super) struct Ticket {
    pub to: Pos,
    key: (StreamId, u64),
    ahead: Arc<Mutex<State>>,
    _turn: OwnedMutexGuard<()>,
}

impl Ticket {
    /// All blocks that end in `(from, to]` are cached now; `blocks` is their number.
    pub fn done(self, from: Pos, to: Pos, blocks: u64, next: Option<Cursor>) {
        let mut state = self.ahead.lock();
        state.fetched += blocks;
        if state.fetched > MEMORY {
            state.fetched /= 2;
            state.used /= 2;
        }
        if let Some(region) = state.regions.get_mut(&self.key) {
            let fresh = region.from == region.to;
            // What is in front of the part that is known already ends there, and leads nowhere else.
            if fresh || to > region.to {
                region.next = next;
            }
            region.from = if fresh { from } else { region.from.min(from) };
            region.to = region.to.max(to);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.ahead.lock();
        state.flying -= 1;
        if let Some(region) = state.regions.peek_mut(&self.key) {
            region.flight = None;
        }
    }
}

struct State {
    regions: LruCache<(StreamId, u64), Region, FxBuildHasher>,
    flying: usize,
    fetched: u64,
    used: u64,
    refused: u64,
}

impl State {
    fn is_worth_it(&mut self) -> bool {
        if self.fetched < TRIAL || self.used * WORTH >= self.fetched {
            return true;
        }
        self.refused += 1;
        self.refused.is_multiple_of(PROBE)
    }

    fn region(&mut self, key: (StreamId, u64)) -> &mut Region {
        self.regions.get_or_insert_mut(key, Region::default)
    }
}

/// Positions stand for blocks: a block belongs where its last byte is.
fn key(stream: StreamId, at: Pos) -> (StreamId, u64) {
    (stream, at.saturating_sub(1) / REGION)
}

pub(super) struct Ahead {
    state: Arc<Mutex<State>>,
}

impl Ahead {
    pub fn new() -> Ahead {
        let state = State {
            regions: LruCache::with_hasher(REGIONS, FxBuildHasher),
            flying: 0,
            fetched: 0,
            used: 0,
            refused: 0,
        };
        Ahead {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A block that ends at `at` is wanted and not cached.
    pub fn miss(&self, stream: StreamId, at: Pos) -> Step {
        let key = key(stream, at);
        let mut state = self.state.lock();
        let follows = key.1 > 0
            && state
                .regions
                .peek(&(stream, key.1 - 1))
                .is_some_and(|before| before.to > 0);
        let region = state.region(key);
        if let Some(flight) = region.flight.as_ref().filter(|f| f.from < at) {
            return Step::Wait(flight.turn.clone());
        }
        region.misses += 1;
        if region.covers(at) {
            if region.misses < EVICTED {
                return Step::Alone;
            }
            *region = Region::default();
        }
        if region.misses < 2 && !follows {
            return Step::Alone;
        }
        self.begin(&mut state, key, at)
    }

    fn begin(&self, state: &mut State, key: (StreamId, u64), at: Pos) -> Step {
        if state.flying >= AT_ONCE || state.region(key).flight.is_some() || !state.is_worth_it() {
            return Step::Alone;
        }
        let turn = Arc::new(Turn::new(()));
        let Ok(guard) = turn.clone().try_lock_owned() else {
            return Step::Alone;
        };
        let region = state.region(key);
        region.misses = 0;
        let end = (key.1 + 1) * REGION;
        let to = if at <= region.from { region.from } else { end };
        // The block's first byte is unknown here; no block is longer than this.
        let from = at.saturating_sub(BLOCK as u64);
        region.flight = Some(Flight { from, turn });
        state.flying += 1;
        Step::Window(Ticket {
            to,
            key,
            ahead: self.state.clone(),
            _turn: guard,
        })
    }

    /// A block that was fetched ahead is read for the first time. Returns what to fetch next, in the
    /// background, if the reader is about to get there.
    pub fn used(&self, stream: StreamId, at: Pos) -> Option<(Cursor, Ticket)> {
        let key = key(stream, at);
        let mut state = self.state.lock();
        state.used += 1;
        let region = state.region(key);
        region.used += 1;
        if region.used < BEGUN {
            return None;
        }
        let next = region.next.take()?;
        let follower = (stream, key.1 + 1);
        let known = state.regions.peek(&follower);
        if known.is_some_and(|r| r.to > 0 || r.flight.is_some()) {
            return None;
        }
        match self.begin(&mut state, follower, next.at() + 1) {
            Step::Window(ticket) => Some((next, ticket)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StreamId = StreamId(3);
    const B: u64 = BLOCK as u64;

    fn window(step: Step) -> Ticket {
        match step {
            Step::Window(ticket) => ticket,
            Step::Alone => panic!("alone"),
            Step::Wait(_) => panic!("wait"),
        }
    }

    fn is_alone(step: &Step) -> bool {
        matches!(step, Step::Alone)
    }

    #[test]
    fn the_second_miss_in_a_region_fetches_the_rest_of_it_and_others_wait() {
        let ahead = Ahead::new();
        assert!(is_alone(&ahead.miss(S, 10 * B)));
        let ticket = window(ahead.miss(S, 20 * B));
        assert_eq!(ticket.to, REGION);
        assert!(matches!(ahead.miss(S, 21 * B), Step::Wait(_)));
        // What lies in front of it is not in it.
        assert!(is_alone(&ahead.miss(S, 5 * B)));
        ticket.done(19 * B, REGION, 45, None);
        let before = window(ahead.miss(S, 6 * B));
        assert_eq!(before.to, 19 * B);
        drop(before);
        // Another region begins anew.
        assert!(window(ahead.miss(S, REGION + 1)).to == 2 * REGION);
        assert!(is_alone(&ahead.miss(StreamId(4), REGION + 1)));
    }

    #[test]
    fn a_fetch_that_was_given_up_lets_the_next_one_try() {
        let ahead = Ahead::new();
        let _ = ahead.miss(S, B);
        drop(window(ahead.miss(S, 2 * B)));
        let _ = ahead.miss(S, 2 * B);
        drop(window(ahead.miss(S, 2 * B)));
    }

    #[test]
    fn what_is_never_read_is_no_longer_fetched_but_now_and_then() {
        let ahead = Ahead::new();
        let mut windows = 0;
        for n in 0..10_000 {
            let at = n * REGION + B;
            for at in [at, at + B] {
                if let Step::Window(ticket) = ahead.miss(S, at) {
                    windows += 1;
                    let to = ticket.to;
                    ticket.done(at, to, REGION / B, None);
                }
            }
        }
        assert!((8..400).contains(&windows), "{windows}");
    }

    #[test]
    fn what_was_evicted_is_fetched_again() {
        let ahead = Ahead::new();
        let _ = ahead.miss(S, B);
        let ticket = window(ahead.miss(S, 2 * B));
        ticket.done(B, REGION, 63, None);
        let again = (0..EVICTED + 2).any(|_| matches!(ahead.miss(S, 9 * B), Step::Window(_)));
        assert!(again);
    }
}
