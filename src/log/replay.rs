//! Finds the log on a store and applies its records in order.
//!
//! Segments of one epoch hold the same bytes at the same positions, so the log is the union of
//! them. A new epoch begins where its owner found the end; later bytes of older epochs never count.

use super::scan::{Scan, SegmentFile, open_segment, scan};
use crate::base::error::Context;
use crate::base::{Epoch, Error, ErrorKind, Pos, Result, SegmentName, StreamId};
use crate::format::frame::{Prefix, find_vouching_record};
use crate::format::segment::HEADER_LEN;
use crate::format::{Origin, RecordFrame, SegmentRow, SegmentState};
use crate::segment;
use crate::store::Store;
use futures::{StreamExt, TryStreamExt};
use tracing::{info, warn};

/// Segments that are opened at the same time: each costs the store several round trips.
const OPEN_AT_ONCE: usize = 16;

/// A segment file of the log, by name; its content is unknown yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    pub epoch: Epoch,
    pub n: u32,
    pub path: String,
}

/// Lists the files of the log, in the order in which they were begun.
pub async fn discover(store: &dyn Store) -> Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for dir in list(store, segment::LOG_DIR).await? {
        let Some((epoch, _)) = segment::parse_log_dir(&dir.name).filter(|_| dir.is_dir) else {
            continue;
        };
        let parent = format!("{}/{}", segment::LOG_DIR, dir.name);
        for file in list(store, &parent).await? {
            if let Some(n) = segment::parse_file_name(&file.name) {
                files.push(LogFile {
                    epoch,
                    n,
                    path: format!("{parent}/{}", file.name),
                });
            }
        }
    }
    files.sort();
    Ok(files)
}

async fn list(store: &dyn Store, dir: &str) -> Result<Vec<crate::store::FileInfo>> {
    store.list(dir).await.context(format_args!("listing {dir}"))
}

/// The outcome of a replay.
#[derive(Debug)]
pub struct LogEnd {
    /// The log ends here; the next record gets this position.
    pub end: Pos,
    /// The log's segments, with the ranges that count.
    pub segments: Vec<SegmentRow>,
    pub records: u64,
}

/// Applies all records from position `from` on.
///
/// Bytes that were never acknowledged may be missing or torn at the end of an epoch; they are
/// dropped. Anything else that is missing is damage: an error that names file and offset.
pub async fn replay(
    store: &dyn Store,
    files: &[LogFile],
    from: Pos,
    apply: &mut (dyn FnMut(Pos, RecordFrame) -> Result<()> + Send),
) -> Result<LogEnd> {
    let opened = open_all(store, files).await?;
    let mut chain = Chain {
        at: 0,
        from,
        segments: Vec::new(),
        records: 0,
        hole: None,
        vouched: 0,
    };
    for (i, (file, segment)) in opened.iter().enumerate() {
        let later = || {
            opened[i + 1..]
                .iter()
                .filter_map(|(f, s)| Some((f, s.as_ref().ok()?)))
        };
        let next_epoch = later().find(|(f, _)| f.epoch > file.epoch);
        let limit = next_epoch.map(|(_, s)| s.header.base).unwrap_or(Pos::MAX);
        let promised = later().next().map(|(_, s)| s.header.base).unwrap_or(0);
        match segment {
            Ok(segment) => chain.add(file, segment, limit, promised, apply).await?,
            Err(e) => chain.skip(store, file, e, promised).await?,
        }
    }
    chain.check_end()?;
    Ok(LogEnd {
        end: chain.at.max(from),
        segments: chain.segments,
        records: chain.records,
    })
}

/// Where the log begins: every segment from the origin on says so, the last one first.
pub async fn find_origin(store: &dyn Store, files: &[LogFile]) -> Result<Origin> {
    for file in files.iter().rev() {
        match open_segment(store, &file.path).await {
            Ok(segment) => return Ok(segment.header.origin),
            Err(e) if e.is(ErrorKind::Corrupt) => {} // never written, or damaged
            Err(e) => return Err(e),
        }
    }
    Ok(Origin::default())
}

type Opened = (LogFile, Result<SegmentFile>);

/// Opens every file; one without a valid header is kept as an error, to be judged in its place.
async fn open_all(store: &dyn Store, files: &[LogFile]) -> Result<Vec<Opened>> {
    let opening = files.iter().map(|file| async move {
        match open_segment(store, &file.path).await {
            Err(e) if !e.is(ErrorKind::Corrupt) => Err(e),
            judged => Ok((file.clone(), judged)),
        }
    });
    let opened = futures::stream::iter(opening).buffered(OPEN_AT_ONCE);
    opened.try_collect().await
}

struct Chain {
    /// Everything before is found.
    at: Pos,
    /// Records before this are in a snapshot.
    from: Pos,
    segments: Vec<SegmentRow>,
    records: u64,
    /// Why bytes are missing at `at`; a later segment may have them.
    hole: Option<Error>,
    /// Bytes before this were durable once, so they must be found.
    vouched: Pos,
}

