//! Bytes of one file that were written and are not in the log or a lane yet: runs in memory that
//! do not overlap. Later bytes replace earlier ones.

use crate::format::MAX_PAYLOAD;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;

enum Run {
    Growing(BytesMut),
    /// Handed out whole before; not changed any more.
    Fixed(Bytes),
}

impl Run {
    fn bytes(&self) -> &[u8] {
        match self {
            Run::Growing(b) => b,
            Run::Fixed(b) => b,
        }
    }

    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Keeps the first `at` bytes and returns the rest.
    fn split_off(&mut self, at: usize) -> Run {
        match self {
            Run::Growing(b) => Run::Growing(b.split_off(at)),
            Run::Fixed(b) => Run::Fixed(b.split_off(at)),
        }
    }

    fn fix(&mut self) -> Bytes {
        let bytes = match std::mem::replace(self, Run::Fixed(Bytes::new())) {
            Run::Growing(b) => b.freeze(),
            Run::Fixed(b) => b,
        };
        *self = Run::Fixed(bytes.clone());
        bytes
    }
}

#[derive(Default)]
pub struct Runs {
    map: BTreeMap<u64, Run>,
    bytes: usize,
}

impl Runs {
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// The end of `data` must fit into u64.
    pub fn write(&mut self, mut off: u64, mut data: Bytes) {
        while data.len() > MAX_PAYLOAD {
            self.write_one(off, data.split_to(MAX_PAYLOAD));
            off += MAX_PAYLOAD as u64;
        }
        if !data.is_empty() {
            self.write_one(off, data);
        }
    }

    fn write_one(&mut self, off: u64, data: Bytes) {
        let end = off + data.len() as u64;
        if self.write_within(off, end, &data) {
            return;
        }
        self.cut(off, end);
        self.bytes += data.len();
        if let Some((start, Run::Growing(last))) = self.map.range_mut(..off).next_back()
            && *start + last.len() as u64 == off
            && last.len() + data.len() <= MAX_PAYLOAD
        {
            last.extend_from_slice(&data);
            return;
        }
        let run = match data.try_into_mut() {
            Ok(own) => Run::Growing(own),
            Err(shared) => Run::Growing(BytesMut::from(&shared[..])),
        };
        self.map.insert(off, run);
    }

    /// Overwrites a part of a run in its place.
    fn write_within(&mut self, off: u64, end: u64, data: &[u8]) -> bool {
        match self.map.range_mut(..=off).next_back() {
            Some((start, Run::Growing(b))) if end <= *start + b.len() as u64 => {
                let at = (off - start) as usize;
                b[at..at + data.len()].copy_from_slice(data);
                true
            }
            _ => false,
        }
    }

    /// Puts bytes back that were taken; what was written since stays on top.
    pub fn put_below(&mut self, off: u64, data: Bytes) {
        let end = off + data.len() as u64;
        for (from, to) in self.gaps(off, end) {
            let part = data.slice((from - off) as usize..(to - off) as usize);
            self.bytes += part.len();
            self.map.insert(from, Run::Fixed(part));
        }
    }

    /// Forgets the bytes `[from, to)`.
    pub fn cut(&mut self, from: u64, to: u64) {
        if let Some((start, run)) = self.map.range_mut(..from).next_back()
            && *start + run.len() > from
        {
            let rest = run.split_off((from - start) as usize);
            self.map.insert(from, rest);
        }
        let inside: Vec<u64> = self.map.range(from..to).map(|(k, _)| *k).collect();
        for start in inside {
            let Some(mut run) = self.map.remove(&start) else {
                continue;
            };
            let len = run.len();
            if start + len > to {
                let rest = run.split_off((to - start) as usize);
                self.bytes -= (to - start) as usize;
                self.map.insert(to, rest);
            } else {
                self.bytes -= len as usize;
            }
        }
    }

