//! Writing and reading files.

use super::*;

pub(super) async fn create_has_one_winner(s: Stage) {
    for round in 0..5 {
        let path = s.at(&format!("f{round}"));
        let racers = (0..8).map(|i| if i % 2 == 0 { &s.store } else { &s.other });
        one_winner(join_all(racers.map(|store| store.create(&path))).await);
    }
}

pub(super) async fn create_refuses_what_exists(s: Stage) {
    let closed = s.file("closed", b"old").await;
    let (open, _writer) = s.create("open").await;
    s.store.mkdir(&s.at("dir")).await.unwrap();
    for path in [&closed, &open, &s.at("dir")] {
        refused(s.other.create(path).await, ErrorKind::AlreadyExists);
    }
    assert_eq!(s.read(&closed).await, "old");
}

pub(super) async fn create_never_makes_a_parent(s: Stage) {
    refused(s.store.create(&s.at("no/f")).await, ErrorKind::NotFound);
    refused(
        s.store.put(&s.at("no/f"), Bytes::new()).await,
        ErrorKind::NotFound,
    );
    refused(s.store.stat(&s.at("no")).await, ErrorKind::NotFound);
}

pub(super) async fn appended_bytes_read_back(s: Stage) {
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

pub(super) async fn many_small_appends_are_one_file(s: Stage) {
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

pub(super) async fn an_empty_file_can_be_synced_and_closed(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.sync().await.unwrap();
    writer.append(Bytes::new()).await.unwrap();
    writer.sync().await.unwrap();
    writer.close().await.unwrap();
    let info = s.other.stat(&path).await.unwrap();
    assert_eq!((info.len, info.is_dir, info.name.as_str()), (0, false, "f"));
    assert!(s.read(&path).await.is_empty());
}

pub(super) async fn reads_are_exact_or_refused(s: Stage) {
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

pub(super) async fn readers_are_shared(s: Stage) {
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

pub(super) async fn a_synced_length_is_reported_while_open(s: Stage) {
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

pub(super) async fn visibility_while_open_is_as_declared(s: Stage) {
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

pub(super) async fn a_closed_writer_stays_closed(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(Bytes::from_static(b"abc")).await.unwrap();
    writer.close().await.unwrap();
    assert!(writer.append(Bytes::from_static(b"d")).await.is_err());
    assert!(writer.sync().await.is_err());
    assert_eq!(s.read(&path).await, "abc");
}

pub(super) async fn put_is_whole_and_never_replaces(s: Stage) {
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

pub(super) async fn put_has_one_winner(s: Stage) {
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

pub(super) async fn files_are_dated_by_the_stores_clock(s: Stage) {
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

pub(super) async fn usage_is_plausible(s: Stage) {
    let usage = s.store.usage().await.unwrap();
    assert!(
        usage.available > 0 && usage.available <= usage.capacity,
        "{usage:?}"
    );
}

pub(super) async fn many_writers_at_once(s: Stage) {
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
