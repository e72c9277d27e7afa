//! Large roots on a local store: how long a mount takes, and what a snapshot costs in time and in
//! memory. Files have names of 36 characters and one extent, 10,000 in a directory.
//!
//! `cargo bench --bench large` (1 and 10 million files; STOWFS_TEST_FILES=n for another number,
//! STOWFS_TEST_ROUNDS=n). Prints medians, one row for each number of files.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use stowfs::base::{Config, Error, Ino, Result};
use stowfs::format::{Attr, DataFrame, Row};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::local::LocalStore;
use stowfs::upkeep::snapshot;
use stowfs::volume::{Begin, OpenOptions, Volume, recover};
use support::mount::Mount;
use support::scratch::Scratch;

const FILES_IN_DIR: u64 = 10_000;
const SIZE: usize = 100;
/// The log alone is read up to so many files: nobody mounts a larger root without a snapshot.
const LOG_ALONE: u64 = 1_000_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

async fn open(store: &Arc<dyn Store>) -> Arc<Volume> {
    let options = OpenOptions::new(Config::default());
    let opened = Volume::open_as_is(store.clone(), options, Begin::Nothing);
    opened.await.expect("a volume")
}

fn attr(mode: u32, nlink: u32, size: usize) -> Attr {
    Attr {
        mode,
        nlink,
        size: size as u64,
        ..Attr::default()
    }
}

/// One directory, and each file in it with a record of its own, as when they are closed one by one.
async fn fill_dir(volume: &Volume, n: u64, files: u64) -> Result<()> {
    let dir = volume.new_ino()?;
    volume.change(|index, change| {
        let up = index.attr(Ino::ROOT).expect("a root directory");
        change.row(inode(dir, attr(libc::S_IFDIR | 0o755, 2, 0)));
        change.row(entry(Ino::ROOT, format!("d{n:06}"), dir));
        let nlink = up.nlink + 1;
        change.row(inode(Ino::ROOT, Attr { nlink, ..up }));
        Ok::<_, Error>(())
    })?;
    for i in 0..files {
        let ino = volume.new_ino()?;
        let name = format!("{:08x}-5b7f-4c31-9d4e-0123456789ab", n * FILES_IN_DIR + i);
        volume.change(|_, change| {
            let path = format!("d{n:06}/{name}").into_bytes();
            let data = DataFrame::new(ino, 0, vec![i as u8; SIZE].into(), path);
            let extent = change.data(data);
            change.row(inode(ino, attr(libc::S_IFREG | 0o644, 1, SIZE)));
            change.row(Row::Extents {
                ino,
                off: 0,
                len: SIZE as u64,
                extents: vec![extent],
            });
            change.row(entry(dir, name, ino));
            Ok::<_, Error>(())
        })?;
    }
    volume.durable(volume.last_pos()).await
}

fn inode(ino: Ino, attr: Attr) -> Row {
    Row::Inode { ino, attr }
}

fn entry(parent: Ino, name: String, ino: Ino) -> Row {
    let name = name.into_bytes();
    Row::Entry { parent, name, ino }
}

/// Memory of this process: now, or the most since `forget_peak`.
fn memory(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|l| l.starts_with(what));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("{what} in /proc/self/status")) << 10
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("clear_refs");
}

/// What a snapshot of a root took.
struct Merge {
    bytes: u64,
    seconds: f64,
    extra: u64,
}

async fn merge(volume: &Arc<Volume>) -> Merge {
    // Or it would use what filling has left.
    // SAFETY: it only gives free memory back.
    unsafe { libc::malloc_trim(0) };
    forget_peak();
    let (before, begun) = (memory("VmRSS:"), Instant::now());
    let taken = snapshot::take(&**volume).await;
    let (_, bytes) = taken.expect("a snapshot");
    Merge {
        bytes,
        seconds: begun.elapsed().as_secs_f64(),
        extra: memory("VmHWM:").saturating_sub(before),
    }
}

/// Seconds to read the state of a root, without a mount.
async fn read_back(store: &Arc<dyn Store>, uuid: &[u8; 16], files: u64) -> f64 {
    let begun = Instant::now();
    let read = recover(&**store, uuid, None).await.expect("a whole root");
    let seconds = begun.elapsed().as_secs_f64();
    assert!(read.index.inodes() as u64 > files);
    seconds
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn mount_seconds(root: &Path, rounds: u64) -> f64 {
    let mut mount = Mount::unmounted(&format!("file://{}", root.display()), &[]);
    let one = |_| {
        let begun = Instant::now();
        mount.remount();
        let seconds = begun.elapsed().as_secs_f64();
        mount.umount();
        seconds
    };
    median((0..rounds).map(one).collect())
}

fn measure(files: u64, rounds: u64) {
    let scratch = Scratch::new("bench-large").expect("a directory");
    let root = scratch.path().join("root");
    let store: Arc<dyn Store> = Arc::new(LocalStore::new("file://bench", &root));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (log, merge) = runtime.block_on(async {
        let volume = open(&store).await;
        for n in 0..files.div_ceil(FILES_IN_DIR) {
            let files = FILES_IN_DIR.min(files - n * FILES_IN_DIR);
            fill_dir(&volume, n, files).await.expect("files");
        }
        let log = match files <= LOG_ALONE {
            true => Some(read_back(&store, &volume.root_uuid(), files).await),
            false => None,
        };
        let merge = merge(&volume).await;
        assert!(volume.read(Index::inodes) as u64 > files);
        volume.shutdown().await.expect("the end");
        (log, merge)
    });
    drop(runtime);
    let mounting = mount_seconds(&root, rounds);
    println!(
        "| {files} | {} | {mounting:.2} | {} | {:.2} | {:.1} |",
        merge.bytes,
        log.map_or("".into(), |s| format!("{s:.2}")),
        merge.seconds,
        merge.extra as f64 / (1 << 20) as f64,
    );
}

fn main() {
    // `cargo test --benches` and the like run without this argument.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let rounds = number("STOWFS_TEST_ROUNDS").unwrap_or(3);
    println!("| files | snapshot, bytes | mount, s | log alone, s | merge, s | merge, extra MiB |");
    println!("|---|---|---|---|---|---|");
    let usual = [1_000_000, 10_000_000];
    match number("STOWFS_TEST_FILES") {
        Some(files) => measure(files, rounds),
        None => usual.iter().for_each(|n| measure(*n, rounds)),
    }
}
