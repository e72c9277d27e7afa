//! What of plain files cannot be taken in or packed, does not stand in the way of the rest; what nothing
//! needs is listed; clones stay clones. On a store in memory.

#[path = "support/adopted.rs"]
#[allow(dead_code)]
mod adopted;

use adopted::{ROOT, World, content, options, seconds};
use bytes::Bytes;
use std::sync::Arc;
use stowfs::admin::{AdoptRequest, adopt};
use stowfs::base::{ErrorKind, Ino};
use stowfs::fs::{Fh, FsOptions};
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::store::{Op, Store};
use stowfs::upkeep::compact::{CompactOptions, Copied};
use stowfs::upkeep::pack::pack;
use stowfs::volume::Volume;

/// One such file used to keep all others out.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_in_is_left_out_and_named() {
    let w = World::new(31).await;
    let made = w.fs.mkdir(ROOT, w.ino("job"), "x".into(), 0o755, 0).await;
    made.unwrap();
    w.other.put("job/x", content(1, 10)).await.unwrap();
    w.other.put("job/late", content(2, 70)).await.unwrap();
    w.cluster
        .damage("job/shared/1", |bytes| bytes.push(1))
        .unwrap();
    seconds(3600).await;
    let request = AdoptRequest {
        pack: true,
        ..AdoptRequest::default()
    };
    let report = adopt(w.volume(), &request, &mut |_, _| {}).await.unwrap();
    assert_eq!((report.files, report.bytes), (1, 70), "{report}");
    assert_eq!((report.refused.len(), report.changed), (1, 1), "{report}");
    assert!(!report.is_complete());
    let text = report.to_string();
    for part in [
        "left out: /job/x: ",
        "note: /job/shared/1: ",
        "2 were LEFT OUT",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let packed = report.packed.unwrap();
    assert_eq!((packed.bytes, packed.left), (15_370, 5000));
    assert_eq!(w.read("job/late").await.unwrap(), content(2, 70));
    w.check();
}

