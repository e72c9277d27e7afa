//! Names without data, and what a file costs in memory.

use crate::Extent;
use crate::empty::Empty;
use crate::local::{InMemory, disk};
use crate::report::{Goal, Report};
use crate::work::{Rounds, median, on_threads};
use nix::sys::stat::{Mode, SFlag, mknod};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stowfs::base::{Epoch, Ino, SegmentName, StreamId};
use stowfs::format::{Attr, Extent as Place, Row, SegmentRow, SegmentState};
use stowfs::index::Index;

const WORKERS: usize = 8;
const OPERATIONS: [&str; 5] = ["create", "stat", "list", "rename", "unlink"];

fn name(i: usize) -> String {
    format!("{i:08x}-5b7f-4c31-9d4e-0123456789ab")
}

fn renamed(i: usize) -> String {
    format!("{i:08x}-5b7f-4c31-9d4e-ba9876543210")
}

fn operate(operation: &str, dir: &Path, i: usize) {
    let path = dir.join(name(i));
    match operation {
        "create" => drop(fs::File::create(&path).expect("create")),
        "stat" => {
            fs::symlink_metadata(&path).expect("stat");
        }
        "rename" => fs::rename(&path, dir.join(renamed(i))).expect("rename"),
        _ => fs::remove_file(dir.join(renamed(i))).expect("unlink"),
    }
}

/// Each worker in a directory of its own; a listing counts each entry.
fn work(operation: &str, root: &Path, each: usize) -> crate::work::Took {
    on_threads(WORKERS, |w| {
        let dir = root.join(format!("w{w}"));
        if operation == "list" {
            let begun = Instant::now();
            assert_eq!(fs::read_dir(&dir).expect("list").count(), each);
            return vec![begun.elapsed() / each as u32; each];
        }
        let one = |i| {
            let begun = Instant::now();
            operate(operation, &dir, i);
            begun.elapsed()
        };
        (0..each).map(one).collect()
    })
}

pub fn operations(extent: &Extent, report: &mut Report) {
    let each = extent.scaled(100_000) / WORKERS;
    let (ours, empty) = (InMemory::mount(&[]), Empty::mount());
    let (_scratch, _mount, plain) = disk(&[]);
    let roots = [ours.mount.path(), empty.path(), plain];
    let mut rounds: [[Rounds; 3]; OPERATIONS.len()] = Default::default();
    for n in 0..extent.rounds {
        let dirs: Vec<PathBuf> = roots.iter().map(|r| r.join(format!("m{n}"))).collect();
        for w in 0..WORKERS {
            for dir in &dirs {
                fs::create_dir_all(dir.join(format!("w{w}"))).expect("mkdir");
            }
        }
        for (rounds, operation) in rounds.iter_mut().zip(OPERATIONS) {
            for (rounds, dir) in rounds.iter_mut().zip(&dirs) {
                rounds.push(work(operation, dir, each));
            }
        }
    }
    for (rounds, operation) in rounds.iter().zip(OPERATIONS) {
        let [ours, empty, ext4] = rounds.each_ref().map(Rounds::per_second);
        let what = format!(
            "{operation}, {} empty files, {WORKERS} workers",
            each * WORKERS
        );
        let goal = Some(Goal::RatioAtLeast(0.3));
        let peer = Some(("empty filesystem", empty));
        report.row(("metadata", &what), "per s", ours, peer, goal);
        report.row(
            ("metadata", &what),
            "per s",
            ours,
            Some(("ext4", ext4)),
            None,
        );
    }
}

pub fn index(extent: &Extent, report: &mut Report) {
    const GOAL: Option<Goal> = Some(Goal::AtMost(400.0));
    for millions in [1, 10] {
        let files = extent.scaled(millions * 1_000_000) as u64;
        let before = resident("self");
        let index = filled(files);
        let per_file = (resident("self").saturating_sub(before)) as f64 / files as f64;
        drop(index);
        // So that the next one does not begin in what this one leaves.
        // SAFETY: it only gives free memory back.
        unsafe { libc::malloc_trim(0) };
        let what = format!("index of {files} files");
        report.row(("index", &what), "bytes/file", per_file, None, GOAL);
    }
    let files = extent.scaled(1_000_000);
    let (_scratch, mut mount, _plain) = disk(&[]);
    let tree = mount.at("tree");
    on_threads(4, |w| {
        let dir = tree.join(format!("w{w}"));
        fs::create_dir_all(&dir).expect("mkdir");
        for i in (w..files).step_by(4) {
            let mode = Mode::from_bits_truncate(0o644);
            mknod(&dir.join(name(i)), SFlag::S_IFREG, mode, 0).expect("mknod");
        }
        Vec::new()
    });
    let mut seconds = Vec::new();
    for _ in 0..extent.rounds {
        mount.umount();
        let begun = Instant::now();
        mount.remount();
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let memory = resident(&mount.pid().to_string()) as f64 / files as f64;
    let what = format!("memory of a mount with {files} empty files");
    report.row(("index", &what), "bytes/file", memory, None, GOAL);
    let what = format!("mount with {files} files, local store");
    let goal = Some(Goal::AtMost(2.0));
    report.row(("index", &what), "s", median(seconds), None, goal);
}

fn resident(process: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).expect("/proc");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("pages");
    pages * 4096
}

/// Files with names of 36 characters and one extent.
pub fn filled(files: u64) -> Index {
    let mut index = Index::new();
    let mut apply = |row: Row| index.apply(&row).expect("a row that fits");
    let attr = |mode, nlink, size| Attr {
        mode,
        nlink,
        size,
        ..Attr::default()
    };
    apply(Row::Inode {
        ino: Ino(1),
        attr: attr(libc::S_IFDIR | 0o755, 2, 0),
    });
    for n in 2..files + 2 {
        apply(Row::Inode {
            ino: Ino(n),
            attr: attr(libc::S_IFREG | 0o644, 1, 100),
        });
        apply(Row::Entry {
            parent: Ino(1),
            name: format!("{n:036}").into(),
            ino: Ino(n),
        });
        apply(Row::Extents {
            ino: Ino(n),
            off: 0,
            len: 100,
            extents: vec![Place {
                off: 0,
                len: 100,
                stream: StreamId(0),
                pos: n * 200,
                frame: 100,
                skip: 0,
            }],
        });
        if n % 100_000 == 0 {
            apply(Row::Segment(SegmentRow {
                name: SegmentName::Log {
                    epoch: Epoch(1),
                    n: n as u32,
                },
                stream: StreamId(0),
                base: n * 200,
                end: n * 200,
                state: SegmentState::Open,
                size: 0,
            }));
        }
    }
    index
}
