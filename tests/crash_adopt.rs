//! Crashes at every call of the store while plain files are taken in, changed, packed and deleted,
//! checked against a model.
//!
//! After a crash the state must be what some prefix of the changes made, with every change that was
//! acknowledged; no plain file may be gone that a file still needs (or its bytes could not be read); and in
//! the end no plain file may be left that nothing needs, but for those that somebody else has changed.
//!
//! `STOWFS_SEED=n` replays one seed; `STOWFS_SEEDS=n` sets how many are run.

#[path = "support/seeds.rs"]
mod seeds;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Error, Ino};
use stowfs::format::{Attr, DataFrame, Row};
use stowfs::store::Store;
use stowfs::store::memory::{LastCall, MemoryCluster, MemoryStore};
use stowfs::upkeep::compact::CompactOptions;
use stowfs::upkeep::pack::pack;
use stowfs::volume::{OpenOptions, Volume};

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Write(String, u64, Bytes),
    /// To a name in the root directory.
    Rename(String, String),
    Unlink(String),
    /// A plain file is taken in.
    Adopt(String, Bytes),
}

fn step(files: &mut Files, op: &Op) {
    match op {
        Op::Write(name, off, data) => {
            let file = files.entry(name.clone()).or_default();
            let end = *off as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[*off as usize..end].copy_from_slice(data);
        }
        Op::Rename(from, to) => {
            let file = files.remove(from).expect("it exists");
            files.insert(to.clone(), file);
        }
        Op::Unlink(name) => drop(files.remove(name)),
        Op::Adopt(name, data) => drop(files.insert(name.clone(), data.to_vec())),
    }
}

#[derive(Default)]
struct Model {
    start: Files,
    now: Files,
    ops: Vec<(u64, Op)>,
    acknowledged: u64,
}

impl Model {
    fn at(start: Files) -> Model {
        Model {
            now: start.clone(),
            start,
            ..Model::default()
        }
    }

    fn add(&mut self, pos: u64, op: Op) {
        step(&mut self.now, &op);
        self.ops.push((pos, op));
    }

    fn explains(&self, found: &Files) -> bool {
        let mut files = self.start.clone();
        for (pos, op) in &self.ops {
            if *pos > self.acknowledged && files == *found {
                return true;
            }
            step(&mut files, op);
        }
        files == *found
    }
}

fn options() -> OpenOptions {
    OpenOptions::new(Config {
        segment_size: 24 << 10,
        block_size: 4 << 10,
        op_timeout: Duration::from_secs(30),
        idle_seal: Duration::from_secs(3),
        gc_grace: Duration::from_secs(1),
        gc_keep: 0.1,
        delete_rate: 1000.0,
        compact_target: 1.2,
        compact_rate: 0,
        snapshot_bytes: 4 << 10,
        upkeep_every: Duration::from_millis(500),
        ..Config::default()
    })
}

/// Every file below the root, by path, with its bytes.
async fn files_of(volume: &Volume) -> Files {
    let mut files = Files::new();
    let mut dirs = vec![(String::new(), Ino::ROOT)];
    while let Some((at, dir)) = dirs.pop() {
        let entries: Vec<(String, Ino)> = volume.read(|i| {
            let named = i.readdir(dir, 0);
            named
                .map(|e| {
                    let name = String::from_utf8_lossy(e.name);
                    (format!("{at}{name}"), e.ino)
                })
                .collect()
        });
        for (path, ino) in entries {
            let _reading = volume.reading();
            let (attr, extents) = volume.read(|i| {
                let attr = i.attr(ino).expect("an entry's inode");
                (attr, i.extents(ino, 0, u64::MAX))
            });
            if attr.is_dir() {
                dirs.push((format!("{path}/"), ino));
                continue;
            }
            let mut bytes = vec![0; attr.size as usize];
            for e in extents {
                let got = volume.fetch(&e).await;
                let got = got.unwrap_or_else(|e| panic!("{path} must be readable: {e}"));
                bytes[e.off as usize..e.end() as usize].copy_from_slice(&got);
            }
            files.insert(path, bytes);
        }
    }
    files
}

