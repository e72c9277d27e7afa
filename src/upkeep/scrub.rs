//! Scrub: reads sealed segments again and checks every checksum, slowly, so that damage is found
//! while there are other replicas, backups or old checkpoints to turn to.
//!
//! Reads the store directly, so it neither uses nor fills the block cache; holds no segment: one
//! that is given up meanwhile is skipped. Memory: one window of a segment.

use super::Root;
use crate::base::error::Context;
use crate::base::random::Random;
use crate::base::{ErrorKind, Ino, Pos, Result, SegmentName, StreamId, Timestamp};
use crate::format::frame::{self, DataHead, Frame, Parsed, checksums};
use crate::format::segment::HEADER_LEN;
use crate::format::{Extent, SegmentRow, SegmentState};
use crate::log::{Window, read_footer};
use crate::segment;
use parking_lot::Mutex;
use std::sync::Weak;
use std::time::Duration;
use tokio::time::Instant;

/// What is remembered of damage that was found.
const REMEMBERED: usize = 1000;
/// Bytes read between two looks at the clock.
const STEP: usize = 1 << 20;
/// How long a step waits for programs that are reading or writing, at most.
const YIELD: Duration = Duration::from_millis(200);
/// Inodes looked at under one lock.
const SLICE: usize = 4096;

#[derive(Clone, Debug)]
pub struct ScrubOptions {
    /// Bytes read per second; 0: as fast as it goes.
    pub rate: u64,
    /// Every segment is read once in this time; None: only on demand.
    pub every: Option<Duration>,
}

/// One damaged place, and a file that needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// None: no file uses it.
    pub file: Option<Vec<u8>>,
    pub segment: SegmentName,
    /// The file on the store, and where in it.
    pub path: String,
    pub offset: u64,
    pub what: String,
}

#[derive(Clone, Debug, Default)]
pub struct ScrubState {
    /// Of a pass over everything, while it runs: bytes done, and all.
    pub pass: Option<(u64, u64)>,
    /// Since the mount.
    pub segments: u64,
    pub bytes: u64,
    /// Passes over everything that have ended, well or not.
    pub passes: u64,
    pub last_pass: Option<Timestamp>,
    /// Why the last pass could not be finished.
    pub failed: Option<String>,
    /// What was found, the newest last. A place is in it once.
    pub damage: Vec<Damage>,
}

/// The outcome of reading one segment.
#[derive(Debug, Default)]
struct Checked {
    bytes: u64,
    bad: Vec<Bad>,
}

#[derive(Debug)]
struct Bad {
    from: Pos,
    to: Pos,
    what: String,
    /// Nothing whole comes after it: where a writer died, this is what it had not synced.
    tail: bool,
}

#[derive(Default)]
pub struct Scrub(Mutex<ScrubState>);

impl Scrub {
    pub fn state(&self) -> ScrubState {
        self.0.lock().clone()
    }

    /// Reads all segments that are sealed now. False if another pass is under way.
    pub async fn pass(&self, root: &dyn Root, rate: u64) -> Result<bool> {
        let rows = sealed(root);
        let all = rows.iter().map(|r| r.size).sum();
        {
            let mut state = self.0.lock();
            if state.pass.is_some() {
                return Ok(false);
            }
            state.pass = Some((0, all));
            state.failed = None;
        }
        let _ended = PassEnded(self);
        let mut pace = Pace::new(rate);
        for row in rows {
            if let Err(e) = self.segment(root, &row, &mut pace).await {
                self.0.lock().failed = Some(e.to_string());
                return Err(e);
            }
            if let Some((done, _)) = &mut self.0.lock().pass {
                *done += row.size;
            }
        }
        self.0.lock().last_pass = Some(root.now());
        Ok(true)
    }

    /// Reads one segment after the other, evenly over `every`, until the root is gone. The order
    /// begins anywhere, so that roots that are mounted briefly get all of it read as well.
    pub async fn run<R: Root>(&self, root: Weak<R>, options: &ScrubOptions, every: Duration) {
        let mut next: Option<SegmentName> = None;
        let mut pace = Pace::new(options.rate);
        loop {
            let Some(strong) = root.upgrade() else { return };
            let rows = sealed(&*strong);
            let all: u64 = rows.iter().map(|r| r.size).sum();
            let row = match next {
                None if rows.is_empty() => None,
                None => rows.get(Random::from_process().below(rows.len() as u64) as usize),
                Some(last) => rows.iter().find(|r| r.name > last).or(rows.first()),
            };
            let begun = Instant::now();
            let mut share = Duration::from_secs(60);
            if let Some(row) = row {
                next = Some(row.name);
                share = every.mul_f64(row.size as f64 / all.max(1) as f64);
                if let Err(e) = self.segment(&*strong, row, &mut pace).await {
                    tracing::warn!("scrub: {e}; going on");
                }
            }
            drop(strong);
            tokio::time::sleep_until(begun + share.max(Duration::from_secs(1))).await;
        }
    }

