//! One suite for all stores: each line of the contract in `src/store/mod.rs` has a case here.
//!
//! A backend's test makes two clients of one empty store and calls `run_suite`. `STORE_CASE=name`
//! runs the cases whose names contain that.

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::{ErrorKind, Result};
use stowfs::store::{OpenVisibility, Store, Writer};

/// Where a case plays: two clients of the same store, and a directory of its own.
#[derive(Clone)]
pub struct Stage {
    pub store: Arc<dyn Store>,
    pub other: Arc<dyn Store>,
    dir: String,
}

impl Stage {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    async fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.at(name);
        self.store
            .put(&path, Bytes::copy_from_slice(content))
            .await
            .unwrap();
        path
    }

    async fn create(&self, name: &str) -> (String, Box<dyn Writer>) {
        let path = self.at(name);
        let writer = self.store.create(&path).await.unwrap();
        (path, writer)
    }

    /// The whole file, as the other client sees it.
    async fn read(&self, path: &str) -> Bytes {
        let reader = self.other.open(path).await.unwrap();
        assert_eq!(reader.len().min(1) == 0, reader.is_empty());
        reader.read_at(0, reader.len() as usize).await.unwrap()
    }

    async fn names(&self, path: &str) -> Vec<String> {
        self.other
            .list(path)
            .await
            .unwrap()
            .into_iter()
            .map(|info| info.name)
            .collect()
    }
}

type Case = fn(Stage) -> BoxFuture<'static, ()>;

macro_rules! cases {
    ($($name:ident)*) => { &[$((stringify!($name), |stage| Box::pin($name(stage)))),*] };
}

const CASES: &[(&str, Case)] = cases! {
    create_has_one_winner
    create_refuses_what_exists
    create_never_makes_a_parent
    appended_bytes_read_back
    many_small_appends_are_one_file
    an_empty_file_can_be_synced_and_closed
    reads_are_exact_or_refused
    readers_are_shared
    what_is_missing_is_not_found
    a_synced_length_is_reported_while_open
    visibility_while_open_is_as_declared
    a_closed_writer_stays_closed
    a_listing_is_whole_and_sorted
    mkdir_makes_parents_and_is_idempotent
    mkdir_over_a_file_fails
    rename_moves_files_and_trees
    rename_never_replaces
    rename_has_one_winner
    rename_needs_source_and_parent
    a_renamed_directory_admits_no_new_file
    a_writer_in_a_renamed_directory_loses_nothing_it_synced
    recover_fences_and_keeps_what_was_synced
    recover_of_an_abandoned_file
    recover_of_a_file_without_a_sync
    recover_of_a_closed_file_changes_nothing
    recover_by_two_at_once
    delete_removes_files_and_empty_directories_only
    delete_fences_the_writer
    put_is_whole_and_never_replaces
    put_has_one_winner
    files_are_dated_by_the_stores_clock
    usage_is_plausible
    many_writers_at_once
    odd_names_are_names
    paths_cannot_leave_the_root
    the_root_is_a_directory
};

/// Runs every case, each in its own directory, and panics at the end with all that failed.
pub async fn run_suite(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let filter = std::env::var("STORE_CASE").unwrap_or_default();
    let mut failed = Vec::new();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&filter)) {
        let stage = Stage {
            store: store.clone(),
            other: other.clone(),
            dir: format!("t/{name}"),
        };
        store.mkdir(&stage.dir).await.unwrap();
        let case = tokio::time::timeout(Duration::from_secs(120), case(stage));
        match tokio::spawn(case).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failed.push(format!("{name}: not done after 120 s")),
            Err(panic) => failed.push(format!("{name}: {panic}")),
        }
    }
    assert!(failed.is_empty(), "{}:\n{}", store.url(), failed.join("\n"));
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind) {
    match result {
        Ok(_) => panic!("not refused; expected {kind:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{e:?}"),
    }
}

/// Of many results exactly one is Ok, all others are `AlreadyExists`; returns which.
#[track_caller]
fn one_winner<T>(results: Vec<Result<T>>) -> usize {
    let winners: Vec<usize> = (0..results.len()).filter(|&i| results[i].is_ok()).collect();
    assert_eq!(winners.len(), 1, "winners {winners:?}");
    for e in results.into_iter().filter_map(Result::err) {
        assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e:?}");
    }
    winners[0]
}

