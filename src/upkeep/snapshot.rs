//! Writes snapshots, and deletes old ones.
//!
//! A snapshot is taken in slices, with changes going on between them. That is right because rows
//! state final values: whatever a slice has seen too early, replay from the snapshot's position
//! states again (see `log::snapshot`).

use super::Root;
use crate::base::{Context, ErrorKind, Ino, Pos, Result, StreamId};
use crate::format::segment::Footer;
use crate::format::snapshot::{SNAPSHOT_STREAM, SnapshotHeader};
use crate::format::{RecordBuilder, Row};
use crate::index::Index;
use crate::log::{list_snapshots, visit_snapshot};
use crate::segment::{
    SNAPSHOT_DIR, parse_unfinished_snapshot, snapshot_path, unfinished_snapshot_path,
};
use crate::store::Writer;
use bytes::Bytes;

/// Bytes of rows that are made under one lock, about; and of what was deleted lately, items.
const SLICE: usize = 256 << 10;
const ITEMS: usize = 1024;
/// Bytes of rows in one frame.
const FRAME: usize = 1 << 20;
/// Snapshots that are kept, with all of the log between them.
const KEPT: usize = 2;

/// Takes a snapshot and publishes it. Returns its position and its size in bytes.
pub async fn take(root: &dyn Root) -> Result<(Pos, u64)> {
    let mut from = 0;
    root.view(&mut |_| from = root.log_end());
    let path = snapshot_path(from);
    if list_snapshots(&**root.store()).await?.contains(&from) {
        return Ok((from, root.store().stat(&path).await?.len));
    }
    root.store()
        .mkdir(SNAPSHOT_DIR)
        .await
        .context("making the snapshot folder")?;
    let temp = unfinished_snapshot_path(from, root.epoch(), root.now());
    let written = write(root, &temp, from).await;
    let published = match written {
        Ok(size) => root.store().rename(&temp, &path).await.map(|()| size),
        Err(e) => Err(e),
    };
    match published {
        Ok(size) => Ok((from, size)),
        Err(e) if e.is_ambiguous() || e.is(ErrorKind::Fenced) => Err(e),
        Err(e) => {
            // Its name is this session's own, and nothing refers to it.
            let _ = root.store().delete(&temp).await;
            Err(e.context(format_args!("taking snapshot {path}")))
        }
    }
}

/// Memory is bounded by what one slice makes, however large the root is.
async fn write(root: &dyn Root, temp: &str, from: Pos) -> Result<u64> {
    let (uuid, epoch, created) = (root.uuid(), root.epoch(), root.now());
    let header = SnapshotHeader {
        root: uuid,
        epoch,
        from,
        created,
    };
    let mut out = Output {
        root,
        writer: root.store().create(temp).await?,
        pos: 0,
        record: RecordBuilder::new(epoch),
        frames: Vec::new(),
    };
    out.writer.append(header.encode().into()).await?;
    out.slice(&mut |index, give| index.counter_rows(give))
        .await?;
    let mut next = Some(StreamId(0));
    while let Some(after) = next {
        out.slice(&mut |index, give| next = index.foreign_slice(after, SLICE, give))
            .await?;
    }
    // Inodes first: an entry needs the inode that it names.
    let mut next = Some(Ino(0));
    while let Some(after) = next {
        out.slice(&mut |index, give| next = index.inode_slice(after, SLICE, give))
            .await?;
    }
    // What was deleted lately: made and deleted again, while no entries are in its way.
    let (mut next, mut made) = (Some(0), Default::default());
    while let Some(from) = next {
        out.slice(&mut |index, give| next = index.deleted_rows(from, ITEMS, &mut made, give))
            .await?;
    }
    let mut next = Some((Ino(0), 0));
    while let Some(after) = next {
        out.slice(&mut |index, give| next = index.entry_slice(after, SLICE, give))
            .await?;
    }
    out.seal();
    out.flush().await?;
    // What was seen must not be more than what the log keeps.
    root.durable(root.log_end()).await?;
    out.finish(temp).await
}

struct Output<'a> {
    root: &'a dyn Root,
    writer: Box<dyn Writer>,
    /// After the frames that are made.
    pos: Pos,
    record: RecordBuilder,
    /// Made, and not written yet.
    frames: Vec<Bytes>,
}

/// Takes a row.
type Give<'a> = &'a mut dyn FnMut(Row);