    async fn segment(&self, root: &dyn Root, row: &SegmentRow, pace: &mut Pace) -> Result<()> {
        let path = segment::path(&row.name, root.epoch());
        let checked = check(root, row, &path, pace).await;
        if !is_sealed(root, &row.name) {
            return Ok(()); // given up meanwhile: nothing needs it
        }
        let checked = match checked {
            Err(e) if e.is(ErrorKind::NotFound) => Checked {
                bytes: 0,
                bad: vec![Bad {
                    from: row.base,
                    to: row.end,
                    what: "the segment is gone".into(),
                    tail: false,
                }],
            },
            checked => checked.context(format_args!("reading {path}"))?,
        };
        {
            let mut state = self.0.lock();
            state.segments += 1;
            state.bytes += checked.bytes;
        }
        for bad in checked.bad {
            self.report(root, row, &path, bad);
        }
        Ok(())
    }

    fn report(&self, root: &dyn Root, row: &SegmentRow, path: &str, bad: Bad) {
        let offset = HEADER_LEN as u64 + (bad.from - row.base);
        let files = files_in(root, row, &bad);
        // Compaction or a deletion may have ended it while files were looked for.
        if !is_sealed(root, &row.name) {
            return;
        }
        let damage = |file: Option<Vec<u8>>| Damage {
            file,
            segment: row.name,
            path: path.to_string(),
            offset,
            what: bad.what.clone(),
        };
        if files.is_empty() && bad.tail {
            tracing::debug!("scrub: {path} ends at offset {offset}, where its writer died");
            return;
        }
        if files.is_empty() {
            tracing::info!(
                "scrub: {path} at offset {offset}: {}; no file uses it",
                bad.what
            );
            self.remember(damage(None));
        }
        for (ino, file) in files {
            let name = String::from_utf8_lossy(&file).into_owned();
            tracing::error!(
                "scrub: {path} at offset {offset}: {}; this damages /{name} (inode {ino}): restore it \
                 from elsewhere, or delete it",
                bad.what
            );
            self.remember(damage(Some(file)));
        }
    }

    fn remember(&self, damage: Damage) {
        let mut state = self.0.lock();
        let same = |d: &Damage| {
            (&d.file, &d.path, d.offset) == (&damage.file, &damage.path, damage.offset)
        };
        state.damage.retain(|d| !same(d));
        if state.damage.len() >= REMEMBERED {
            state.damage.remove(0);
        }
        state.damage.push(damage);
    }
}

struct PassEnded<'a>(&'a Scrub);

impl Drop for PassEnded<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.pass = None;
        state.passes += 1;
    }
}

fn sealed(root: &dyn Root) -> Vec<SegmentRow> {
    let mut rows = Vec::new();
    root.view(&mut |index| {
        let all = index.segments().map(|s| &s.row);
        let sealed = |r: &&SegmentRow| r.state == SegmentState::Sealed && r.size > 0;
        rows = all.filter(sealed).cloned().collect();
    });
    rows
}

fn is_sealed(root: &dyn Root, name: &SegmentName) -> bool {
    let mut sealed = false;
    root.view(&mut |index| {
        sealed = index
            .segment(name)
            .is_some_and(|s| s.row.state == SegmentState::Sealed)
    });
    sealed
}