/// Bytes that differ at every position of interest.
fn pattern(seed: u8, len: usize) -> Bytes {
    (0..len)
        .map(|i| (i as u8) ^ ((i >> 8) as u8).wrapping_mul(31) ^ seed)
        .collect()
}

async fn create_has_one_winner(s: Stage) {
    for round in 0..5 {
        let path = s.at(&format!("f{round}"));
        let racers = (0..8).map(|i| if i % 2 == 0 { &s.store } else { &s.other });
        one_winner(join_all(racers.map(|store| store.create(&path))).await);
    }
}

async fn create_refuses_what_exists(s: Stage) {
    let closed = s.file("closed", b"old").await;
    let (open, _writer) = s.create("open").await;
    s.store.mkdir(&s.at("dir")).await.unwrap();
    for path in [&closed, &open, &s.at("dir")] {
        refused(s.other.create(path).await, ErrorKind::AlreadyExists);
    }
    assert_eq!(s.read(&closed).await, "old");
}

async fn create_never_makes_a_parent(s: Stage) {
    refused(s.store.create(&s.at("no/f")).await, ErrorKind::NotFound);
    refused(
        s.store.put(&s.at("no/f"), Bytes::new()).await,
        ErrorKind::NotFound,
    );
    refused(s.store.stat(&s.at("no")).await, ErrorKind::NotFound);
}

async fn appended_bytes_read_back(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    let content = pattern(1, 3_000_000);
    let mut rest = content.clone();
    for (i, len) in [1, 4095, 65_536, 100_000, 1_000_003]
        .into_iter()
        .cycle()
        .enumerate()
    {
        writer
            .append(rest.split_to(len.min(rest.len())))
            .await
            .unwrap();
        if i % 3 == 0 {
            writer.sync().await.unwrap();
        }
        if rest.is_empty() {
            break;
        }
    }
    writer.close().await.unwrap();
    assert_eq!(s.other.stat(&path).await.unwrap().len, content.len() as u64);
    assert!(s.read(&path).await == content);
}

async fn many_small_appends_are_one_file(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    let mut expected = Vec::new();
    for i in 0..200u16 {
        let bytes = pattern(i as u8, usize::from(i % 7));
        expected.extend_from_slice(&bytes);
        writer.append(bytes).await.unwrap();
    }
    writer.sync().await.unwrap();
    writer.sync().await.unwrap(); // nothing new: fine
    writer.close().await.unwrap();
    assert_eq!(s.read(&path).await, expected);
}

async fn an_empty_file_can_be_synced_and_closed(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.sync().await.unwrap();
    writer.append(Bytes::new()).await.unwrap();
    writer.sync().await.unwrap();
    writer.close().await.unwrap();
    let info = s.other.stat(&path).await.unwrap();
    assert_eq!((info.len, info.is_dir, info.name.as_str()), (0, false, "f"));
    assert!(s.read(&path).await.is_empty());
}

async fn reads_are_exact_or_refused(s: Stage) {
    let content = pattern(2, 200_000);
    let path = s.file("f", &content).await;
    let reader = s.other.open(&path).await.unwrap();
    assert_eq!(reader.len(), 200_000);
    for (offset, len) in [
        (0, 1),
        (0, 200_000),
        (199_999, 1),
        (65_530, 12),
        (200_000, 0),
        (7, 0),
    ] {
        let read = reader.read_at(offset as u64, len).await.unwrap();
        assert!(read == content[offset..offset + len], "{len} at {offset}");
    }
    for (offset, len) in [(0, 200_001), (200_000, 1), (1 << 40, 1), (u64::MAX, 2)] {
        refused(reader.read_at(offset, len).await, ErrorKind::Invalid);
    }
}

async fn readers_are_shared(s: Stage) {
    let content = pattern(3, 300_000);
    let path = s.file("f", &content).await;
    let reader = s.other.open(&path).await.unwrap();
    let reads = (0..64).map(|i| {
        let (reader, content) = (reader.clone(), content.clone());
        tokio::spawn(async move {
            let offset = i * 4321;
            let read = reader.read_at(offset as u64, 5000).await.unwrap();
            assert!(read == content[offset..offset + 5000]);
        })
    });
    join_all(reads)
        .await
        .into_iter()
        .for_each(|read| read.unwrap());
}

