//! Random deletions, renames, remounts and crashes against a simple model: what undo lists comes back
//! with the bytes that it had, whatever garbage collection, compaction and snapshots do.
//!
//! `STOWFS_SEED=n` replays one seed; `STOWFS_SEEDS=n` sets how many are run.

#[path = "support/seeds.rs"]
mod seeds;
#[path = "support/tree.rs"]
#[allow(dead_code)]
mod tree;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stowfs::admin::{DeletedLine, UndeleteOptions};
use stowfs::base::config::Config;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use tree::{Tree, at, eager as config};

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// What the model knows of a path: every content that was deleted there, the last one last.
type Gone = BTreeMap<String, Vec<Vec<u8>>>;

struct Run {
    t: Tree,
    rng: StdRng,
    files: BTreeMap<String, Vec<u8>>,
    gone: Gone,
    /// Deletions that a remount may have forgotten.
    uncertain: bool,
    next: usize,
}

impl Run {
    fn any(&mut self) -> Option<String> {
        let all: Vec<String> = self.files.keys().cloned().collect();
        all.choose(&mut self.rng).cloned()
    }

    fn deleted(&mut self, path: &str) {
        let content = self.files.remove(path).expect("a file");
        self.gone.entry(path.into()).or_default().push(content);
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..20) {
            0..8 => {
                self.next += 1;
                let size = *[1, 50, 700, 3000, 12_000]
                    .choose(&mut self.rng)
                    .expect("not empty");
                let content = tree::content(self.next, size);
                let dir = self.rng.random_range(0..4);
                let path = format!("d{dir}/{}", self.rng.random_range(0..12));
                if !self.files.contains_key(&path) {
                    self.t.write(&path, &content).await;
                    self.files.insert(path, content);
                }
            }
            8..12 => {
                if let Some(path) = self.any() {
                    self.t.remove(&path).await;
                    self.deleted(&path);
                }
            }
            12..14 => {
                let (from, to) = (self.any(), self.any());
                if let (Some(from), Some(to)) = (from, to)
                    && from != to
                {
                    self.t.rename(&from, &to).await;
                    self.deleted(&to);
                    let content = self.files.remove(&from).expect("a file");
                    self.files.insert(to, content);
                }
            }
            14 => {
                let dir = format!("d{}", self.rng.random_range(0..4));
                if self.t.ino(&dir).is_some() {
                    self.t.remove_all(&dir).await;
                    let all: Vec<String> = self.files.keys().cloned().collect();
                    for path in all.iter().filter(|p| p.starts_with(&format!("{dir}/"))) {
                        self.deleted(path);
                    }
                }
            }
            15..17 => self.bring_back().await,
            _ => pass(self.rng.random_range(0..8)).await,
        }
    }

    async fn bring_back(&mut self) {
        let list = self.t.list(Some("/"));
        let files: Vec<DeletedLine> = list.into_iter().filter(|l| l.kind == "file").collect();
        let Some(line) = files.choose(&mut self.rng) else {
            return;
        };
        // Of one path the last one counts.
        let last = files.iter().rfind(|l| l.path == line.path).expect("itself");
        self.next += 1;
        let to = format!("back/{}", self.next);
        let options = UndeleteOptions {
            to: Some(to.clone()),
            ..at(&last.path)
        };
        match self.t.undelete(options).await {
            Ok(_) => {
                let found = self.t.read(&to).await.expect("it is back");
                let known = &self.gone[&last.path];
                let right = match self.uncertain {
                    true => known.contains(&found),
                    false => known.last() == Some(&found),
                };
                assert!(right, "{} came back with other bytes", last.path);
                self.files.insert(to, found);
            }
            Err(e) => assert!(last.lost.is_some(), "{last:?}: {e}"),
        }
    }

    async fn verify(&self) {
        self.t.is_sound();
        for (path, content) in &self.files {
            let found = self.t.read(path).await;
            assert!(found.as_ref() == Some(content), "{path} is not what it was");
        }
    }
}

async fn run(seed: u64) {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let config = Config {
        gc_grace: Duration::from_secs(rng.random_range(1..40)),
        gc_keep: *[0.0, 0.3, 1e6].choose(&mut rng).expect("not empty"),
        snapshot_bytes: *[4 << 10, 1 << 30].choose(&mut rng).expect("not empty"),
        ..config()
    };
    let kept = config.gc_keep > 1.0;
    let mut host = cluster.host("first");
    let t = Tree::open(&(host.clone() as Arc<dyn Store>), config.clone()).await;
    let mut run = Run {
        t,
        rng,
        files: BTreeMap::new(),
        gone: Gone::new(),
        uncertain: false,
        next: 0,
    };
    for life in 0..3 {
        for _ in 0..60 {
            run.step().await;
            if run.rng.random_bool(0.05) {
                run.verify().await;
            }
        }
        run.verify().await;
        if kept && !run.uncertain {
            // All that was deleted is remembered, and what is younger than the grace is whole.
            let list = run.t.list(Some("/"));
            let files = list.iter().filter(|l| l.kind == "file").count();
            assert_eq!(files, run.gone.values().map(Vec::len).sum::<usize>());
            for line in list.iter().filter(|l| l.seconds_left > 0.0) {
                assert_eq!(line.lost, None, "{line:?}");
            }
        }
        run.t.sync().await;
        let next = cluster.host(&format!("life {life}"));
        if run.rng.random() {
            host.crash();
            run.t = Tree::open(&(next.clone() as Arc<dyn Store>), config.clone()).await;
        } else {
            run.t
                .remount(&(next.clone() as Arc<dyn Store>), config.clone())
                .await;
        }
        host = next;
        // Without a snapshot the whole log is read.
        run.uncertain |= config.snapshot_bytes < 1 << 20;
        run.verify().await;
    }
}

#[test]
fn random_deletions_come_back_as_they_were() {
    seeds::each("undo", 150, run);
}