fn commit(volume: &Volume, op: &Op) -> Result<u64, Error> {
    let fresh = volume.new_ino()?;
    let ((), pos) = volume.change(|index, change| {
        let place = |path: &str| {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let mut dirs = dir.split('/').filter(|d| !d.is_empty());
            let parent = dirs.try_fold(Ino::ROOT, |at, d| index.lookup(at, d.as_bytes()));
            (parent.expect("a directory"), name.as_bytes().to_vec())
        };
        let find = |path: &str| {
            let (parent, name) = place(path);
            index.lookup(parent, &name)
        };
        let gone = |path: &str| {
            let (parent, name) = place(path);
            Row::NoEntry { parent, name }
        };
        let entry = |path: &str, ino| {
            let (parent, name) = place(path);
            Row::Entry { parent, name, ino }
        };
        match op {
            Op::Write(path, off, data) => {
                let ino = find(path).unwrap_or(fresh);
                let len = data.len() as u64;
                let frame = DataFrame::new(ino, *off, data.clone(), path.clone().into());
                let extents = vec![change.data(frame)];
                let size = index.attr(ino).map_or(0, |a| a.size).max(off + len);
                let attr = Attr {
                    mode: libc::S_IFREG,
                    nlink: 1,
                    size,
                    ..Attr::default()
                };
                change.row(Row::Inode { ino, attr });
                change.row(entry(path, ino));
                change.row(Row::Extents {
                    ino,
                    off: *off,
                    len,
                    extents,
                });
            }
            Op::Rename(from, to) => {
                if let Some(ino) = find(to) {
                    change.row(Row::Free { ino });
                }
                change.row(gone(from));
                change.row(entry(to, find(from).expect("it exists")));
            }
            Op::Unlink(path) => {
                let ino = find(path).expect("it exists");
                change.row(gone(path));
                change.row(Row::Free { ino });
            }
            Op::Adopt(..) => unreachable!("done by adoption"),
        }
        Ok::<_, Error>(())
    })?;
    Ok(pos)
}

/// The plain files, and what the world outside does with them.
struct Outside {
    store: Arc<dyn Store>,
    count: u64,
    /// Put there, and perhaps never taken in.
    strange: BTreeSet<String>,
}

impl Outside {
    async fn new(cluster: &MemoryCluster, rng: &mut StdRng) -> Outside {
        let mut outside = Outside {
            store: cluster.host("outside"),
            count: 0,
            strange: BTreeSet::new(),
        };
        outside.store.mkdir("old/deep").await.expect("a directory");
        for i in 0..6 {
            let dir = ["", "old/", "old/deep/"][i % 3];
            outside.put(dir, rng).await;
        }
        // The first mount takes them in.
        outside.strange.clear();
        outside
    }

    async fn put(&mut self, dir: &str, rng: &mut StdRng) -> (String, Bytes) {
        self.count += 1;
        let path = format!("{dir}p{}", self.count);
        let len = *[0, 700, 5000, 9000].iter().choose(rng).expect("one");
        let fill = self.count as u8;
        let data: Bytes = (0..len).map(|k| fill.wrapping_add(k as u8)).collect();
        // Before: a crash of the mount cuts this off, but not the call.
        self.strange.insert(path.clone());
        self.store.put(&path, data.clone()).await.expect("put");
        (path, data)
    }
}

fn choose(rng: &mut StdRng, files: &Files) -> Option<Op> {
    let any = files.keys().choose(rng).cloned();
    let name = any.unwrap_or("w".into());
    Some(match rng.random_range(0..10) {
        0..4 if files.contains_key(&name) => Op::Unlink(name),
        4 if files.contains_key(&name) => {
            let to = format!("r{}", rng.random_range(0..3));
            if to == name {
                return None;
            }
            Op::Rename(name, to)
        }
        _ => {
            let len = rng.random_range(1..3000);
            let data: Vec<u8> = (0..len).map(|k| k as u8 ^ 0x5a).collect();
            Op::Write(name, rng.random_range(0..4000), data.into())
        }
    })
}

async fn work(volume: &Arc<Volume>, model: &Mutex<Model>, outside: &mut Outside, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..rng.random_range(4..16) {
        match rng.random_range(0..10) {
            0 => {
                let options = CompactOptions {
                    target: 1.2,
                    rate: 0,
                    smallest_segment: 4 << 20,
                    largest_segment: u64::MAX,
                };
                if pack(&**volume, b"", &options, &mut |_| ()).await.is_err() {
                    return;
                }
            }
            1 => {
                let (path, data) = outside.put("", &mut rng).await;
                // Whether a crash comes before or after it is open.
                model.lock().add(u64::MAX, Op::Adopt(path.clone(), data));
                let Ok(plan) = volume.plan_adoption(&path).await else {
                    return;
                };
                assert_eq!(plan.files, 1, "{:?}", plan.refused);
                if volume.adopt(&plan).await.is_err() {
                    return;
                }
                let mut model = model.lock();
                let pos = volume.last_pos();
                if let Some(last) = model.ops.last_mut() {
                    last.0 = pos;
                }
                model.acknowledged = model.acknowledged.max(pos);
                outside.strange.remove(&path);
            }
            2..4 => tokio::time::sleep(Duration::from_millis(rng.random_range(0..6000))).await,
            _ => {
                let Some(op) = choose(&mut rng, &model.lock().now) else {
                    continue;
                };
                let Ok(pos) = commit(volume, &op) else {
                    return;
                };
                model.lock().add(pos, op);
                if rng.random_bool(0.4) {
                    if volume.durable(pos).await.is_err() {
                        return;
                    }
                    let mut model = model.lock();
                    model.acknowledged = model.acknowledged.max(pos);
                }
            }
        }
    }
}

async fn until_crash<T>(host: &MemoryStore, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = host.crashed() => None,
        done = work => Some(done),
    }
}

