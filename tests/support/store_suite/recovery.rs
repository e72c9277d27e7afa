//! Files whose writer is gone, or shall be.

use super::*;

/// Take-over: rename, recover, read. A sync that returns Ok at any time is seen by the new owner.
pub(super) async fn a_writer_in_a_renamed_directory_loses_nothing_it_synced(s: Stage) {
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

pub(super) async fn recover_fences_and_keeps_what_was_synced(s: Stage) {
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

pub(super) async fn recover_of_an_abandoned_file(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(pattern(8, 5000)).await.unwrap();
    writer.sync().await.unwrap();
    drop(writer);
    s.other.recover(&path).await.unwrap();
    assert!(s.read(&path).await == pattern(8, 5000));
    s.store.recover(&path).await.unwrap();
}

pub(super) async fn recover_of_a_file_without_a_sync(s: Stage) {
    let (empty, created) = s.create("empty").await;
    let (tail, mut writer) = s.create("tail").await;
    writer.append(pattern(9, 5000)).await.unwrap();
    drop((created, writer));
    s.other.recover(&empty).await.unwrap();
    s.other.recover(&tail).await.unwrap();
    assert!(s.read(&empty).await.is_empty());
    assert!(pattern(9, 5000).starts_with(&s.read(&tail).await));
}

pub(super) async fn recover_of_a_closed_file_changes_nothing(s: Stage) {
    let path = s.file("f", b"content").await;
    s.store.recover(&path).await.unwrap();
    s.other.recover(&path).await.unwrap();
    assert_eq!(s.read(&path).await, "content");
}

pub(super) async fn recover_by_two_at_once(s: Stage) {
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

pub(super) async fn delete_fences_the_writer(s: Stage) {
    let (path, mut writer) = s.create("f").await;
    writer.append(pattern(12, 100)).await.unwrap();
    writer.sync().await.unwrap();
    s.other.delete(&path).await.unwrap();
    let _ = writer.append(pattern(13, 100)).await;
    assert!(writer.sync().await.is_err());
    refused(s.other.stat(&path).await, ErrorKind::NotFound);
}
