//! `export` to a destination that has only names which are text, as HDFS has, from a root in memory
//! in which not everything can be exported.

#[path = "support/adopted.rs"]
#[allow(dead_code)]
mod adopted;

use adopted::{ROOT, World, content};
use bytes::Bytes;
use std::sync::Arc;
use stowfs::admin::{Dest, ExportOptions, RootSource, export};
use stowfs::base::ErrorKind;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;

async fn make(w: &World, dir: &str, name: &'static [u8]) {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let name = Bytes::from_static(name);
    let made = w.fs.create(ROOT, w.ino(dir), name, 0o644, 0, flags).await;
    let (entry, fh) = made.unwrap();
    w.fs.release(entry.ino, fh).await.unwrap();
    w.fs.forget(entry.ino, 1);
}

/// One name ended the export of everything else, and there was no way around it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_exported_is_named_and_may_be_left_out() {
    let w = World::new(21).await;
    make(&w, "job/chk-1", b"no\xfftext").await;
    let dir = Bytes::from_static(b"d\xfe");
    let made = w.fs.mkdir(ROOT, w.ino("job"), dir, 0o755, 0).await;
    let inside = made.unwrap().ino;
    let made = w.fs.mkdir(ROOT, inside, "inside".into(), 0o755, 0).await;
    made.unwrap();
    w.other.delete("job/shared/2").await.unwrap();
    w.fs.sync_all().await.unwrap();
    let source = RootSource::owned(w.volume().clone());
    let cluster = MemoryCluster::new(22);
    let remote: Arc<dyn Store> = cluster.host("other");
    let dest = || Dest::new("hdfs://nn:8020/backup/out", remote.clone()).unwrap();
    let mut silent = |_, _| {};

    let strict = ExportOptions::default();
    let e = export(&source, "job", &dest(), &strict, &mut silent).await;
    let e = e.unwrap_err();
    assert!(e.is(ErrorKind::Unsupported), "{e}");
    let text = e.to_string();
    for part in ["d\u{fffd}", "is not UTF-8", "--partial", "out.part-"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(remote.stat("out").await.is_err());

    let partial = ExportOptions { partial: true };
    let report = export(&source, "job", &dest(), &partial, &mut silent).await;
    let report = report.unwrap();
    let mut failed: Vec<&str> = report.failed.iter().map(|f| &f.path[..]).collect();
    failed.sort();
    assert_eq!(
        failed,
        [
            "chk-1/no\u{fffd}text",
            "d\u{fffd}",
            "d\u{fffd}/inside",
            "shared/2"
        ],
        "{report}"
    );
    assert_eq!((report.files, report.directories), (5, 3), "{report}");
    assert!(report.to_string().contains("LEFT OUT: /shared/2: "));
    let reader = remote.open("out/shared/3").await.unwrap();
    assert_eq!(reader.read_at(0, 5000).await.unwrap(), content(3, 5000));
    assert!(remote.stat("out/shared/2").await.is_err());
}
