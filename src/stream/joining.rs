//! How long a sync waits for others to join it.
//!
//! A sync costs the same for one file as for many, so it is worth a wait when more are about to ask for
//! one: files that are being written, and those who asked last time and probably write their next file.

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
    /// Syncs in a row that waited for siblings, and nobody came.
    vain: u32,
    waits_for_siblings: bool,
}

/// After so many syncs the siblings are taken for files that lie open and idle.
const VAIN: u32 = 8;

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
        self.crowd = joined + waiting;
        if self.crowd > 1 {
            self.vain = 0;
        } else if self.waits_for_siblings {
            self.vain += 1;
        }
        self.waits_for_siblings = false;
    }
}
