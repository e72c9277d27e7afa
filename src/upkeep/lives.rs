//! How long files are likely to live, learnt from those that were made and deleted lately.
//!
//! What is known of a file when it is written is its size, and that tells much: an engine cuts its
//! merged files at one size, while what it flushes young has any. So there is a life table for each
//! narrow class of sizes, backed by one for each octave and one for all files where a class has seen
//! too few. Nothing but placement depends on it, so it is kept in memory only, and learnt anew after
//! a mount.

use crate::base::Timestamp;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Classes of size in an octave.
const FINE: f64 = 64.0;
/// Bins of age, two in an octave: from a quarter of a second to twelve days.
const BINS: usize = 44;
const FIRST_OCTAVE: f64 = -2.0;
/// A table forgets half of what it knows when it has seen so many files.
const MEMORY: f32 = 400.0;
/// So many files of a wider class count as much as what a narrower one has seen.
const PRIOR: f32 = 8.0;
/// A file lasts if it outlives this share of the time in which as much is written as is live.
const LASTING: f64 = 0.7;

#[derive(Clone)]
struct Table {
    births: f32,
    deaths: [f32; BINS],
}

impl Table {
    const EMPTY: Table = Table {
        births: 0.0,
        deaths: [0.0; BINS],
    };

    fn born(&mut self) {
        self.births += 1.0;
        if self.births > MEMORY {
            self.births /= 2.0;
            self.deaths.iter_mut().for_each(|d| *d /= 2.0);
        }
    }
}

/// How fast the root is written over: the time in which as much is written as is live.
#[derive(Default)]
struct Pace {
    live: u64,
    written: u64,
    since: Option<Timestamp>,
    turnover: Option<f64>,
}

impl Pace {
    fn write(&mut self, bytes: u64, now: Timestamp) {
        self.live += bytes;
        self.written += bytes;
        let since = *self.since.get_or_insert(now);
        let elapsed = seconds(since, now);
        if self.written < self.live / 2 || elapsed < 1.0 {
            return;
        }
        let new = elapsed * self.live as f64 / self.written as f64;
        // One night without work must not make everything look short-lived.
        let blend = |old: f64| (old + new.clamp(old / 4.0, old * 4.0)) / 2.0;
        self.turnover = Some(self.turnover.map_or(new, blend));
        self.written = 0;
        self.since = Some(now);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.saturating_sub(from).max(0) as f64 / 1e9
}

pub struct Lives {
    all: Table,
    octaves: FxHashMap<u16, Table>,
    fine: FxHashMap<u16, Table>,
    pace: Pace,
}

impl Lives {
    /// `live`: the bytes that are live already.
    pub fn new(live: u64) -> Lives {
        Lives {
            all: Table::EMPTY,
            octaves: FxHashMap::default(),
            fine: FxHashMap::default(),
            pace: Pace {
                live,
                ..Pace::default()
            },
        }
    }

    fn tables(&mut self, size: u64) -> [&mut Table; 3] {
        let class = class(size);
        let fine = self.fine.entry(class).or_insert(Table::EMPTY);
        let octave = self.octaves.entry(octave(class)).or_insert(Table::EMPTY);
        [fine, octave, &mut self.all]
    }

    /// A file got its first bytes.
    pub fn born(&mut self, size: u64, now: Timestamp) {
        self.tables(size).into_iter().for_each(Table::born);
        self.pace.write(size, now);
    }

    /// A file is of another size now.
    pub fn resized(&mut self, old: u64, new: u64, now: Timestamp) {
        if class(old) != class(new) {
            for table in self.tables(old) {
                table.births = (table.births - 1.0).max(0.0);
            }
            self.tables(new).into_iter().for_each(Table::born);
        }
        self.pace.live = self.pace.live.saturating_sub(old);
        self.pace.live += new.min(old);
        self.pace.write(new.saturating_sub(old), now);
    }

    /// A file that was made at `born` lost its last name.
    pub fn died(&mut self, size: u64, born: Timestamp, now: Timestamp) {
        let bin = bin(seconds(born, now));
        for table in self.tables(size) {
            table.deaths[bin] += 1.0;
        }
        self.pace.live = self.pace.live.saturating_sub(size);
    }

    /// The time in which as much is written as is live; None while that is not known.
    pub fn turnover(&self) -> Option<Duration> {
        self.pace.turnover.map(Duration::from_secs_f64)
    }

    /// Whether a new file of this size will probably outlive most of what is written beside it.
    pub fn lasts(&self, size: u64) -> bool {
        let long = self.pace.turnover.map(|t| t * LASTING);
        long.is_some_and(|age| self.chance(size, age) > 0.5)
    }

