//! The work that stowfs and its peers do, and figures of how long it took.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Writes as a stream processor's state backend does.
const PIECE: usize = 20_480;

/// Files to write: looked up, created, written in pieces, closed.
#[derive(Clone)]
pub struct Files {
    pub writers: usize,
    /// Of each writer.
    pub each: usize,
    /// Taken in turn.
    pub sizes: Vec<usize>,
    pub piece: usize,
    pub fsync: bool,
    /// From the begin of one file to that of the next.
    pub every: Option<Duration>,
}

impl Files {
    pub fn small(writers: usize, each: usize) -> Files {
        Files {
            writers,
            each,
            sizes: vec![64 << 10],
            piece: PIECE,
            fsync: false,
            every: None,
        }
    }

    pub fn count(&self) -> usize {
        self.writers * self.each
    }

    /// Writer and number of each.
    pub fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let each = self.each;
        (0..self.writers).flat_map(move |w| (0..each).map(move |i| (w, i)))
    }

    pub fn size(&self, writer: usize, i: usize) -> usize {
        self.sizes[(writer * self.each + i) % self.sizes.len()]
    }

    pub fn name(writer: usize, i: usize) -> String {
        format!("{writer:02}-{i:06}-8b046a4f-40a4-4c23-b52c-19")
    }

    /// Into a directory of any filesystem.
    pub fn write(&self, dir: &Path) -> Took {
        on_threads(self.writers, |w| {
            let one = |i| {
                let begun = Instant::now();
                let path = dir.join(Files::name(w, i));
                self.write_one(&path, self.size(w, i))
                    .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let took = begun.elapsed();
                if let Some(rest) = self.every.and_then(|e| e.checked_sub(took)) {
                    thread::sleep(rest);
                }
                took
            };
            (0..self.each).map(one).collect()
        })
    }

    pub fn write_one(&self, path: &Path, size: usize) -> std::io::Result<()> {
        let data = vec![7; self.piece.min(size)];
        assert!(!path.exists(), "{} exists", path.display());
        let mut file = File::create(path)?;
        let mut left = size;
        while left > 0 {
            let n = left.min(data.len());
            file.write_all(&data[..n])?;
            left -= n;
        }
        if self.fsync {
            file.sync_all()?;
        }
        Ok(nix::unistd::close(file)?)
    }

    pub fn unlink(&self, dir: &Path) {
        on_threads(self.writers, |w| {
            for i in 0..self.each {
                std::fs::remove_file(dir.join(Files::name(w, i))).expect("unlink");
            }
            Vec::new()
        });
    }
}

/// How long single operations took, and all of them.
#[derive(Default)]
pub struct Took {
    pub each: Vec<Duration>,
    pub all: Duration,
}

impl Took {
    pub fn per_second(&self) -> f64 {
        self.each.len() as f64 / self.all.as_secs_f64()
    }
}

/// Runs one closure per thread, all at once.
pub fn on_threads(threads: usize, work: impl Fn(usize) -> Vec<Duration> + Sync) -> Took {
    let begun = Instant::now();
    let each = thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|w| scope.spawn(move || work(w))).collect();
        let done = running.into_iter().map(|t| t.join().expect("a worker"));
        done.flatten().collect()
    });
    Took {
        each,
        all: begun.elapsed(),
    }
}

/// Rounds of the same work.
#[derive(Default)]
pub struct Rounds(Vec<Took>);

impl Rounds {
    pub fn push(&mut self, took: Took) {
        self.0.push(took);
    }

    pub fn per_second(&self) -> f64 {
        median(self.0.iter().map(Took::per_second).collect())
    }

    /// Milliseconds below which this share of all operations was.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let mut all: Vec<Duration> = self.0.iter().flat_map(|t| t.each.clone()).collect();
        all.sort();
        all[(share * (all.len() - 1) as f64) as usize].as_secs_f64() * 1e3
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
