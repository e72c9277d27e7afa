//! Start-up: take the root over, read the log, begin an epoch. Every step may be repeated.

use super::host::VolumeHost;
use super::owner::{self, Claimant};
use super::{Volume, adopt, root, watch};
use crate::base::config::Config;
use crate::base::error::Context;
use crate::base::{
    Clock, Epoch, Error, ErrorKind, Ino, Pos, Result, SegmentName, SessionId, StreamId, SystemClock,
};
use crate::format::segment::HEADER_LEN;
use crate::format::{Attr, Origin, Row, SegmentRow, SegmentState};
use crate::index::Index;
use crate::log::{self, LogEnd, LogFile};
use crate::read::FrameReader;
use crate::segment::{self, DATA_DIR, LOG_DIR};
use crate::store::{OpenVisibility, Store};
use crate::stream::{Identity, Stream, StreamOptions};
use crate::upkeep::lives::Lives;
use futures::{StreamExt, TryStreamExt};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub struct OpenOptions {
    pub config: Config,
    pub clock: Arc<dyn Clock>,
    /// Names this host and process to others.
    pub host: String,
    pub pid: u32,
    /// Makes the lock of this host for a root; None where hosts are simulated.
    pub lock_dir: Option<std::path::PathBuf>,
    pub takeover: bool,
    pub read_only: bool,
    /// Owner of a root directory that is made now.
    pub uid: u32,
    pub gid: u32,
}

impl OpenOptions {
    /// This process on an unnamed host, writing, without a lock on the host; nothing is taken over.
    pub fn new(config: Config) -> OpenOptions {
        OpenOptions {
            config,
            clock: Arc::new(SystemClock),
            host: "localhost".into(),
            pid: std::process::id(),
            lock_dir: None,
            takeover: false,
            read_only: false,
            uid: 0,
            gid: 0,
        }
    }
}

/// What goes on in an open root by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Plain files are registered if that was never done, and upkeep runs: a mount.
    Serving,
    /// A command opened it for one purpose.
    Nothing,
}

/// Files of dead sessions that are closed at the same time.
const CLOSE_AT_ONCE: usize = 16;

/// What start-up found and did.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub created: bool,
    pub records: u64,
    pub log_segments: usize,
    pub files: usize,
    pub adopted: u64,
    pub took: Duration,
}

impl Volume {
    pub async fn open(store: Arc<dyn Store>, options: OpenOptions) -> Result<Arc<Volume>> {
        Volume::open_as_is(store, options, Begin::Serving).await
    }

    /// Opens a root, and does no more in it than is asked for.
    pub async fn open_as_is(
        store: Arc<dyn Store>,
        options: OpenOptions,
        begin: Begin,
    ) -> Result<Arc<Volume>> {
        let started = Instant::now();
        let (format, created) = root::open_or_create(&*store, &*options.clock).await?;
        let who = Claimant {
            host: &options.host,
            pid: options.pid,
            since: options.clock.now(),
            lock_dir: options.lock_dir.as_deref(),
            takeover: options.takeover,
        };
        let ownership = owner::acquire(&*store, &format.uuid, who).await?;
        let ownership = Arc::new(ownership);
        // Until the volume watches by itself: reading a long log must not look like death.
        let _answering = watch::while_starting(store.clone(), ownership.clone());
        let epoch = ownership.epoch();
        fence_past_epochs(&*store, epoch).await?;
        let Recovery {
            mut index,
            log,
            snapshot,
            origin,
        } = recover(&*store, format.uuid.as_bytes(), Some(epoch)).await?;
        let session = SessionId(epoch.0);
        store
            .mkdir(&format!("{DATA_DIR}/{session}"))
            .await
            .context("beginning a session")?;
        let identity = Identity {
            root: format.uuid.into_bytes(),
            stream: StreamId::LOG,
            epoch,
            session,
            origin,
        };
        index.limit_deleted(options.config.undo_memory);
        let volume = start(store, identity, index, &log, ownership, &options);
        let me = Arc::downgrade(&volume);
        volume
            .background
            .lock()
            .extend([watch::ownership(me.clone()), watch::usage(me)]);
        volume.begin_session(&options)?;
        volume.close_lanes_of_the_dead().await?;
        let adopted = match begin {
            Begin::Serving => adopt::register_plain_files(&volume).await?,
            Begin::Nothing => 0,
        };
        volume
            .durable(volume.last_pos())
            .await
            .context("the first commit")?;
        volume.read_only.store(options.read_only, Ordering::Relaxed);
        if begin == Begin::Serving {
            volume.begin_upkeep(snapshot);
        }
        let _ = volume.recovered.set(Recovered {
            created,
            records: log.records,
            log_segments: log.segments.len(),
            files: volume.read(Index::inodes),
            adopted,
            took: started.elapsed(),
        });
        Ok(volume)
    }