async fn what_is_missing_is_not_found(s: Stage) {
    let path = s.at("no");
    refused(s.store.open(&path).await, ErrorKind::NotFound);
    refused(s.store.stat(&path).await, ErrorKind::NotFound);
    refused(s.store.list(&path).await, ErrorKind::NotFound);
    refused(s.store.delete(&path).await, ErrorKind::NotFound);
    refused(s.store.recover(&path).await, ErrorKind::NotFound);
}

async fn a_synced_length_is_reported_while_open(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    let mut synced = 0;
    for len in [10, 5000, 70_000] {
        writer.append(pattern(4, len)).await.unwrap();
        writer.sync().await.unwrap();
        synced += len as u64;
        let reported = s.other.stat(&path).await.unwrap().len;
        assert!(reported >= synced, "{reported} of {synced}");
    }
    writer.close().await.unwrap();
}

async fn visibility_while_open_is_as_declared(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    let (len, visible) = match s.store.open_visibility() {
        OpenVisibility::Appended => (10_000, 10_000),
        // Blocks too large for a test: only that nothing of the open block is promised.
        OpenVisibility::CompleteBlocks(block) if block > 1 << 20 => (10_000, 0),
        OpenVisibility::CompleteBlocks(block) => (block * 5 / 2, block * 2),
    };
    let content = pattern(5, len as usize);
    writer.append(content.clone()).await.unwrap();
    writer.sync().await.unwrap();
    let reader = s.other.open(&path).await.unwrap();
    assert_eq!(reader.len(), visible);
    assert!(reader.read_at(0, visible as usize).await.unwrap() == content[..visible as usize]);
    refused(reader.read_at(visible, 1).await, ErrorKind::Invalid);
    writer.close().await.unwrap();
    assert!(s.read(&path).await == content);
}

async fn a_closed_writer_stays_closed(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(Bytes::from_static(b"abc")).await.unwrap();
    writer.close().await.unwrap();
    assert!(writer.append(Bytes::from_static(b"d")).await.is_err());
    assert!(writer.sync().await.is_err());
    assert_eq!(s.read(&path).await, "abc");
}

async fn a_listing_is_whole_and_sorted(s: Stage) {
    assert!(s.names(&s.dir).await.is_empty());
    let mut expected: Vec<String> = (0..150).map(|i| format!("f{i}")).collect();
    for name in &expected {
        s.file(name, name.as_bytes()).await;
    }
    s.store.mkdir(&s.at("dir")).await.unwrap();
    let (open, _writer) = s.create("open").await;
    expected.extend(["dir".to_string(), "open".to_string()]);
    expected.sort();
    assert_eq!(s.names(&s.dir).await, expected);
    for info in s.other.list(&s.dir).await.unwrap() {
        assert_eq!(info, s.other.stat(&s.at(&info.name)).await.unwrap());
        assert_eq!(info.is_dir, info.name == "dir");
        assert!(info.is_dir || info.name == "open" || info.len == info.name.len() as u64);
    }
    assert!(s.other.list(&open).await.is_err(), "a file has no listing");
}

async fn mkdir_makes_parents_and_is_idempotent(s: Stage) {
    let deep = s.at("a/b/c");
    let racers = (0..6).map(|i| if i % 2 == 0 { &s.store } else { &s.other });
    for made in join_all(racers.map(|store| store.mkdir(&deep))).await {
        made.unwrap();
    }
    for dir in [s.at("a"), s.at("a/b"), deep] {
        let info = s.other.stat(&dir).await.unwrap();
        assert!(info.is_dir);
        assert_eq!(info.mode & 0o777, 0o700, "{dir}");
    }
}

async fn mkdir_over_a_file_fails(s: Stage) {
    let path = s.file("f", b"content").await;
    assert!(s.store.mkdir(&path).await.is_err());
    assert!(s.store.mkdir(&format!("{path}/below")).await.is_err());
    assert_eq!(s.read(&path).await, "content");
}

