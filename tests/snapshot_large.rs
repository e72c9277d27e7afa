//! Snapshots of several chunks, whose records are decoded ahead of their turn: whole they make the
//! same index, damaged anywhere they are refused and the one before is used.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use stowfs::base::{Config, Error, ErrorKind, Ino};
use stowfs::format::{Attr, Row};
use stowfs::index::Index;
use stowfs::log;
use stowfs::segment::snapshot_path;
use stowfs::store::Store;
use stowfs::store::local::LocalStore;
use stowfs::upkeep::snapshot;
use stowfs::volume::{Begin, OpenOptions, Volume};

const FILES: u64 = 40_000;
const AT_ONCE: u64 = 4_000;

async fn open(store: &Arc<dyn Store>) -> Arc<Volume> {
    let options = OpenOptions::new(Config::default());
    let opened = Volume::open_as_is(store.clone(), options, Begin::Nothing);
    opened.await.unwrap()
}

fn add_files(volume: &Volume, from: u64) {
    for first in (from..from + FILES).step_by(AT_ONCE as usize) {
        let inos: Vec<Ino> = (0..AT_ONCE).map(|_| volume.new_ino().unwrap()).collect();
        let added = volume.change(|_, change| {
            for (n, ino) in (first..).zip(inos) {
                let attr = Attr {
                    mode: libc::S_IFREG | 0o644,
                    nlink: 1,
                    mtime: n as i64,
                    ..Attr::default()
                };
                change.row(Row::Inode { ino, attr });
                change.row(Row::Entry {
                    parent: Ino::ROOT,
                    name: format!("{n:036}").into_bytes(),
                    ino,
                });
            }
            Ok::<_, Error>(())
        });
        added.unwrap();
    }
}

fn rows(index: &Index) -> Vec<Row> {
    let mut rows = Vec::new();
    index.rows(|row| rows.push(row));
    rows
}

async fn refused(store: &dyn Store, file: &Path, path: &str, bytes: &[u8], what: &str) {
    fs::write(file, bytes).unwrap();
    match log::load(store, path).await {
        Err(e) => assert!(e.is(ErrorKind::Corrupt), "{what}: {e}"),
        Ok(_) => panic!("{what}: loaded"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_one_is_refused_and_the_one_before_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore::new("file://test", dir.path()));
    let volume = open(&store).await;
    add_files(&volume, 0);
    let (older, _) = snapshot::take(&*volume).await.unwrap();
    add_files(&volume, FILES);
    let (newer, size) = snapshot::take(&*volume).await.unwrap();
    assert!(newer > older && size > 9 << 20, "{size} bytes");

    let path = snapshot_path(newer);
    let (index, header) = log::load(&*store, &path).await.unwrap();
    assert_eq!(header.from, newer);
    assert!(rows(&index) == volume.read(rows));
    assert!(index.check().is_empty());

    let file = dir.path().join(&path);
    let whole = fs::read(&file).unwrap();
    let len = whole.len();
    // Header, first record, around the bounds of chunks, last record, footer.
    let mut places = vec![20, 140, 1000, len / 2, len - 200, len - 60, len - 1];
    for chunk in [4 << 20, 8 << 20] {
        places.extend([127, 128, 129].map(|n| chunk + n));
    }
    for place in places {
        let mut bad = whole.clone();
        bad[place] ^= 0x10;
        refused(&*store, &file, &path, &bad, &format!("a flip at {place}")).await;
    }
    for left in [0, 100, 128, 4 << 20, (4 << 20) + 128, len - 1] {
        refused(
            &*store,
            &file,
            &path,
            &whole[..left],
            &format!("cut to {left}"),
        )
        .await;
    }
    let (index, header) = log::load_newest(&*store, &volume.root_uuid(), 0)
        .await
        .unwrap();
    assert_eq!(header.unwrap().from, older);
    assert_eq!(index.inodes() as u64, FILES + 1);
    // And the log between them is there.
    volume.durable(volume.last_pos()).await.unwrap();
    let before = volume.read(rows);
    volume.shutdown().await.unwrap();
    let again = open(&store).await;
    let same = |row: &Row| matches!(row, Row::Inode { .. } | Row::Entry { .. });
    let kept = |rows: Vec<Row>| rows.into_iter().filter(same).collect::<Vec<Row>>();
    assert!(kept(again.read(rows)) == kept(before));
    again.shutdown().await.unwrap();
}
