//! Long files and many packed ones on HDFS, beside hdfs-native.

use crate::Extent;
use crate::empty::Empty;
use crate::hdfs::{cluster, mount};
use crate::local::{read_large, write_large};
use crate::peers::{Native, fill};
use crate::report::{Goal, Report};
use crate::work::{Files, Rounds, Took, median, on_threads};
use futures::StreamExt;
use futures::future::join_all;
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Instant;

const PIECE: usize = 1 << 20;
/// As often as stowfs syncs a stream that nobody waits for.
const SYNC_EVERY: usize = 16 << 20;
const LARGE: Option<Goal> = Some(Goal::RatioAtLeast(0.9));

pub fn stream(extent: &Extent, report: &mut Report) {
    let hdfs = cluster(3, 3);
    let native = Native::new(&hdfs);
    let mount = mount(&hdfs, "stream", &["--gc-grace=1s"]);
    for (count, mib) in [(1, extent.scaled(384)), (4, extent.scaled(128))] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for n in 0..extent.rounds {
            let path = |i: usize| mount.at(&format!("{count}-{n}-{i}"));
            let begun = Instant::now();
            thread::scope(|scope| {
                for i in 0..count {
                    scope.spawn(move || write_large(&path(i), mib, PIECE));
                }
            });
            rates[0].push((count * mib) as f64 / begun.elapsed().as_secs_f64());
            (0..count).for_each(|i| std::fs::remove_file(path(i)).expect("unlink"));
            for (rates, sync_every) in rates[1..].iter_mut().zip([None, Some(SYNC_EVERY)]) {
                let direct = format!("/direct-{count}-{n}");
                rates.push(direct_stream(&native, &direct, count, mib, sync_every));
            }
        }
        let [ours, direct, durable] = rates.map(median);
        let what = format!("streaming to HDFS, {count} files of {mib} MiB");
        let peer = Some(("hdfs-native", direct));
        report.row(("stream", &what), "MiB/s", ours, peer, LARGE);
        let peer = Some(("hdfs-native that syncs each 16 MiB", durable));
        report.row(("stream", &what), "MiB/s", ours, peer, None);
    }
}

fn direct_stream(
    native: &Native,
    dir: &str,
    count: usize,
    mib: usize,
    sync_every: Option<usize>,
) -> f64 {
    let begun = Instant::now();
    native.runtime.block_on(async {
        // Each on a task of its own: one task would do one at a time where it does not wait.
        let mut tasks = Vec::new();
        for i in 0..count {
            let writer = native.create(&format!("{dir}/{i}")).await;
            tasks.push(tokio::spawn(fill(writer, mib << 20, PIECE, sync_every)));
        }
        for task in tasks {
            task.await.expect("a writer");
        }
    });
    let rate = (count * mib) as f64 / begun.elapsed().as_secs_f64();
    let deleted = native.runtime.block_on(native.client.delete(dir, true));
    assert!(deleted.expect("delete"));
    rate
}

pub fn read(extent: &Extent, report: &mut Report) {
    const READERS: usize = 8;
    let hdfs = cluster(3, 3);
    let mut mount = mount(&hdfs, "read", &[]);
    let files = Files::small(READERS, extent.scaled(250));
    let large = extent.scaled(384);
    let dir = mount.at("packed");
    std::fs::create_dir(&dir).expect("mkdir");
    files.write(&dir);
    write_large(&mount.at("large"), large, PIECE);
    prepare(&Native::new(&hdfs), &files, large);
    let mut rounds: [Rounds; 3] = Default::default();
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..extent.rounds {
        // Cold: what the mount, its kernel cache and the client remembered is gone.
        mount.umount();
        mount.remount();
        rounds[0].push(packed(&dir, &files));
        rates[0].push(read_large(&mount.at("large"), PIECE));
        let native = Native::new(&hdfs);
        rounds[1].push(plain(&native, &files));
        rates[1].push(plain_large(&native));
        let empty = cold_and_empty(&files, large);
        rounds[2].push(packed(&empty.path(), &files));
        rates[2].push(read_large(&empty.path().join("large"), PIECE));
    }
    let [ours_large, direct_large, empty_large] = rates.map(median);
    let [ours, direct, empty] = rounds.each_ref().map(Rounds::per_second);
    let what = format!(
        "reading {} files of 64 KiB, cold, {READERS} readers",
        files.count()
    );
    let peer = Some(("hdfs-native", direct));
    let goal = Some(Goal::RatioAtLeast(5.0));
    report.row(("read", &what), "files/s", ours, peer, goal);
    let one_file = direct_large * 1024.0 / 64.0;
    let peer = Some(("limit: hdfs-native, the same bytes in one file", one_file));
    report.row(("read", &what), "files/s", ours, peer, None);
    let peer = Some(("limit: empty filesystem", empty));
    report.row(("read", &what), "files/s", ours, peer, None);
    let what = format!("reading a file of {large} MiB, cold");
    let peer = Some(("hdfs-native", direct_large));
    report.row(("read", &what), "MiB/s", ours_large, peer, LARGE);
    let peer = Some(("limit: empty filesystem", empty_large));
    report.row(("read", &what), "MiB/s", ours_large, peer, None);
}