/// Reads a segment from its first frame to its end.
async fn check(root: &dyn Root, row: &SegmentRow, path: &str, pace: &mut Pace) -> Result<Checked> {
    let mut checked = Checked::default();
    let reader = root.store().open(path).await?;
    // The last frame may end behind what counts in this segment.
    let len = reader.len();
    // A lane without a footer ends where its writer died; a log segment never does, because the
    // take-over has cut what counts of it.
    let may_be_torn =
        row.stream != StreamId::LOG && read_footer(&*reader, len, path).await?.is_none();
    let mut window = Window::with_chunk(reader, path, HEADER_LEN as u64, len, STEP);
    let mut pos = row.base;
    while pos < row.end {
        let have = window.bytes().len();
        let step = match frame::parse(window.bytes(), pos, false) {
            Parsed::Frame { prefix, frame } => {
                if let Some(what) = wrong_blocks(&frame, window.bytes()) {
                    let to = pos + prefix.frame_len() as u64;
                    checked.bad.push(Bad {
                        from: pos,
                        to,
                        what,
                        tail: may_be_torn && to >= row.end,
                    });
                }
                prefix.frame_len()
            }
            Parsed::Short(need) if window.fill(need).await? => 0,
            Parsed::Short(_) => {
                let (from, to, what) = (pos, row.end, "the segment is cut".into());
                let tail = may_be_torn;
                checked.bad.push(Bad {
                    from,
                    to,
                    what,
                    tail,
                });
                break;
            }
            Parsed::Bad(what) => {
                let from = pos;
                pos = skip_to_frame(&mut window, pos, row.end).await?;
                checked.bad.push(Bad {
                    from,
                    to: pos,
                    what,
                    tail: may_be_torn && pos >= row.end,
                });
                0
            }
        };
        let read = window.bytes().len().saturating_sub(have);
        checked.bytes += step as u64;
        pos += step as u64;
        window.consume(step);
        pace.wait(root, read).await;
    }
    Ok(checked)
}

fn wrong_blocks(frame: &Frame, bytes: &[u8]) -> Option<String> {
    let Frame::Data { head, .. } = frame else {
        return None; // the checksum of a record is checked by parsing
    };
    let payload = bytes.get(head.head_len()..)?.get(..head.len as usize)?;
    first_wrong(head, payload).map(wrong_block)
}

/// What scrub and fsck say of the first bad block of a frame of data.
pub fn wrong_block(block: usize) -> String {
    format!("block {block} of the data here does not match its checksum")
}

fn first_wrong(head: &DataHead, payload: &[u8]) -> Option<usize> {
    let found = checksums(payload);
    (0..found.len()).find(|n| head.crcs.get(*n) != Some(&found[*n]))
}

/// Goes on to the next place where a frame of the right position begins, or to the end.
async fn skip_to_frame(window: &mut Window, mut pos: Pos, end: Pos) -> Result<Pos> {
    loop {
        window.consume(1);
        pos += 1;
        window.fill(frame::PREFIX + STEP).await?;
        let bytes = window.bytes();
        let magic = frame::FRAME_MAGIC;
        let hit = bytes.windows(magic.len()).position(|w| w == magic);
        // The last bytes may be the beginning of a magic.
        let skip = hit.unwrap_or(bytes.len().saturating_sub(magic.len() - 1).max(1));
        pos += skip as u64;
        window.consume(skip);
        if pos >= end || window.bytes().is_empty() {
            return Ok(end);
        }
        let ours = frame::Prefix::decode(window.bytes()).is_ok_and(|p| p.pos == pos);
        if hit.is_some() && ours {
            return Ok(pos);
        }
    }
}

/// The files that have bytes in a place.
fn files_in(root: &dyn Root, row: &SegmentRow, bad: &Bad) -> Vec<(Ino, Vec<u8>)> {
    let mut inos = Vec::new();
    root.view(&mut |index| inos = index.inos());
    let mut found = Vec::new();
    for slice in inos.chunks(SLICE) {
        root.view(&mut |index| {
            for ino in slice {
                let all = index.extents(*ino, 0, u64::MAX);
                let hit = |e: &Extent| {
                    let here = index.segment_at(e.stream, e.pos);
                    uses(e, row.stream, bad) && here.is_some_and(|s| s.row.name == row.name)
                };
                if all.iter().any(hit) {
                    found.push((*ino, index.path(*ino).unwrap_or_default()));
                }
            }
        });
    }
    found
}

fn uses(e: &Extent, stream: StreamId, bad: &Bad) -> bool {
    e.frame != 0 && e.stream == stream && e.pos < bad.to && e.pos + e.frame as u64 > bad.from
}

/// Keeps to a rate, and lets programs go first.
struct Pace {
    rate: u64,
    next: Instant,
    unpaid: usize,
}

impl Pace {
    fn new(rate: u64) -> Pace {
        Pace {
            rate,
            next: Instant::now(),
            unpaid: 0,
        }
    }

    async fn wait(&mut self, root: &dyn Root, read: usize) {
        self.unpaid += read;
        if self.unpaid < STEP {
            return;
        }
        if self.rate > 0 {
            let cost = Duration::from_secs_f64(self.unpaid as f64 / self.rate as f64);
            self.next = self.next.max(Instant::now()) + cost;
            tokio::time::sleep_until(self.next).await;
        }
        self.unpaid = 0;
        let begun = Instant::now();
        while (root.is_busy() || root.has_readers()) && begun.elapsed() < YIELD {
            tokio::time::sleep(YIELD / 10).await;
        }
    }
}