impl Chain {
    async fn add(
        &mut self,
        file: &LogFile,
        segment: &SegmentFile,
        limit: Pos,
        promised: Pos,
        apply: &mut (dyn FnMut(Pos, RecordFrame) -> Result<()> + Send),
    ) -> Result<()> {
        let base = segment.header.base;
        if let Some(end) = segment
            .footer
            .as_ref()
            .map(|f| f.end)
            .filter(|end| *end <= self.from)
        {
            self.push_row(file, segment, end);
            self.at = self.at.max(end);
            return Ok(());
        }
        if base <= self.from && base > self.at {
            // What is between is not missing: it is in segments that need not be read.
            self.at = base;
            self.hole = None;
        }
        if base > self.at {
            if let Some(why) = self.hole.take() {
                return Err(why);
            }
            if self.records == 0 && self.segments.is_empty() {
                // Older segments were deleted after a snapshot that is not at hand.
                let text = format!("the log begins at {base}, but is needed from {}", self.from);
                return Err(damage(&file.path, 0, &text));
            }
            return Err(damage(
                &file.path,
                0,
                &format!("the log has a gap before {base}"),
            ));
        }
        // What the snapshot knows need not be read, and does not matter if it is damaged.
        let held = segment.len - HEADER_LEN as u64;
        let start = self.from.clamp(base, base + held);
        let mut scan = scan(segment, start).await?;
        self.settle_end(&mut scan, segment, limit, promised);
        let end = scan.end.min(limit);
        for (pos, record) in scan.records {
            if pos >= self.at.max(self.from) && pos < end {
                apply(pos, record).context(format_args!("{} position {pos}", file.path))?;
                self.records += 1;
            }
        }
        if end > self.at {
            self.push_row(file, segment, end);
            self.at = end;
            self.hole = None;
        } else {
            // Earlier segments have all of it: readers shall not look for anything here.
            self.push_row(file, segment, base);
        }
        self.vouched = self.vouched.max(scan.vouched.min(limit));
        let regular = segment.footer.is_some() && scan.stopped.is_none();
        if scan.end == self.at && scan.end < limit && !regular {
            let why = scan.stopped.unwrap_or_else(|| "the file ends".into());
            self.hole = Some(damage(&file.path, scan.end - base, &why));
        }
        Ok(())
    }

    /// Cuts a scan before the first data frame with wrong bytes, unless something vouches that the
    /// frame was durable: then the file that owns it is damaged, not the log.
    fn settle_end(&self, scan: &mut Scan, segment: &SegmentFile, limit: Pos, promised: Pos) {
        let limit = if limit == Pos::MAX { 0 } else { limit };
        let vouched = scan.vouched.max(promised).max(limit);
        let sealed = segment.footer.is_some();
        match scan.suspects.iter().find(|pos| !sealed && **pos >= vouched) {
            Some(pos) => {
                info!(
                    "{}: dropping an unfinished commit at position {pos}",
                    segment.path
                );
                scan.end = *pos;
                scan.stopped = Some("data that was never synced is torn".into());
            }
            None => {
                for pos in &scan.suspects {
                    warn!(
                        "{}: the data frame at position {pos} is damaged",
                        segment.path
                    );
                }
            }
        }
    }

    /// Positions from its base to `end` count in this segment; earlier segments lose what it has
    /// too.
    fn push_row(&mut self, file: &LogFile, segment: &SegmentFile, end: Pos) {
        let base = segment.header.base;
        for row in self
            .segments
            .iter_mut()
            .filter(|r| end > base && r.end > base && r.base < base)
        {
            row.end = base;
        }
        self.segments.push(SegmentRow {
            name: SegmentName::Log {
                epoch: file.epoch,
                n: file.n,
            },
            stream: StreamId::LOG,
            base,
            end,
            state: SegmentState::Sealed,
            size: segment.len,
        });
    }

    /// A file without a header was never synced, or it is damaged: then bytes are missing that
    /// somebody vouches for.
    async fn skip(
        &mut self,
        store: &dyn Store,
        file: &LogFile,
        e: &Error,
        promised: Pos,
    ) -> Result<()> {
        let vouched = vouched_in(store, file).await?;
        self.vouched = self.vouched.max(vouched);
        if self.vouched.max(promised) > self.at.max(self.from) {
            self.hole = Some(damage(&file.path, 0, &e.to_string()));
        } else {
            info!(
                "{}: skipping a segment that was never written ({e})",
                file.path
            );
        }
        Ok(())
    }

    /// A hole at the end matters if something says that its bytes were durable.
    fn check_end(&mut self) -> Result<()> {
        if self.vouched <= self.at.max(self.from) {
            return Ok(());
        }
        let text = format!(
            "the log is damaged: it ends at position {}, but was durable up to {}; `stowfs fsck` \
             shows more, `stowfs fsck --rebuild` salvages what is there",
            self.at, self.vouched
        );
        Err(self
            .hole
            .take()
            .unwrap_or_else(|| Error::new(ErrorKind::Corrupt, text)))
    }
}

async fn vouched_in(store: &dyn Store, file: &LogFile) -> Result<Pos> {
    let path = &file.path;
    let reader = store
        .open(path)
        .await
        .context(format_args!("opening {path}"))?;
    let len = usize::try_from(reader.len()).unwrap_or(usize::MAX);
    if len == 0 {
        return Ok(0);
    }
    let bytes = reader
        .read_at(0, len)
        .await
        .context(format_args!("reading {path}"))?;
    let ours = |_: usize, p: &Prefix| p.epoch == file.epoch;
    Ok(find_vouching_record(&bytes, ours).unwrap_or(0))
}

fn damage(path: &str, offset: u64, why: &str) -> Error {
    let at = offset + HEADER_LEN as u64;
    let text = format!(
        "the log is damaged: {path} at offset {at}: {why}; acknowledged changes are missing. \
         `stowfs fsck` shows what, `stowfs fsck --rebuild` salvages the rest"
    );
    Error::new(ErrorKind::Corrupt, text)
}