async fn rename_moves_files_and_trees(s: Stage) {
    s.store.mkdir(&s.at("a/b")).await.unwrap();
    s.store.mkdir(&s.at("c")).await.unwrap();
    s.file("a/b/f", b"1").await;
    s.store.rename(&s.at("a/b/f"), &s.at("c/g")).await.unwrap();
    assert_eq!(s.read(&s.at("c/g")).await, "1");
    s.store.rename(&s.at("c"), &s.at("a/b/d")).await.unwrap();
    assert_eq!(s.names(&s.dir).await, ["a"]);
    assert_eq!(s.names(&s.at("a/b")).await, ["d"]);
    assert_eq!(s.read(&s.at("a/b/d/g")).await, "1");
}

async fn rename_never_replaces(s: Stage) {
    let (f, g) = (s.file("f", b"1").await, s.file("g", b"2").await);
    s.store.mkdir(&s.at("dir")).await.unwrap();
    s.store.mkdir(&s.at("empty")).await.unwrap();
    for (from, to) in [("f", "g"), ("f", "empty"), ("dir", "empty"), ("dir", "g")] {
        refused(
            s.store.rename(&s.at(from), &s.at(to)).await,
            ErrorKind::AlreadyExists,
        );
    }
    assert_eq!(s.names(&s.dir).await, ["dir", "empty", "f", "g"]);
    assert_eq!(
        (s.read(&f).await, s.read(&g).await),
        ("1".into(), "2".into())
    );
}

async fn rename_has_one_winner(s: Stage) {
    let mut sources = Vec::new();
    for i in 0..6 {
        sources.push(s.file(&format!("f{i}"), format!("{i}").as_bytes()).await);
    }
    let target = s.at("target");
    let races = sources.iter().enumerate().map(|(i, from)| {
        let store = if i % 2 == 0 { &s.store } else { &s.other };
        store.rename(from, &target)
    });
    let winner = one_winner(join_all(races).await);
    assert_eq!(s.read(&target).await, format!("{winner}"));
    assert_eq!(s.names(&s.dir).await.len(), 6);
}

async fn rename_needs_source_and_parent(s: Stage) {
    refused(
        s.store.rename(&s.at("no"), &s.at("to")).await,
        ErrorKind::NotFound,
    );
    let f = s.file("f", b"1").await;
    refused(s.store.rename(&f, &s.at("no/f")).await, ErrorKind::NotFound);
    assert_eq!(s.read(&f).await, "1");
}

async fn a_renamed_directory_admits_no_new_file(s: Stage) {
    s.store.mkdir(&s.at("log/1")).await.unwrap();
    let (_, _writer) = s.create("log/1/0").await;
    s.other
        .rename(&s.at("log/1"), &s.at("log/1.fenced"))
        .await
        .unwrap();
    refused(s.store.create(&s.at("log/1/1")).await, ErrorKind::NotFound);
    assert_eq!(s.names(&s.at("log/1.fenced")).await, ["0"]);
}

