//! Scrub on a store in memory: damage is found and named, nothing else is; it keeps to its rate, and
//! what is deleted or moved meanwhile is no damage.

#[path = "support/tree.rs"]
#[allow(dead_code)]
mod tree;

use std::sync::Arc;
use std::time::Duration;
use stowfs::base::StreamId;
use stowfs::base::config::Config;
use stowfs::format::SegmentState;
use stowfs::format::segment::HEADER_LEN;
use stowfs::segment;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use stowfs::upkeep::scrub::{Damage, ScrubState};
use tokio::time::Instant;
use tree::{Tree, content, eager};

fn config() -> Config {
    Config {
        gc_grace: Duration::from_secs(5),
        snapshot_bytes: Config::default().snapshot_bytes,
        scrub_every: Some(Duration::ZERO),
        ..eager()
    }
}

async fn open(cluster: &MemoryCluster, config: Config) -> Tree {
    let store: Arc<dyn Store> = cluster.host("one");
    Tree::open(&store, config).await
}

async fn fill(t: &Tree, files: usize) {
    for n in 0..files {
        let len = if n % 5 == 0 { 9000 } else { 700 };
        t.write(&format!("d/{n}"), &content(n, len)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
}

async fn scrub(t: &Tree, rate: u64) -> ScrubState {
    let volume = t.volume();
    assert!(volume.scrub().pass(&**volume, rate).await.expect("a pass"));
    volume.scrub().state()
}

/// All segment files.
fn segments(cluster: &MemoryCluster) -> Vec<String> {
    let all = cluster.tree().into_iter();
    let name = |line: String| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_string()
    };
    all.map(name)
        .filter(|path| path.ends_with(".seg"))
        .collect()
}

fn damage(cluster: &MemoryCluster, what: &[u8], how: impl Fn(&mut [u8])) -> String {
    for path in segments(cluster) {
        let (bytes, _) = cluster.peek(&path).expect("a file");
        if let Some(at) = bytes.windows(what.len()).position(|w| w == what) {
            cluster
                .damage(&path, |bytes| how(&mut bytes[at..]))
                .expect("damaged");
            return path;
        }
    }
    panic!("these bytes are nowhere");
}

fn files(found: &[Damage]) -> Vec<Option<String>> {
    let name = |d: &Damage| Some(String::from_utf8(d.file.clone()?).expect("a name"));
    found.iter().map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_sound_root_has_nothing_to_report_and_the_rate_is_kept() {
    let cluster = MemoryCluster::new(1);
    let t = open(&cluster, config()).await;
    fill(&t, 600).await;
    let state = scrub(&t, 0).await;
    assert!(state.segments > 20 && state.bytes > 1_000_000, "{state:?}");
    assert_eq!((state.passes, state.damage.len()), (1, 0), "{state:?}");
    let begun = Instant::now();
    let bytes = scrub(&t, 100_000).await.bytes - state.bytes;
    let right = bytes as f64 / 100_000.0;
    let took = begun.elapsed().as_secs_f64();
    assert!(
        (right * 0.5..right * 1.5).contains(&took),
        "{took} s, {right} expected"
    );
}

#[tokio::test(start_paused = true)]
async fn damage_is_named_with_file_segment_and_offset() {
    let cluster = MemoryCluster::new(2);
    let t = open(&cluster, config()).await;
    fill(&t, 60).await;
    t.write("gone", &content(1234, 900)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    t.remove("gone").await;
    // A payload, a frame's head, and what no file uses.
    let seven = damage(&cluster, &content(7, 700), |bytes| bytes[100] ^= 1);
    let ten = damage(&cluster, &content(10, 2000), |bytes| bytes[1500] ^= 1);
    damage(&cluster, &content(1234, 900), |bytes| bytes[3] ^= 1);
    let state = scrub(&t, 0).await;
    let mut found = files(&state.damage);
    found.sort();
    assert_eq!(found, [None, Some("d/10".into()), Some("d/7".into())]);
    for (file, path) in [("d/7", &seven), ("d/10", &ten)] {
        let of = |d: &&Damage| d.file.as_deref() == Some(file.as_bytes());
        let d = state.damage.iter().find(of).expect("it was found");
        assert_eq!(&d.path, path);
        assert!(d.offset >= 128 && d.what.contains("checksum"), "{d:?}");
    }
    // A second pass finds the same, and says it once.
    assert_eq!(scrub(&t, 0).await.damage.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_behind_a_bad_place_and_a_cut() {
    let cluster = MemoryCluster::new(3);
    let t = open(&cluster, config()).await;
    fill(&t, 60).await;
    let first = damage(&cluster, &content(1, 700), |bytes| bytes[..2000].fill(7));
    damage(&cluster, &content(59, 700), |bytes| bytes[9] ^= 1);
    let state = scrub(&t, 0).await;
    let found = files(&state.damage);
    assert!(found.contains(&Some("d/1".into())), "{found:?}");
    assert!(found.contains(&Some("d/59".into())), "{found:?}");
    cluster
        .damage(&first, |bytes| bytes.truncate(300))
        .expect("cut");
    let cut = scrub(&t, 0).await.damage;
    assert!(cut.len() > state.damage.len() && cut.iter().any(|d| d.what.contains("cut")));
}

/// What a writer that was killed had not synced was reported as damage by each pass.
#[tokio::test(start_paused = true)]
async fn the_torn_end_of_a_lane_whose_writer_died_is_no_damage() {
    let cluster = MemoryCluster::new(6);
    let host = cluster.host("one");
    let store: Arc<dyn Store> = host.clone();
    let t = Tree::open(&store, config()).await;
    t.write("d/f", &content(1, 9000)).await;
    host.crash();
    drop(t);
    let other: Arc<dyn Store> = cluster.host("two");
    let lanes = segments(&cluster).into_iter();
    let lanes: Vec<String> = lanes.filter(|path| path.contains("/data/")).collect();
    for path in &lanes {
        other.recover(path).await.expect("closed");
        let (bytes, _) = cluster.peek(path).expect("a file");
        // The beginning of a frame, and zeros, as filesystems leave them.
        let torn = [&bytes[128..400], &[0; 700]].concat();
        cluster
            .damage(path, |bytes| bytes.extend_from_slice(&torn))
            .expect("torn");
    }
    let t = open(&cluster, config()).await;
    let state = scrub(&t, 0).await;
    assert!(state.segments > 0 && !lanes.is_empty());
    assert_eq!(state.damage, Vec::new());
    assert_eq!(
        t.read("d/f").await.expect("it was synced"),
        content(1, 9000)
    );
    // But what a file uses is damage, also at the end.
    damage(&cluster, &content(1, 2000), |bytes| bytes[7] ^= 1);
    assert!(!scrub(&t, 0).await.damage.is_empty());
}

/// No file's bytes are in a record, so its loss at the end of a segment passed for a writer's death.
#[tokio::test(start_paused = true)]
async fn a_lost_record_at_the_end_of_a_log_segment_is_damage() {
    let cluster = MemoryCluster::new(7);
    let t = open(&cluster, config()).await;
    fill(&t, 100).await;
    let log = t.volume().read(|index| {
        let rows = index.segments().map(|s| s.row.clone());
        let mut log = rows.filter(|r| r.stream == StreamId::LOG && r.state == SegmentState::Sealed);
        log.next().expect("a sealed log segment")
    });
    let path = segment::path(&log.name, t.volume().epoch());
    let last = HEADER_LEN + (log.end - log.base) as usize - 1;
    cluster
        .damage(&path, |bytes| bytes[last] ^= 1)
        .expect("damaged");
    let found = scrub(&t, 0).await.damage;
    assert_eq!((found.len(), &found[0].path), (1, &path), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_or_moved_meanwhile_is_no_damage() {
    let cluster = MemoryCluster::new(4);
    let t = Arc::new(open(&cluster, config()).await);
    fill(&t, 300).await;
    let volume = t.volume().clone();
    let slow = tokio::spawn(async move { volume.scrub().pass(&*volume, 20_000).await });
    for n in 0..300 {
        if n % 3 > 0 {
            t.remove(&format!("d/{n}")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    slow.await.expect("no panic").expect("a pass");
    let state = t.volume().scrub().state();
    assert_eq!(state.damage, Vec::new());
    let there = t.volume().read(|index| index.segments().count());
    assert!(
        (there as u64) < state.segments + 10,
        "{there} segments are left"
    );
}

#[tokio::test(start_paused = true)]
async fn in_the_background_all_is_read_once_in_its_time() {
    let cluster = MemoryCluster::new(5);
    let scrub_every = Some(Duration::from_secs(3600));
    let compact_target = 100.0; // what is there stays
    let t = open(
        &cluster,
        Config {
            scrub_every,
            compact_target,
            ..config()
        },
    )
    .await;
    fill(&t, 200).await;
    let size: u64 = t.volume().read(|i| i.segments().map(|s| s.row.size).sum());
    let before = t.volume().scrub().state().bytes;
    tokio::time::sleep(Duration::from_secs(4 * 3600)).await;
    let read = (t.volume().scrub().state().bytes - before) as f64 / size as f64;
    assert!((3.0..5.0).contains(&read), "{read} times in four periods");
    assert_eq!(t.volume().scrub().state().damage, Vec::new());
}

/// The two named different places for one damage, in different words.
#[tokio::test(start_paused = true)]
async fn fsck_says_the_same_of_the_same_damage() {
    let cluster = MemoryCluster::new(9);
    let t = open(&cluster, config()).await;
    fill(&t, 30).await;
    let path = damage(&cluster, &content(7, 700), |bytes| bytes[30] ^= 1);
    let state = scrub(&t, 0).await;
    let [found] = &state.damage[..] else {
        panic!("{:?}", state.damage);
    };
    let store: Arc<dyn Store> = cluster.host("two");
    let report = stowfs::admin::fsck(store, &Default::default())
        .await
        .unwrap();
    let damaged = report.problems.iter().find(|p| p.file.is_some()).unwrap();
    assert_eq!(damaged.path, path, "{report}");
    assert_eq!(
        (&damaged.path, damaged.offset, &damaged.what),
        (&found.path, Some(found.offset), &found.what),
        "{report}"
    );
    let text = damaged.to_string();
    assert!(
        text.ends_with("; this damages /d/7") && !text.contains("Ino("),
        "{text}"
    );
}
