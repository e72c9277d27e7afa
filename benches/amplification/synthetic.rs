//! A made-up job: several subtasks, each with an LSM tree in levels as RocksDB keeps it, and
//! incremental checkpoints of them. Checkpoints overlap now and then, some fail half-way, a few are
//! kept, and what none of them needs is deleted.

use super::trace::{Event, Trace, What};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

pub struct Job {
    pub seed: u64,
    pub hours: f64,
    pub subtasks: usize,
    /// Seconds between checkpoints.
    pub interval: f64,
    /// Checkpoints that are kept.
    pub retained: usize,
    /// Bytes of state in a subtask.
    pub state: u64,
    /// Bytes that a subtask flushes between two checkpoints, about.
    pub flush: u64,
    /// Size at which a compaction cuts its output.
    pub cut: u64,
    pub failing: f64,
    pub overlapping: f64,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            seed: 1,
            hours: 3.0,
            subtasks: 8,
            interval: 60.0,
            retained: 2,
            state: 96 << 20,
            flush: 3 << 20,
            cut: 2 << 20,
            failing: 0.06,
            overlapping: 0.08,
        }
    }
}

#[derive(Clone, Copy)]
struct Sst {
    id: u64,
    from: f64,
    to: f64,
    size: u64,
}

/// One subtask's tree: `levels[0]` are flushed files, newest last; the others are sorted by key.
#[derive(Default)]
struct Tree {
    levels: Vec<Vec<Sst>>,
}

const LEVELS: usize = 4;
/// Flushed files that are merged into the first level.
const TRIGGER: usize = 4;
const GROWTH: u64 = 6;

impl Tree {
    fn new() -> Tree {
        Tree {
            levels: vec![Vec::new(); LEVELS],
        }
    }

    fn flush(&mut self, job: &Job, next: &mut u64, rng: &mut StdRng) {
        let size = (job.flush as f64 * rng.random_range(0.55..1.35)) as u64;
        self.levels[0].push(Sst {
            id: take(next),
            from: 0.0,
            to: 1.0,
            size,
        });
        if self.levels[0].len() >= TRIGGER {
            let inputs = std::mem::take(&mut self.levels[0]);
            self.merge(inputs, 1, job, next, rng);
        }
        for level in 1..LEVELS - 1 {
            let limit = job.cut * 4 * GROWTH.pow(level as u32 - 1);
            while self.levels[level].iter().map(|s| s.size).sum::<u64>() > limit {
                let n = rng.random_range(0..self.levels[level].len());
                let input = self.levels[level].remove(n);
                self.merge(vec![input], level + 1, job, next, rng);
            }
        }
    }

    /// Merges files into a level: what they overlap there is written anew, cut at one size.
    fn merge(
        &mut self,
        inputs: Vec<Sst>,
        level: usize,
        job: &Job,
        next: &mut u64,
        rng: &mut StdRng,
    ) {
        let from = inputs.iter().map(|s| s.from).fold(1.0, f64::min);
        let to = inputs.iter().map(|s| s.to).fold(0.0, f64::max);
        let target = std::mem::take(&mut self.levels[level]);
        let (inside, mut rest): (Vec<Sst>, Vec<Sst>) =
            target.into_iter().partition(|s| s.from < to && s.to > from);
        let from = inside.iter().map(|s| s.from).fold(from, f64::min);
        let to = inside.iter().map(|s| s.to).fold(to, f64::max);
        let sum: u64 = inputs.iter().chain(&inside).map(|s| s.size).sum();
        // No key is there twice.
        let unique = (job.state as f64 * (to - from)) as u64;
        let size = sum.min(unique.max(1));
        let files = size.div_ceil(job.cut).max(1);
        let step = (to - from) / (size as f64 / job.cut as f64);
        for n in 0..files {
            let start = from + step * n as f64;
            let full = n + 1 < files;
            // A file is cut at the first block past the limit.
            let over = rng.random_range(0..job.cut / 60);
            let left = size - n * job.cut;
            rest.push(Sst {
                id: take(next),
                from: start,
                to: if full { start + step } else { to },
                size: if full { job.cut + over } else { left.max(4096) },
            });
        }
        rest.sort_by(|a, b| a.from.total_cmp(&b.from));
        self.levels[level] = rest;
    }

    fn files(&self) -> impl Iterator<Item = &Sst> {
        self.levels.iter().flatten()
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next
}

/// A file of a checkpoint on the store.
#[derive(Clone)]
struct Stored {
    file: u64,
    path: String,
}

/// What a completed checkpoint refers to: by table, and its own files.
struct Checkpoint {
    number: usize,
    shared: BTreeMap<u64, Stored>,
    own: Vec<Stored>,
}

struct Writer {
    events: Vec<Event>,
    next_file: u64,
}

impl Writer {
    fn put(&mut self, at: f64, what: What) {
        let at = (at * 1000.0) as u64;
        self.events.push(Event { at, what });
    }

