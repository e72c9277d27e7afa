//! A light model of placement and cleaning, to compare policies: no records, no grace, no snapshots,
//! nothing but bytes in segments. It cleans once a second, all that its target asks for.

use super::trace::{Trace, What};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stowfs::upkeep::lives::Lives;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Policy {
    /// One stream, survivors too.
    OneStream,
    /// Survivors apart, by age in octaves.
    SurvivorsByAge,
    /// The same, and cost-benefit by age instead of the emptiest first.
    CostBenefit,
    /// The same, and the declining cost of cleaning (MDC).
    DecliningCost,
    /// A stream for each octave of size.
    BySize,
    /// What stowfs does: files that will last, by what was learnt of their size, go to a lane; the
    /// emptiest first; survivors apart.
    Learnt,
    /// The same, for files of any size.
    LearntAll,
    /// By the true remaining life, in four classes.
    Oracle,
}

pub const POLICIES: &[(Policy, &str)] = &[
    (Policy::OneStream, "one stream, emptiest first"),
    (Policy::SurvivorsByAge, "survivors by age"),
    (Policy::CostBenefit, "cost-benefit, survivors by age"),
    (Policy::DecliningCost, "declining cost, survivors by age"),
    (Policy::BySize, "streams by size"),
    (Policy::Learnt, "learnt by size (stowfs)"),
    (Policy::LearntAll, "learnt by size, small files too"),
    (Policy::Oracle, "oracle: true remaining life"),
];

/// Averages over time: bytes of segments per live byte, and bytes written per byte that the user
/// wrote.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub space: f64,
    pub write: f64,
}

#[derive(Default)]
struct Segment {
    size: u64,
    live: u64,
    files: Vec<u64>,
    open: bool,
    sealed_at: u64,
}

#[derive(Clone, Copy)]
struct File {
    size: u64,
    born: u64,
    segment: usize,
}

struct Model<'a> {
    policy: Policy,
    target: f64,
    smallest_segment: u64,
    worthwhile: u64,
    deaths: &'a HashMap<u64, u64>,
    lives: Lives,
    segments: Vec<Segment>,
    existing: BTreeSet<usize>,
    open: BTreeMap<u32, usize>,
    files: HashMap<u64, File>,
    total: u64,
    live: u64,
    user: u64,
    copied: u64,
    now: u64,
}

const SURVIVORS: u32 = 100;
const MIB: u64 = 1 << 20;
const SEGMENTS: u64 = 128;
const WARM: u64 = 60_000;

pub fn run(trace: &Trace, policy: Policy, target: f64, worthwhile: u64) -> Outcome {
    let mut deaths = HashMap::new();
    for e in &trace.events {
        if let What::Unlink(file, _) = e.what {
            deaths.insert(file, e.at);
        }
    }
    let mut model = Model {
        policy,
        target,
        smallest_segment: trace.smallest_segment,
        worthwhile,
        deaths: &deaths,
        lives: Lives::new(0),
        segments: Vec::new(),
        existing: BTreeSet::new(),
        open: BTreeMap::new(),
        files: HashMap::new(),
        total: 0,
        live: 0,
        user: 0,
        copied: 0,
        now: 0,
    };
    model.replay(trace)
}

