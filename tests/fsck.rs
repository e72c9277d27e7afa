//! fsck finds what is wrong and names it.

#[path = "support/damaged.rs"]
#[allow(dead_code)]
mod damaged;
#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;

use damaged::*;
use filled::*;
use stowfs::admin::{FsckOptions, fsck, segments_of_store, segments_of_volume};
use stowfs::base::{ErrorKind, Ino};
use stowfs::format::Frame;
use stowfs::format::segment::{HEADER_LEN, TRAILER_LEN};
use stowfs::store::memory::MemoryCluster;

#[tokio::test(start_paused = true)]
async fn a_good_root_is_clean_and_its_segments_add_up() {
    let cluster = with_lane(1).await;
    let report = check(&cluster).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.inodes, 7);
    assert_eq!(report.extents, 5 + 6);
    let live: u64 = (0..5).map(|i| body(i).len() as u64).sum::<u64>() + 120_000;
    assert_eq!(report.bytes, live);
    assert!(report.notes.is_empty(), "{report}");

    let offline = segments_of_store(&*host(&cluster)).await.unwrap();
    assert_eq!((offline.live_bytes, offline.files), (live, 6));
    assert!(offline.orphans.is_empty());
    for line in &offline.segments {
        assert_eq!(
            line.size,
            bytes_of(&cluster, &line.path).len() as u64,
            "{line:?}"
        );
    }
    let volume = open(&host(&cluster)).await.unwrap();
    let live_now = segments_of_volume(&volume).await.unwrap();
    assert_eq!((live_now.live_bytes, live_now.files), (live, 6));
    assert!(live_now.to_string().contains("total"));
}

#[tokio::test(start_paused = true)]
async fn a_root_in_use_is_checked_with_a_warning() {
    let cluster = filled(2, 5).await;
    let volume = open(&host(&cluster)).await.unwrap();
    put(&volume, Ino::ROOT, "new", body(1)).await;
    let report = check(&cluster).await;
    assert!(report.notes.iter().any(|n| n.contains("was not released")));
    assert!(report.is_clean(), "{report}");
    drop(volume);
    let e = salvage(host(&cluster)).await;
    assert!(e.is_ok(), "a dead owner is taken over: {e:?}");
}

#[tokio::test(start_paused = true)]
async fn a_live_root_is_not_rebuilt() {
    let cluster = filled(2, 5).await;
    let volume = open(&host(&cluster)).await.unwrap();
    let e = salvage(host(&cluster)).await.unwrap_err();
    assert!(e.is(ErrorKind::Owned), "{e}");
    volume.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn damaged_data_is_found_with_path_offset_and_file() {
    let cluster = filled(3, N).await;
    let path = log_files(&cluster)[1].clone();
    let all = frames(&bytes_of(&cluster, &path));
    let (at, head) = all
        .into_iter()
        .find_map(|(at, _, f)| match f {
            Frame::Data { head, .. } => Some((at, head)),
            Frame::Record(_) => None,
        })
        .unwrap();
    flip(&cluster, &path, at + head.head_len() + 5);
    let report = check(&cluster).await;
    assert_eq!(report.problems.len(), 1, "{report}");
    let problem = &report.problems[0];
    // Where the frame begins: that is what scrub says, too.
    assert_eq!((&problem.path, problem.offset), (&path, Some(at as u64)));
    let file = problem.file.as_ref().unwrap();
    let volume = open(&host(&cluster)).await.unwrap();
    let ino = volume.read(|i| i.lookup(Ino::ROOT, &file.as_bytes()[1..]));
    assert_eq!(ino, Some(head.ino));
    assert!(get(&volume, &file[1..]).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_damage_is_a_problem_at_its_place() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, &str, Change); 6] = [
        ("log", "header", |b| b[20] ^= 1),
        ("log", "footer", |b| {
            let at = b.len() - 20;
            b[at] ^= 1;
        }),
        ("log", "frame table", |b| {
            let at = b.len() - TRAILER_LEN - 10;
            b[at] ^= 1;
        }),
        ("log", "frame", |b| b[HEADER_LEN + 3] ^= 1),
        ("lane", "header", |b| b[20] ^= 1),
        ("lane", "bytes long", |b| b.truncate(b.len() / 2)),
    ];
    for (which, what, change) in cases {
        let cluster = match which {
            "log" => filled(4, N).await,
            _ => with_lane(4).await,
        };
        let path = match which {
            "log" => log_files(&cluster)[1].clone(),
            _ => lane_files(&cluster)[0].clone(),
        };
        cluster.damage(&path, change).unwrap();
        let report = check(&cluster).await;
        let hit = |p: &stowfs::admin::Problem| p.path == path && p.what.contains(what);
        assert!(report.problems.iter().any(hit), "{which} {what}:\n{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn missing_and_strange_files_are_told_apart() {
    let cluster = with_lane(5).await;
    let store = host(&cluster);
    let lane = lane_files(&cluster)[0].clone();
    store.delete(&lane).await.unwrap();
    store
        .put(".stowfs/data/1/99.seg", bytes::Bytes::from_static(b"x"))
        .await
        .unwrap();
    store
        .put(".stowfs/data/1/notes", bytes::Bytes::from_static(b"x"))
        .await
        .unwrap();
    let report = check(&cluster).await;
    let missing = |p: &stowfs::admin::Problem| {
        p.path == lane && p.what.contains("missing") && p.file.as_deref() == Some("/long")
    };
    assert!(report.problems.iter().any(missing), "{report}");
    assert!(report.problems.iter().all(missing), "{report}");
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("99.seg is an orphan"))
    );
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.contains("data/1/notes is not"))
    );
}

#[tokio::test(start_paused = true)]
async fn plain_files_must_be_as_they_were() {
    let cluster = MemoryCluster::new(6);
    let store = host(&cluster);
    store.put("plain", content(1, 3000)).await.unwrap();
    open(&store).await.unwrap().shutdown().await.unwrap();
    assert!(check(&cluster).await.is_clean());
    cluster.damage("plain", |b| b.push(0)).unwrap();
    let report = check(&cluster).await;
    assert_eq!(report.problems.len(), 1, "{report}");
    assert_eq!(report.problems[0].file.as_deref(), Some("/plain"));
    assert!(report.problems[0].what.contains("3001 bytes"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_root_cannot_be_checked() {
    let cluster = MemoryCluster::new(7);
    let e = fsck(host(&cluster), &FsckOptions::default())
        .await
        .unwrap_err();
    assert!(e.is(ErrorKind::NotFound), "{e}");
    assert!(
        salvage(host(&cluster))
            .await
            .unwrap_err()
            .is(ErrorKind::NotFound)
    );
}
