//! rebuild saves what can be saved and invents nothing.
//!
//! `STOWFS_SEED=n` replays one seed of the random test; `STOWFS_SEEDS=n` sets how many are run.

#[path = "support/damaged.rs"]
#[allow(dead_code)]
mod damaged;
#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;
#[path = "support/seeds.rs"]
mod seeds;

use damaged::*;
use filled::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stowfs::base::{ErrorKind, Ino, Result};
use stowfs::format::Frame;
use stowfs::format::segment::{HEADER_LEN, TRAILER_LEN};
use stowfs::store::memory::{LastCall, MemoryCluster};

#[tokio::test(start_paused = true)]
async fn rebuilding_a_good_root_changes_nothing_that_a_reader_sees() {
    let cluster = with_lane(8).await;
    let before = open(&host(&cluster)).await.unwrap();
    mkdir(&before, "dir").await;
    before.shutdown().await.unwrap();
    let (report, volume) = salvaged(&cluster).await;
    assert_eq!((report.files, report.directories), (6, 2), "{report}");
    assert_eq!(
        (report.lost_and_found, report.notes.len()),
        (0, 0),
        "{report}"
    );
    assert_eq!(census(&volume, 5).await.0.len(), 5);
    assert_eq!(get(&volume, "long").await.unwrap().unwrap().len(), 120_000);
    volume.shutdown().await.unwrap();
    let report = check(&cluster).await;
    assert!(report.is_clean(), "{report}");
    // And once more, on top of the first.
    let (report, volume) = salvaged(&cluster).await;
    assert_eq!((report.files, report.lost_and_found), (7, 0), "{report}");
    assert_eq!(census(&volume, 5).await.0.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_lost_log_segment_costs_its_own_files() {
    let cluster = filled(9, N).await;
    let logs = log_files(&cluster);
    assert!(logs.len() >= 3);
    host(&cluster).delete(&logs[1]).await.unwrap();
    assert!(open(&host(&cluster)).await.is_err());
    let (report, volume) = salvaged(&cluster).await;
    let (good, bad, missing) = census(&volume, N).await;
    assert!(bad.is_empty() && !missing.is_empty(), "{report}");
    // Only what was in that segment is missing: a run of files.
    let (first, last) = (missing[0], missing[missing.len() - 1]);
    assert_eq!(last - first + 1, missing.len() as u64);
    assert_eq!(good.len() + missing.len(), N as usize);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("of the log are lost"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_header_or_footer_costs_nothing() {
    for damage in ["header", "first frame too", "footer"] {
        let cluster = filled(10, N).await;
        let path = log_files(&cluster)[1].clone();
        cluster
            .damage(&path, |b| {
                let n = b.len();
                match damage {
                    "header" => b[..HEADER_LEN].fill(0),
                    "first frame too" => b[..HEADER_LEN + 8].fill(0),
                    _ => b[n - TRAILER_LEN..].fill(0),
                }
            })
            .unwrap();
        let (report, volume) = salvaged(&cluster).await;
        let (good, bad, missing) = census(&volume, N).await;
        let lost = usize::from(damage == "first frame too");
        assert_eq!(good.len(), N as usize - lost, "{damage}: {report}");
        // Its record is there and its bytes are not: an error, not zeros.
        assert_eq!((bad.len(), missing.len()), (lost, 0), "{damage}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn data_whose_record_is_lost_is_found_in_lost_and_found() {
    let cluster = filled(11, N).await;
    let path = log_files(&cluster)[1].clone();
    let ino = destroy_record(&cluster, &path, 3);
    let (report, volume) = salvaged(&cluster).await;
    let (good, bad, missing) = census(&volume, N).await;
    assert_eq!(
        (good.len(), bad.len(), missing.len()),
        (N as usize - 1, 0, 1)
    );
    assert_eq!(report.lost_and_found, 1, "{report}");
    let name = format!("lost+found/{ino}-f{}", missing[0]);
    assert_eq!(
        get(&volume, &name).await.unwrap().unwrap(),
        body(missing[0])
    );
}

#[tokio::test(start_paused = true)]
async fn files_of_a_lost_directory_are_found_in_lost_and_found() {
    let cluster = filled(12, 3).await;
    let volume = open(&host(&cluster)).await.unwrap();
    let dir = mkdir(&volume, "dir").await;
    for i in 0..4 {
        put(&volume, dir, &format!("f{i}"), body(i)).await;
    }
    volume.shutdown().await.unwrap();
    // The record of the directory: the one before the first file's.
    let path = log_files(&cluster).pop().unwrap();
    let all = frames(&bytes_of(&cluster, &path));
    let records: Vec<&Frame> = all
        .iter()
        .map(|(_, _, f)| f)
        .filter(|f| matches!(f, Frame::Record(_)))
        .collect();
    let makes = |f: &&Frame| match f {
        Frame::Record(r) => r
            .rows
            .iter()
            .any(|row| matches!(row, stowfs::format::Row::Inode { ino, .. } if *ino == dir)),
        Frame::Data { .. } => false,
    };
    let n = records.iter().position(makes).unwrap();
    destroy_record(&cluster, &path, n);
    let (report, volume) = salvaged(&cluster).await;
    assert_eq!(report.lost_and_found, 4, "{report}");
    let found = volume.read(|index| {
        let lost = index.lookup(Ino::ROOT, b"lost+found").unwrap();
        index.entries(lost)
    });
    assert_eq!(found, 4);
    assert_eq!(census(&volume, 3).await.0.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lane_is_an_error_for_its_file_alone() {
    for gone in [true, false] {
        let cluster = with_lane(13).await;
        let lane = lane_files(&cluster)[0].clone();
        match gone {
            true => host(&cluster).delete(&lane).await.unwrap(),
            false => cluster.damage(&lane, |b| b.truncate(b.len() / 2)).unwrap(),
        }
        let (report, volume) = salvaged(&cluster).await;
        assert!(!report.damaged.is_empty(), "{report}");
        assert!(
            report
                .damaged
                .iter()
                .all(|p| p.file.as_deref() == Some("/long"))
        );
        assert!(get(&volume, "long").await.unwrap().is_err());
        assert_eq!(census(&volume, 5).await.0.len(), 5);
        volume.shutdown().await.unwrap();
        let after = check(&cluster).await;
        assert!(!after.is_clean(), "fsck still names the damaged file");
        assert!(
            after
                .problems
                .iter()
                .any(|p| p.to_string().contains("/long")),
            "{after}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_format_file_is_made_again() {
    for gone in [true, false] {
        let cluster = with_lane(14).await;
        let uuid = stowfs::volume::root::read_format(&*host(&cluster))
            .await
            .unwrap()
            .uuid;
        match gone {
            true => host(&cluster).delete(".stowfs/FORMAT").await.unwrap(),
            false => cluster.damage(".stowfs/FORMAT", |b| b.truncate(9)).unwrap(),
        }
        assert!(!check(&cluster).await.is_clean());
        let (report, volume) = salvaged(&cluster).await;
        assert!(
            report.notes.iter().any(|n| n.contains("FORMAT")),
            "{report}"
        );
        let now = stowfs::volume::root::read_format(&*host(&cluster))
            .await
            .unwrap()
            .uuid;
        assert_eq!(now, uuid);
        assert_eq!(census(&volume, 5).await.0.len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_that_dies_at_any_call_can_be_made_again() {
    let damaged = filled(15, N).await;
    let path = log_files(&damaged)[1].clone();
    destroy_record(&damaged, &path, 3);
    let counting = damaged.fork(1);
    let store = counting.host("r");
    salvage(store.clone()).await.unwrap();
    for n in 1..=store.calls() {
        for last in [LastCall::Lost, LastCall::Done] {
            let cluster = damaged.fork(n);
            let dying = cluster.host("dying");
            dying.crash_at(n, last);
            tokio::select! {
                biased;
                () = dying.crashed() => {}
                done = salvage(dying.clone()) => assert!(done.is_ok()),
            }
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            // Either the rebuild took effect as a whole, or the root is as damaged as before.
            match open(&host(&cluster)).await {
                Ok(volume) => {
                    assert_eq!(census(&volume, N).await.0.len(), N as usize - 1);
                    drop(volume);
                }
                Err(e) => assert!(e.is(ErrorKind::Corrupt), "call {n}: {e}"),
            }
            let (_, volume) = salvaged(&cluster).await;
            assert_eq!(
                census(&volume, N).await.0.len(),
                N as usize - 1,
                "call {n} {last:?}"
            );
        }
    }
}

/// A root whose older log is only in a snapshot: files f0 to f4 before it, the others after.
async fn with_snapshots(seed: u64) -> MemoryCluster {
    let cluster = MemoryCluster::new(seed);
    let volume = open(&host(&cluster)).await.unwrap();
    for i in 0..N {
        put(&volume, Ino::ROOT, &format!("f{i}"), body(i)).await;
        if i % 20 == 5 {
            take_snapshot(&volume).await;
        }
    }
    // Garbage in old segments, which must not come back.
    for i in 0..5 {
        replace(&volume, &format!("f{i}"), body(i)).await;
    }
    volume.shutdown().await.unwrap();
    assert_eq!(snapshots(&cluster).len(), 3);
    cluster
}

fn snapshots(cluster: &MemoryCluster) -> Vec<String> {
    let tree = cluster.tree().into_iter();
    tree.filter(|p| p.ends_with(".idx")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_a_problem_and_costs_nothing() {
    let cluster = with_snapshots(16).await;
    assert!(check(&cluster).await.is_clean());
    for path in snapshots(&cluster) {
        flip(&cluster, &path, HEADER_LEN + 50);
    }
    let report = check(&cluster).await;
    assert_eq!(report.problems.len(), 3, "{report}");
    assert!(report.problems.iter().all(|p| p.path.ends_with(".idx")));
    let volume = open(&host(&cluster)).await.unwrap();
    assert_eq!(census(&volume, N).await.0.len(), N as usize);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_begins_with_a_snapshot_and_old_ones_do_not_count_afterwards() {
    let cluster = with_snapshots(17).await;
    // The log from before the oldest snapshot is gone, as after garbage collection, and so is a
    // record after the newest.
    let logs = log_files(&cluster);
    host(&cluster).delete(&logs[0]).await.unwrap();
    let ino = destroy_record(&cluster, &logs[logs.len() - 2], 5);
    let (report, volume) = salvaged(&cluster).await;
    let (good, bad, missing) = census(&volume, N).await;
    // What was in the deleted segment is still known, by the snapshot, but its bytes are gone.
    assert_eq!(missing.len(), 1, "{report}");
    assert!(!bad.is_empty() && bad.iter().all(|i| *i < 40), "{bad:?}");
    assert_eq!(good.len() + bad.len() + 1, N as usize);
    let name = format!("lost+found/{ino}-f{}", missing[0]);
    assert_eq!(
        get(&volume, &name).await.unwrap().unwrap(),
        body(missing[0])
    );
    assert_eq!(report.lost_and_found, 1, "{report}");
    volume.shutdown().await.unwrap();

    // A snapshot of the new log, and the next mount by it.
    let volume = open(&host(&cluster)).await.unwrap();
    take_snapshot(&volume).await;
    put(&volume, Ino::ROOT, "latest", body(3)).await;
    volume.shutdown().await.unwrap();
    let volume = open(&host(&cluster)).await.unwrap();
    assert_eq!(get(&volume, "latest").await.unwrap().unwrap(), body(3));
    assert_eq!(census(&volume, N).await.0, good);
}

/// Files in versions, so that it can be told what a salvaged file must be.
async fn random_root(seed: u64, rng: &mut StdRng) -> (MemoryCluster, u64) {
    let cluster = MemoryCluster::new(seed);
    let files = rng.random_range(5..40);
    for life in 0..rng.random_range(1..4) {
        let volume = open(&host(&cluster)).await.expect("mount");
        for i in 0..files {
            if rng.random_bool(0.6) {
                put_version(&volume, i, life * 1000 + i).await;
            }
            if rng.random_bool(0.05) {
                let pieces = vec![content(i, 9000), content(i + 1, 9000)];
                put_long(&volume, &format!("long{life}-{i}"), &pieces).await;
            }
            if rng.random_bool(0.03) {
                take_snapshot(&volume).await;
            }
        }
        match rng.random_bool(0.5) {
            true => volume.shutdown().await.expect("shutdown"),
            false => drop(volume),
        }
    }
    for path in log_files(&cluster).iter().chain(&lane_files(&cluster)) {
        host(&cluster).recover(path).await.expect("closing");
    }
    (cluster, files)
}

async fn put_version(volume: &stowfs::volume::Volume, i: u64, version: u64) {
    let name = format!("v{i}");
    replace(
        volume,
        &name,
        content(version, 500 + version as usize % 3000),
    )
    .await;
}

/// Damages 1 to 4 places; never FORMAT's version or the owner files.
fn harm(cluster: &MemoryCluster, rng: &mut StdRng) -> Vec<String> {
    let mut paths = log_files(cluster);
    paths.extend(lane_files(cluster));
    paths.extend(snapshots(cluster));
    let mut done = Vec::new();
    for _ in 0..rng.random_range(1..5) {
        let path = &paths[rng.random_range(0..paths.len())];
        let len = bytes_of(cluster, path).len();
        if len == 0 {
            continue;
        }
        let (from, n) = (rng.random_range(0..len), rng.random_range(1..2000));
        let kind = rng.random_range(0..4);
        cluster
            .damage(path, |b| match kind {
                0 => b.truncate(from),
                1 => b[from] ^= 1 << (n % 8),
                2 => b[from..].iter_mut().take(n).for_each(|x| *x = 0),
                _ => b[from..].iter_mut().take(n).for_each(|x| *x ^= 0xa5),
            })
            .expect("a closed file");
        done.push(format!("{path}: {kind} at {from}, {n}"));
    }
    done
}

/// Whether a mount works and every file can be read.
async fn mounts_and_reads(cluster: &MemoryCluster) -> Result<()> {
    let volume = open(&host(cluster)).await?;
    let files = volume.read(|index| {
        let all = index.inos().into_iter();
        all.map(|ino| index.extents(ino, 0, u64::MAX))
            .collect::<Vec<_>>()
    });
    for extent in files.into_iter().flatten() {
        volume.fetch(&extent).await?;
    }
    Ok(())
}

async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (cluster, files) = random_root(seed, &mut rng).await;
    let harm = harm(&cluster, &mut rng);
    let before = check(&cluster).await;
    let works = mounts_and_reads(&cluster.fork(seed)).await;
    // The end of a file that nobody closed cannot be told from a cut one.
    let unchecked = before.notes.iter().any(|n| n.contains("were not checked"));
    assert!(
        works.is_ok() || !before.is_clean() || unchecked,
        "fsck did not see it: {works:?}\n{harm:?}\n{before}"
    );
    let report = salvage(host(&cluster))
        .await
        .expect("a rebuild never gives up");
    let volume = open(&host(&cluster))
        .await
        .expect("a mount after a rebuild");
    for i in 0..files {
        if let Some(Ok(found)) = get(&volume, &format!("v{i}")).await {
            let mut versions = (0..4).map(|life| life * 1000 + i);
            let right = versions.any(|v| found == content(v, 500 + v as usize % 3000));
            assert!(
                right,
                "v{i} is something that nobody wrote\n{harm:?}\n{report}"
            );
        }
    }
    if report.damaged.is_empty() {
        assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    }
    volume.shutdown().await.expect("shutdown");
    let after = check(&cluster).await;
    assert_eq!(
        after.is_clean(),
        report.damaged.is_empty(),
        "{harm:?}\nbefore: {before}\nrebuild: {report}\nafter: {after}"
    );
}

#[test]
fn whatever_is_damaged_a_rebuild_invents_nothing() {
    seeds::each("rebuild", 1000, |seed| async move { run(seed).await });
}