/// Directories of the plan may be files, or gone, when their turn comes: entries below a file were
/// counted in its links, and could never be taken in again.
#[tokio::test(start_paused = true)]
async fn nothing_is_registered_below_what_is_no_directory_any_more() {
    let w = World::new(33).await;
    for path in ["new", "new/deep", "empty", "job/gone"] {
        w.other.mkdir(path).await.unwrap();
    }
    w.other.put("new/deep/f", content(1, 10)).await.unwrap();
    w.other.put("job/gone/f", content(1, 10)).await.unwrap();
    w.other.put("job/fine", content(1, 10)).await.unwrap();
    seconds(3600).await;
    let plan = w.volume().plan_adoption("").await.unwrap();
    for name in ["new", "empty"] {
        let made =
            w.fs.create(ROOT, Ino::ROOT, name.into(), 0o644, 0, libc::O_RDWR)
                .await;
        made.unwrap();
    }
    let done = w.volume().adopt(&plan).await.unwrap();
    let skipped: Vec<&str> = done.skipped.iter().map(|r| &r.path[..]).collect();
    assert_eq!(done.files, 2, "{skipped:?}");
    assert_eq!(skipped, ["empty", "new", "new/deep/f"]);
    let links = |path| {
        w.volume()
            .read(|index| index.attr(w.ino(path)).unwrap().nlink)
    };
    assert_eq!((links("new"), links("empty")), (1, 1));
    w.check();
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_may_not_be_read_keeps_no_root_from_being_mounted() {
    let cluster = MemoryCluster::new(32);
    let other: Arc<dyn Store> = cluster.host("other");
    other.mkdir("open").await.unwrap();
    other.put("open/f", content(1, 100)).await.unwrap();
    other.mkdir("closed").await.unwrap();
    other.put("closed/f", content(2, 100)).await.unwrap();
    seconds(3600).await;
    let faults = Faults::new(32);
    let denied = Fault::Refuse(ErrorKind::Denied);
    faults.add(Rule::new(denied).op(Op::List).path("closed"));
    let store = faults.wrap(cluster.host("mount"));
    let volume = Volume::open(store, options()).await.unwrap();
    assert_eq!(volume.read(|i| i.foreign_files().count()), 2);
    let plan = volume.plan_adoption("").await.unwrap();
    assert_eq!((plan.known, plan.refused.len()), (1, 1));
    assert_eq!(plan.refused[0].path, "closed");
    faults.clear();
    let done = adopt(&volume, &AdoptRequest::default(), &mut |_, _| {}).await;
    assert_eq!(done.unwrap().files, 1);
}

#[tokio::test(start_paused = true)]
async fn the_plan_of_garbage_collection_has_plain_files() {
    let w = World::new(33).await;
    w.unlink("job/shared/2").await;
    w.fs.sync_all().await.unwrap();
    let duty = w.volume().duty().unwrap();
    let plan = duty.plan_gc(&**w.volume(), false).await.unwrap();
    let [line] = &plan.plain_files[..] else {
        panic!("{plan:#?}");
    };
    assert_eq!((&line.path[..], line.size), ("job/shared/2", 5000));
    assert!(line.action.starts_with("delete in "), "{line:?}");
    let plan = duty.plan_gc(&**w.volume(), true).await.unwrap();
    assert_eq!(plan.plain_files[0].action, "delete");
    assert!(w.is_on_store("job/shared/2").await, "it is only a plan");
}

async fn clone(w: &World, from: &str, name: &str, len: u64) {
    let dir = w.ino("job");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let named = Bytes::copy_from_slice(name.as_bytes());
    let made = w.fs.create(ROOT, dir, named, 0o644, 0, flags).await;
    let (entry, fh) = made.unwrap();
    let source = w.ino(from);
    let done =
        w.fs.copy_file_range(ROOT, source, Fh(0), 0, entry.ino, fh, 0, len)
            .await;
    assert_eq!(done.unwrap(), len);
    w.fs.release(entry.ino, fh).await.unwrap();
    w.fs.forget(entry.ino, 1);
}

fn places(w: &World, path: &str) -> Vec<(stowfs::base::StreamId, u64)> {
    let extents = w.volume().read(|i| i.extents(w.ino(path), 0, u64::MAX));
    extents.iter().map(|e| (e.stream, e.pos)).collect()
}

fn at_rate(rate: u64) -> CompactOptions {
    CompactOptions {
        target: 1.5,
        rate,
        smallest_segment: 4 << 20,
        largest_segment: u64::MAX,
    }
}

/// Packing wrote the bytes of a clone once for each file that has them.
#[tokio::test(start_paused = true)]
async fn clones_are_packed_once() {
    let w = World::new(34).await;
    for n in 0..10 {
        clone(&w, "job/shared/0", &format!("clone-{n}"), 5000).await;
    }
    let packed = pack(&**w.volume(), b"", &at_rate(0), &mut |_| ()).await;
    let (extents, bytes) = (15, 20_300);
    assert_eq!(packed.unwrap(), Copied { extents, bytes });
    for n in 0..10 {
        let path = format!("job/clone-{n}");
        assert_eq!(places(&w, &path), places(&w, "job/shared/0"));
        assert_eq!(w.read(&path).await.unwrap(), content(0, 5000));
    }
    w.check();
    // Each holds the bytes by itself.
    w.unlink("job/shared/0").await;
    seconds(100).await;
    assert_eq!(w.read("job/clone-9").await.unwrap(), content(0, 5000));
    w.check();
}

/// A copy that an earlier batch made may have lost its only user, and be gone, when a clone comes to
/// share it.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_garbage_by_now_is_not_shared() {
    let cluster = MemoryCluster::new(35);
    let other: Arc<dyn Store> = cluster.host("other");
    other.mkdir("job").await.unwrap();
    const LONG: usize = 3 << 20;
    for name in ["a", "b", "c"] {
        let bytes = content(name.as_bytes()[0].into(), LONG);
        other.put(&format!("job/{name}"), bytes).await.unwrap();
    }
    seconds(3600).await;
    let host = cluster.host("mount");
    let volume = Volume::open(host.clone(), options()).await.unwrap();
    let fs = stowfs::fs::Fs::new(volume, FsOptions::default());
    let w = World {
        cluster,
        host,
        other,
        fs,
    };
    clone(&w, "job/a", "clone", LONG as u64).await;
    let (first, last) = (w.ino("job/a"), w.ino("job/clone"));
    assert!(first < last, "the order in which they are copied");
    // Batches are 4 MiB and take minutes.
    let options = at_rate(20 << 10);
    let mut silent = |_| ();
    let work = pack(&**w.volume(), b"", &options, &mut silent);
    let meanwhile = async {
        seconds(20).await;
        w.unlink("job/a").await;
    };
    let (packed, ()) = tokio::join!(work, meanwhile);
    assert_eq!(packed.unwrap().bytes, 3 * LONG as u64);
    w.check();
    let whole = content(b'a'.into(), LONG);
    let read = |ino: Ino| async move {
        let mut found = Vec::new();
        while found.len() < LONG {
            let some = w.fs.read(ino, Fh(0), found.len() as u64, 1 << 20).await;
            found.extend_from_slice(&some.unwrap());
        }
        (w, found)
    };
    let (w, found) = read(last).await;
    assert!(found == whole, "the clone is whole");
    let again = pack(&**w.volume(), b"", &at_rate(0), &mut |_| ()).await;
    assert_eq!(again.unwrap().bytes, LONG as u64, "now it is copied");
    w.check();
}
