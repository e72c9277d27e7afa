//! What DataNodes see of a storm of unlinks: how many block replicas they must remove, and how many
//! in the worst second, when the files are plain HDFS files and when they are packed.
//!
//! `cargo bench --bench deletion` (STOWFS_TEST_FILES=n for another number of files than 2,000 on HDFS;
//! five times as many on the mount)

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stowfs::store::Store;
use stowfs::store::connect::{ConnectOptions, connect};
use stowfs::store::hdfs::HdfsOptions;
use support::hdfs::Hdfs;
use support::mount::Mount;

const SIZE: usize = 64 << 10;
const AT_ONCE: usize = 32;
const SAMPLE: Duration = Duration::from_millis(250);
/// Nothing more is removed when nothing was for so long.
const QUIET: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(300);

/// Removals, with the time since the storm began.
struct Removals(Vec<(f64, u64)>);

impl Removals {
    /// Watches from before `storm` until all is quiet.
    fn during(hdfs: &Hdfs, storm: impl FnOnce() + Send) -> (Removals, Duration) {
        let over = AtomicBool::new(false);
        let mut samples = Vec::new();
        let took = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let begun = Instant::now();
                storm();
                over.store(true, Ordering::Relaxed);
                begun.elapsed()
            });
            let (begun, first) = (Instant::now(), hdfs.blocks_removed());
            let (mut last, mut changed) = (0, Instant::now());
            while begun.elapsed() < LONGEST {
                let removed = hdfs.blocks_removed() - first;
                samples.push((begun.elapsed().as_secs_f64(), removed));
                if removed != last || !over.load(Ordering::Relaxed) {
                    (last, changed) = (removed, Instant::now());
                }
                if changed.elapsed() > QUIET {
                    break;
                }
                std::thread::sleep(SAMPLE);
            }
            running.join().expect("the storm")
        });
        (Removals(samples), took)
    }

    fn total(&self) -> u64 {
        self.0.last().map_or(0, |(_, n)| *n)
    }

    /// The most within one second.
    fn worst(&self) -> u64 {
        let within = |(at, n): &(f64, u64)| {
            let before = self.0.iter().rev().find(|(t, _)| *t <= at - 1.0);
            n - before.map_or(0, |(_, n)| *n)
        };
        self.0.iter().map(within).max().unwrap_or(0)
    }
}

fn plain(hdfs: &Hdfs, files: usize) -> (Removals, Duration) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = HdfsOptions {
        replication: Some(3),
        conf_dir: Some(hdfs.conf_dir()),
        ..HdfsOptions::default()
    };
    let url = format!("{}/plain", hdfs.url());
    let store: Arc<dyn Store> = runtime
        .block_on(connect(&url, &ConnectOptions { hdfs: options }))
        .unwrap();
    let each = |work: fn(Arc<dyn Store>, String) -> futures::future::BoxFuture<'static, ()>| {
        runtime.block_on(async {
            let mut running = tokio::task::JoinSet::new();
            for n in 0..files {
                while running.len() >= AT_ONCE {
                    running.join_next().await.unwrap().unwrap();
                }
                running.spawn(work(store.clone(), format!("f{n}")));
            }
            running.join_all().await;
        });
    };
    runtime.block_on(store.mkdir("")).unwrap();
    each(|store, at| Box::pin(async move { store.put(&at, vec![1; SIZE].into()).await.unwrap() }));
    Removals::during(hdfs, || {
        each(|store, at| Box::pin(async move { store.delete(&at).await.unwrap() }))
    })
}

fn packed(hdfs: &Hdfs, files: usize) -> (Removals, Duration) {
    let conf = hdfs.conf_dir();
    let options = [
        "--replication=3",
        "--gc-grace=5s",
        "--hadoop-conf",
        conf.to_str().unwrap(),
    ];
    let mount = Mount::with(&format!("{}/packed", hdfs.url()), &options);
    std::thread::scope(|scope| {
        for writer in 0..AT_ONCE {
            let mount = &mount;
            scope.spawn(move || {
                for n in (writer..files).step_by(AT_ONCE) {
                    fs::write(mount.at(&format!("f{n}")), vec![1; SIZE]).unwrap();
                }
            });
        }
    });
    Removals::during(hdfs, || {
        for n in 0..files {
            fs::remove_file(mount.at(&format!("f{n}"))).unwrap();
        }
    })
}

fn main() {
    // `cargo test --benches` and the like run without this argument.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let given = std::env::var("STOWFS_TEST_FILES").ok();
    let files = given.map_or(2000, |n| n.parse().expect("a number of files"));
    let hdfs = Hdfs::builder()
        .datanodes(3)
        .replication(3)
        .block_size(64 << 20)
        .start();
    println!(
        "{:<24} {:>8} {:>14} {:>20} {:>20}",
        "files of 64 KiB", "files", "unlinked in s", "replicas removed", "in the worst second"
    );
    for (what, files, (removals, took)) in [
        ("plain HDFS files", files, plain(&hdfs, files)),
        ("packed by stowfs", files * 5, packed(&hdfs, files * 5)),
    ] {
        println!(
            "{what:<24} {files:>8} {:>14.1} {:>20} {:>20}",
            took.as_secs_f64(),
            removals.total(),
            removals.worst()
        );
    }
}
