//! The volume on a store in memory: commits, crashes, takeovers, broken stores.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Error, ErrorKind, Ino, Result};
use stowfs::format::{Attr, DataFrame, Extent, Row};
use stowfs::store::Op;
use stowfs::store::Store;
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::volume::{OpenOptions, Volume};

fn options() -> OpenOptions {
    OpenOptions::new(Config {
        segment_size: 64 << 10,
        block_size: 4 << 10,
        ..Config::default()
    })
}

async fn open(store: &Arc<dyn Store>) -> Result<Arc<Volume>> {
    Volume::open(store.clone(), options()).await
}

fn content(i: u64, len: usize) -> Bytes {
    (0..len)
        .map(|k| (i as usize * 131 + k * 7) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// Creates a file with its content in one change; returns the position to wait for.
fn put(volume: &Volume, name: &str, data: Bytes) -> Result<(Ino, u64)> {
    let ino = volume.new_ino()?;
    let (_, pos) = volume.change(|_, change| {
        let size = data.len() as u64;
        let frame = DataFrame::new(ino, 0, data, name.as_bytes().to_vec());
        let extent = change.data(frame);
        let attr = Attr {
            mode: libc::S_IFREG | 0o644,
            nlink: 1,
            size,
            ..Attr::default()
        };
        change.row(Row::Inode { ino, attr });
        change.row(Row::Entry {
            parent: Ino::ROOT,
            name: name.as_bytes().to_vec(),
            ino,
        });
        change.row(Row::Extents {
            ino,
            off: 0,
            len: size,
            extents: vec![extent],
        });
        Ok::<_, Error>(())
    })?;
    Ok((ino, pos))
}

async fn get(volume: &Volume, name: &str) -> Option<Vec<u8>> {
    let extents: Vec<Extent> = volume.read(|index| {
        let ino = index.lookup(Ino::ROOT, name.as_bytes())?;
        Some(index.extents(ino, 0, u64::MAX))
    })?;
    let mut out = Vec::new();
    for e in extents {
        out.extend_from_slice(&volume.fetch(&e).await.expect("fetch"));
    }
    Some(out)
}

/// A claimant that was frozen between its look and its claim for so long that the name of the epoch
/// was removed as an orphan claimed what others were past, and took itself for the owner.
#[tokio::test(start_paused = true)]
async fn a_claim_of_a_past_epoch_is_none() {
    let cluster = MemoryCluster::new(77);
    let store: Arc<dyn Store> = cluster.host("b");
    let first = open(&store).await.unwrap();
    first.shutdown().await.unwrap();
    let faults = Faults::new(77);
    let frozen = Fault::Delay(Duration::from_secs(4 * 3600));
    faults.add(Rule::new(frozen).op(Op::Put).path("owner/2").times(1));
    let slow = faults.wrap(cluster.host("a"));
    let others = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        for _ in 0..2 {
            open(&store).await.unwrap().shutdown().await.unwrap();
        }
        let owner = open(&store).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
        let tree = cluster.tree();
        assert!(!tree.contains(&".stowfs/owner/2".into()), "{tree:#?}");
        owner
    };
    let (late, owner) = tokio::join!(open(&slow), others);
    let e = late.err().expect("there is an owner");
    assert!(e.is(ErrorKind::Owned), "{e}");
    assert!(e.to_string().contains("epoch 4"), "{e}");
    put(&owner, "f", content(1, 10)).unwrap();
    owner.durable(owner.last_pos()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn acknowledged_files_survive_a_crash_and_read_at_once() {
    let cluster = MemoryCluster::new(7);
    let host = cluster.host("a");
    let store: Arc<dyn Store> = host.clone();
    let volume = open(&store).await.unwrap();
    for i in 0..200u64 {
        let name = format!("file-{i}");
        let (_, pos) = put(&volume, &name, content(i, 1 + i as usize * 37)).unwrap();
        volume.durable(pos).await.unwrap();
        assert_eq!(
            get(&volume, &name).await.unwrap(),
            content(i, 1 + i as usize * 37)
        );
    }
    host.crash();
    drop(volume);
    let store: Arc<dyn Store> = cluster.host("b");
    let volume = open(&store).await.unwrap();
    assert!(
        volume.read(|i| i.segments().count()) > 3,
        "the log was cut into segments"
    );
    for i in 0..200u64 {
        let found = get(&volume, &format!("file-{i}"))
            .await
            .expect("an acknowledged file");
        assert_eq!(found, content(i, 1 + i as usize * 37), "file {i}");
    }
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    volume.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_live_root_is_refused_and_a_takeover_fences() {
    let cluster = MemoryCluster::new(8);
    let a: Arc<dyn Store> = cluster.host("a");
    let b: Arc<dyn Store> = cluster.host("b");
    let first = open(&a).await.unwrap();
    let (_, pos) = put(&first, "x", content(1, 100)).unwrap();
    first.durable(pos).await.unwrap();
    let refused = open(&b).await.err().expect("the root is owned");
    assert!(refused.is(ErrorKind::Owned), "{refused}");
    let holder = format!("host localhost, pid {}", std::process::id());
    assert!(refused.to_string().contains(&holder), "{refused}");

    let taken = Volume::open(
        b.clone(),
        OpenOptions {
            takeover: true,
            ..options()
        },
    )
    .await
    .unwrap();
    assert_eq!(get(&taken, "x").await.unwrap(), content(1, 100));
    let late = match put(&first, "y", content(2, 100)) {
        Ok((_, pos)) => first.durable(pos).await,
        Err(e) => Err(e),
    };
    assert!(late.unwrap_err().is(ErrorKind::Fenced));
    tokio::time::timeout(Duration::from_secs(10), first.failed())
        .await
        .unwrap();
    assert!(put(&first, "z", content(2, 100)).is_err());
    let (_, pos) = put(&taken, "z", content(3, 100)).unwrap();
    taken.durable(pos).await.unwrap();
}

/// Start-up did not answer claims, so a mount with a long log was taken for dead.
#[tokio::test(start_paused = true)]
async fn an_owner_that_still_starts_is_alive() {
    let cluster = MemoryCluster::new(12);
    let a: Arc<dyn Store> = cluster.host("a");
    let first = open(&a).await.unwrap();
    let (_, pos) = put(&first, "x", content(1, 100)).unwrap();
    first.durable(pos).await.unwrap();
    first.shutdown().await.unwrap();
    let faults = Faults::new(1);
    faults.add(
        Rule::new(Fault::Delay(Duration::from_secs(40)))
            .op(Op::Open)
            .path("log/"),
    );
    let slow = faults.wrap(cluster.host("b"));
    let c: Arc<dyn Store> = cluster.host("c");
    let late = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        open(&c).await
    };
    let (started, refused) = tokio::join!(open(&slow), late);
    let refused = refused.err().expect("the root is owned");
    assert!(refused.is(ErrorKind::Owned), "{refused}");
    let volume = started.unwrap();
    assert_eq!(get(&volume, "x").await.unwrap(), content(1, 100));
}

#[tokio::test(start_paused = true)]
async fn long_files_go_to_lanes_and_come_back() {
    let cluster = MemoryCluster::new(9);
    let store: Arc<dyn Store> = cluster.host("a");
    let volume = open(&store).await.unwrap();
    let ino = volume.new_ino().unwrap();
    let mut extents = Vec::new();
    for i in 0..20u64 {
        let frame = DataFrame::new(ino, i * 30_000, content(i, 30_000), b"long".to_vec());
        extents.push(volume.lane_append(frame, None).await.unwrap());
    }
    volume.lane_sync(&extents).await.unwrap();
    let size = 600_000;
    let (_, pos) = volume
        .change(|_, change| {
            let attr = Attr {
                mode: libc::S_IFREG,
                nlink: 1,
                size,
                ..Attr::default()
            };
            change.row(Row::Inode { ino, attr });
            change.row(Row::Entry {
                parent: Ino::ROOT,
                name: b"long".to_vec(),
                ino,
            });
            change.row(Row::Extents {
                ino,
                off: 0,
                len: size,
                extents: extents.clone(),
            });
            Ok::<_, Error>(())
        })
        .unwrap();
    volume.durable(pos).await.unwrap();
    let whole: Vec<u8> = (0..20).flat_map(|i| content(i, 30_000)).collect();
    assert_eq!(get(&volume, "long").await.unwrap(), whole);
    drop(volume);
    let store: Arc<dyn Store> = cluster.host("b");
    let again = open(&store).await.unwrap();
    assert_eq!(get(&again, "long").await.unwrap(), whole);
    again.shutdown().await.unwrap();
    let cleanly = tokio::time::Instant::now();
    let third = open(&store).await.unwrap();
    assert!(
        cleanly.elapsed() < Duration::from_secs(5),
        "a released root needs no waiting"
    );
    assert_eq!(get(&third, "long").await.unwrap(), whole);
}

fn upkeep_options() -> OpenOptions {
    let mut options = options();
    options.config.gc_grace = Duration::from_secs(5);
    options.config.gc_keep = 0.0;
    options.config.delete_rate = 1000.0;
    options.config.compact_target = 1.3;
    options.config.compact_rate = 0;
    options.config.snapshot_bytes = 64 << 10;
    options.config.upkeep_every = Duration::from_millis(500);
    options.config.idle_seal = Duration::from_secs(5);
    options
}

fn unlink(volume: &Volume, name: &str) {
    let done = volume.change(|index, change| {
        let ino = index.lookup(Ino::ROOT, name.as_bytes()).expect("a file");
        change.row(Row::NoEntry {
            parent: Ino::ROOT,
            name: name.into(),
        });
        change.row(Row::Free { ino });
        Ok::<_, Error>(())
    });
    done.unwrap();
}

fn bytes_on_store(volume: &Volume) -> (u64, u64) {
    volume.read(|index| {
        let total = index
            .segments()
            .map(|s| s.row.size.max(s.row.end - s.row.base))
            .sum();
        (total, index.segments().map(|s| s.live.bytes).sum())
    })
}

#[tokio::test(start_paused = true)]
async fn space_comes_back_and_the_living_stay_readable() {
    let cluster = MemoryCluster::new(21);
    let store: Arc<dyn Store> = cluster.host("a");
    let volume = Volume::open(store, upkeep_options()).await.unwrap();
    // Turns over like a checkpoint directory: a tenth of the files lives on.
    for round in 0..30u64 {
        for i in 0..40 {
            put(
                &volume,
                &format!("r{round}-{i}"),
                content(round * 100 + i, 9000),
            )
            .unwrap();
        }
        volume.durable(volume.last_pos()).await.unwrap();
        for i in (0..40).filter(|i| round > 0 && i % 10 != 0) {
            unlink(&volume, &format!("r{}-{i}", round - 1));
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (total, live) = bytes_on_store(&volume);
    assert!(live > 29 * 4 * 9000, "{live}");
    // The newest log must stay for replay; everything else keeps the target.
    assert!(
        total < 2 * live + (512 << 10),
        "{total} bytes for {live} live ones"
    );
    for round in 0..30u64 {
        for i in (0..40).step_by(10) {
            let found = get(&volume, &format!("r{round}-{i}"))
                .await
                .expect("a living file");
            assert_eq!(found, content(round * 100 + i, 9000), "r{round}-{i}");
        }
    }
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    volume.shutdown().await.unwrap();
    drop(volume);

    let store: Arc<dyn Store> = cluster.host("b");
    let volume = Volume::open(store.clone(), upkeep_options()).await.unwrap();
    let recovered = volume.recovered();
    assert!(
        recovered.records < 500,
        "a snapshot shortens replay: {recovered:?}"
    );
    assert_eq!(get(&volume, "r7-10").await.unwrap(), content(710, 9000));
    let names: Vec<String> = volume.read(|index| {
        let names = index
            .readdir(Ino::ROOT, 0)
            .map(|e| String::from_utf8_lossy(e.name).into());
        names.collect()
    });
    names.iter().for_each(|name| unlink(&volume, name));
    tokio::time::sleep(Duration::from_secs(300)).await;
    let (total, live) = bytes_on_store(&volume);
    assert_eq!(live, 0);
    assert!(total < 512 << 10, "an empty root holds {total} bytes");
    let left = cluster.tree();
    assert!(left.len() < 60, "files left on the store: {left:#?}");
}

/// A crash while plain files were registered left the rest unregistered for ever: the first mount
/// alone looked for them.
#[tokio::test(start_paused = true)]
async fn registering_plain_files_goes_on_after_a_crash() {
    for calls in [40, 45, 50, 55, 60, 80] {
        let cluster = MemoryCluster::new(calls);
        let host = cluster.host("a");
        let store: Arc<dyn Store> = host.clone();
        store.mkdir("old/deep").await.unwrap();
        for i in 0..20u64 {
            let dir = ["", "old/", "old/deep/"][i as usize % 3];
            store
                .put(&format!("{dir}plain-{i}"), content(i, 3000))
                .await
                .unwrap();
        }
        host.crash_at(calls, stowfs::store::memory::LastCall::Lost);
        tokio::select! {
            biased;
            () = host.crashed() => {}
            opened = open(&store) => drop(opened),
        }
        let store: Arc<dyn Store> = cluster.host("b");
        let volume = open(&store).await.unwrap();
        let mut found = 0;
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            let entries: Vec<(Vec<u8>, Ino)> = volume.read(|i| {
                i.readdir(dir, 0)
                    .map(|e| (e.name.to_vec(), e.ino))
                    .collect()
            });
            for (name, ino) in entries {
                let name = String::from_utf8(name).unwrap();
                let Some(i) = name.strip_prefix("plain-") else {
                    dirs.push(ino);
                    continue;
                };
                let extents = volume.read(|x| x.extents(ino, 0, u64::MAX));
                let bytes = volume.fetch(&extents[0]).await.unwrap();
                assert_eq!(bytes, content(i.parse().unwrap(), 3000), "{name}");
                found += 1;
            }
        }
        assert_eq!(found, 20, "crash at call {calls}");
        assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    }
}
