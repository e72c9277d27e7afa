//! Crashes of the volume at every call of the store, checked against a model.
//!
//! The log is a sequence of changes. After a crash the state must be what some prefix of them
//! made, and the prefix must contain every change that was acknowledged.
//!
//! `STOWFS_SEED=n` replays one seed; `STOWFS_SEEDS=n` sets how many are run.

#[path = "support/prefixes.rs"]
mod prefixes;
#[path = "support/seeds.rs"]
mod seeds;
#[path = "support/tidy.rs"]
mod tidy;

use bytes::Bytes;
use prefixes::{Files, Model, Op};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Error, Ino};
use stowfs::format::{Attr, DataFrame, Extent, Row};
use stowfs::store::Store;
use stowfs::store::faulty::{Faults, Rates};
use stowfs::store::memory::{LastCall, MemoryCluster, MemoryStore};
use stowfs::store::timeout::{Limits, with_time_out};
use stowfs::volume::{OpenOptions, Volume};

fn options(takeover: bool) -> OpenOptions {
    OpenOptions {
        takeover,
        ..OpenOptions::new(Config {
            segment_size: 24 << 10,
            block_size: 4 << 10,
            op_timeout: Duration::from_secs(30),
            idle_seal: Duration::from_secs(3),
            gc_grace: Duration::from_secs(1),
            gc_keep: 0.1,
            delete_rate: 1000.0,
            orphan_age: Duration::from_secs(30),
            compact_target: 1.2,
            compact_rate: 0,
            snapshot_bytes: 8 << 10,
            upkeep_every: Duration::from_millis(500),
            ..Config::default()
        })
    }
}

async fn files_of(volume: &Volume) -> Files {
    let names: Vec<(Vec<u8>, Ino)> = volume.read(|i| {
        i.readdir(Ino::ROOT, 0)
            .map(|e| (e.name.to_vec(), e.ino))
            .collect()
    });
    let mut files = Files::new();
    for (name, ino) in names {
        // Or compaction may give up a segment between looking at the index and fetching from it.
        let _reading = volume.reading();
        let (size, extents) = volume.read(|i| {
            (
                i.attr(ino).expect("an entry's inode").size,
                i.extents(ino, 0, u64::MAX),
            )
        });
        let mut bytes = vec![0; size as usize];
        for e in extents {
            let got = volume
                .fetch(&e)
                .await
                .expect("committed bytes must be readable");
            bytes[e.off as usize..e.end() as usize].copy_from_slice(&got);
        }
        files.insert(String::from_utf8(name).expect("a name"), bytes);
    }
    files
}

fn commit_rows(volume: &Volume, op: &Op, lane: Option<Vec<Extent>>) -> Result<u64, Error> {
    let fresh = volume.new_ino()?;
    let ((), pos) = volume.change(|index, change| {
        let find = |name: &str| index.lookup(Ino::ROOT, name.as_bytes());
        let entry = |name: &str, ino| Row::Entry {
            parent: Ino::ROOT,
            name: name.into(),
            ino,
        };
        let gone = |name: &str| Row::NoEntry {
            parent: Ino::ROOT,
            name: name.into(),
        };
        match op {
            Op::Write { name, off, data } => {
                let ino = find(name).unwrap_or(fresh);
                let len = data.len() as u64;
                let extents = lane.unwrap_or_else(|| {
                    vec![change.data(DataFrame::new(ino, *off, data.clone(), name.clone().into()))]
                });
                let old = index.attr(ino).map_or(0, |a| a.size);
                let size = old.max(off + len);
                let attr = Attr {
                    mode: libc::S_IFREG,
                    nlink: 1,
                    size,
                    ..Attr::default()
                };
                change.row(Row::Inode { ino, attr });
                change.row(entry(name, ino));
                change.row(Row::Extents {
                    ino,
                    off: *off,
                    len,
                    extents,
                });
            }
            Op::Rename { from, to } => {
                let ino = find(from).expect("the workload renames what exists");
                if let Some(replaced) = find(to) {
                    change.row(Row::Free { ino: replaced });
                }
                change.row(gone(from));
                change.row(entry(to, ino));
            }
            Op::Unlink { name } => {
                let ino = find(name).expect("the workload unlinks what exists");
                change.row(gone(name));
                change.row(Row::Free { ino });
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(pos)
}

fn choose(rng: &mut StdRng, files: &Files) -> Op {
    let any = |rng: &mut StdRng| files.keys().nth(rng.random_range(0..files.len())).cloned();
    let name = format!("f{}", rng.random_range(0..8));
    match rng.random_range(0..10) {
        0 if !files.is_empty() => Op::Unlink {
            name: any(rng).expect("a file"),
        },
        1 if !files.is_empty() => {
            let from = any(rng).expect("a file");
            if from == name {
                Op::Unlink { name }
            } else {
                Op::Rename { from, to: name }
            }
        }
        _ => {
            let len = rng.random_range(1..5000);
            let fill = rng.random::<u8>();
            let data: Vec<u8> = (0..len).map(|k| fill.wrapping_add(k as u8)).collect();
            Op::Write {
                name,
                off: rng.random_range(0..3000),
                data: data.into(),
            }
        }
    }
}

/// Runs a random workload until it ends or the volume fails.
async fn work(volume: &Arc<Volume>, model: &parking_lot::Mutex<Model>, seed: u64, go_on: bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..rng.random_range(5..40) {
        let op = choose(&mut rng, &model.lock().now);
        let through_lane = rng.random_bool(0.2);
        let Ok(pos) = (match &op {
            Op::Write { off, data, name } if through_lane => {
                lane_write(volume, *off, data.clone(), name, &op).await
            }
            _ => commit_rows(volume, &op, None),
        }) else {
            if go_on {
                continue;
            }
            return;
        };
        model.lock().add(pos, op);
        if rng.random_bool(0.4) {
            match volume.durable(pos).await {
                Err(_) if go_on => continue,
                Err(_) => return,
                Ok(()) => {}
            }
            let mut model = model.lock();
            model.acknowledged = model.acknowledged.max(pos);
        }
        if rng.random_bool(0.1) {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..6000))).await;
        }
    }
}

async fn lane_write(
    volume: &Arc<Volume>,
    off: u64,
    data: Bytes,
    name: &str,
    op: &Op,
) -> Result<u64, Error> {
    let frame = DataFrame::new(Ino(99), off, data, name.into());
    let extent = volume.lane_append(frame, None).await?;
    volume.lane_sync(&[extent]).await?;
    let pos = commit_rows(volume, op, Some(vec![extent]));
    volume.lane_forget(Ino(99));
    pos
}

async fn until_crash<T>(host: &MemoryStore, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = host.crashed() => None,
        done = work => Some(done),
    }
}