    /// The chance that a file of this size lives longer than `age` seconds.
    fn chance(&self, size: u64, age: f64) -> f64 {
        let class = class(size);
        let none = &Table::EMPTY;
        let fine = self.fine.get(&class).unwrap_or(none);
        let octave = self.octaves.get(&octave(class)).unwrap_or(none);
        let tables = [&self.all, octave, fine];
        let mut left = tables.map(|t| t.births);
        let (mut alive, last) = (1.0, bin(age));
        for b in 0..=last {
            let mut hazard = 0.2;
            for (table, left) in tables.iter().zip(&mut left) {
                let seen = left.max(0.0);
                hazard = ((table.deaths[b] + PRIOR * hazard) / (seen + PRIOR)).min(1.0);
                *left -= table.deaths[b];
            }
            let within = if b == last { share_of_bin(b, age) } else { 1.0 };
            alive *= 1.0 - hazard as f64 * within;
        }
        alive
    }
}

fn class(size: u64) -> u16 {
    ((size.max(1) as f64).log2() * FINE) as u16
}

fn octave(class: u16) -> u16 {
    class / FINE as u16
}

fn bin(age: f64) -> usize {
    let half_octaves = (age.max(1e-9).log2() - FIRST_OCTAVE) * 2.0;
    (half_octaves.max(0.0) as usize).min(BINS - 1)
}

/// How much of a bin lies before an age in it.
fn share_of_bin(bin: usize, age: f64) -> f64 {
    let start = |b: usize| (b as f64 / 2.0 + FIRST_OCTAVE).exp2();
    let from = if bin == 0 { 0.0 } else { start(bin) };
    ((age - from) / (start(bin + 1) - from)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Timestamp = 1_000_000_000;
    const MERGED: u64 = 265_000;
    const YOUNG: u64 = 240_000;

    /// A job that writes two files a second: a merged one that lives a minute, another that lives
    /// five seconds.
    fn job(lives: &mut Lives, seconds: i64) {
        for t in 0..seconds {
            let now = t * SECOND;
            lives.born(MERGED + t as u64 % 900, now);
            lives.born(YOUNG + t as u64 * 7919 % 20_000, now);
            if t >= 60 {
                lives.died(MERGED + (t - 60) as u64 % 900, now - 60 * SECOND, now);
            }
            if t >= 5 {
                lives.died(
                    YOUNG + (t - 5) as u64 * 7919 % 20_000,
                    now - 5 * SECOND,
                    now,
                );
            }
        }
    }

    #[test]
    fn nothing_is_said_before_anything_is_known() {
        let mut lives = Lives::new(1 << 30);
        assert!(!lives.lasts(MERGED));
        lives.born(MERGED, 0);
        assert_eq!(lives.turnover(), None);
        assert!(!lives.lasts(MERGED));
    }

    #[test]
    fn files_of_the_size_that_lives_long_are_told_from_their_neighbours() {
        let mut lives = Lives::new(0);
        job(&mut lives, 600);
        let turnover = lives.turnover().unwrap().as_secs_f64();
        assert!((25.0..45.0).contains(&turnover), "{turnover}");
        assert!(lives.lasts(MERGED + 17));
        assert!(!lives.lasts(YOUNG + 1234));
        assert!(!lives.lasts(YOUNG + 19_000));
    }

    #[test]
    fn what_was_learnt_is_forgotten_when_it_is_wrong() {
        let mut lives = Lives::new(0);
        job(&mut lives, 600);
        for t in 600..1200 {
            let now = t * SECOND;
            lives.born(MERGED, now);
            lives.died(MERGED, now - 3 * SECOND, now);
            lives.born(YOUNG, now);
        }
        assert!(!lives.lasts(MERGED));
    }

    #[test]
    fn a_file_that_grows_counts_once() {
        let mut lives = Lives::new(0);
        for t in 0..100 {
            lives.born(1 << 10, t * SECOND);
            lives.resized(1 << 10, 1 << 20, t * SECOND);
            lives.died(1 << 20, t * SECOND, t * SECOND + SECOND);
        }
        assert_eq!(lives.pace.live, 0);
        assert!(lives.all.births <= 101.0, "{}", lives.all.births);
    }

    #[test]
    fn ages_and_sizes_of_any_kind_are_taken() {
        let mut lives = Lives::new(u64::MAX / 4);
        for size in [0, 1, u64::MAX / 8] {
            lives.born(size, 5);
            lives.died(size, SECOND, 0);
            lives.died(size, Timestamp::MIN, Timestamp::MAX);
            lives.lasts(size);
        }
    }
}
