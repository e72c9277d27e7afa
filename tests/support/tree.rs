//! A filesystem on a volume, by paths, as a kernel would call it.

use bytes::Bytes;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use stowfs::admin::{DeletedLine, UndeleteOptions, Undeleted, deleted, undelete};
use stowfs::base::config::Config;
use stowfs::base::{Clock, Error, Ino, Timestamp};
use stowfs::format::Attr;
use stowfs::fs::{Caller, Fs, FsOptions, SetAttr, WriteMode};
use stowfs::index::{FIRST_COOKIE, Index};
use stowfs::store::Store;
use stowfs::volume::{OpenOptions, Volume};

const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// A wall clock that goes with tokio's, which simulations pause.
struct SimulatedClock;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let since = tokio::time::Instant::now().into_std() - *BEGUN;
        1_700_000_000_000_000_000 + since.as_nanos() as Timestamp
    }
}

pub struct Tree(Arc<Fs>);

/// Bytes that are like those of no other number.
pub fn content(n: usize, len: usize) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().repeat(len.div_ceil(8).max(1));
    bytes.truncate(len.max(8));
    bytes
}

fn name(path: &str) -> Bytes {
    let name = path.rsplit('/').next().expect("a name");
    Bytes::copy_from_slice(name.as_bytes())
}

/// Small segments and blocks, so that a few files make many, and undo that keeps everything for a minute.
pub fn small() -> Config {
    Config {
        segment_size: 24 << 10,
        block_size: 4 << 10,
        small_file: 4000,
        idle_seal: Duration::from_secs(1),
        gc_grace: Duration::from_secs(60),
        gc_keep: 1e6,
        upkeep_every: Duration::from_millis(500),
        ..Config::default()
    }
}

/// The same with compaction that is eager, deletion that is fast, and no snapshots.
pub fn eager() -> Config {
    Config {
        delete_rate: 1000.0,
        compact_target: 1.2,
        compact_rate: 0,
        snapshot_bytes: 1 << 30,
        ..small()
    }
}

impl Tree {
    pub async fn open(store: &Arc<dyn Store>, config: Config) -> Tree {
        LazyLock::force(&BEGUN);
        let options = OpenOptions {
            clock: Arc::new(SimulatedClock),
            takeover: true,
            ..OpenOptions::new(config)
        };
        let volume = Volume::open(store.clone(), options).await.expect("open");
        Tree(Fs::new(volume, FsOptions::default()))
    }

    pub async fn sync(&self) {
        self.0.sync_all().await.expect("sync_all");
        let volume = self.volume();
        volume.durable(volume.last_pos()).await.expect("durable");
    }

    pub async fn remount(&mut self, store: &Arc<dyn Store>, config: Config) {
        self.0.sync_all().await.expect("sync_all");
        self.volume().shutdown().await.expect("shutdown");
        *self = Tree::open(store, config).await;
    }

    pub fn volume(&self) -> &Arc<Volume> {
        self.0.volume()
    }

    pub fn ino(&self, path: &str) -> Option<Ino> {
        self.volume().read(|index| {
            let names = path.split('/').filter(|n| !n.is_empty());
            names
                .into_iter()
                .try_fold(Ino::ROOT, |at, name| index.lookup(at, name.as_bytes()))
        })
    }

    pub fn attr(&self, path: &str) -> Option<Attr> {
        let ino = self.ino(path)?;
        self.volume().read(|index| index.attr(ino))
    }

    fn parent(&self, path: &str) -> Ino {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        self.ino(dir)
            .unwrap_or_else(|| panic!("no directory {dir}"))
    }

    /// With all directories on the way.
    pub async fn write(&self, path: &str, bytes: &[u8]) {
        for (at, _) in path.match_indices('/') {
            let dir = &path[..at];
            if self.ino(dir).is_none() {
                let made = self.0.mkdir(ROOT, self.parent(dir), name(dir), 0o755, 0);
                let ino = made.await.expect("mkdir").ino;
                self.0.forget(ino, 1);
            }
        }
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let made = self
            .0
            .create(ROOT, self.parent(path), name(path), 0o644, 0, flags);
        let (entry, fh) = made.await.expect("create");
        for (n, part) in bytes.chunks(2000).enumerate() {
            let part = Bytes::copy_from_slice(part);
            let off = n as u64 * 2000;
            let written = self.0.write(entry.ino, fh, off, part, WriteMode::default());
            written.await.expect("write");
        }
        self.0.flush(entry.ino, fh, 0).await.expect("flush");
        self.0.release(entry.ino, fh).await.expect("release");
        self.0.forget(entry.ino, 1);
    }