/// Opens, verifies, works, crashes; again and again. `crash_at` chooses the call of the first
/// host at which it dies. Returns how many calls the first host made.
async fn run(seed: u64, crash_at: Option<(u64, LastCall)>) -> u64 {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut model = Model::default();
    let mut first_calls = 0;
    for life in 0..3 {
        let host = cluster.host(&format!("h{life}"));
        match crash_at {
            Some((n, last)) if life == 0 => host.crash_at(n, last),
            _ if life < 2 => {
                let last = if rng.random() {
                    LastCall::Done
                } else {
                    LastCall::Lost
                };
                if crash_at.is_some() || rng.random_bool(0.7) {
                    host.crash_at(rng.random_range(1..150), last);
                }
            }
            _ => {}
        }
        let store: Arc<dyn Store> = host.clone();
        let opened = until_crash(&host, Volume::open(store, options(false))).await;
        let Some(volume) = opened.map(|o| o.unwrap_or_else(|e| panic!("opening: {e}"))) else {
            continue;
        };
        let Some(found) = until_crash(&host, files_of(&volume)).await else {
            continue;
        };
        assert!(
            model.explains(&found),
            "life {life}: acknowledged files are lost or torn"
        );
        assert_eq!(
            volume.read(|i| i.check()),
            Vec::<String>::new(),
            "life {life}"
        );
        let shared = parking_lot::Mutex::new(Model::at(found));
        until_crash(&host, work(&volume, &shared, seed * 3 + life, false)).await;
        model = shared.into_inner();
        if host.is_crashed() || rng.random() {
            host.crash();
        } else {
            until_crash(&host, volume.shutdown()).await;
            let last = model.ops.last().map_or(0, |(pos, _)| *pos);
            model.acknowledged = if host.is_crashed() {
                model.acknowledged
            } else {
                last
            };
        }
        if life == 0 {
            first_calls = host.calls();
        }
    }
    let host = cluster.host("last");
    let store: Arc<dyn Store> = host.clone();
    let volume = Volume::open(store, options(false))
        .await
        .expect("the last mount");
    assert!(
        model.explains(&files_of(&volume).await),
        "the last mount: files are lost or torn"
    );
    if crash_at.is_some() || seed.is_multiple_of(2) {
        let leaks = tidy::leaks(&cluster, &volume).await;
        assert_eq!(leaks, Vec::<String>::new(), "left behind");
    }
    assert!(
        model.explains(&files_of(&volume).await),
        "after upkeep: files are lost or torn"
    );
    volume.shutdown().await.expect("a clean shutdown");
    first_calls
}