/// An empty filesystem with the same names and sizes, of which the kernel knows nothing any more.
fn cold_and_empty(files: &Files, large: usize) -> Empty {
    let empty = Empty::mount();
    let make = |name: &str, size: usize| {
        let file = File::create(empty.path().join(name)).expect("create");
        // Not written: what is written stays in the kernel's cache.
        file.set_len(size as u64).expect("truncate");
    };
    for (w, i) in files.all() {
        make(&Files::name(w, i), files.size(w, i));
    }
    make("large", large << 20);
    thread::sleep(crate::empty::TTL);
    empty
}

/// The same as plain files; many at once, because each waits most of the time.
fn prepare(native: &Native, files: &Files, large: usize) {
    const AT_ONCE: usize = 32;
    let writes =
        futures::stream::iter(files.all()).for_each_concurrent(AT_ONCE, |(w, i)| async move {
            let writer = native
                .create(&format!("/plain/{}", Files::name(w, i)))
                .await;
            fill(writer, files.size(w, i), files.piece, None).await;
        });
    native.runtime.block_on(async {
        writes.await;
        let writer = native.create("/plain/large").await;
        fill(writer, large << 20, PIECE, None).await;
    });
}

fn packed(dir: &Path, files: &Files) -> Took {
    on_threads(files.writers, |w| {
        let one = |i| {
            let begun = Instant::now();
            let bytes = std::fs::read(dir.join(Files::name(w, i))).expect("read");
            assert_eq!(bytes.len(), files.size(w, i));
            begun.elapsed()
        };
        (0..files.each).map(one).collect()
    })
}

fn plain(native: &Native, files: &Files) -> Took {
    let reader = |w| {
        let (client, files) = (native.client.clone(), files.clone());
        native.runtime.spawn(async move {
            let mut took = Vec::new();
            for i in 0..files.each {
                let begun = Instant::now();
                let path = format!("/plain/{}", Files::name(w, i));
                let reader = client.read(&path).await.expect("open");
                let bytes = reader.read_range(0, reader.file_length()).await;
                assert_eq!(bytes.expect("read").len(), files.size(w, i));
                took.push(begun.elapsed());
            }
            took
        })
    };
    let begun = Instant::now();
    let tasks: Vec<_> = (0..files.writers).map(reader).collect();
    let done = native.runtime.block_on(join_all(tasks));
    let each = done.into_iter().flat_map(|t| t.expect("a reader"));
    Took {
        each: each.collect(),
        all: begun.elapsed(),
    }
}

fn plain_large(native: &Native) -> f64 {
    native.runtime.block_on(async {
        let begun = Instant::now();
        let reader = native.client.read("/plain/large").await.expect("open");
        let mut stream = Box::pin(reader.read_range_stream(0, reader.file_length()));
        let mut total = 0;
        while let Some(bytes) = stream.next().await {
            total += bytes.expect("read").len();
        }
        total as f64 / 1048576.0 / begun.elapsed().as_secs_f64()
    })
}
