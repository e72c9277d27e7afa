//! Plain files from before stowfs: taken in, read, changed, packed and deleted, on a store in
//! memory.

#[path = "support/adopted.rs"]
mod adopted;

use adopted::{ROOT, World, content, options, seconds};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stowfs::admin::{FsckOptions, UndeleteOptions, fsck, undelete};
use stowfs::base::{ErrorKind, Ino};
use stowfs::fs::{Errno, Fh, Fs, FsOptions, SetAttr, WriteMode};
use stowfs::index::Index;
use stowfs::store::faulty::{Fault, Faults, Rule};
use stowfs::store::memory::MemoryCluster;
use stowfs::store::{Op, Store};
use stowfs::upkeep::compact::CompactOptions;
use stowfs::upkeep::pack::pack;
use stowfs::volume::Volume;

#[tokio::test(start_paused = true)]
async fn the_first_mount_takes_plain_files_in_as_they_are() {
    let w = World::new(1).await;
    for i in 0..4 {
        let path = format!("job/shared/{i}");
        assert_eq!(w.read(&path).await.unwrap(), content(i, 5000));
    }
    assert_eq!(w.read("job/chk-1/empty").await.unwrap(), Bytes::new());
    let attr = w.volume().read(|i| i.attr(w.ino("job/shared/2"))).unwrap();
    let plain = w.other.stat("job/shared/2").await.unwrap();
    assert_eq!((attr.mtime, attr.mode & 0o777), (plain.mtime, plain.mode));
    assert_eq!((attr.uid, attr.gid), (7, 8), "this store has no numbers");
    w.check();
}

