//! Reads a snapshot back.
//!
//! A snapshot is taken while changes go on, so it may contain a part of the records after `from`.
//! Rows state final values: replaying all records from `from` on makes it exact.

use crate::base::{Context, Error, ErrorKind, Pos, Result};
use crate::format::codec::corrupt;
use crate::format::frame::{PREFIX, Prefix};
use crate::format::segment::{Footer, HEADER_LEN, TRAILER_LEN};
use crate::format::snapshot::{SNAPSHOT_STREAM, SnapshotHeader};
use crate::format::{RecordFrame, Row};
use crate::index::Index;
use crate::segment::{SNAPSHOT_DIR, parse_snapshot_name, snapshot_path};
use crate::store::{Reader, Store};
use bytes::Bytes;
use futures::future::Either;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use tracing::warn;

/// Bytes fetched at a time.
const CHUNK: usize = 4 << 20;
/// Chunks that are read, and records that are decoded, before their turn.
const AHEAD: usize = 2;
/// Handing a smaller record to another thread costs more than it gains.
const LARGE: usize = 64 << 10;

/// The positions of all published snapshots, newest first.
pub async fn list_snapshots(store: &dyn Store) -> Result<Vec<u64>> {
    let files = match store.list(SNAPSHOT_DIR).await {
        Err(e) if e.is(ErrorKind::NotFound) => return Ok(Vec::new()),
        listed => listed.context("listing the snapshots")?,
    };
    let mut found: Vec<u64> = files
        .iter()
        .filter_map(|f| parse_snapshot_name(&f.name))
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Loads the newest snapshot that is whole, or an empty index with no header. A damaged snapshot
/// costs time, not data: the one before it and the log between them are kept. Those from before
/// `origin` are of a log that does not count any more.
pub async fn load_newest(
    store: &dyn Store,
    root: &[u8; 16],
    origin: Pos,
) -> Result<(Index, Option<SnapshotHeader>)> {
    let all = list_snapshots(store).await?;
    let mut unread = None;
    for from in all.into_iter().filter(|from| *from >= origin) {
        let path = snapshot_path(from);
        match load(store, &path).await {
            Ok((index, header)) if header.root == *root && header.from == from => {
                return Ok((index, Some(header)));
            }
            Ok(_) => warn!("{path} belongs to another root and is ignored"),
            Err(e) if e.is(ErrorKind::Corrupt) => warn!("{e}; using an older snapshot"),
            // As from a bad sector of a disk. A store that cannot be reached is another matter.
            Err(e) if e.is(ErrorKind::Other) => {
                warn!("{e}; using an older snapshot");
                unread.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    match unread {
        Some(e) => Err(e),
        None => Ok((Index::new(), None)),
    }
}

/// Loads one snapshot. `Corrupt` unless every byte of it is as it was written.
pub async fn load(store: &dyn Store, path: &str) -> Result<(Index, SnapshotHeader)> {
    let mut index = Index::new();
    let header = visit_snapshot(store, path, &mut |row| index.apply(row)).await?;
    Ok((index, header))
}

/// Reads a snapshot row by row, in bounded memory. `Corrupt` unless it is whole.
pub async fn visit_snapshot(
    store: &dyn Store,
    path: &str,
    visit: &mut (dyn FnMut(&Row) -> Result<()> + Send),
) -> Result<SnapshotHeader> {
    let reader = store
        .open(path)
        .await
        .context(format_args!("opening {path}"))?;
    let visited = visit_from(&*reader, visit).await;
    visited.context(format_args!("reading snapshot {path}"))
}

async fn visit_from(
    reader: &dyn Reader,
    visit: &mut (dyn FnMut(&Row) -> Result<()> + Send),
) -> Result<SnapshotHeader> {
    let len = reader.len();
    let Some(frames_end) = len
        .checked_sub(TRAILER_LEN as u64)
        .filter(|n| *n >= HEADER_LEN as u64)
    else {
        return Err(corrupt("it is cut"));
    };
    let header = SnapshotHeader::decode(&reader.read_at(0, HEADER_LEN).await?)?;
    let footer = Footer::decode(&reader.read_at(frames_end, TRAILER_LEN).await?, len)?;
    if footer.stream != SNAPSHOT_STREAM {
        return Err(corrupt("its footer is not that of a snapshot"));
    }
    let mut records = Frames::new(reader, frames_end, footer.end).records();
    while let Some(record) = records.try_next().await? {
        record.rows.iter().try_for_each(&mut *visit)?;
    }
    Ok(header)
}

/// The frames of a snapshot, cut from chunks that are read ahead.
struct Frames<'a> {
    chunks: BoxStream<'a, Result<Bytes>>,
    /// What is left of the last chunk.
    rest: Bytes,
    pos: Pos,
    end: Pos,
}

impl<'a> Frames<'a> {
    fn new(reader: &'a dyn Reader, file_end: u64, end: Pos) -> Frames<'a> {
        let places = (HEADER_LEN as u64..file_end).step_by(CHUNK);
        let chunks = futures::stream::iter(places)
            .map(move |at| reader.read_at(at, (file_end - at).min(CHUNK as u64) as usize))
            .buffered(AHEAD);
        Frames {
            chunks: chunks.boxed(),
            rest: Bytes::new(),
            pos: 0,
            end,
        }
    }

    /// While the rows of one record are looked at, the next are read and decoded.
    fn records(self) -> BoxStream<'a, Result<RecordFrame>> {
        let frames = futures::stream::try_unfold(self, |mut frames| async {
            Ok(frames.next().await?.map(|frame| (frame, frames)))
        });
        let records = frames.map_ok(|(prefix, body)| decode(prefix, body));
        records.try_buffered(AHEAD).boxed()
    }

    /// The prefix and the body of the next frame, which is the right one; None at the end.
    async fn next(&mut self) -> Result<Option<(Prefix, Bytes)>> {
        if self.pos >= self.end {
            return Ok(None);
        }
        let prefix = Prefix::decode(&self.take(PREFIX).await?)?;
        if prefix.pos != self.pos {
            let text = format!("frame {} where {} was expected", prefix.pos, self.pos);
            return Err(corrupt(text));
        }
        if !prefix.is_record() {
            return Err(corrupt("it holds data"));
        }
        self.pos += prefix.frame_len() as u64;
        Ok(Some((prefix, self.take(prefix.body).await?)))
    }

    async fn take(&mut self, bytes: usize) -> Result<Bytes> {
        if self.rest.len() >= bytes {
            return Ok(self.rest.split_to(bytes));
        }
        let mut taken = Vec::with_capacity(bytes);
        taken.extend_from_slice(&self.rest);
        while taken.len() < bytes {
            let chunk = self.chunks.try_next().await?;
            self.rest = chunk.ok_or_else(|| corrupt("its last frame is cut"))?;
            let more = self.rest.len().min(bytes - taken.len());
            taken.extend_from_slice(&self.rest.split_to(more));
        }
        Ok(taken.into())
    }
}

/// Checks and decodes a record; a large one on another thread, from now on.
fn decode(prefix: Prefix, body: Bytes) -> impl Future<Output = Result<RecordFrame>> {
    let decode = move || RecordFrame::from_body(&prefix, &body);
    match prefix.body >= LARGE {
        true => Either::Left(tokio::task::spawn_blocking(decode).map(|done| {
            done.unwrap_or_else(|e| {
                let text = format!("a decoding thread ended early: {e}");
                Err(Error::new(ErrorKind::Other, text))
            })
        })),
        false => Either::Right(std::future::ready(decode())),
    }
}
