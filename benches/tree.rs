//! Whether `ls`, `find`, `du`, `df`, `stat` and `cat` on a large tree feel like a local disk: the same
//! commands on a mount (local store) and on the directory beside it, one after the other, several
//! rounds, with cold and with warm kernel caches. Prints medians and ratios.
//!
//! `cargo bench --bench tree` (1,000,000 files; STOWFS_TEST_FILES=n for another number,
//! STOWFS_TEST_ROUNDS=n). As root the kernel's caches are dropped for the cold rounds.

#[path = "../tests/support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::mount::Mount;
use support::scratch::Scratch;

const FILES_IN_DIR: usize = 1000;
/// One file in so many has bytes.
const FULL: usize = 50;
const FULL_SIZE: usize = 5000;
const CREATORS: usize = 4;

/// A command; `{}` is the tree.
const COMMANDS: &[(&str, &str)] = &[
    ("find -type f", "find {} -type f"),
    ("ls -R", "ls -R {}"),
    ("ls -lR", "ls -lR {}"),
    ("du -s", "du -s {}"),
    ("stat of one directory", "stat {}/d0001/*"),
    (
        "cat of 2,000 files",
        "cat $(find {}/d000* -size +1 -type f | head -2000)",
    ),
    ("df", "df {}"),
];

fn number(name: &str, usual: usize) -> usize {
    let given = std::env::var(name).ok();
    given.map_or(usual, |text| {
        text.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
    })
}

fn fill(tree: &Path, files: usize) {
    let dirs = files.div_ceil(FILES_IN_DIR);
    std::thread::scope(|scope| {
        for first in 0..CREATORS {
            scope.spawn(move || {
                for dir in (first..dirs).step_by(CREATORS) {
                    fill_dir(&tree.join(format!("d{dir:04}")), files.min(FILES_IN_DIR));
                }
            });
        }
    });
}

fn fill_dir(dir: &Path, files: usize) {
    fs::create_dir_all(dir).unwrap();
    for n in 0..files {
        let path = dir.join(format!("{n:08x}-5b7f-4c31-9d4e-0123456789ab"));
        if n % FULL == 0 {
            fs::write(&path, vec![n as u8; FULL_SIZE]).unwrap();
        } else {
            nix::sys::stat::mknod(
                &path,
                nix::sys::stat::SFlag::S_IFREG,
                nix::sys::stat::Mode::from_bits_truncate(0o644),
                0,
            )
            .unwrap();
        }
    }
}

fn drop_caches() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn time(command: &str, tree: &Path) -> Duration {
    let line = command.replace("{}", tree.to_str().unwrap());
    let begun = Instant::now();
    let status = Command::new("sh")
        .args([OsStr::new("-c"), line.as_ref()])
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "{line}");
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn main() {
    // `cargo test --benches` and the like run without this argument.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let (files, rounds) = (
        number("STOWFS_TEST_FILES", 1_000_000),
        number("STOWFS_TEST_ROUNDS", 3),
    );
    let scratch = Scratch::new("bench-tree").unwrap();
    let mount = Mount::new(&format!(
        "file://{}",
        scratch.path().join("store").display()
    ));
    let plain = scratch.path().join("plain");
    let trees: [(&str, PathBuf); 2] = [("local", plain), ("mount", mount.at("tree"))];
    for (name, tree) in &trees {
        let begun = Instant::now();
        fill(tree, files);
        println!(
            "{name}: {files} files made in {:.1} s",
            begun.elapsed().as_secs_f64()
        );
    }
    println!("the mount's memory: {} MiB", mount.resident() >> 20);
    println!(
        "\n{:<24} {:>6} {:>10} {:>10} {:>8}",
        "command", "cache", "local s", "mount s", "ratio"
    );
    for (name, command) in COMMANDS {
        for cold in [true, false] {
            let mut times: [Vec<Duration>; 2] = Default::default();
            for _ in 0..rounds {
                for (times, (_, tree)) in times.iter_mut().zip(&trees) {
                    if cold && !drop_caches() {
                        println!("(caches cannot be dropped: not root)");
                    }
                    times.push(time(command, tree));
                }
            }
            let [local, mount] = times.map(median);
            let cache = if cold { "cold" } else { "warm" };
            println!(
                "{name:<24} {cache:>6} {local:>10.3} {mount:>10.3} {:>8.2}",
                mount / local
            );
        }
    }
    println!("the mount's memory: {} MiB", mount.resident() >> 20);
}
