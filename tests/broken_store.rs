//! Bytes on the store that are not what was written: what is dropped, what is refused, what fails
//! alone. The bugs that such tests found are pinned here with their causes.

#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;

use filled::*;
use stowfs::base::{ErrorKind, Ino};
use stowfs::format::Frame;
use stowfs::format::segment::{HEADER_LEN, TRAILER_LEN};
use stowfs::store::memory::MemoryCluster;

fn flip(cluster: &MemoryCluster, path: &str, at: usize) {
    cluster
        .damage(path, |bytes| bytes[at] ^= 0x10)
        .expect("a closed file");
}

fn bytes_of(cluster: &MemoryCluster, path: &str) -> Vec<u8> {
    cluster.peek(path).expect("a file").0
}

/// Offset and length of the records of a segment.
fn records(cluster: &MemoryCluster, path: &str) -> Vec<(usize, usize)> {
    let all = frames(&bytes_of(cluster, path));
    all.into_iter()
        .filter(|(_, _, frame)| matches!(frame, Frame::Record(_)))
        .map(|(at, len, _)| (at, len))
        .collect()
}

async fn refused(cluster: &MemoryCluster) -> String {
    let e = open(&host(cluster))
        .await
        .err()
        .expect("it must be refused");
    assert!(e.is(ErrorKind::Corrupt), "{e}");
    e.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_torn_tail_is_dropped_and_everything_before_it_stays() {
    for cut in [1, 20, 40, 500] {
        let cluster = MemoryCluster::new(cut);
        let crashing = cluster.host("a");
        let volume = open(&(crashing.clone() as _)).await.unwrap();
        for i in 0..10 {
            put(&volume, Ino::ROOT, &format!("f{i}"), body(i)).await;
        }
        crashing.crash();
        drop(volume);
        let last = log_files(&cluster).pop().unwrap();
        host(&cluster).recover(&last).await.unwrap();
        // Garbage after the last commit, as a write that was under way leaves it; and a last commit
        // of which only the front is there.
        let whole = bytes_of(&cluster, &last);
        let torn: Vec<u8> = frames(&whole)
            .iter()
            .rev()
            .take(2)
            .map(|(at, len, _)| whole[*at..at + len].to_vec())
            .next_back()
            .unwrap();
        cluster
            .damage(&last, |b| b.extend_from_slice(&torn[..cut as usize]))
            .unwrap();
        let volume = open(&host(&cluster)).await.expect("a torn tail is normal");
        let (good, ..) = census(&volume, 10).await;
        assert_eq!(good.len(), 10);
        put(&volume, Ino::ROOT, "later", body(1)).await;
        volume.shutdown().await.unwrap();
        let volume = open(&host(&cluster)).await.unwrap();
        assert_eq!(get(&volume, "later").await.unwrap().unwrap(), body(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_record_in_the_middle_is_refused_with_file_and_offset() {
    let cluster = filled(1, 100).await;
    let logs = log_files(&cluster);
    assert!(logs.len() >= 3, "{logs:?}");
    let path = &logs[1];
    let (at, len) = records(&cluster, path)[3];
    flip(&cluster, path, at + len - 1);
    // The frame table still has the record, so nothing is lost yet.
    assert_eq!(
        census(&open(&host(&cluster)).await.unwrap(), 100)
            .await
            .0
            .len(),
        100
    );

    let cluster = filled(1, 100).await;
    flip(&cluster, path, at + len - 1);
    cluster
        .damage(path, |b| b.truncate(b.len() - TRAILER_LEN))
        .unwrap();
    let e = refused(&cluster).await;
    assert!(e.contains(".stowfs/log/1.fenced/"), "{e}");
    assert!(e.contains(&format!("offset {at}")), "{e} (at {at})");
    assert!(e.contains("stowfs fsck"), "{e}");
}

/// Nothing later in the log vouches for the last records, but the footer does: it is written when all
/// before it is durable. The damage was taken for a torn tail and the change silently dropped.
#[tokio::test(start_paused = true)]
async fn a_bad_record_at_the_end_of_a_sealed_log_is_refused() {
    let cluster = filled(2, 30).await;
    let last = log_files(&cluster).pop().unwrap();
    let (at, len) = *records(&cluster, &last).last().unwrap();
    flip(&cluster, &last, at + len - 1);
    // The frame table has it too.
    let trailer = bytes_of(&cluster, &last).len() - TRAILER_LEN;
    flip(&cluster, &last, trailer - 1);
    let e = refused(&cluster).await;
    assert!(e.contains(&format!("offset {at}")), "{e} (at {at})");
}

/// A record counted as a voucher wherever it lay: the segments of another root, kept as a file in
/// this one, made a torn tail look like damage.
#[tokio::test(start_paused = true)]
async fn records_inside_the_data_of_a_file_vouch_for_nothing() {
    let other = filled(3, 60).await;
    let stranger = bytes_of(&other, &log_files(&other)[1]);
    let cluster = MemoryCluster::new(4);
    let crashing = cluster.host("a");
    let volume = open(&(crashing.clone() as _)).await.unwrap();
    put(&volume, Ino::ROOT, "f0", body(0)).await;
    put(&volume, Ino::ROOT, "copy", stranger.into()).await;
    crashing.crash();
    drop(volume);
    let last = log_files(&cluster).pop().unwrap();
    host(&cluster).recover(&last).await.unwrap();
    let all = frames(&bytes_of(&cluster, &last));
    let (at, ..) = *all
        .iter()
        .rfind(|(_, _, f)| matches!(f, Frame::Data { .. }))
        .unwrap();
    // As if the commit of the copy had been torn: its first page is lost, the rest is there.
    cluster.damage(&last, |b| b[at..at + 64].fill(0)).unwrap();
    let end = all.last().map(|(at, len, _)| at + len).unwrap();
    cluster.damage(&last, |b| b.truncate(end - 40)).unwrap();
    let volume = open(&host(&cluster)).await.expect("a torn tail");
    assert_eq!(census(&volume, 1).await.0, [0]);
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_in_data_fails_one_file_alone() {
    let cluster = filled(5, 100).await;
    let path = log_files(&cluster)[1].clone();
    let all = frames(&bytes_of(&cluster, &path));
    let (at, ino) = all
        .iter()
        .find_map(|(at, _, f)| match f {
            Frame::Data { head, .. } => Some((at + head.head_len(), head.ino)),
            Frame::Record(_) => None,
        })
        .unwrap();
    flip(&cluster, &path, at + 10);
    let volume = open(&host(&cluster)).await.unwrap();
    let (good, bad, missing) = census(&volume, 100).await;
    assert_eq!((good.len(), bad.len(), missing.len()), (99, 1, 0));
    let name = format!("f{}", bad[0]);
    let found = volume.read(|i| i.lookup(Ino::ROOT, name.as_bytes()));
    assert_eq!(found, Some(ino));
    let e = get(&volume, &name).await.unwrap().unwrap_err();
    assert!(
        e.is(ErrorKind::Corrupt) && e.to_string().contains("1.seg"),
        "{e}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_truncated_lane_fails_its_own_file_alone() {
    let cluster = filled(6, 5).await;
    let volume = open(&host(&cluster)).await.unwrap();
    let pieces: Vec<_> = (0..6).map(|i| content(i, 20_000)).collect();
    put_long(&volume, "long", &pieces).await;
    volume.shutdown().await.unwrap();
    let lane = lane_files(&cluster).pop().unwrap();
    cluster.damage(&lane, |b| b.truncate(b.len() / 2)).unwrap();
    let volume = open(&host(&cluster)).await.unwrap();
    assert!(get(&volume, "long").await.unwrap().is_err());
    assert_eq!(census(&volume, 5).await.0.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn damaged_ends_of_a_segment_cost_nothing() {
    for (what, distance) in [("trailer", 10), ("table", TRAILER_LEN + 10)] {
        let cluster = filled(7, 60).await;
        for path in log_files(&cluster) {
            let at = bytes_of(&cluster, &path).len() - distance;
            flip(&cluster, &path, at);
        }
        let volume = open(&host(&cluster)).await.expect(what);
        assert_eq!(census(&volume, 60).await.0.len(), 60, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_header_or_segment_of_the_log_is_refused() {
    let cluster = filled(8, 60).await;
    let path = log_files(&cluster)[1].clone();
    flip(&cluster, &path, 30);
    let e = refused(&cluster).await;
    assert!(e.contains("1.seg") && e.contains("header"), "{e}");

    let cluster = filled(8, 60).await;
    host(&cluster)
        .delete(&path.replace("1.fenced", "1"))
        .await
        .unwrap();
    let e = refused(&cluster).await;
    assert!(e.contains("gap"), "{e}");
}

/// Replay read a segment from its start though a snapshot knew the front of it. Damage there ended the
/// scan, and with it the segment: everything behind was lost, whole as it was.
#[tokio::test(start_paused = true)]
async fn damage_before_a_snapshot_does_not_hide_what_is_behind_it() {
    let cluster = MemoryCluster::new(12);
    let crashing = cluster.host("a");
    let volume = open(&(crashing.clone() as _)).await.unwrap();
    for i in 0..12 {
        put(&volume, Ino::ROOT, &format!("f{i}"), body(i)).await;
        if i == 6 {
            take_snapshot(&volume).await;
        }
    }
    crashing.crash();
    drop(volume);
    let log = log_files(&cluster).pop().unwrap();
    host(&cluster).recover(&log).await.unwrap();
    let (at, len) = records(&cluster, &log)[3];
    flip(&cluster, &log, at + len - 1);
    let volume = open(&host(&cluster)).await.unwrap();
    assert_eq!(census(&volume, 12).await.0.len(), 12);
}

/// Nothing in the log says where it ends, so a cut last segment was taken for a torn tail and
/// acknowledged files were gone without a word. The epoch's release says it now.
#[tokio::test(start_paused = true)]
async fn a_cut_last_segment_of_a_released_log_is_refused() {
    for keep in [0, 50, HEADER_LEN, 2000] {
        let cluster = filled(11, 30).await;
        let last = log_files(&cluster).pop().unwrap();
        cluster.damage(&last, |b| b.truncate(keep)).unwrap();
        let e = refused(&cluster).await;
        assert!(e.contains("released at") && e.contains("fsck"), "{e}");
    }
    let cluster = filled(11, 30).await;
    let last = log_files(&cluster).pop().unwrap();
    host(&cluster).delete(&last).await.unwrap();
    refused(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn newer_versions_are_refused_by_name_and_nothing_is_touched() {
    let checksum = |bytes: &mut [u8]| {
        let n = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..n]);
        bytes[n..].copy_from_slice(&crc.to_le_bytes());
    };
    let newer_header = |b: &mut Vec<u8>| {
        b[8] = 200;
        checksum(&mut b[..HEADER_LEN]);
    };
    let newer_trailer = |b: &mut Vec<u8>| {
        let at = b.len() - TRAILER_LEN;
        b[at + 8] = 200;
        checksum(&mut b[at..]);
    };
    let newer_format = |b: &mut Vec<u8>| {
        let text = String::from_utf8(b.clone()).unwrap();
        *b = text
            .replace("\"format_version\": 1", "\"format_version\": 200")
            .into();
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
    let changes: [(&str, Change); 3] = [
        (".stowfs/FORMAT", &newer_format),
        ("header", &newer_header),
        ("footer", &newer_trailer),
    ];
    for (what, change) in changes {
        let cluster = filled(9, 20).await;
        let path = match what {
            "header" | "footer" => log_files(&cluster)[0].clone(),
            path => path.to_string(),
        };
        cluster.damage(&path, change).unwrap();
        let e = open(&host(&cluster)).await.err().expect(what);
        assert!(e.is(ErrorKind::NewerFormat), "{what}: {e}");
        assert!(e.to_string().contains("version 200"), "{what}: {e}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_format_or_owner_file_is_named() {
    let cluster = filled(10, 3).await;
    cluster.damage(".stowfs/FORMAT", |b| b.truncate(5)).unwrap();
    assert!(refused(&cluster).await.contains(".stowfs/FORMAT"));
}
