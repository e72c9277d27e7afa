//! The local store beside ext4, and the mount beside an empty filesystem on the same fuser.

use crate::Extent;
use crate::empty::{Empty, Options};
use crate::report::{Goal, Report};
use crate::support::mount::Mount;
use crate::support::scratch::Scratch;
use crate::work::{Files, Rounds, median};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// stowfs on a store in memory.
pub struct InMemory {
    pub mount: Mount,
    // Goes away after the mount.
    _store: TempDir,
}

impl InMemory {
    pub fn mount(arguments: &[&str]) -> InMemory {
        let store = tempfile::Builder::new()
            .prefix("bench-store-")
            .tempdir_in("/dev/shm")
            .expect("a directory in /dev/shm");
        let url = format!("file://{}", store.path().join("root").display());
        InMemory {
            mount: Mount::with(&url, arguments),
            _store: store,
        }
    }
}

/// A directory on the disk, and a mount of a store on it.
pub fn disk(arguments: &[&str]) -> (Scratch, Mount, PathBuf) {
    let scratch = Scratch::new("bench-compare").expect("a directory");
    let url = format!("file://{}", scratch.path().join("store").display());
    let plain = scratch.path().join("plain");
    std::fs::create_dir(&plain).expect("mkdir");
    (scratch, Mount::with(&url, arguments), plain)
}

/// One round: a directory of its own, which is empty again at the end.
fn round(files: &Files, root: &Path, n: usize) -> crate::work::Took {
    let dir = root.join(format!("r{n}-{}", files.writers));
    std::fs::create_dir(&dir).expect("mkdir");
    let took = files.write(&dir);
    files.unlink(&dir);
    took
}

pub fn durable(extent: &Extent, report: &mut Report) {
    let (_scratch, mount, plain) = disk(&["--gc-grace=1s"]);
    for (writers, each, goal) in [(8, 150, 3.0), (1, 300, 1.0)] {
        let ours = Files::small(writers, extent.scaled(each));
        let theirs = Files {
            fsync: true,
            ..ours.clone()
        };
        let mut rounds: [Rounds; 2] = Default::default();
        for n in 0..extent.rounds + 2 {
            rounds[0].push(round(&ours, &mount.path(), n));
            rounds[1].push(round(&theirs, &plain, n));
        }
        let what = format!("create + 64 KiB + close, durable, {writers} writers");
        let [a, b] = rounds.each_ref().map(Rounds::per_second);
        let peer = Some(("ext4, fsync", b));
        let goal = Some(Goal::RatioAtLeast(goal));
        report.row(("local", &what), "files/s", a, peer, goal);
        for (share, name) in [(0.5, "p50"), (0.99, "p99")] {
            let [a, b] = rounds.each_ref().map(|r| r.quantile_ms(share));
            let peer = Some(("ext4, fsync", b));
            report.row(("local", &format!("{what}, {name}")), "ms", a, peer, None);
        }
    }
}

/// Of a process, in user and kernel mode.
fn processor_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
    let after_name = text.rsplit(')').next().expect("a name");
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().expect("ticks"))
        .sum();
    // Linux shows hundredths of a second whatever the kernel's own tick is.
    Duration::from_millis(ticks * 10)
}

const FUSE_GOAL: Option<Goal> = Some(Goal::RatioAtLeast(0.5));

pub fn fuse(extent: &Extent, report: &mut Report) {
    let (ours, empty) = (InMemory::mount(&["--gc-grace=1s"]), Empty::mount());
    let roots = [ours.mount.path(), empty.path()];
    for (writers, goal) in [(8, FUSE_GOAL), (1, None)] {
        let files = Files::small(writers, extent.scaled(2400 / writers));
        let mut rounds: [Rounds; 2] = Default::default();
        let mut cpu = Vec::new();
        for n in 0..extent.rounds + 2 {
            for (rounds, root) in rounds.iter_mut().zip(&roots) {
                let before = processor_time(ours.mount.pid());
                rounds.push(round(&files, root, n));
                if *root == roots[0] {
                    let used = processor_time(ours.mount.pid()) - before;
                    cpu.push(used.as_secs_f64() * 1e6 / files.count() as f64);
                }
            }
        }
        let [a, b] = rounds.each_ref().map(Rounds::per_second);
        let what = format!("create + 64 KiB + close, {writers} writers");
        let peer = Some(("empty filesystem", b));
        report.row(("fuse", &what), "files/s", a, peer, goal);
        let what = format!("CPU of the mount with unlink, 64 KiB, {writers} writers");
        report.row(("fuse", &what), "µs/file", median(cpu), None, None);
    }
    long_files(extent, report, &ours, &empty);
}

fn long_files(extent: &Extent, report: &mut Report, ours: &InMemory, empty: &Empty) {
    let keeps = Empty::with(Options {
        keeps: true,
        ..Options::default()
    });
    let roots = [ours.mount.path(), empty.path(), keeps.path()];
    for (piece, label) in [(1 << 20, "1 MiB"), (20_480, "20 KiB")] {
        let mut rates: [[Vec<f64>; 2]; 3] = Default::default();
        for _ in 0..extent.rounds + 2 {
            for (rates, root) in rates.iter_mut().zip(&roots) {
                let path = root.join("large");
                let mib = extent.scaled(256);
                rates[0].push(write_large(&path, mib, piece));
                rates[1].push(read_large(&path, piece));
                std::fs::remove_file(&path).expect("unlink");
            }
        }
        let [ours, empty, keeps] = rates.map(|of| of.map(median));
        for (i, verb) in ["write", "read"].into_iter().enumerate() {
            let what = format!("{verb} a large file in pieces of {label}");
            let peer = Some(("empty filesystem", empty[i]));
            report.row(("fuse", &what), "MiB/s", ours[i], peer, FUSE_GOAL);
            let peer = Some(("limit: one that keeps bytes and makes checksums", keeps[i]));
            report.row(("fuse", &what), "MiB/s", ours[i], peer, None);
        }
    }
}

/// MiB per second from create to the end of close.
pub fn write_large(path: &Path, mib: usize, piece: usize) -> f64 {
    let data = vec![7; piece];
    let begun = Instant::now();
    let mut file = File::create(path).expect("create");
    let mut left = mib << 20;
    while left > 0 {
        let n = left.min(piece);
        file.write_all(&data[..n]).expect("write");
        left -= n;
    }
    nix::unistd::close(file).expect("close");
    mib as f64 / begun.elapsed().as_secs_f64()
}

/// MiB per second; nothing of it is in the kernel's cache at first.
pub fn read_large(path: &Path, piece: usize) -> f64 {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    let mut file = File::open(path).expect("open");
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("fadvise");
    let mut data = vec![0; piece];
    let (mut total, begun) = (0, Instant::now());
    loop {
        match file.read(&mut data).expect("read") {
            0 => break,
            n => total += n,
        }
    }
    total as f64 / 1048576.0 / begun.elapsed().as_secs_f64()
}