impl Output<'_> {
    /// Encodes the rows that one look at the index gives, and writes what is full.
    async fn slice(&mut self, look: &mut (dyn FnMut(&Index, &mut Give<'_>) + Send)) -> Result<()> {
        let root = self.root;
        root.view(&mut |index| {
            let mut give = |row| self.add(&row);
            look(index, &mut (&mut give as Give<'_>));
        });
        self.flush().await
    }

    fn add(&mut self, row: &Row) {
        self.record.push(row);
        if self.record.len() >= FRAME {
            self.seal();
        }
    }

    fn seal(&mut self) {
        let frame = self.record.finish(self.pos);
        self.pos += frame.len() as u64;
        self.frames.push(frame.into());
    }

    async fn flush(&mut self) -> Result<()> {
        for frame in self.frames.drain(..).filter(|f| !f.is_empty()) {
            self.writer.append(frame).await?;
        }
        Ok(())
    }

    /// Closes the file and reads it back: nothing older may go because of a bad snapshot.
    async fn finish(mut self, temp: &str) -> Result<u64> {
        let footer = Footer::new(SNAPSHOT_STREAM, 0, self.pos, &[]);
        self.writer.append(footer.encode().into()).await?;
        self.writer.close().await?;
        visit_snapshot(&**self.root.store(), temp, &mut |_| Ok(())).await?;
        Ok(self.root.store().stat(temp).await?.len)
    }
}

/// Deletes what this owner began and did not finish, as when the NameNode was away: left alone it
/// would stay open on HDFS for as long as the mount lives. No snapshot is being written now.
async fn remove_unfinished(root: &dyn Root) -> Result<()> {
    let store = root.store();
    let files = match store.list(SNAPSHOT_DIR).await {
        Err(e) if e.is(ErrorKind::NotFound) => return Ok(()),
        listed => listed.context("listing the snapshots")?,
    };
    let ours = Some(root.epoch());
    for file in files {
        if parse_unfinished_snapshot(&file.name) == ours {
            delete(root, &format!("{SNAPSHOT_DIR}/{}", file.name)).await?;
        }
    }
    Ok(())
}

async fn delete(root: &dyn Root, path: &str) -> Result<()> {
    match root.store().delete(path).await {
        Err(e) if !e.is(ErrorKind::NotFound) => Err(e.context(format_args!("deleting {path}"))),
        _ => Ok(()),
    }
}

/// Deletes all but the newest snapshots. The record that says so is durable first: an owner that
/// was fenced cannot write it, and so deletes nothing.
pub async fn trim(root: &dyn Root) -> Result<()> {
    remove_unfinished(root).await?;
    let mut found = list_snapshots(&**root.store()).await?;
    // Those from before a rebuild do not count, and are left for whoever tries another one.
    let origin = root.origin().pos;
    found.retain(|from| *from >= origin);
    let mut needed = 0;
    root.view(&mut |index| needed = index.log_needed());
    // Nothing is too many, and the log was trimmed to what they need: they need not be read.
    if found.len() <= KEPT && found.get(KEPT - 1).is_none_or(|oldest| *oldest <= needed) {
        return Ok(());
    }
    let Some(oldest) = oldest_to_keep(root, &found).await? else {
        return Ok(());
    };
    let pos = root.commit(&mut |index| match index.log_needed() < oldest {
        true => vec![Row::Snapshots { oldest }],
        false => Vec::new(),
    })?;
    // Also when an earlier call has written that record: it may not be durable yet.
    root.durable(pos.max(root.log_end())).await?;
    for from in found.iter().filter(|from| **from < oldest) {
        delete(root, &snapshot_path(*from)).await?;
    }
    Ok(())
}

/// The oldest of the `KEPT` newest snapshots that are whole: a damaged one does not count, or its only
/// whole neighbour and the log in front of it would go.
async fn oldest_to_keep(root: &dyn Root, found: &[Pos]) -> Result<Option<Pos>> {
    let mut whole = 0;
    for from in found {
        let path = snapshot_path(*from);
        match visit_snapshot(&**root.store(), &path, &mut |_| Ok(())).await {
            Ok(_) => whole += 1,
            Err(e) if e.is(ErrorKind::Corrupt) || e.is(ErrorKind::Other) => {
                tracing::warn!("{e}; it does not count as one of those kept");
            }
            Err(e) => return Err(e),
        }
        if whole == KEPT {
            return Ok(Some(*from));
        }
    }
    Ok(None)
}
