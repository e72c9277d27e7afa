//! One file under random operations of every kind, compared with what it must hold: fsx itself, and
//! an exerciser of our own that also zeroes ranges, clones into a second file, remounts, and kills
//! the mount after an fsync.

mod support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use support::posix::{TestMount, ok, scale, seeds};
use support::suites::{FSX, fsx};

fn run_fsx(configuration: &str, operations: u32) {
    let mount = TestMount::new();
    for seed in seeds(scale(1, 3)) {
        fsx(&mount, configuration, operations, seed);
    }
    mount.finish();
}

#[test]
fn fsx_with_every_operation() {
    run_fsx(FSX, scale(5_000, 100_000));
}

#[test]
fn fsx_of_mappings_without_msync() {
    let unsynced = format!("nomsyncafterwrite = true\n{FSX}");
    run_fsx(&unsynced, scale(3_000, 100_000));
}

#[test]
fn fsx_of_small_operations() {
    let small = FSX.replace("max = 65536", "max = 700");
    run_fsx(&small, scale(3_000, 100_000));
}

/// Longer than a small file, so that bytes go to lanes too.
const LONGEST: u64 = 12 << 20;
const OPERATION: usize = 300_000;

struct Exerciser {
    mount: TestMount,
    random: StdRng,
    file: File,
    clone: File,
    model: Vec<u8>,
    cloned: Vec<u8>,
    tag: u8,
    history: Vec<String>,
}

fn open(mount: &TestMount, name: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(mount.at(name)).unwrap()
}

impl Exerciser {
    fn new(seed: u64) -> Exerciser {
        let mount = TestMount::new();
        Exerciser {
            random: StdRng::seed_from_u64(seed),
            file: open(&mount, "file"),
            clone: open(&mount, "clone"),
            mount,
            model: Vec::new(),
            cloned: Vec::new(),
            tag: 0,
            history: Vec::new(),
        }
    }

    fn reopen(&mut self) {
        self.file = open(&self.mount, "file");
        self.clone = open(&self.mount, "clone");
    }

    /// A place that is in the file, near its end, or beyond.
    fn place(&mut self) -> (u64, usize) {
        let size = self.model.len() as u64;
        let len = match self.random.random_range(0..3) {
            0 => self.random.random_range(1..100),
            1 => self.random.random_range(1..20_000),
            _ => self.random.random_range(1..OPERATION),
        };
        let mut off = self.random.random_range(0..(size + 200_000).min(LONGEST));
        if self.random.random_bool(0.2) {
            off &= !4095;
        }
        (off, len)
    }

    fn inside(&mut self) -> Option<(u64, usize)> {
        let (off, len) = self.place();
        let size = self.model.len() as u64;
        if off >= size {
            return None;
        }
        Some((off, len.min((size - off) as usize)))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.tag = self.tag.wrapping_add(1);
        let mut bytes: Vec<u8> = (0..len).map(|n| self.tag ^ (n as u8)).collect();
        bytes[0] = self.tag;
        bytes
    }

    fn put(&mut self, off: u64, bytes: &[u8]) {
        let end = off as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[off as usize..end].copy_from_slice(bytes);
    }

    fn fallocate(&mut self, mode: i32, off: u64, len: usize) {
        let (fd, off, len) = (self.file.as_raw_fd(), off as i64, len as i64);
        ok(unsafe { libc::fallocate(fd, mode, off, len) });
    }