    pub async fn read(&self, path: &str) -> Option<Vec<u8>> {
        let ino = self.ino(path)?;
        let fh = self.0.open(ino, libc::O_RDONLY).await.expect("open").fh;
        let bytes = self.0.read(ino, fh, 0, 1 << 20).await;
        let bytes = bytes.unwrap_or_else(|e| panic!("reading {path}: {e}"));
        self.0.release(ino, fh).await.expect("release");
        Some(bytes.to_vec())
    }

    /// The kernel knows what it unlinks: the inode lives until it forgets it.
    pub async fn remove(&self, path: &str) {
        let held = self.hold(path).await;
        let is_dir = self.attr(path).expect("it exists").is_dir();
        let parent = self.parent(path);
        match is_dir {
            true => self.0.rmdir(ROOT, parent, name(path)).await.expect("rmdir"),
            false => self
                .0
                .unlink(ROOT, parent, name(path))
                .await
                .expect("unlink"),
        }
        self.let_go(held);
    }

    pub async fn remove_all(&self, path: &str) {
        let mut all = vec![path.to_string()];
        let mut at = 0;
        while at < all.len() {
            let dir = self.ino(&all[at]).expect("it exists");
            let names: Vec<Vec<u8>> = self.volume().read(|index| {
                let entries = index.readdir(dir, FIRST_COOKIE - 1);
                entries.map(|e| e.name.to_vec()).collect()
            });
            for name in names {
                let name = String::from_utf8(name).expect("a name");
                all.push(format!("{}/{name}", all[at]));
            }
            at += 1;
        }
        for path in all.iter().rev() {
            self.remove(path).await;
        }
    }

    pub async fn rename(&self, from: &str, to: &str) {
        let (a, b) = (self.parent(from), self.parent(to));
        let done = self.0.rename(ROOT, a, name(from), b, name(to), 0).await;
        done.expect("rename");
    }

    pub async fn link(&self, from: &str, to: &str) {
        let ino = self.ino(from).expect("it exists");
        let made = self.0.link(ino, self.parent(to), name(to)).await;
        self.let_go(made.expect("link").ino);
    }

    pub async fn truncate(&self, path: &str, size: u64) {
        let size = Some(size);
        let set = SetAttr {
            size,
            ..SetAttr::default()
        };
        self.set(path, set).await;
    }

    pub async fn chmod(&self, path: &str, mode: u32) {
        let mode = Some(mode);
        let set = SetAttr {
            mode,
            ..SetAttr::default()
        };
        self.set(path, set).await;
    }

    async fn set(&self, path: &str, set: SetAttr) {
        let ino = self.ino(path).expect("it exists");
        self.0.setattr(ROOT, ino, set).await.expect("setattr");
    }

    /// Someone knows the inode, until `let_go`.
    pub async fn hold(&self, path: &str) -> Ino {
        let found = self.0.lookup(self.parent(path), name(path)).await;
        found.expect("lookup").ino
    }

    pub fn let_go(&self, ino: Ino) {
        self.0.forget(ino, 1);
    }
}

pub fn at(path: &str) -> UndeleteOptions {
    UndeleteOptions {
        path: path.into(),
        ..UndeleteOptions::default()
    }
}

impl Tree {
    pub fn list(&self, path: Option<&str>) -> Vec<DeletedLine> {
        deleted(self.volume(), path).expect("a list").deleted
    }

    pub async fn undelete(&self, options: UndeleteOptions) -> Result<Undeleted, Error> {
        undelete(self.volume(), &options).await
    }

    pub async fn refused(&self, options: UndeleteOptions) -> String {
        let done = self.undelete(options).await;
        done.expect_err("it must be refused").to_string()
    }

    pub fn is_sound(&self) {
        assert_eq!(self.volume().read(Index::check), Vec::<String>::new());
    }
}