    /// Lane segments that earlier sessions left open: their last block cannot be read until they
    /// are closed.
    async fn close_lanes_of_the_dead(&self) -> Result<()> {
        let session = self.identity.session;
        let open: Vec<SegmentRow> = self.read(|index| {
            let left = index.segments().map(|s| &s.row).filter(|row| {
                // Without a size: its writer was lost, and closing it was not finished.
                (row.state == SegmentState::Open || row.size == 0)
                    && matches!(row.name, SegmentName::Lane { session: s, .. } if s != session)
            });
            left.cloned().collect()
        });
        let closing = open.into_iter().map(|row| self.close_lane(row));
        futures::stream::iter(closing)
            .buffer_unordered(CLOSE_AT_ONCE)
            .try_collect()
            .await
    }

    async fn close_lane(&self, mut row: SegmentRow) -> Result<()> {
        let path = segment::path(&row.name, self.identity.epoch);
        let closed = async {
            self.store.recover(&path).await?;
            Ok::<_, Error>(self.store.stat(&path).await?.len)
        };
        row.size = match closed.await {
            // It was created and lost before anything was synced.
            Err(e) if e.is(ErrorKind::NotFound) => 0,
            closed => closed.context(format_args!("closing {path}"))?,
        };
        let live = self.read(|index| index.segment(&row.name).map_or(0, |s| s.live.extents));
        if row.size == 0 && live == 0 {
            return self.forget_lane(row).await;
        }
        if row.state == SegmentState::Open {
            row.end = row.base + row.size.saturating_sub(HEADER_LEN as u64);
            row.state = SegmentState::Sealed;
        }
        self.change(|_, change| {
            change.row(Row::Segment(row));
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// A lane segment that holds nothing, or whose file is gone, would be closed by each mount anew.
    async fn forget_lane(&self, mut row: SegmentRow) -> Result<()> {
        row.state = SegmentState::Deleted;
        self.change(|_, change| {
            change.row(Row::Segment(row));
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// The first record of a session: who, which inode numbers, and in a new root its directory.
    fn begin_session(&self, options: &OpenOptions) -> Result<()> {
        let now = self.now();
        self.change(|index, change| {
            let (epoch, session) = (self.identity.epoch, self.identity.session);
            change.row(Row::Session {
                epoch,
                session,
                started: now,
            });
            if index.attr(Ino::ROOT).is_none() {
                let attr = Attr {
                    mode: libc::S_IFDIR | 0o755,
                    uid: options.uid,
                    gid: options.gid,
                    nlink: 2,
                    rdev: 0,
                    size: 0,
                    atime: now,
                    mtime: now,
                    ctime: now,
                    crtime: now,
                };
                change.row(Row::Inode {
                    ino: Ino::ROOT,
                    attr,
                });
            }
            Ok::<_, Error>(())
        })?;
        Ok(())
    }
}

/// Renames the log directories of all lower epochs and closes their files, so that their owners
/// can neither create nor sync there any more. Only then is the log read.
pub async fn fence_past_epochs(store: &dyn Store, epoch: Epoch) -> Result<()> {
    for dir in store.list(LOG_DIR).await.context("listing the log")? {
        let Some((old, fenced)) = segment::parse_log_dir(&dir.name) else {
            continue;
        };
        if old >= epoch || fenced {
            continue;
        }
        let (from, to) = (format!("{LOG_DIR}/{old}"), segment::log_dir(old, epoch));
        match store.rename(&from, &to).await {
            Ok(()) => {}
            Err(e) if e.is(ErrorKind::NotFound) => {}
            // A late claimant made the directory again after it was fenced; it is empty, since
            // owners check for higher epochs after creating a segment.
            Err(e) if e.is(ErrorKind::AlreadyExists) => {
                tracing::warn!("{from} exists beside {to} and is ignored");
            }
            Err(e) => return Err(e.context(format_args!("fencing epoch {old}"))),
        }
    }
    Ok(())
}

/// An index, and the log that made it.
pub struct Recovery {
    pub index: Index,
    pub log: LogEnd,
    /// Position of the snapshot that replay began with; 0 if there was none.
    pub snapshot: Pos,
    pub origin: Origin,
}

/// Builds the index from the newest snapshot and the log after it. An owner passes its epoch:
/// files that lower epochs left open are closed first.
pub async fn recover(store: &dyn Store, root: &[u8; 16], owner: Option<Epoch>) -> Result<Recovery> {
    let mut files = log::discover(store).await?;
    let origin = log::find_origin(store, &files).await?;
    let (mut index, snapshot) = log::load_newest(store, root, origin.pos).await?;
    let from = snapshot.map_or(origin.pos, |header| header.from);
    files.retain(|file| file.epoch >= origin.epoch && !is_settled(&index, file, from));
    if let Some(epoch) = owner {
        close_open_segments(store, &files, epoch).await?;
    }
    let mut apply = |_, record: crate::format::RecordFrame| {
        record.rows.iter().try_for_each(|row| index.apply(row))
    };
    let log = log::replay(store, &files, from, &mut apply).await?;
    check_end(store, &files, &log).await?;
    for row in &log.segments {
        // Condemned is final; the file only waits to be deleted.
        let known = index.segment(&row.name).map(|s| s.row.state);
        if known != Some(SegmentState::Condemned) {
            index.apply(&Row::Segment(row.clone()))?;
        }
    }
    Ok(Recovery {
        index,
        log,
        snapshot: from,
        origin,
    })
}

/// A segment that was cut at the very end of the log looks like one that was never written further.
async fn check_end(store: &dyn Store, files: &[log::LogFile], log: &LogEnd) -> Result<()> {
    let promised = owner::promised_end(store).await?;
    if log.end >= promised {
        return Ok(());
    }
    let last = files.last().map_or(LOG_DIR, |file| &file.path);
    let text = format!(
        "the log is damaged: it ends at position {} in {last}, but was released at {promised}; \
         acknowledged changes are missing. `stowfs fsck` shows more, `stowfs fsck --rebuild` \
         salvages what is there",
        log.end
    );
    Err(Error::new(ErrorKind::Corrupt, text))
}

/// Whether the snapshot knows all about a file of the log, so that it need not be opened.
fn is_settled(index: &Index, file: &LogFile, from: Pos) -> bool {
    let name = SegmentName::Log {
        epoch: file.epoch,
        n: file.n,
    };
    // Without a size its writer was lost, and it may still have to be closed.
    let settled =
        |row: &SegmentRow| row.state != SegmentState::Open && row.end <= from && row.size > 0;
    index.segment(&name).is_some_and(|s| settled(&s.row))
}

async fn close_open_segments(store: &dyn Store, files: &[LogFile], epoch: Epoch) -> Result<()> {
    let past = files.iter().filter(|f| f.epoch < epoch);
    let closing = past.map(|file| async move {
        match log::open_segment(store, &file.path).await {
            Ok(segment) if segment.footer.is_some() => Ok(()),
            _ => store
                .recover(&file.path)
                .await
                .context(format_args!("closing {}", file.path)),
        }
    });
    futures::stream::iter(closing)
        .buffer_unordered(CLOSE_AT_ONCE)
        .try_collect()
        .await
}

fn start(
    store: Arc<dyn Store>,
    identity: Identity,
    index: Index,
    log: &LogEnd,
    ownership: Arc<super::Ownership>,
    options: &OpenOptions,
) -> Arc<Volume> {
    let config = options.config.clone();
    let stream_options = stream_options(&config, store.open_visibility());
    let buffer_size = usize::try_from(config.write_buffer).unwrap_or(Semaphore::MAX_PERMITS);
    Arc::new_cyclic(|me| {
        let host = Arc::new(VolumeHost(me.clone()));
        let counters = Arc::default();
        let log = Stream::start(
            identity.clone(),
            log.end,
            stream_options.clone(),
            store.clone(),
            host.clone(),
            options.clock.clone(),
            Arc::clone(&counters),
        );
        let live = index.live_bytes();
        let inos = index.next_ino().0..index.next_ino().0;
        Volume {
            reader: FrameReader::new(store.clone(), config.cache_size),
            store,
            config,
            clock: options.clock.clone(),
            identity,
            stream_options,
            host,
            counters,
            index: RwLock::new(index),
            log,
            lanes: Default::default(),
            staged: Default::default(),
            lives: Mutex::new(Lives::new(live)),
            reads: Default::default(),
            scrub: Default::default(),
            inos: Mutex::new(inos),
            ops: Default::default(),
            buffer: Arc::new(Semaphore::new(buffer_size.min(Semaphore::MAX_PERMITS))),
            buffer_size,
            usage: Mutex::default(),
            ownership,
            fenced: Default::default(),
            stopped: tokio::sync::watch::channel(false).0,
            background: Mutex::default(),
            read_only: AtomicBool::new(false),
            recovered: Default::default(),
            duty: Default::default(),
            duty_task: Default::default(),
        }
    })
}

fn stream_options(config: &Config, visibility: OpenVisibility) -> StreamOptions {
    let remote = visibility.is_remote();
    StreamOptions {
        segment_size: config.segment_size,
        spare: match visibility {
            OpenVisibility::CompleteBlocks(block) => block / 8,
            _ => 0,
        },
        commit_interval: config.commit_interval,
        commit_wait: config.commit_wait,
        // Several attempts fit into an operation's time, so that one bad pipeline is not an error.
        sync_timeout: config.op_timeout / if remote { 6 } else { 2 },
        hedge_after: remote.then_some(Duration::from_millis(800)),
        idle_seal: config.idle_seal,
        max_age: config.file_age,
        eager_bytes: if remote { 64 << 10 } else { 1 << 20 },
        ..StreamOptions::default()
    }
}