/// A store that fails at random, also after it did what was asked, and hangs. While it does, what
/// is not acknowledged may be unknown; as soon as it stops, everything goes on by itself.
async fn run_faulty(seed: u64) {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 0xfa17);
    let host = cluster.host("a");
    let faults = Faults::new(seed);
    let limits = Limits {
        call: Duration::from_secs(4),
        recover: Duration::from_secs(10),
        slow: Duration::from_secs(60),
    };
    let store = with_time_out(faults.wrap(host.clone()), limits);
    let volume = Volume::open(store, options(false)).await.expect("mount");
    let model = parking_lot::Mutex::new(Model::default());
    let often = rng.random_range(4..40);
    faults.set_rates(Rates {
        refuse: if rng.random() { often } else { 0 },
        fail_after: if rng.random() { often } else { 0 },
        delay: if rng.random() { often } else { 0 },
        longest_delay: Duration::from_secs(6),
        hang: if rng.random() { often } else { 0 },
    });
    work(&volume, &model, seed, true).await;
    if rng.random() {
        faults.clear();
        work(&volume, &model, seed + 1, true).await;
        let pos = volume.last_pos();
        volume
            .durable(pos)
            .await
            .expect("service resumes by itself");
        model.lock().acknowledged = pos;
    }
    assert!(!volume.is_fenced(), "nobody else owns the root");
    // Reads go through the faults as well, but those of bytes in memory do not.
    faults.clear();
    assert_eq!(
        files_of(&volume).await,
        model.lock().now,
        "what was written reads back"
    );
    if rng.random() {
        host.crash();
    } else if volume.shutdown().await.is_ok() {
        model.lock().acknowledged = volume.last_pos();
    }
    drop(volume);
    let store: Arc<dyn Store> = cluster.host("b");
    let volume = Volume::open(store, options(true))
        .await
        .expect("the next mount");
    let found = files_of(&volume).await;
    assert!(model.lock().explains(&found), "files are lost or torn");
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
}

/// Two owners: the second takes over while the first goes on.
async fn run_takeover(seed: u64) {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 0x7a4e);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    let first = Volume::open(a.clone() as Arc<dyn Store>, options(false))
        .await
        .expect("mount");
    let model = parking_lot::Mutex::new(Model::default());
    let frozen = rng.random_bool(0.5);
    let second = async {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await;
        if frozen {
            a.freeze();
        }
        let second = Volume::open(b.clone() as Arc<dyn Store>, options(true))
            .await
            .expect("takeover");
        // Whatever the first acknowledges must be in what the second has read, even now.
        let found = files_of(&second).await;
        a.thaw();
        tokio::time::sleep(Duration::from_secs(60)).await;
        (second, found)
    };
    let ((), (second, found)) = tokio::join!(work(&first, &model, seed, false), second);
    assert!(
        model.lock().explains(&found),
        "the second owner lost acknowledged files"
    );
    assert!(
        first.is_fenced(),
        "the first owner does not know that it was fenced"
    );
    let model = parking_lot::Mutex::new(Model::at(found));
    work(&second, &model, seed + 1, false).await;
    second.shutdown().await.expect("a clean shutdown");
    drop((first, second));
    let third = Volume::open(cluster.host("c") as Arc<dyn Store>, options(false))
        .await
        .expect("mount");
    let found = files_of(&third).await;
    assert_eq!(found, model.lock().now, "a clean shutdown keeps everything");
}

#[test]
fn a_crash_at_any_time_loses_nothing_that_was_acknowledged() {
    seeds::each("crash", 1500, |seed| async move {
        run(seed, None).await;
    });
}

async fn crash_at_every_call(seed: u64) {
    let calls = run(seed, None).await;
    for n in 1..=calls {
        for last in [LastCall::Lost, LastCall::Done] {
            run(seed, Some((n, last))).await;
        }
    }
}

#[test]
fn a_crash_at_every_call() {
    seeds::each("crash-at-every-call", 6, crash_at_every_call);
}

/// A dead claimant's owner file arrived late, and the next mount took it for a live owner.
#[test]
fn a_late_claim_of_a_dead_host_is_no_owner() {
    let mut pinned = [122].into_iter();
    seeds::each("late-claim", 1, |_| {
        crash_at_every_call(pinned.next().unwrap_or(122))
    });
}

/// A crash between the publication of a snapshot and the deletion of the oldest left three of them,
/// with the log between, until the next was due.
#[test]
fn old_snapshots_go_although_a_crash_came_between() {
    seeds::each("old-snapshots", 1, |_| async {
        run(356, None).await;
    });
}

#[test]
fn a_store_that_fails_at_random_loses_nothing_and_service_resumes() {
    seeds::each("faults", 600, |seed| async move { run_faulty(seed).await });
}

#[test]
fn a_takeover_keeps_what_the_first_owner_acknowledged() {
    seeds::each(
        "takeover",
        500,
        |seed| async move { run_takeover(seed).await },
    );
}
