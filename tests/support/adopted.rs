//! A mount over plain files, on a store in memory.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::fs::{Caller, Errno, Fh, Fs, FsOptions};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::memory::{MemoryCluster, MemoryStore};
use stowfs::volume::{OpenOptions, Volume};

pub const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

pub fn options() -> OpenOptions {
    OpenOptions {
        uid: 7,
        gid: 8,
        ..OpenOptions::new(Config {
            segment_size: 64 << 10,
            block_size: 4 << 10,
            gc_grace: Duration::from_secs(20),
            delete_rate: 1000.0,
            upkeep_every: Duration::from_millis(500),
            ..Config::default()
        })
    }
}

pub fn content(i: u64, len: usize) -> Bytes {
    (0..len)
        .map(|k| (i as usize * 131 + k * 7) as u8)
        .collect::<Vec<_>>()
        .into()
}

pub async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

pub struct World {
    pub cluster: MemoryCluster,
    /// The mount's way to the store.
    pub host: Arc<MemoryStore>,
    /// Somebody else's.
    pub other: Arc<dyn Store>,
    pub fs: Arc<Fs>,
}

impl World {
    /// A mount over `job/shared/{0..4}` and `job/chk-1/_metadata` and an empty file.
    pub async fn new(seed: u64) -> World {
        let cluster = MemoryCluster::new(seed);
        let other: Arc<dyn Store> = cluster.host("other");
        other.mkdir("job/shared").await.unwrap();
        other.mkdir("job/chk-1").await.unwrap();
        for i in 0..4 {
            let path = format!("job/shared/{i}");
            other.put(&path, content(i, 5000)).await.unwrap();
        }
        other
            .put("job/chk-1/_metadata", content(9, 300))
            .await
            .unwrap();
        other.put("job/chk-1/empty", Bytes::new()).await.unwrap();
        let host = cluster.host("mount");
        let volume = Volume::open(host.clone(), options()).await.unwrap();
        let fs = Fs::new(volume, FsOptions::default());
        World {
            cluster,
            host,
            other,
            fs,
        }
    }

    pub fn volume(&self) -> &Arc<Volume> {
        self.fs.volume()
    }

    pub fn find(&self, path: &str) -> Option<Ino> {
        let mut names = path.split('/');
        self.volume()
            .read(|index| names.try_fold(Ino::ROOT, |dir, name| index.lookup(dir, name.as_bytes())))
    }

    pub fn ino(&self, path: &str) -> Ino {
        self.find(path).unwrap_or_else(|| panic!("no {path}"))
    }

    pub async fn open(&self, path: &str, flags: i32) -> Result<Fh, Errno> {
        Ok(self.fs.open(self.ino(path), flags).await?.fh)
    }

    pub async fn read(&self, path: &str) -> Result<Bytes, Errno> {
        let fh = self.open(path, libc::O_RDONLY).await?;
        let bytes = self.fs.read(self.ino(path), fh, 0, 1 << 20).await;
        self.fs.release(self.ino(path), fh).await?;
        bytes
    }

    pub async fn unlink(&self, path: &str) {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.fs.unlink(ROOT, self.ino(dir), name).await.unwrap();
    }

    pub async fn is_on_store(&self, path: &str) -> bool {
        self.other.stat(path).await.is_ok()
    }

    pub fn check(&self) {
        let bad = self.volume().read(Index::check);
        assert_eq!(bad, Vec::<String>::new());
    }
}
