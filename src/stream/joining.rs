//! How long a sync waits for others to join it.
//!
//! A sync costs the same for one file as for many, so it is worth a wait when more are about to ask for
//! one: files that are being written, and those who asked last time and probably write their next file.
//! Both are guesses, so it waits no longer than a sync takes, and stops guessing what was wrong often.

use std::time::Duration;
use tokio::time::Instant;

pub(super) struct Joining {
    /// The longest wait.
    most: Duration,
    /// How long a sync takes lately.
    usual_sync: Duration,
    /// Who took part in the last sync or came while it was under way. One writer alone never finds
    /// another waiting, so it is never more than one for him.
    crowd: usize,
    /// Until when the coming sync waits.
    until: Option<Instant>,
    /// Syncs that waited for siblings since one last had a larger crowd than the one before.
    vain: u32,
    waits_for_siblings: bool,
}

/// After so many syncs the siblings are taken for files that lie open and idle.
const VAIN: u32 = 8;
/// Timers are not finer than this: a shorter wait would become this one.
const SHORTEST: Duration = Duration::from_millis(1);

/// Wait until this time, or until so many wait.
pub(super) struct Wait {
    pub until: Instant,
    pub waiting: usize,
}

impl Joining {
    pub fn new(most: Duration) -> Joining {
        Joining {
            most,
            usual_sync: Duration::ZERO,
            crowd: 0,
            until: None,
            vain: 0,
            waits_for_siblings: false,
        }
    }

    pub fn usual_sync(&self) -> Duration {
        self.usual_sync
    }

    /// `waiting` ask for a sync, `siblings` files have bytes that are not committed.
    pub fn wait(&mut self, now: Instant, waiting: usize, siblings: usize) -> Option<Wait> {
        let longest = self.most.min(self.usual_sync);
        if longest < SHORTEST {
            return None;
        }
        let until = *self.until.get_or_insert(now + longest);
        let siblings = if self.vain < VAIN { siblings } else { 0 };
        let expected = self.crowd.max(waiting + siblings);
        let wait = (expected > waiting && until > now).then_some(Wait {
            until,
            waiting: expected,
        });
        self.waits_for_siblings |= wait.is_some() && siblings > 0;
        wait
    }

    /// A sync begins.
    pub fn begin(&mut self) {
        self.until = None;
    }

    /// A sync succeeded, for `joined`; `waiting` have come since.
    pub fn done(&mut self, took: Duration, joined: usize, waiting: usize) {
        self.usual_sync = (self.usual_sync * 7 + took) / 8;
        let before = std::mem::replace(&mut self.crowd, joined + waiting);
        // A sync that nobody waited for says nothing.
        if self.crowd > before.max(1) {
            self.vain = 0;
        } else if self.waits_for_siblings {
            self.vain += 1;
        }
        self.waits_for_siblings = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer of 0.2 ms ends after 1 ms or 2: five times as long as the sync that was to be saved.
    #[tokio::test(start_paused = true)]
    async fn a_fast_store_is_not_waited_for() {
        for (micros, waits) in [(200, false), (999, false), (1000, true), (50_000, true)] {
            let mut joining = Joining::new(Duration::from_millis(10));
            (0..100).for_each(|_| joining.done(Duration::from_micros(micros), 4, 4));
            // A moving average is a little below.
            joining.done(
                Duration::from_micros(micros) + Duration::from_micros(8),
                4,
                4,
            );
            assert_eq!(
                joining.wait(Instant::now(), 1, 1).is_some(),
                waits,
                "{micros}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_writer_alone_never_waits() {
        let mut joining = Joining::new(Duration::from_millis(10));
        for _ in 0..20 {
            assert!(joining.wait(Instant::now(), 1, 0).is_none());
            joining.begin();
            joining.done(Duration::from_millis(5), 1, 0);
        }
    }
}
