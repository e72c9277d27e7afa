//! Two whole snapshots are kept, with the log between them; one that cannot be read costs time only.

#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;

use std::sync::Arc;
use stowfs::base::{ErrorKind, Ino};
use stowfs::log;
use stowfs::segment::snapshot_path;
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::store::{Op, Store};
use stowfs::upkeep::snapshot;
use stowfs::volume::{Begin, Volume};

async fn open(store: &Arc<dyn Store>) -> Arc<Volume> {
    let opened = Volume::open_as_is(store.clone(), filled::options(), Begin::Nothing);
    opened.await.expect("mounts")
}

/// Three files, each followed by a snapshot; the positions of these.
async fn three(volume: &Volume) -> Vec<u64> {
    let mut taken = Vec::new();
    for n in 0..3 {
        filled::put(
            volume,
            Ino::ROOT,
            &format!("f{n}"),
            filled::content(n, 5000),
        )
        .await;
        taken.push(snapshot::take(volume).await.expect("a snapshot").0);
    }
    taken
}

/// Counting the damaged one, it left a single whole one, and nothing to fall back on.
#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_not_one_of_the_two() {
    let cluster = MemoryCluster::new(1);
    let store: Arc<dyn Store> = cluster.host("a");
    let volume = open(&store).await;
    let taken = three(&volume).await;
    let damage = |from: u64| {
        let path = snapshot_path(from);
        cluster
            .damage(&path, |bytes| bytes[200] ^= 1)
            .expect("damaged");
    };
    damage(taken[1]);
    snapshot::trim(&*volume).await.expect("trimmed");
    let left = log::list_snapshots(&*store).await.expect("a list");
    assert!(
        left.contains(&taken[0]) && left.contains(&taken[2]),
        "{left:?}"
    );
    volume.shutdown().await.expect("shutdown");
    damage(taken[2]);
    let again = open(&store).await;
    for n in 0..3 {
        let found = filled::get(&again, &format!("f{n}")).await.expect("there");
        assert!(found.expect("read") == filled::content(n, 5000));
    }
}

/// A bad sector under the newest one kept the root from being mounted.
#[tokio::test(start_paused = true)]
async fn an_unreadable_snapshot_gives_way_to_the_one_before() {
    let cluster = MemoryCluster::new(2);
    let store: Arc<dyn Store> = cluster.host("a");
    let volume = open(&store).await;
    let taken = three(&volume).await;
    snapshot::trim(&*volume).await.expect("trimmed");
    volume.shutdown().await.expect("shutdown");
    let faults = Faults::new(2);
    let bad_sector = Rule::new(Fault::Refuse(ErrorKind::Other)).op(Op::Read);
    faults.add(bad_sector.path(&snapshot_path(taken[2])));
    let again = open(&faults.wrap(store.clone())).await;
    assert!(faults.injected() > 0);
    assert!(filled::get(&again, "f2").await.expect("there").is_ok());
    again.shutdown().await.expect("shutdown");
    // But none at all is no empty root.
    faults.add(Rule::new(Fault::Refuse(ErrorKind::Other)).path(".stowfs/snapshot/"));
    let wrapped = faults.wrap(store);
    let refused = Volume::open_as_is(wrapped, filled::options(), Begin::Nothing).await;
    assert!(refused.is_err());
}
