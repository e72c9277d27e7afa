//! What fuser's and the kernel's options do for the loads of an engine, on the empty filesystem.

use crate::Extent;
use crate::empty::{Empty, Options};
use crate::local::{read_large, write_large};
use crate::report::{Report, short};
use crate::work::{Files, median, on_threads};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const KIB: u32 = 1 << 10;

fn variants() -> Vec<(&'static str, Options)> {
    let usual = Options::default();
    let all = |threads| Options { threads, ..usual };
    let ahead = |kib| Options {
        readahead: kib * KIB,
        ..usual
    };
    let ttl = |seconds| Options {
        ttl: Duration::from_secs(seconds),
        ..usual
    };
    vec![
        ("as stowfs", usual),
        ("1 thread", all(1)),
        ("4 threads", all(4)),
        ("8 threads", all(8)),
        (
            "no clone_fd",
            Options {
                clone_fd: false,
                ..usual
            },
        ),
        (
            "max_write 128 KiB",
            Options {
                max_write: 128 * KIB,
                ..usual
            },
        ),
        (
            "writeback cache",
            Options {
                writeback: true,
                ..usual
            },
        ),
        ("readahead 128 KiB", ahead(128)),
        ("readahead 4 MiB", ahead(4096)),
        ("time-outs 0 s", ttl(0)),
        ("time-outs 60 s", ttl(60)),
    ]
}

type Load = (&'static str, fn(&Path, &Extent) -> f64);

const LOADS: &[Load] = &[
    ("64 KiB files, written by 20,480", |dir, extent| {
        let files = Files::small(8, extent.scaled(150));
        let took = files.write(dir);
        files.unlink(dir);
        took.per_second()
    }),
    ("long file, written by 20,480", |dir, extent| {
        write_large(&dir.join("long"), extent.scaled(128), 20_480)
    }),
    ("written by 1 MiB", |dir, extent| {
        write_large(&dir.join("long"), extent.scaled(128), 1 << 20)
    }),
    ("read by 1 MiB", |dir, _| {
        read_large(&dir.join("long"), 1 << 20)
    }),
    ("read by 8,192", |dir, _| {
        read_large(&dir.join("long"), 8192)
    }),
    ("8,192 anywhere", |dir, extent| {
        anywhere(&dir.join("long"), 8192, extent)
    }),
    ("1 byte anywhere", |dir, extent| {
        anywhere(&dir.join("long"), 1, extent)
    }),
    ("stat, 8 workers, three times", |dir, extent| {
        let files = Files::small(8, extent.scaled(150));
        for (w, i) in files.all() {
            File::create(dir.join(Files::name(w, i))).expect("create");
        }
        let took = on_threads(8, |w| {
            let one = |i| {
                let begun = Instant::now();
                fs::metadata(dir.join(Files::name(w, i % files.each))).expect("stat");
                begun.elapsed()
            };
            (0..3 * files.each).map(one).collect()
        });
        files.unlink(dir);
        took.per_second()
    }),
];

/// Reads per second at places that nobody has read before.
fn anywhere(path: &Path, bytes: usize, extent: &Extent) -> f64 {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    let file = File::open(path).expect("open");
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("fadvise");
    let (mut random, mut data) = (StdRng::seed_from_u64(1), vec![0; bytes]);
    let (len, reads) = (file.metadata().expect("stat").len(), extent.scaled(10_000));
    let begun = Instant::now();
    for _ in 0..reads {
        let at = random.random_range(0..len - bytes as u64);
        file.read_exact_at(&mut data, at).expect("read");
    }
    reads as f64 / begun.elapsed().as_secs_f64()
}

/// The table has how many times better each is than what stowfs asks for.
pub fn compare(extent: &Extent, report: &mut Report) {
    let variants = variants();
    let mounts: Vec<Empty> = variants.iter().map(|(_, o)| Empty::with(*o)).collect();
    let mut figures = vec![vec![Vec::new(); LOADS.len()]; variants.len()];
    for round in 0..extent.rounds + 2 {
        for (i, (_, load)) in LOADS.iter().enumerate() {
            // Another one is the first each time.
            for n in (0..mounts.len()).map(|n| (n + round * 2) % mounts.len()) {
                figures[n][i].push(load(&mounts[n].path(), extent));
            }
        }
    }
    let medians: Vec<Vec<f64>> = figures
        .into_iter()
        .map(|loads| loads.into_iter().map(median).collect())
        .collect();
    let heads: Vec<&str> = LOADS.iter().map(|(name, _)| *name).collect();
    report.note(format!("| | {} |", heads.join(" | ")));
    report.note(format!("|---|{}", "---|".repeat(heads.len())));
    for ((name, _), figures) in variants.iter().zip(&medians) {
        let ratio = |(figure, usual): (&f64, &f64)| short(figure / usual);
        let cells: Vec<String> = figures.iter().zip(&medians[0]).map(ratio).collect();
        report.note(format!("| {name} | {} |", cells.join(" | ")));
    }
}
