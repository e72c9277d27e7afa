//! One file of the model, and what may become of it.

use crate::base::{Random, Timestamp};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its writer holds the lease.
    Open,
    /// Somebody revoked the lease; the length is decided at this time.
    Recovering(Timestamp),
    Closed,
}

/// Invariant: `synced <= bytes.len()`, and a closed file has nothing unsynced.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub bytes: Vec<u8>,
    pub synced: usize,
    pub state: State,
    pub mtime: Timestamp,
    pub mode: u32,
    pub deleted: bool,
}

impl File {
    pub fn new(now: Timestamp) -> File {
        File {
            bytes: Vec::new(),
            synced: 0,
            state: State::Open,
            mtime: now,
            mode: 0o600,
            deleted: false,
        }
    }

    pub fn is_written(&self) -> bool {
        self.state == State::Open && !self.deleted
    }

    /// What a reader sees: while the file is not closed, whole blocks, the last one only once the
    /// next was begun.
    pub fn visible(&self, block: usize) -> usize {
        match self.state {
            State::Closed => self.bytes.len(),
            _ => self.bytes.len().saturating_sub(1) / block * block,
        }
    }

    /// What a listing says.
    pub fn reported(&self, block: usize) -> usize {
        self.visible(block).max(self.synced)
    }

    pub fn close(&mut self, now: Timestamp) {
        self.synced = self.bytes.len();
        self.state = State::Closed;
        self.mtime = now;
    }

    /// Ends a recovery whose time has come: of the bytes after the last sync a prefix is kept,
    /// often none or all. (HDFS keeps complete blocks; the model may lose these too, as a power
    /// loss of all DataNodes does.)
    pub fn settle(&mut self, now: Timestamp, random: &mut Random) {
        let State::Recovering(until) = self.state else {
            return;
        };
        if now < until {
            return;
        }
        let unsynced = (self.bytes.len() - self.synced) as u64;
        let kept = match random.below(4) {
            0 => 0,
            1 => unsynced,
            _ => random.below(unsynced + 1),
        };
        self.bytes.truncate(self.synced + kept as usize);
        self.close(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_tail_is_a_prefix_that_covers_what_was_synced() {
        let written: Vec<u8> = (0..100).collect();
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let mut file = File::new(0);
            file.bytes = written.clone();
            file.synced = 40;
            file.state = State::Recovering(5);
            let random = &mut Random::new(seed);
            file.settle(4, random);
            assert_eq!(file.state, State::Recovering(5), "too early");
            file.settle(5, random);
            assert_eq!(file.state, State::Closed);
            assert!(
                file.bytes.len() >= 40 && written.starts_with(&file.bytes),
                "seed {seed}"
            );
            lengths.insert(file.bytes.len());
        }
        assert!(
            lengths.contains(&40) && lengths.contains(&100),
            "none and all both occur"
        );
        assert!(lengths.len() > 30, "and much between");
    }

    #[test]
    fn an_open_file_shows_complete_blocks_only() {
        let mut file = File::new(0);
        for (len, visible) in [(0, 0), (9, 0), (10, 0), (11, 10), (20, 10), (21, 20)] {
            file.bytes.resize(len, 0);
            assert_eq!(file.visible(10), visible, "{len} bytes");
        }
        file.synced = 21;
        assert_eq!((file.visible(10), file.reported(10)), (20, 21));
        file.close(1);
        assert_eq!(file.visible(10), 21);
    }
}
