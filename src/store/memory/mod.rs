//! A store in memory that models HDFS, not a disk, for simulations under tokio's paused clock on
//! a current-thread runtime. All chance comes from one seed. (A run replays only if the code under
//! test adds none: `tokio::select!` is `biased`, no order comes from a `HashMap`'s random state.)
//!
//! What it models: bytes since the last sync that are lost or kept as a prefix when a file is
//! recovered; files unreadable, but for complete blocks, until closed; lengths as a NameNode tells
//! them; a recovery that takes time and fences; a renamed directory in which a writer goes on but
//! can create nothing; calls that arrive late, or arrive and are never answered; hosts that crash
//! at any chosen call, or freeze and come back as zombies. Errors of a reachable store are
//! `faulty`'s task.

mod file;
mod handles;
mod host;
mod world;

pub use host::MemoryStore;

use crate::base::{Error, ErrorKind, Result, Timestamp};
use crate::store::StorePath;
use host::{Host, Life};
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use world::World;

/// When every simulation begins: 2033-05-18.
const EPOCH: Timestamp = 2_000_000_000_000_000_000;

#[derive(Clone, Debug)]
pub struct MemoryConfig {
    pub block_size: u64,
    /// Of each way of a call, there and back; drawn anew each time.
    pub latency: RangeInclusive<Duration>,
    /// Of recovering a file.
    pub recovery: RangeInclusive<Duration>,
    pub capacity: u64,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            block_size: 4096,
            latency: Duration::ZERO..=Duration::from_millis(5),
            recovery: Duration::from_millis(500)..=Duration::from_secs(4),
            capacity: 1 << 40,
        }
    }
}

impl MemoryConfig {
    fn block(&self) -> usize {
        self.block_size.max(1) as usize
    }
}

/// The state that all hosts share.
pub struct MemoryCluster {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    started: Instant,
    began_at: Timestamp,
}

struct Inner {
    world: World,
    hosts: Vec<Host>,
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.began_at + self.started.elapsed().as_nanos() as Timestamp
    }
}

impl MemoryCluster {
    pub fn new(seed: u64) -> MemoryCluster {
        MemoryCluster::with(seed, MemoryConfig::default())
    }

    pub fn with(seed: u64, config: MemoryConfig) -> MemoryCluster {
        MemoryCluster::from_world(World::new(config, seed), EPOCH)
    }

    fn from_world(world: World, began_at: Timestamp) -> MemoryCluster {
        let inner = Mutex::new(Inner {
            world,
            hosts: Vec::new(),
        });
        MemoryCluster {
            shared: Arc::new(Shared {
                inner,
                started: Instant::now(),
                began_at,
            }),
        }
    }

    /// A new host that reaches the store: one client, whose calls crash and freeze together.
    pub fn host(&self, name: &str) -> Arc<MemoryStore> {
        let mut inner = self.shared.inner.lock();
        inner.hosts.push(Host::default());
        let (index, block_size) = (inner.hosts.len() - 1, inner.world.config.block_size);
        Arc::new(MemoryStore::new(
            self.shared.clone(),
            index,
            block_size,
            name,
        ))
    }

    /// The store as it is now, with none of the hosts: as if all had crashed at this moment and
    /// nothing of theirs was still on the way. Goes its own way from here on, by its own seed.
    pub fn fork(&self, seed: u64) -> MemoryCluster {
        let mut world = self.shared.inner.lock().world.clone();
        world.random = crate::base::Random::new(seed);
        MemoryCluster::from_world(world, self.shared.now())
    }

    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }

    /// All bytes ever appended to a file and not lost yet, and how many of them are synced.
    pub fn peek(&self, path: &StorePath) -> Result<(Vec<u8>, usize)> {
        let file = self.shared.inner.lock().world.file(path)?.clone();
        Ok((file.bytes, file.synced))
    }

    /// Changes the bytes of a closed file behind everybody's back.
    pub fn damage(&self, path: &StorePath, how: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut inner = self.shared.inner.lock();
        let file = inner.world.file(path)?;
        if file.state != file::State::Closed {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{path} is being written"),
            ));
        }
        how(&mut file.bytes);
        file.synced = file.bytes.len();
        Ok(())
    }

    /// Every path on the store, directories with a trailing slash, in order.
    pub fn tree(&self) -> Vec<String> {
        self.shared.inner.lock().world.tree()
    }
}

/// What a crash at a chosen call does with that call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastCall {
    /// It never reached the store.
    Lost,
    /// It is carried out, and nobody is told.
    Done,
}

impl MemoryStore {
    /// The process dies: no call of this host is ever answered again, and of those under way
    /// some are still carried out.
    pub fn crash(&self) {
        self.set_life(Life::Dead);
    }

    /// Crashes at the `n`-th call from the start of this host (the first is 1).
    pub fn crash_at(&self, n: u64, last: LastCall) {
        self.with_host(|host| host.crash_at = Some((n, last)));
    }

    /// Cuts the host off: calls neither arrive nor are answered until `thaw`; then they all are.
    pub fn freeze(&self) {
        self.set_life(Life::Frozen);
    }

    pub fn thaw(&self) {
        self.set_life(Life::Up);
    }

    /// The calls that this host began.
    pub fn calls(&self) -> u64 {
        self.with_host(|host| host.calls)
    }

    pub fn is_crashed(&self) -> bool {
        self.with_host(|host| *host.life.borrow() == Life::Dead)
    }

    /// Returns when the host has crashed: what a simulation races its workload against.
    pub async fn crashed(&self) {
        self.until(|life| life == Life::Dead).await;
    }
}