/// Take-over: rename, recover, read. A sync that returns Ok at any time is seen by the new owner.
async fn a_writer_in_a_renamed_directory_loses_nothing_it_synced(s: Stage) {
    s.store.mkdir(&s.at("log/1")).await.unwrap();
    let (_, mut writer) = s.create("log/1/0").await;
    let writing = tokio::spawn(async move {
        let mut synced = 0;
        for i in 0..100_000u32 {
            let record = Bytes::copy_from_slice(&i.to_le_bytes());
            if writer.append(record).await.is_err() || writer.sync().await.is_err() {
                return (synced, writer);
            }
            synced = 4 * (i as usize + 1);
            if i % 100 == 99 {
                tokio::time::sleep(Duration::from_millis(1)).await; // lets a paused clock advance
            }
        }
        panic!("the writer was never fenced");
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    s.other
        .rename(&s.at("log/1"), &s.at("log/1.fenced"))
        .await
        .unwrap();
    let path = s.at("log/1.fenced/0");
    s.other.recover(&path).await.unwrap();
    let seen = s.read(&path).await;
    let (synced, mut writer) = writing.await.unwrap();
    assert!(seen.len() >= synced, "{} of {synced} bytes", seen.len());
    let expected: Vec<u8> = (0..seen.len() as u32 / 4 + 1)
        .flat_map(|i| i.to_le_bytes())
        .collect();
    assert!(expected.starts_with(&seen));
    let _ = writer.append(pattern(6, 100)).await;
    assert!(writer.sync().await.is_err());
    assert!(s.read(&path).await == seen, "the length was final");
}

async fn recover_fences_and_keeps_what_was_synced(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    let content = pattern(7, 30_000);
    writer.append(content.slice(..10_000)).await.unwrap();
    writer.sync().await.unwrap();
    writer.append(content.slice(10_000..20_000)).await.unwrap();
    s.other.recover(&path).await.unwrap();
    let seen = s.read(&path).await;
    assert!(
        seen.len() >= 10_000 && content[..20_000].starts_with(&seen),
        "{} bytes",
        seen.len()
    );
    assert_eq!(s.other.stat(&path).await.unwrap().len, seen.len() as u64);

    let _ = writer.append(content.slice(20_000..)).await; // may still be Ok: it is buffered
    assert!(writer.sync().await.is_err());
    assert!(writer.close().await.is_err());
    drop(writer);
    assert!(s.read(&path).await == seen, "the length was final");
}

async fn recover_of_an_abandoned_file(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(pattern(8, 5000)).await.unwrap();
    writer.sync().await.unwrap();
    drop(writer);
    s.other.recover(&path).await.unwrap();
    assert!(s.read(&path).await == pattern(8, 5000));
    s.store.recover(&path).await.unwrap();
}

async fn recover_of_a_file_without_a_sync(s: Stage) {
    let (empty, created) = s.create("empty").await;
    let (tail, mut writer) = s.create("tail").await;
    writer.append(pattern(9, 5000)).await.unwrap();
    drop((created, writer));
    s.other.recover(&empty).await.unwrap();
    s.other.recover(&tail).await.unwrap();
    assert!(s.read(&empty).await.is_empty());
    assert!(pattern(9, 5000).starts_with(&s.read(&tail).await));
}

async fn recover_of_a_closed_file_changes_nothing(s: Stage) {
    let path = s.file("f", b"content").await;
    s.store.recover(&path).await.unwrap();
    s.other.recover(&path).await.unwrap();
    assert_eq!(s.read(&path).await, "content");
}

async fn recover_by_two_at_once(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(pattern(10, 5000)).await.unwrap();
    writer.sync().await.unwrap();
    writer.append(pattern(11, 5000)).await.unwrap();
    let (one, two) = tokio::join!(s.store.recover(&path), s.other.recover(&path));
    one.and(two).unwrap();
    let seen = s.read(&path).await;
    assert!(seen.len() >= 5000 && seen[..5000] == pattern(10, 5000));
    assert!(writer.sync().await.is_err());
    assert!(s.read(&path).await == seen);
}

async fn delete_removes_files_and_empty_directories_only(s: Stage) {
    s.store.mkdir(&s.at("dir")).await.unwrap();
    let path = s.file("dir/f", b"1").await;
    refused(s.store.delete(&s.at("dir")).await, ErrorKind::Invalid);
    assert_eq!(s.read(&path).await, "1");
    s.store.delete(&path).await.unwrap();
    refused(s.store.delete(&path).await, ErrorKind::NotFound);
    s.store.delete(&s.at("dir")).await.unwrap();
    assert!(s.names(&s.dir).await.is_empty());
}

async fn delete_fences_the_writer(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(pattern(12, 100)).await.unwrap();
    writer.sync().await.unwrap();
    s.other.delete(&path).await.unwrap();
    let _ = writer.append(pattern(13, 100)).await;
    assert!(writer.sync().await.is_err());
    refused(s.other.stat(&path).await, ErrorKind::NotFound);
}

async fn put_is_whole_and_never_replaces(s: Stage) {
    let (f, empty) = (s.at("f"), s.at("empty"));
    let content = pattern(14, 100_000);
    s.store.put(&f, content.clone()).await.unwrap();
    s.store.put(&empty, Bytes::new()).await.unwrap();
    refused(
        s.other.put(&f, Bytes::from_static(b"new")).await,
        ErrorKind::AlreadyExists,
    );
    assert!(s.read(&f).await == content);
    assert!(s.read(&empty).await.is_empty());
    assert_eq!(
        s.names(&s.dir).await,
        ["empty", "f"],
        "nothing is left beside them"
    );
}

async fn put_has_one_winner(s: Stage) {
    let path = s.at("f");
    let contents: Vec<Bytes> = (0..6).map(|i| pattern(i, 10_000)).collect();
    let races = contents.iter().enumerate().map(|(i, content)| {
        let store = if i % 2 == 0 { &s.store } else { &s.other };
        store.put(&path, content.clone())
    });
    let winner = one_winner(join_all(races).await);
    assert!(s.read(&path).await == contents[winner]);
    assert_eq!(s.names(&s.dir).await, ["f"]);
}

async fn files_are_dated_by_the_stores_clock(s: Stage) {
    const SECOND: i64 = 1_000_000_000;
    let before = s.store.now().await.unwrap();
    let path = s.file("f", b"1").await;
    let after = s.other.now().await.unwrap();
    assert!(
        before <= after && before > 1_500_000_000 * SECOND,
        "{before}, {after}"
    );
    let mtime = s.other.stat(&path).await.unwrap().mtime;
    assert!(
        (before - SECOND..=after + SECOND).contains(&mtime),
        "{before}, {mtime}, {after}"
    );
}

async fn usage_is_plausible(s: Stage) {
    let usage = s.store.usage().await.unwrap();
    assert!(
        usage.available > 0 && usage.available <= usage.capacity,
        "{usage:?}"
    );
}

async fn many_writers_at_once(s: Stage) {
    let tasks = (0..16u8).map(|i| {
        let s = s.clone();
        tokio::spawn(async move {
            let (path, mut writer) = s.create(&format!("f{i}")).await;
            for part in 0..5 {
                writer.append(pattern(i, 3000 + part)).await.unwrap();
                writer.sync().await.unwrap();
            }
            writer.close().await.unwrap();
            let expected: Vec<u8> = (0..5).flat_map(|part| pattern(i, 3000 + part)).collect();
            assert!(s.read(&path).await == expected);
        })
    });
    join_all(tasks)
        .await
        .into_iter()
        .for_each(|task| task.unwrap());
}

async fn odd_names_are_names(s: Stage) {
    let mut names = vec![
        "a b",
        "%41",
        "ü€",
        "a+b#c?d&e",
        "-x",
        ".hidden",
        "~",
        "*",
        "\"q\"",
        "a\\b",
    ];
    for name in &names {
        let path = s.file(name, name.as_bytes()).await;
        assert_eq!(s.read(&path).await, name.as_bytes());
        assert_eq!(s.other.stat(&path).await.unwrap().name, *name);
    }
    names.sort_unstable();
    assert_eq!(s.names(&s.dir).await, names);
}

async fn paths_cannot_leave_the_root(s: Stage) {
    for path in ["/etc/passwd", "../x", "t/../../x", "t//x", "t/./x", "t/"] {
        refused(s.store.open(path).await, ErrorKind::Invalid);
        refused(s.store.stat(path).await, ErrorKind::Invalid);
        refused(s.store.list(path).await, ErrorKind::Invalid);
        refused(s.store.create(path).await, ErrorKind::Invalid);
        refused(s.store.mkdir(path).await, ErrorKind::Invalid);
        refused(s.store.put(path, Bytes::new()).await, ErrorKind::Invalid);
        refused(s.store.delete(path).await, ErrorKind::Invalid);
        refused(s.store.recover(path).await, ErrorKind::Invalid);
        refused(s.store.rename(path, &s.at("to")).await, ErrorKind::Invalid);
        refused(
            s.store.rename(&s.at("from"), path).await,
            ErrorKind::Invalid,
        );
    }
}

async fn the_root_is_a_directory(s: Stage) {
    s.store.mkdir("").await.unwrap();
    let root = s.store.stat("").await.unwrap();
    assert!(root.is_dir);
    assert_eq!(root.name, "");
    assert!(s.names("").await.contains(&"t".to_string()));
    assert!(s.store.open("").await.is_err());
}