impl Model<'_> {
    fn replay(&mut self, trace: &Trace) -> Outcome {
        let (mut area, mut time, mut tick) = (0.0, 0.0, 1000);
        let mut pass = |m: &mut Model, at: u64| {
            if m.live > MIB && m.now > WARM {
                let dt = (at - m.now) as f64;
                area += dt * m.total as f64 / m.live as f64;
                time += dt;
            }
            m.now = at;
        };
        for e in &trace.events {
            while tick < e.at {
                pass(self, tick);
                self.clean();
                tick += 1000;
            }
            pass(self, e.at);
            match e.what {
                What::Close(file, size) => self.write(file, size),
                What::Unlink(file, _) => self.unlink(file),
                _ => {}
            }
        }
        Outcome {
            space: area / time.max(1.0),
            write: (self.user + self.copied) as f64 / self.user.max(1) as f64,
        }
    }

    fn nanos(&self, at: u64) -> i64 {
        at as i64 * 1_000_000
    }

    fn write(&mut self, file: u64, size: u64) {
        if size == 0 || self.files.contains_key(&file) {
            return;
        }
        self.lives.born(size, self.nanos(self.now));
        self.live += size;
        self.user += size;
        let born = self.now;
        self.files.insert(
            file,
            File {
                size,
                born,
                segment: 0,
            },
        );
        let stream = match self.policy {
            Policy::BySize => size.ilog2(),
            Policy::Learnt if size < self.worthwhile => 0,
            Policy::Learnt | Policy::LearntAll => self.lives.lasts(size) as u32,
            Policy::Oracle => self.remaining(file),
            _ => 0,
        };
        self.put(file, stream);
    }

    fn unlink(&mut self, file: u64) {
        let Some(f) = self.files.remove(&file) else {
            return;
        };
        self.lives
            .died(f.size, self.nanos(f.born), self.nanos(self.now));
        self.live -= f.size;
        self.segments[f.segment].live -= f.size;
        self.free_if_empty(f.segment);
    }

    fn remaining(&self, file: u64) -> u32 {
        let turnover = self.lives.turnover().map_or(30.0, |t| t.as_secs_f64());
        let death = self.deaths.get(&file).copied().unwrap_or(u64::MAX);
        let left = death.saturating_sub(self.now) as f64 / 1000.0 / turnover;
        [0.2, 0.6, 1.8]
            .iter()
            .filter(|limit| left > **limit)
            .count() as u32
    }

    fn put(&mut self, file: u64, stream: u32) {
        let limit = (self.live / SEGMENTS).max(self.smallest_segment);
        let at = match self.open.get(&stream).copied() {
            Some(at) if self.segments[at].size < limit => at,
            full => {
                if let Some(full) = full {
                    self.segments[full].open = false;
                    self.segments[full].sealed_at = self.now;
                    self.free_if_empty(full);
                }
                let open = true;
                self.segments.push(Segment {
                    open,
                    ..Segment::default()
                });
                let at = self.segments.len() - 1;
                self.open.insert(stream, at);
                self.existing.insert(at);
                at
            }
        };
        let Some(f) = self.files.get_mut(&file) else {
            return;
        };
        f.segment = at;
        self.total += f.size;
        let segment = &mut self.segments[at];
        segment.size += f.size;
        segment.live += f.size;
        segment.files.push(file);
    }

    fn free_if_empty(&mut self, at: usize) {
        let segment = &self.segments[at];
        if !segment.open && segment.live == 0 && self.existing.remove(&at) {
            self.total -= segment.size;
            self.segments[at].files = Vec::new();
        }
    }

    fn survivor_stream(&self, file: u64) -> u32 {
        match self.policy {
            Policy::OneStream => 0,
            Policy::Learnt | Policy::LearntAll | Policy::BySize => SURVIVORS,
            Policy::Oracle => SURVIVORS + self.remaining(file),
            _ => {
                let turnover = self.lives.turnover().map_or(30.0, |t| t.as_secs_f64());
                let born = self.files.get(&file).map_or(0, |f| f.born);
                let age = (self.now - born) as f64 / 1000.0 / turnover;
                SURVIVORS + (age.max(1e-3).log2() + 4.0).clamp(0.0, 4.0) as u32
            }
        }
    }

    /// Lower is better.
    fn score(&self, s: &Segment) -> f64 {
        let share = s.live as f64 / s.size as f64;
        let age = (self.now - s.sealed_at + 1) as f64;
        match self.policy {
            Policy::CostBenefit => -(1.0 - share) * age / (1.0 + share),
            Policy::DecliningCost => -(1.0 - share) * (1.0 - share) * age / share.max(1e-6),
            _ => share,
        }
    }

    fn is_fat(&self) -> bool {
        self.total as f64 > self.target * self.live as f64
    }

    fn clean(&mut self) {
        if !self.is_fat() {
            return;
        }
        let worth = |s: &Segment| !s.open && (s.live as f64) < 0.9 * s.size as f64;
        let all = self.existing.iter().map(|at| (*at, &self.segments[*at]));
        let mut found: Vec<(f64, usize)> = all
            .filter(|(_, s)| worth(s))
            .map(|(at, s)| (self.score(s), at))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, at) in found {
            if !self.is_fat() {
                break;
            }
            for file in std::mem::take(&mut self.segments[at].files) {
                let here = |f: &&File| f.segment == at;
                let Some(size) = self.files.get(&file).filter(here).map(|f| f.size) else {
                    continue;
                };
                self.segments[at].live -= size;
                self.copied += size;
                self.put(file, self.survivor_stream(file));
            }
            self.free_if_empty(at);
        }
    }
}