/// Returns how many calls the first host made.
async fn run(seed: u64, crash_at: Option<(u64, LastCall)>) -> u64 {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 0xad0);
    let mut outside = Outside::new(&cluster, &mut rng).await;
    let mut model: Option<Model> = None;
    let mut first_calls = 0;
    for life in 0..3 {
        let host = cluster.host(&format!("h{life}"));
        match crash_at {
            Some((n, last)) if life == 0 => host.crash_at(n, last),
            _ if life < 2 && rng.random_bool(0.8) => {
                host.crash_at(rng.random_range(1..200), LastCall::Done);
            }
            _ => {}
        }
        let store: Arc<dyn Store> = host.clone();
        let opened = until_crash(&host, Volume::open(store, options())).await;
        let Some(volume) = opened.map(|o| o.unwrap_or_else(|e| panic!("opening: {e}"))) else {
            continue;
        };
        let Some(found) = until_crash(&host, files_of(&volume)).await else {
            continue;
        };
        match &model {
            Some(model) => assert!(model.explains(&found), "life {life}: lost or torn"),
            None => assert_eq!(found.len(), 6, "all plain files are taken in"),
        }
        let bad = volume.read(|i| i.check());
        assert_eq!(bad, Vec::<String>::new(), "life {life}");
        let shared = Mutex::new(Model::at(found));
        until_crash(&host, work(&volume, &shared, &mut outside, seed * 3 + life)).await;
        model = Some(shared.into_inner());
        host.crash();
        if life == 0 {
            first_calls = host.calls();
        }
    }
    the_end(&cluster, model, outside).await;
    first_calls
}

/// Nothing is lost, and when all files are removed, all plain files go.
async fn the_end(cluster: &MemoryCluster, model: Option<Model>, outside: Outside) {
    let host: Arc<dyn Store> = cluster.host("last");
    let volume = Volume::open(host, options()).await.expect("the last mount");
    let found = files_of(&volume).await;
    if let Some(model) = model {
        assert!(model.explains(&found), "the last mount: lost or torn");
    }
    // A row may remain of a file that was packed and deleted, if the record of that is lost (seed 62).
    let is_plain = volume.read(|i| {
        let path = found.keys().find(|path| path.starts_with('p'))?;
        let is_its_own = |stream| {
            let foreign = i.foreign(stream);
            foreign.is_some_and(|f| f.path == path.as_bytes())
        };
        let streams = i.foreign_of(i.lookup(Ino::ROOT, path.as_bytes())?);
        streams.into_iter().any(is_its_own).then(|| path.clone())
    });
    if let Some(path) = &is_plain {
        outside
            .store
            .set_attr(path, 0o600, 1)
            .await
            .expect("a change");
    }
    for path in found.keys() {
        commit(&volume, &Op::Unlink(path.clone())).expect("unlinked");
    }
    remove_directories(&volume);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let bad = volume.read(|i| i.check());
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(volume.read(|i| i.foreign_files().count()), 0);
    let left: BTreeSet<String> = cluster.tree().into_iter().collect();
    let left: BTreeSet<&str> = left
        .iter()
        .filter(|path| !path.starts_with(".stowfs"))
        .map(String::as_str)
        .collect();
    let mut may: BTreeSet<&str> = outside.strange.iter().map(String::as_str).collect();
    if let Some(path) = &is_plain {
        assert!(left.contains(&path[..]), "{path} is somebody else's now");
        may.insert(path);
    }
    let more: Vec<_> = left.difference(&may).collect();
    assert!(more.is_empty(), "plain files that nothing needs: {more:?}");
    volume.shutdown().await.expect("a clean shutdown");
}

fn remove_directories(volume: &Volume) {
    let done = volume.change(|index, change| {
        let old = index.lookup(Ino::ROOT, b"old").expect("old");
        let deep = index.lookup(old, b"deep").expect("old/deep");
        for (parent, name, ino) in [(old, "deep", deep), (Ino::ROOT, "old", old)] {
            let name = name.into();
            change.row(Row::NoEntry { parent, name });
            change.row(Row::Free { ino });
        }
        let mut root = index.attr(Ino::ROOT).expect("the root");
        root.nlink -= 1;
        change.row(Row::Inode {
            ino: Ino::ROOT,
            attr: root,
        });
        Ok::<_, Error>(())
    });
    done.expect("removed");
}

#[test]
fn a_crash_at_any_time_loses_no_plain_file_that_is_needed_and_keeps_none_that_is_not() {
    seeds::each("adopt", 800, |seed| async move {
        run(seed, None).await;
    });
}

#[test]
fn a_crash_at_every_call_of_an_adoption() {
    seeds::each("adopt-at-every-call", 5, |seed| async move {
        let calls = run(seed, None).await;
        for n in 1..=calls {
            for last in [LastCall::Lost, LastCall::Done] {
                run(seed, Some((n, last))).await;
            }
        }
    });
}