    fn step(&mut self) {
        let kind = self.random.random_range(0..100);
        let note = |me: &mut Exerciser, text: String| me.history.push(text);
        match kind {
            0..20 => {
                let (off, len) = self.place();
                note(self, format!("write {off} {len}"));
                let bytes = self.bytes(len);
                self.file.write_all_at(&bytes, off).unwrap();
                self.put(off, &bytes);
            }
            20..35 => {
                let Some((off, len)) = self.inside() else {
                    return;
                };
                note(self, format!("read {off} {len}"));
                let mut bytes = vec![0; len];
                self.file.read_exact_at(&mut bytes, off).unwrap();
                assert!(bytes == self.model[off as usize..off as usize + len]);
            }
            35..50 => {
                let Some((off, len)) = self.inside() else {
                    return;
                };
                let sync = self.random.random_bool(0.3);
                note(self, format!("mapwrite {off} {len} msync={sync}"));
                let bytes = self.bytes(len);
                self.map(off, len, |place| place.copy_from_slice(&bytes), sync);
                self.put(off, &bytes);
            }
            50..58 => {
                let Some((off, len)) = self.inside() else {
                    return;
                };
                note(self, format!("mapread {off} {len}"));
                let mut found = Vec::new();
                self.map(off, len, |place| found = place.to_vec(), false);
                assert!(found == self.model[off as usize..off as usize + len]);
            }
            58..66 => {
                let (size, _) = self.place();
                note(self, format!("truncate {size}"));
                self.file.set_len(size).unwrap();
                self.model.resize(size as usize, 0);
            }
            66..72 => {
                let (off, len) = self.place();
                note(self, format!("punch {off} {len}"));
                self.fallocate(
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    off,
                    len,
                );
                self.zero(off, len, true);
            }
            72..78 => {
                let (off, len) = self.place();
                let keep = self.random.random_bool(0.5);
                note(self, format!("zero {off} {len} keep={keep}"));
                let flag = if keep { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                self.fallocate(libc::FALLOC_FL_ZERO_RANGE | flag, off, len);
                self.zero(off, len, keep);
            }
            78..81 => {
                let (off, len) = self.place();
                note(self, format!("allocate {off} {len}"));
                self.fallocate(0, off, len);
                let end = off as usize + len;
                self.model.resize(self.model.len().max(end), 0);
            }
            81..87 => self.copy_within(),
            87..90 => self.copy_out(),
            90..93 => {
                note(self, "close and open".into());
                self.reopen();
            }
            93..96 => {
                note(self, "fsync".into());
                self.file.sync_all().unwrap();
            }
            96..99 => self.check("now and then"),
            _ => self.live_again(),
        }
    }

    fn zero(&mut self, off: u64, len: usize, keep: bool) {
        let end = off as usize + len;
        if !keep && self.model.len() < end {
            self.model.resize(end, 0);
        }
        let end = end.min(self.model.len());
        if (off as usize) < end {
            self.model[off as usize..end].fill(0);
        }
    }

    fn map(&mut self, off: u64, len: usize, work: impl FnOnce(&mut [u8]), sync: bool) {
        let lead = (off & 4095) as usize;
        let (whole, fd) = (len + lead, self.file.as_raw_fd());
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let start = (off - lead as u64) as i64;
            let null = std::ptr::null_mut();
            let at = libc::mmap(null, whole, protection, libc::MAP_SHARED, fd, start);
            assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            work(std::slice::from_raw_parts_mut(
                at.cast::<u8>().add(lead),
                len,
            ));
            if sync {
                ok(libc::msync(at, whole, libc::MS_SYNC));
            }
            ok(libc::munmap(at, whole));
        }
    }

    fn copy_within(&mut self) {
        let Some((from, len)) = self.inside() else {
            return;
        };
        let (to, _) = self.place();
        if from.abs_diff(to) < len as u64 {
            return;
        }
        self.history.push(format!("copy {from} to {to} {len}"));
        self.copy(from, to, len, true);
        let bytes = self.model[from as usize..from as usize + len].to_vec();
        self.put(to, &bytes);
    }

    /// The second file becomes a clone of the first.
    fn copy_out(&mut self) {
        self.history.push("clone".into());
        self.clone.set_len(0).unwrap();
        self.copy(0, 0, self.model.len(), false);
        self.cloned = self.model.clone();
    }

    fn copy(&mut self, from: u64, to: u64, len: usize, within: bool) {
        let (mut from, mut to, mut left) = (from as i64, to as i64, len);
        let target = match within {
            true => self.file.as_raw_fd(),
            false => self.clone.as_raw_fd(),
        };
        while left > 0 {
            let n = unsafe {
                libc::copy_file_range(self.file.as_raw_fd(), &mut from, target, &mut to, left, 0)
            };
            assert!(ok(n) > 0, "copied nothing of {left}");
            left -= n as usize;
        }
    }

    fn live_again(&mut self) {
        let crash = self.random.random_bool(0.5);
        self.history.push(format!("remount crash={crash}"));
        let nothing = || File::open("/dev/null").unwrap();
        if crash {
            self.file.sync_all().unwrap();
            self.clone.sync_data().unwrap();
        }
        (self.file, self.clone) = (nothing(), nothing());
        match crash {
            true => self.mount.crash(),
            false => self.mount.cycle(),
        }
        self.reopen();
        self.check("after a remount");
    }

    fn check(&self, when: &str) {
        for (name, want) in [("file", &self.model), ("clone", &self.cloned)] {
            let found = std::fs::read(self.mount.at(name)).unwrap();
            let at = found.iter().zip(want).position(|(a, b)| a != b);
            let last = self.history.len().saturating_sub(40);
            assert!(
                found == *want,
                "{when}: {name} has {} bytes, not {}; first difference at {at:?}; {:#?}",
                found.len(),
                want.len(),
                &self.history[last..]
            );
        }
    }
}

#[test]
fn the_whole_life_of_a_file_with_remounts_and_crashes() {
    for seed in seeds(scale(2, 8)) {
        println!("exerciser: STOWFS_TEST_SEED={seed} replays this");
        let mut exerciser = Exerciser::new(seed);
        for _ in 0..scale(1_500, 12_500) {
            exerciser.step();
        }
        exerciser.check("at the end");
        exerciser.mount.finish();
    }
}