/// An engine looks up each new file first: that must cost the store nothing.
#[tokio::test(start_paused = true)]
async fn a_lookup_asks_the_store_nothing() {
    let w = World::new(2).await;
    seconds(1).await;
    let before = w.host.calls();
    let dir = w.ino("job/shared");
    for name in ["0", "3", "nothing"] {
        let name = Bytes::copy_from_slice(name.as_bytes());
        if let Ok(entry) = w.fs.lookup(dir, name).await {
            w.fs.getattr(entry.ino).await.unwrap();
        }
    }
    assert_eq!(w.host.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_being_written_is_left_to_its_writer() {
    let cluster = MemoryCluster::new(3);
    let other: Arc<dyn Store> = cluster.host("other");
    other.put("done", content(1, 100)).await.unwrap();
    let mut writer = other.create("open").await.unwrap();
    writer.append(content(2, 9000)).await.unwrap();
    writer.sync().await.unwrap();
    seconds(3600).await;
    let volume = Volume::open(cluster.host("mount"), options())
        .await
        .unwrap();
    let names = |volume: &Volume| -> Vec<Vec<u8>> {
        volume.read(|i| i.readdir(Ino::ROOT, 0).map(|e| e.name.to_vec()).collect())
    };
    assert_eq!(names(&volume), [b"done"]);
    let plan = volume.plan_adoption("").await.unwrap();
    assert_eq!((plan.files, plan.known), (0, 1));
    assert_eq!(plan.refused[0].path, "open");
    assert!(
        plan.refused[0].why.contains("open for writing"),
        "{:?}",
        plan.refused
    );
    writer.close().await.unwrap();
    // A file that was closed this moment is waited for, and taken.
    let plan = volume.plan_adoption("").await.unwrap();
    assert_eq!((plan.files, plan.refused.len()), (1, 0));
    volume.adopt(&plan).await.unwrap();
    assert_eq!(names(&volume).len(), 2);
    // And again: there is nothing left to do.
    let plan = volume.plan_adoption("").await.unwrap();
    assert_eq!((plan.files, plan.known, plan.refused.len()), (0, 2, 0));
}

/// On a store that does not know who has a file open.
#[tokio::test(start_paused = true)]
async fn a_file_that_changes_between_two_looks_is_refused() {
    let w = World::new(4).await;
    seconds(3600).await;
    for i in 0..3 {
        w.other
            .put(&format!("job/new-{i}"), content(i, 10))
            .await
            .unwrap();
    }
    let writes = async {
        seconds(2).await;
        w.cluster
            .damage("job/new-1", |bytes| bytes.push(1))
            .unwrap();
        w.other.delete("job/new-2").await.unwrap();
    };
    let (plan, ()) = tokio::join!(w.volume().plan_adoption("job"), writes);
    let plan = plan.unwrap();
    let refused: Vec<&str> = plan.refused.iter().map(|r| &r.path[..]).collect();
    assert_eq!(refused, ["job/new-1", "job/new-2"]);
    assert!(
        plan.refused[0]
            .why
            .contains("10 bytes a moment ago, 11 now")
    );
    assert_eq!(plan.files, 1);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_mount_has_already_is_refused_and_named() {
    let w = World::new(5).await;
    let dir = w.ino("job");
    let made = w.fs.mkdir(ROOT, dir, "x".into(), 0o755, 0).await;
    made.unwrap();
    w.other.put("job/x", content(1, 10)).await.unwrap();
    w.other.mkdir("job/shared2").await.unwrap();
    w.other.put("job/shared2/a", content(2, 10)).await.unwrap();
    let plan = w.volume().plan_adoption("").await.unwrap();
    assert_eq!((plan.files, plan.directories, plan.known), (1, 1, 6));
    assert_eq!(plan.refused[0].path, "job/x");
    assert!(
        plan.refused[0]
            .why
            .contains("the mount has something of this name")
    );
    // Only what lies at the path is looked at.
    let plan = w.volume().plan_adoption("job/shared2").await.unwrap();
    assert_eq!((plan.files, plan.refused.len()), (1, 0));
    let done = w.volume().adopt(&plan).await.unwrap();
    assert_eq!((done.files, done.bytes), (1, 10));
    assert_eq!(w.read("job/shared2/a").await.unwrap(), content(2, 10));
    let missing = w.volume().plan_adoption("no/where").await.err().unwrap();
    assert!(missing.is(ErrorKind::NotFound) && missing.to_string().contains("no"));
    let own = w.volume().plan_adoption(".stowfs/log").await.err().unwrap();
    assert!(own.is(ErrorKind::Invalid), "{own}");
    w.check();
}

#[tokio::test(start_paused = true)]
async fn a_changed_or_vanished_plain_file_is_an_error_of_its_own() {
    let w = World::new(6).await;
    // One was read before, so that the mount has it open.
    w.read("job/shared/0").await.unwrap();
    for i in 0..2 {
        w.other.delete(&format!("job/shared/{i}")).await.unwrap();
    }
    w.cluster
        .damage("job/shared/2", |bytes| bytes.push(1))
        .unwrap();
    let mtime = w.other.stat("job/shared/3").await.unwrap().mtime;
    w.other
        .set_attr("job/shared/3", 0o600, mtime + 5)
        .await
        .unwrap();
    for i in 0..2 {
        let path = format!("job/shared/{i}");
        assert_eq!(w.read(&path).await, Err(Errno::ENOENT), "{path}");
    }
    for i in 2..4 {
        let path = format!("job/shared/{i}");
        assert_eq!(w.read(&path).await, Err(Errno::EIO), "{path}");
        // Without open(2), as a program that has it open: the first read tells.
        let read = w.fs.read(w.ino(&path), Fh(0), 0, 100).await;
        assert_eq!(read, Err(Errno::EIO), "{path}");
    }
    assert_eq!(
        w.read("job/chk-1/_metadata").await.unwrap(),
        content(9, 300)
    );
    // It can be written anew, and removed.
    let ino = w.ino("job/shared/0");
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    w.fs.setattr(ROOT, ino, set).await.unwrap();
    assert_eq!(w.read("job/shared/0").await.unwrap(), Bytes::new());
    w.unlink("job/shared/2").await;
    seconds(60).await;
    assert!(w.is_on_store("job/shared/2").await, "somebody else's now");
    assert!(
        w.volume()
            .read(|i| i.foreign_files().all(|f| f.row.path != b"job/shared/2"))
    );
    w.check();
    w.fs.sync_all().await.unwrap();
    w.volume().shutdown().await.unwrap();
    let report = fsck(w.other.clone(), &FsckOptions::default())
        .await
        .unwrap();
    let named: Vec<_> = report
        .problems
        .iter()
        .filter_map(|p| p.file.clone())
        .collect();
    assert_eq!(named, ["/job/shared/1", "/job/shared/3"], "{report}");
}

/// Undo trusted the index, which cannot know what others do on the store: it said that all was back,
/// and reading failed.
#[tokio::test(start_paused = true)]
async fn undo_refuses_what_lies_in_a_plain_file_that_is_gone_or_changed() {
    let w = World::new(16).await;
    for i in 0..4 {
        w.unlink(&format!("job/shared/{i}")).await;
    }
    w.other.delete("job/shared/0").await.unwrap();
    w.cluster
        .damage("job/shared/1", |bytes| bytes.push(1))
        .unwrap();
    let mtime = w.other.stat("job/shared/2").await.unwrap().mtime;
    let set = w.other.set_attr("job/shared/2", 0o600, mtime + 5);
    set.await.unwrap();
    for (n, what) in ["is gone", "has 5001 bytes now", "was written again"]
        .into_iter()
        .enumerate()
    {
        let path = format!("job/shared/{n}");
        let options = UndeleteOptions {
            path,
            ..UndeleteOptions::default()
        };
        let e = undelete(w.volume(), &options).await.unwrap_err();
        let wanted = format!("in the plain file /job/shared/{n} from before stowfs, which {what}");
        assert!(e.to_string().contains(&wanted), "{e}");
    }
    let options = UndeleteOptions {
        path: "job/shared".into(),
        into: true,
        ..UndeleteOptions::default()
    };
    let done = undelete(w.volume(), &options).await.unwrap();
    assert_eq!((done.files, done.lost), (1, 3));
    assert_eq!(w.read("job/shared/3").await.unwrap(), content(3, 5000));
    w.check();
}

#[tokio::test(start_paused = true)]
async fn a_plain_file_goes_when_its_last_user_is_gone_for_a_while() {
    let w = World::new(7).await;
    let shared = w.ino("job/shared");
    // A second name and a clone hold it.
    let zero = w.ino("job/shared/0");
    let entry = w.fs.link(zero, shared, "zero".into()).await;
    w.fs.forget(entry.unwrap().ino, 1);
    w.unlink("job/shared/0").await;
    w.unlink("job/shared/1").await;
    w.unlink("job/chk-1/empty").await;
    let open = w.ino("job/shared/2");
    let fh = w.open("job/shared/2", libc::O_RDONLY).await.unwrap();
    w.unlink("job/shared/2").await;
    seconds(15).await;
    assert!(w.is_on_store("job/shared/1").await, "within its grace");
    seconds(15).await;
    assert!(!w.is_on_store("job/shared/1").await);
    assert!(!w.is_on_store("job/chk-1/empty").await);
    assert_eq!(w.read("job/shared/zero").await.unwrap(), content(0, 5000));
    let read = w.fs.read(open, fh, 0, 9000).await.unwrap();
    assert_eq!(read, content(2, 5000), "unlinked, but open");
    w.fs.release(open, fh).await.unwrap();
    w.unlink("job/shared/zero").await;
    seconds(30).await;
    assert!(!w.is_on_store("job/shared/0").await);
    assert!(!w.is_on_store("job/shared/2").await);
    // Directories go with their virtual ones, if nobody else uses them.
    w.unlink("job/shared/3").await;
    w.unlink("job/chk-1/_metadata").await;
    w.other
        .put("job/shared/stranger", content(1, 1))
        .await
        .unwrap();
    for name in ["shared", "chk-1"] {
        w.fs.rmdir(ROOT, w.ino("job"), name.into()).await.unwrap();
    }
    seconds(30).await;
    assert!(!w.is_on_store("job/chk-1").await);
    assert!(w.is_on_store("job/shared/stranger").await);
    assert!(!w.is_on_store("job/shared/3").await);
    assert!(w.is_on_store("job").await, "its virtual directory is there");
    assert_eq!(w.volume().read(|i| i.foreign_files().count()), 1);
    w.check();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_keeps_no_plain_file_for_ever() {
    let cluster = MemoryCluster::new(8);
    let other: Arc<dyn Store> = cluster.host("other");
    for i in 0..5 {
        other.put(&format!("f{i}"), content(i, 100)).await.unwrap();
    }
    let faults = Faults::new(8);
    let store = faults.wrap(cluster.host("mount"));
    let volume = Volume::open(store, options()).await.unwrap();
    let fs = Fs::new(volume.clone(), FsOptions::default());
    for fault in [
        Fault::Refuse(ErrorKind::Unavailable),
        Fault::FailAfter(ErrorKind::TimedOut),
    ] {
        for op in [Op::Delete, Op::Stat] {
            faults.add(Rule::new(fault).op(op).path("f").times(2));
        }
    }
    for i in 0..4 {
        fs.unlink(ROOT, Ino::ROOT, format!("f{i}").into())
            .await
            .unwrap();
    }
    seconds(120).await;
    assert!(faults.injected() > 4);
    for i in 0..5 {
        let there = other.stat(&format!("f{i}")).await.is_ok();
        assert_eq!(there, i == 4, "f{i}");
    }
    assert_eq!(volume.read(Index::check), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn writing_to_a_plain_file_copies_up() {
    let w = World::new(9).await;
    let mode = WriteMode::default();
    let mut files: Vec<Vec<u8>> = (0..4).map(|i| content(i, 5000).to_vec()).collect();
    let path = |i: usize| format!("job/shared/{i}");
    // A part, the end, all, a cut.
    let fh = w.open(&path(0), libc::O_RDWR).await.unwrap();
    w.fs.write(w.ino(&path(0)), fh, 1000, content(50, 100), mode)
        .await
        .unwrap();
    files[0][1000..1100].copy_from_slice(&content(50, 100));
    let fh1 = w
        .open(&path(1), libc::O_WRONLY | libc::O_APPEND)
        .await
        .unwrap();
    w.fs.write(w.ino(&path(1)), fh1, 5000, content(51, 77), mode)
        .await
        .unwrap();
    files[1].extend_from_slice(&content(51, 77));
    let fh2 = w.open(&path(2), libc::O_WRONLY).await.unwrap();
    w.fs.write(w.ino(&path(2)), fh2, 0, content(52, 6000), mode)
        .await
        .unwrap();
    files[2] = content(52, 6000).to_vec();
    let set = SetAttr {
        size: Some(1234),
        ..SetAttr::default()
    };
    w.fs.setattr(ROOT, w.ino(&path(3)), set).await.unwrap();
    files[3].truncate(1234);
    w.fs.sync_all().await.unwrap();
    for (i, file) in files.iter().enumerate() {
        assert_eq!(w.read(&path(i)).await.unwrap(), *file, "file {i}");
        let plain = w.other.open(&path(i)).await.unwrap();
        let bytes = plain.read_at(0, 5000).await.unwrap();
        assert_eq!(
            bytes,
            content(i as u64, 5000),
            "the plain file is never changed"
        );
    }
    seconds(60).await;
    let left: Vec<bool> = futures::future::join_all((0..4).map(|i| {
        let path = path(i);
        let other = w.other.clone();
        async move { other.stat(&path).await.is_ok() }
    }))
    .await;
    assert_eq!(
        left,
        [true, true, false, true],
        "what was replaced whole is not needed"
    );
    for (i, file) in files.iter().enumerate() {
        assert_eq!(w.read(&path(i)).await.unwrap(), *file, "file {i}");
    }
    w.check();
}

#[tokio::test(start_paused = true)]
async fn packing_moves_the_bytes_and_the_plain_files_go() {
    let w = World::new(10).await;
    let options = CompactOptions {
        target: 1.5,
        rate: 4000,
        smallest_segment: 4 << 20,
        largest_segment: u64::MAX,
    };
    let begun = tokio::time::Instant::now();
    let one = pack(&**w.volume(), b"job/chk-1", &options, &mut |_| ())
        .await
        .unwrap();
    assert_eq!(
        (one.extents, one.bytes),
        (1, 300),
        "only what lies at the path"
    );
    let mut heard = 0;
    let rest = pack(&**w.volume(), b"", &options, &mut |copied| {
        heard = copied.bytes
    })
    .await;
    let rest = rest.unwrap();
    assert_eq!((rest.extents, rest.bytes), (4, 20_000));
    assert!(
        begun.elapsed() > Duration::from_secs(5),
        "its rate is bounded"
    );
    assert_eq!(heard, 20_000);
    for i in 0..4 {
        let path = format!("job/shared/{i}");
        assert!(w.is_on_store(&path).await, "within its grace");
        assert_eq!(w.read(&path).await.unwrap(), content(i, 5000));
    }
    seconds(60).await;
    for i in 0..4 {
        let path = format!("job/shared/{i}");
        assert!(!w.is_on_store(&path).await);
        assert_eq!(w.read(&path).await.unwrap(), content(i, 5000));
    }
    let again = pack(&**w.volume(), b"", &options, &mut |_| ())
        .await
        .unwrap();
    assert_eq!(again.bytes, 0);
    w.check();
    w.volume().shutdown().await.unwrap();
    let report = fsck(w.other.clone(), &FsckOptions::default())
        .await
        .unwrap();
    assert!(report.is_clean(), "{report}");
}
