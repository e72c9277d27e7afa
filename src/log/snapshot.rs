//! Reads a snapshot back.
//!
//! A snapshot is taken while changes go on, so it may contain a part of the records after `from`.
//! Rows state final values: replaying all records from `from` on makes it exact.

use crate::base::{Context, Error, ErrorKind, Pos, Result};
use crate::format::Row;
use crate::format::frame::{self, Frame, MAX_RECORD, Parsed};
use crate::format::segment::{Footer, HEADER_LEN, TRAILER_LEN};
use crate::format::snapshot::{SNAPSHOT_STREAM, SnapshotHeader};
use crate::index::Index;
use crate::segment::{SNAPSHOT_DIR, parse_snapshot_name, snapshot_path};
use crate::store::{Reader, Store};
use tracing::warn;

/// Bytes fetched at a time.
const CHUNK: usize = 4 << 20;

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
    for from in all.into_iter().filter(|from| *from >= origin) {
        let path = snapshot_path(from);
        match load(store, &path).await {
            Ok((index, header)) if header.root == *root && header.from == from => {
                return Ok((index, Some(header)));
            }
            Ok(_) => warn!("{path} belongs to another root and is ignored"),
            Err(e) if e.is(ErrorKind::Corrupt) => warn!("{e}; using an older snapshot"),
            Err(e) => return Err(e),
        }
    }
    Ok((Index::new(), None))
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
    let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, why.to_string());
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
    let (mut at, mut pos, mut bytes) = (HEADER_LEN as u64, 0, Vec::new());
    while pos < footer.end {
        match frame::parse(&bytes, pos, false) {
            Parsed::Frame {
                prefix,
                frame: Frame::Record(record),
            } => {
                record.rows.iter().try_for_each(&mut *visit)?;
                pos += prefix.frame_len() as u64;
                bytes.drain(..prefix.frame_len());
            }
            Parsed::Short(need) if need <= MAX_RECORD + frame::PREFIX && at < frames_end => {
                let want = (need.max(CHUNK) as u64).min(frames_end - at) as usize;
                bytes.extend_from_slice(&reader.read_at(at, want).await?);
                at += want as u64;
            }
            Parsed::Frame { .. } => return Err(corrupt("it holds data")),
            Parsed::Short(_) => return Err(corrupt("its last frame is cut")),
            Parsed::Bad(why) => return Err(corrupt(&why)),
        }
    }
    Ok(header)
}
