//! Replays a trace against the real filesystem and volume, on the store in memory, in simulated
//! time, with real bytes.

use super::meter::{Counts, Meter, Metered};
use super::trace::{Event, Trace, What};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stowfs::base::config::Config;
use stowfs::base::{Clock, Ino, StreamId, Timestamp};
use stowfs::format::{MAX_PAYLOAD, SegmentState};
use stowfs::fs::{Caller, Fh, Fs, FsOptions, WriteMode};
use stowfs::index::{Index, SegmentUse};
use stowfs::segment;
use stowfs::store::Store;
use stowfs::store::memory::{MemoryCluster, MemoryConfig};
use stowfs::upkeep::duty::Duty;
use stowfs::volume::{OpenOptions, Volume, duty_options};
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: f64,
    pub keep: f64,
    pub grace: Duration,
    pub every: Duration,
    /// All sizes are divided by this: of files, segments, blocks and buffers.
    pub scale: u64,
}

/// Bytes on the store at one moment. `live + dead + log + grace` are all segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub at: u64,
    pub live: u64,
    /// Dead bytes in segments that compaction may empty, and in open ones.
    pub dead: u64,
    /// Dead bytes in the log that a kept snapshot still needs.
    pub log: u64,
    /// Segments that nothing refers to any more, in their grace period or about to be deleted.
    pub grace: u64,
    pub segments: u64,
    /// The size at which segments are sealed.
    pub sealed_at: u64,
}

impl Sample {
    pub fn space(&self) -> f64 {
        (self.live + self.dead + self.log) as f64 / self.live.max(1) as f64
    }

    pub fn grace_share(&self) -> f64 {
        self.grace as f64 / self.live.max(1) as f64
    }
}

pub struct Replay {
    pub samples: Vec<Sample>,
    pub user: u64,
    pub files: u64,
    pub counts: Counts,
    pub copied: u64,
}

struct Simulated {
    began: Instant,
}

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        2_000_000_000_000_000_000 + self.began.elapsed().as_nanos() as Timestamp
    }
}

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

struct Player {
    fs: Arc<Fs>,
    dirs: HashMap<String, Ino>,
    open: HashMap<u64, (Ino, Fh)>,
    closing: HashMap<u64, JoinHandle<()>>,
    /// Files that were closed.
    inos: HashMap<u64, Ino>,
    zeros: Bytes,
    user: u64,
    written: u64,
}

pub fn replay(trace: &Trace, settings: &Settings) -> Replay {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(play(trace, settings))
}

async fn mount(settings: &Settings, meter: &Arc<Meter>) -> Arc<Volume> {
    let defaults = Config::default();
    let by = settings.scale;
    let config = Config {
        segment_size: defaults.segment_size / by,
        block_size: defaults.block_size / by,
        small_file: defaults.small_file / by,
        // As on a local store.
        lasting_file: Some(defaults.small_file / by / 16),
        snapshot_bytes: defaults.snapshot_bytes / by,
        compact_rate: 0,
        compact_target: settings.target,
        gc_keep: settings.keep,
        gc_grace: settings.grace,
        delete_rate: 1e6,
        delete_bytes_rate: 0,
        // The bench does it, with segments to scale.
        upkeep_every: Duration::from_secs(1 << 30),
        ..defaults
    };
    let cluster = MemoryCluster::with(
        1,
        MemoryConfig {
            block_size: config.block_size,
            latency: Duration::from_micros(200)..=Duration::from_millis(2),
            ..MemoryConfig::default()
        },
    );
    let store: Arc<dyn Store> = Arc::new(Metered {
        inner: cluster.host("bench"),
        meter: meter.clone(),
    });
    let options = OpenOptions {
        config,
        clock: Arc::new(Simulated {
            began: Instant::now(),
        }),
        host: "bench".into(),
        pid: 1,
        lock_dir: None,
        takeover: false,
        read_only: false,
        uid: 0,
        gid: 0,
    };
    Volume::open(store, options).await.expect("a mount")
}

async fn play(trace: &Trace, settings: &Settings) -> Replay {
    let meter = Arc::new(Meter::default());
    let volume = mount(settings, &meter).await;
    let fs = Fs::new(volume.clone(), FsOptions::default());
    let mut player = Player {
        fs,
        dirs: HashMap::from([(String::new(), Ino::ROOT)]),
        open: HashMap::new(),
        closing: HashMap::new(),
        inos: HashMap::new(),
        zeros: vec![0; MAX_PAYLOAD].into(),
        user: 0,
        written: 0,
    };
    let mut options = duty_options(&volume);
    options.every = settings.every;
    options.compact.smallest_segment = trace.smallest_segment;
    let upkeep = tokio::spawn(Arc::new(Duty::new(options, 0)).run(Arc::downgrade(&volume)));
    let began = Instant::now();
    let (mut samples, mut next) = (Vec::new(), 1000);
    for event in &trace.events {
        while next < event.at {
            tokio::time::sleep_until(began + Duration::from_millis(next)).await;
            samples.push(sample(&volume, &meter, next));
            next += 1000;
        }
        tokio::time::sleep_until(began + Duration::from_millis(event.at)).await;
        player.event(event).await;
    }
    upkeep.abort();
    assert!(!volume.is_fenced(), "the volume has failed");
    Replay {
        samples,
        user: player.user,
        files: player.written,
        counts: meter.counts(),
        copied: volume.counters().copied.load(Ordering::Relaxed),
    }
}