    /// Writes a file that is complete at `at`.
    fn file(&mut self, at: f64, path: String, size: u64) -> Stored {
        let file = take(&mut self.next_file);
        self.put(at - 0.004, What::Create(file, path.clone()));
        self.put(at, What::Close(file, size));
        Stored { file, path }
    }

    fn delete(&mut self, at: f64, s: &Stored) {
        self.put(at, What::Unlink(s.file, s.path.clone()));
    }
}

/// The events of a job.
pub fn generate(job: &Job, smallest_segment: u64) -> Trace {
    let mut rng = StdRng::seed_from_u64(job.seed);
    let mut out = Writer {
        events: Vec::new(),
        next_file: 0,
    };
    let mut trees: Vec<Tree> = (0..job.subtasks).map(|_| Tree::new()).collect();
    let mut next_table = 0;
    for dir in ["/job", "/job/shared"] {
        out.put(0.0, What::Mkdir(dir.into()));
    }
    let mut kept: Vec<Checkpoint> = Vec::new();
    let mut number = 0;
    let end = job.hours * 3600.0;
    let mut at = job.interval;
    while at < end {
        for tree in &mut trees {
            tree.flush(job, &mut next_table, &mut rng);
        }
        number += 1;
        let failed = rng.random_bool(job.failing);
        let done = checkpoint(number, at, failed, &trees, &kept, &mut out, &mut rng);
        let overlapped = rng.random_bool(job.overlapping);
        if overlapped {
            // The next one begins before this one has ended, so it builds on the same base.
            number += 1;
            let soon = at + 0.4;
            let next = checkpoint(number, soon, false, &trees, &kept, &mut out, &mut rng);
            complete(done, at + 1.5, &mut kept, job, &mut out);
            complete(next, soon + 1.5, &mut kept, job, &mut out);
        } else {
            complete(done, at + 1.5, &mut kept, job, &mut out);
        }
        at += job.interval;
    }
    out.events.sort_by_key(|e| e.at);
    Trace {
        name: format!("synthetic ({} h, seed {})", job.hours, job.seed),
        events: out.events,
        smallest_segment,
    }
}

/// Uploads what the newest completed checkpoint does not have. A failed one stops half-way, and
/// what it wrote is deleted.
fn checkpoint(
    number: usize,
    at: f64,
    failed: bool,
    trees: &[Tree],
    kept: &[Checkpoint],
    out: &mut Writer,
    rng: &mut StdRng,
) -> Option<Checkpoint> {
    let dir = format!("/job/chk-{number}");
    out.put(at, What::Mkdir(dir.clone()));
    let base = kept.last();
    let mut new = Checkpoint {
        number,
        shared: BTreeMap::new(),
        own: Vec::new(),
    };
    let mut written = Vec::new();
    for tree in trees {
        let mut t = at + 0.02;
        for s in tree.files() {
            if let Some(have) = base.and_then(|b| b.shared.get(&s.id)) {
                new.shared.insert(s.id, have.clone());
                continue;
            }
            t += rng.random_range(0.002..0.012);
            if failed && t > at + 0.05 {
                continue;
            }
            let path = format!("/job/shared/{:016x}", rng.random::<u64>());
            let stored = out.file(t, path, s.size);
            written.push(stored.clone());
            new.shared.insert(s.id, stored);
        }
        let path = format!("{dir}/{:016x}", rng.random::<u64>());
        new.own
            .push(out.file(t + 0.01, path, rng.random_range(8_000..24_000)));
    }
    if failed {
        let later = at + 1.0;
        written
            .iter()
            .chain(&new.own)
            .for_each(|s| out.delete(later, s));
        out.put(later + 0.01, What::Rmdir(dir));
        return None;
    }
    let temp = format!("{dir}/._metadata.inprogress");
    let metadata = out.file(at + 1.2, temp.clone(), rng.random_range(20_000..60_000));
    let path = format!("{dir}/_metadata");
    out.put(at + 1.25, What::Rename(temp, path.clone()));
    new.own.push(Stored { path, ..metadata });
    Some(new)
}

/// Keeps the checkpoint, and deletes what only those that are too old now refer to.
fn complete(
    done: Option<Checkpoint>,
    at: f64,
    kept: &mut Vec<Checkpoint>,
    job: &Job,
    out: &mut Writer,
) {
    let Some(new) = done else { return };
    kept.push(new);
    while kept.len() > job.retained {
        let old = kept.remove(0);
        let needed = |s: &Stored| {
            let mut files = kept.iter().flat_map(|c| c.shared.values());
            files.any(|k| k.file == s.file)
        };
        let gone: Vec<Stored> = old.shared.into_values().filter(|s| !needed(s)).collect();
        gone.iter().chain(&old.own).for_each(|s| out.delete(at, s));
        out.put(at + 0.01, What::Rmdir(format!("/job/chk-{}", old.number)));
    }
}
