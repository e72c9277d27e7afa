//! A small deterministic generator (SplitMix64): jitter of retries, and simulations that replay
//! from a seed. Not for secrets.

use std::ops::RangeInclusive;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Not reproducible: for jitter outside simulations.
    pub fn from_process() -> Random {
        Random(uuid::Uuid::new_v4().as_u64_pair().0)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(n)) >> 64) as u64
    }

    /// True once in `n` times on average; never when `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = range.end().saturating_sub(*range.start()).as_nanos() as u64;
        *range.start() + Duration::from_nanos(self.below(span.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_ranges_hold() {
        let draw = |seed| {
            let mut r = Random::new(seed);
            (0..1000).map(|i| r.below(i)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(
            draw(7)
                .iter()
                .enumerate()
                .all(|(i, &v)| v < i.max(1) as u64)
        );

        let mut r = Random::new(1);
        let range = Duration::from_millis(2)..=Duration::from_millis(5);
        assert!((0..1000).all(|_| range.contains(&r.duration(&range))));
        assert!(!r.one_in(0) && r.one_in(1));
    }
}