fn sample(volume: &Volume, meter: &Meter, at: u64) -> Sample {
    let mut sample = Sample {
        at,
        sealed_at: volume.counters().small_segment.load(Ordering::Relaxed),
        ..Sample::default()
    };
    let mut add = |index: &Index, s: &SegmentUse| {
        let open = s.row.state == SegmentState::Open || s.row.size == 0;
        let size = match open {
            true => meter.len(&segment::path(&s.row.name, volume.epoch())),
            false => s.row.size,
        };
        sample.segments += 1;
        sample.live += s.live.bytes;
        let dead = size.saturating_sub(s.live.bytes);
        let log_needs_it = s.row.stream == StreamId::LOG && s.row.end > index.log_needed();
        match () {
            _ if !open && log_needs_it => sample.log += dead,
            _ if !open && s.live.extents == 0 => sample.grace += dead,
            _ => sample.dead += dead,
        }
    };
    volume.read(|index| index.segments().for_each(|s| add(index, s)));
    sample
}

fn split(path: &str) -> (&str, Bytes) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (dir, Bytes::copy_from_slice(name.as_bytes()))
}

impl Player {
    fn dir(&self, path: &str) -> Ino {
        let dir = self.dirs.get(path);
        *dir.unwrap_or_else(|| panic!("the trace uses {path} before it makes it"))
    }

    async fn event(&mut self, event: &Event) {
        match &event.what {
            What::Mkdir(path) => {
                let (dir, name) = split(path);
                let made = self.fs.mkdir(WHO, self.dir(dir), name, 0o755, 0).await;
                self.dirs.insert(path.clone(), made.expect("mkdir").ino);
            }
            What::Rmdir(path) => {
                let (dir, name) = split(path);
                // A recorded job may try while there is something in it.
                if self.fs.rmdir(WHO, self.dir(dir), name).await.is_ok()
                    && let Some(ino) = self.dirs.remove(path)
                {
                    self.fs.forget(ino, 1);
                }
            }
            What::Create(file, path) => {
                let (dir, name) = split(path);
                let flags = libc::O_WRONLY;
                let made = self.fs.create(WHO, self.dir(dir), name, 0o644, 0, flags);
                let (entry, fh) = made.await.expect("create");
                self.open.insert(*file, (entry.ino, fh));
            }
            What::Close(file, size) => self.close(*file, *size),
            What::Rename(from, to) => {
                self.settle().await;
                let ((dir, name), (todir, toname)) = (split(from), split(to));
                let (dir, todir) = (self.dir(dir), self.dir(todir));
                let done = self.fs.rename(WHO, dir, name, todir, toname, 0).await;
                done.expect("rename");
            }
            What::Unlink(file, path) => {
                if let Some(closing) = self.closing.remove(file) {
                    closing.await.expect("a close");
                }
                let (dir, name) = split(path);
                let done = self.fs.unlink(WHO, self.dir(dir), name).await;
                done.expect("unlink");
                if let Some(ino) = self.inos.remove(file) {
                    self.fs.forget(ino, 1);
                }
            }
        }
    }

    /// Writes a file and closes it, beside others.
    fn close(&mut self, file: u64, size: u64) {
        let Some((ino, fh)) = self.open.remove(&file) else {
            return;
        };
        self.inos.insert(file, ino);
        self.user += size;
        self.written += 1;
        let (fs, zeros) = (self.fs.clone(), self.zeros.clone());
        let task = async move {
            let mut off = 0;
            while off < size {
                let n = (size - off).min(zeros.len() as u64);
                let part = zeros.slice(..n as usize);
                let done = fs.write(ino, fh, off, part, WriteMode::default()).await;
                done.expect("write");
                off += n;
            }
            fs.flush(ino, fh, 0).await.expect("close");
            fs.release(ino, fh).await.expect("release");
        };
        self.closing.insert(file, tokio::spawn(task));
    }

    /// Waits for all closes under way.
    async fn settle(&mut self) {
        for (_, closing) in self.closing.drain() {
            closing.await.expect("a close");
        }
    }
}