    /// The parts of runs within `[from, to)`, copied.
    pub fn within(&self, from: u64, to: u64) -> Vec<(u64, Bytes)> {
        self.overlapping(from, to)
            .map(|(start, run)| {
                let (a, b) = (from.max(start), to.min(start + run.len()));
                let range = (a - start) as usize..(b - start) as usize;
                let part = match run {
                    Run::Growing(b) => Bytes::copy_from_slice(&b[range]),
                    Run::Fixed(b) => b.slice(range),
                };
                (a, part)
            })
            .collect()
    }

    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Run)> {
        let before = self.map.range(..from).next_back();
        let before = before.filter(|(start, run)| *start + run.len() > from);
        let inside = (from < to).then(|| self.map.range(from..to));
        let all = before.into_iter().chain(inside.into_iter().flatten());
        all.map(|(start, run)| (*start, run))
    }

    /// What of `[from, to)` is in no run.
    pub fn gaps(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = from;
        for (start, run) in self.overlapping(from, to) {
            if start > at {
                gaps.push((at, start));
            }
            at = at.max(start + run.len());
        }
        if at < to {
            gaps.push((at, to));
        }
        gaps
    }

    /// The first run that ends after an offset: where it starts and ends.
    pub fn next(&self, from: u64) -> Option<(u64, u64)> {
        let (start, run) = self.overlapping(from, u64::MAX).next()?;
        Some((start, start + run.len()))
    }

    pub fn clear(&mut self) {
        *self = Runs::default();
    }

    /// All bytes, joined into pieces that each fit into a data frame. The runs stay.
    pub fn pieces(&mut self) -> Vec<(u64, Bytes)> {
        let mut groups: Vec<(u64, Vec<Bytes>, usize)> = Vec::new();
        for (start, run) in &mut self.map {
            let bytes = run.fix();
            match groups.last_mut() {
                Some((first, parts, len))
                    if *first + *len as u64 == *start && *len + bytes.len() <= MAX_PAYLOAD =>
                {
                    *len += bytes.len();
                    parts.push(bytes);
                }
                _ => {
                    let len = bytes.len();
                    groups.push((*start, vec![bytes], len));
                }
            }
        }
        let join = |(start, parts, _): (u64, Vec<Bytes>, usize)| match &parts[..] {
            [one] => (start, one.clone()),
            many => (start, many.concat().into()),
        };
        groups.into_iter().map(join).collect()
    }

    /// Takes out the runs of at least `least` bytes.
    pub fn take_long(&mut self, least: usize) -> Vec<(u64, Bytes)> {
        let long = |run: &Run| run.len() >= least as u64;
        let starts: Vec<u64> = self
            .map
            .iter()
            .filter(|(_, run)| long(run))
            .map(|(start, _)| *start)
            .collect();
        let mut taken = Vec::with_capacity(starts.len());
        for start in starts {
            if let Some(mut run) = self.map.remove(&start) {
                let bytes = run.fix();
                self.bytes -= bytes.len();
                taken.push((start, bytes));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn random_writes_and_cuts_read_as_in_an_array() {
        let first: u64 = rand::random::<u32>() as u64;
        for seed in first..first + 200 {
            eprintln!("seed {seed}");
            let mut rng = StdRng::seed_from_u64(seed);
            let mut runs = Runs::default();
            let mut model: Vec<Option<u8>> = vec![None; 200];
            for _ in 0..60 {
                let from = rng.random_range(0..190);
                let to = rng.random_range(from + 1..200);
                let data: Vec<u8> = (from..to).map(|_| rng.random()).collect();
                match rng.random_range(0..8) {
                    0..4 => {
                        runs.write(from as u64, data.clone().into());
                        for (n, b) in data.iter().enumerate() {
                            model[from + n] = Some(*b);
                        }
                    }
                    4 => {
                        runs.put_below(from as u64, data.clone().into());
                        for (n, b) in data.iter().enumerate() {
                            model[from + n] = model[from + n].or(Some(*b));
                        }
                    }
                    5 => drop(runs.pieces()),
                    6 => {
                        for (off, bytes) in runs.take_long(30) {
                            model[off as usize..off as usize + bytes.len()].fill(None);
                        }
                    }
                    _ => {
                        runs.cut(from as u64, to as u64);
                        model[from..to].fill(None);
                    }
                }
                check(&mut runs, &model);
            }
        }
    }

    fn check(runs: &mut Runs, model: &[Option<u8>]) {
        let mut seen = vec![None; model.len()];
        for (off, bytes) in runs.within(0, 200) {
            for (n, b) in bytes.iter().enumerate() {
                seen[off as usize + n] = Some(*b);
            }
        }
        assert_eq!(seen, model);
        assert_eq!(runs.bytes(), model.iter().flatten().count());
        let gaps: u64 = runs.gaps(50, 150).iter().map(|(a, b)| b - a).sum();
        let none = model[50..150].iter().filter(|b| b.is_none()).count();
        assert_eq!(gaps, none as u64);
        let next = (70..200).find(|n| model[*n].is_some());
        assert_eq!(
            runs.next(70).map(|(a, _)| a.max(70)),
            next.map(|n| n as u64)
        );
    }
}
