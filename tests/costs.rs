//! What files cost a real NameNode. Counts are asserted, times are only printed:
//! `cargo test --release --test costs -- --nocapture`

mod support;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::mount::Mount;

/// As Flink writes an SST: looked up, created, written in pieces of 20,480 bytes, closed.
const PIECE: usize = 20_480;
const SIZE: usize = 64 << 10;

/// Writes files one after the other; returns how long each took from lookup to the end of close.
fn write_files(dir: &Path, writer: usize, count: usize) -> Vec<Duration> {
    let data = vec![writer as u8; SIZE];
    let timed = (0..count).map(|i| {
        let path = dir.join(format!("{writer:02}-{i:05}-8b046a4f-40a4-4c23-b52c"));
        let started = Instant::now();
        assert!(!path.exists());
        let mut file = File::create(&path).expect("create");
        data.chunks(PIECE)
            .for_each(|piece| file.write_all(piece).expect("write"));
        nix::unistd::close(file).expect("close");
        started.elapsed()
    });
    timed.collect()
}

struct Cost {
    fsyncs: f64,
    calls: f64,
    took: Vec<Duration>,
    files_per_second: f64,
}

fn measure(hdfs: &Hdfs, dir: &Path, writers: usize, each: usize) -> Cost {
    let before = hdfs.rpc_counts();
    let started = Instant::now();
    let mut took: Vec<Duration> = thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|w| scope.spawn(move || write_files(dir, w, each)))
            .collect();
        let joined = threads.into_iter().map(|t| t.join().expect("a writer"));
        joined.flatten().collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let calls = hdfs.rpc_counts().since(&before);
    let files = (writers * each) as f64;
    took.sort();
    Cost {
        fsyncs: calls.fsync() as f64 / files,
        calls: calls.total() as f64 / files,
        took,
        files_per_second: files / seconds,
    }
}

#[test]
fn files_share_the_calls_to_the_namenode() {
    let hdfs = Hdfs::builder().datanodes(3).replication(3).start();
    let conf = hdfs.conf_dir();
    let arguments = [
        "--replication=3",
        "--hadoop-conf",
        conf.to_str().expect("a path"),
    ];
    let mount = Mount::with(&format!("{}/costs", hdfs.url()), &arguments);
    let mut costs = Vec::new();
    for (writers, each) in [(1, 200), (8, 100)] {
        let dir = mount.at(&format!("w{writers}"));
        std::fs::create_dir(&dir).expect("mkdir");
        let cost = measure(&hdfs, &dir, writers, each);
        let at = |share: f64| cost.took[(share * (cost.took.len() - 1) as f64) as usize];
        println!(
            "{writers} writers, 64 KiB: {:.2} fsync and {:.2} calls to the NameNode per file; \
             {:.0} files/s; create to close p50 {:?}, p99 {:?}",
            cost.fsyncs,
            cost.calls,
            cost.files_per_second,
            at(0.5),
            at(0.99)
        );
        costs.push(cost);
    }
    // A plain HDFS file costs about 7 calls: getFileInfo, create, addBlock, complete and the
    // reports of its three replicas.
    assert!(
        costs[0].calls < 2.0,
        "one writer: {} calls per file",
        costs[0].calls
    );
    assert!(
        costs[1].calls < 0.8,
        "eight writers: {} calls per file",
        costs[1].calls
    );
}
