//! The open segment of a stream: appends frames, keeps the frame table, writes the footer.

use super::Shared;
use super::claims::Claim;
use super::queue::QueuedFrame;
use crate::base::error::Context;
use crate::base::{Pos, Result, SegmentName};
use crate::format::segment::{Footer, HEADER_LEN, SegmentHeader, TRAILER_LEN};
use crate::format::{SegmentRow, SegmentState};
use crate::segment;
use crate::store::{OpenVisibility, Writer};
use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

/// Payloads from this size on are handed to the store as they are; smaller pieces are gathered.
const GATHER_BELOW: usize = 16 * 1024;

/// The frame table may be this share of a segment; a larger one saves a mount nothing.
const TABLE_SHARE: u64 = 4;

pub(super) struct SegmentWriter {
    pub(super) name: SegmentName,
    pub(super) path: String,
    pub(super) base: Pos,
    predecessor: Option<SegmentName>,
    /// None while a sync runs, in a task of its own.
    pub(super) writer: Option<Box<dyn Writer>>,
    /// Position after the last appended frame.
    pub(super) appended: Pos,
    /// Position up to which this segment is durable.
    pub(super) synced: Pos,
    /// Whether the ownership of the root was checked since this segment exists.
    pub(super) checked: bool,
    pub(super) opened: Instant,
    pub(super) used: Instant,
    table: Vec<u8>,
    pub(super) claim: Claim,
}

impl SegmentWriter {
    /// Makes the file, and a header in it that need not be durable yet.
    pub(super) async fn create(
        shared: &Shared,
        claim: Claim,
        base: Pos,
        predecessor: Option<SegmentName>,
    ) -> Result<SegmentWriter> {
        let name = claim.name;
        let path = segment::path(&name, shared.identity.epoch);
        let writer = shared
            .store
            .create(&path)
            .await
            .context(format_args!("creating segment {path}"))?;
        let now = Instant::now();
        Ok(SegmentWriter {
            name,
            path,
            base,
            predecessor,
            writer: Some(writer),
            appended: base,
            synced: base,
            checked: false,
            opened: now,
            used: now,
            table: Vec::new(),
            claim,
        })
    }

    pub(super) async fn write_header(&mut self, shared: &Shared) -> Result<()> {
        let id = &shared.identity;
        let header = SegmentHeader {
            root: id.root,
            name: self.name,
            stream: id.stream,
            epoch: id.epoch,
            session: id.session,
            base: self.base,
            durable: self.base,
            predecessor: self.predecessor,
            created: shared.clock.now(),
            origin: id.origin,
        };
        let Some(writer) = self.writer.as_mut() else {
            return Ok(());
        };
        writer
            .append(header.encode().into())
            .await
            .context(format_args!("writing the header of {}", self.path))
    }

    /// Shows that the replicas which the store has chosen take bytes.
    pub(super) async fn sync_header(&mut self) -> Result<()> {
        let Some(writer) = self.writer.as_mut() else {
            return Ok(());
        };
        writer
            .sync()
            .await
            .context(format_args!("syncing the header of {}", self.path))
    }

    /// Bytes of the file so far.
    pub(super) fn file_len(&self) -> u64 {
        HEADER_LEN as u64 + (self.appended - self.base)
    }

    pub(super) async fn append(&mut self, frames: &[QueuedFrame]) -> Result<()> {
        let Some(writer) = self.writer.as_mut() else {
            return Ok(());
        };
        let mut gathered = BytesMut::new();
        for frame in frames {
            for piece in [&frame.head, &frame.payload, &frame.trail] {
                if piece.len() < GATHER_BELOW {
                    gathered.extend_from_slice(piece);
                    continue;
                }
                if !gathered.is_empty() {
                    writer.append(gathered.split().freeze()).await?;
                }
                writer.append(piece.clone()).await?;
            }
            self.table.extend_from_slice(&frame.head);
            self.table.extend_from_slice(&frame.trail);
            self.appended = frame.end();
        }
        if !gathered.is_empty() {
            writer.append(gathered.freeze()).await?;
        }
        self.used = Instant::now();
        Ok(())
    }

    /// Position before which a reader of the store sees everything.
    pub(super) fn visible(&self, visibility: OpenVisibility) -> Pos {
        let synced_len = HEADER_LEN as u64 + (self.synced - self.base);
        match visibility {
            OpenVisibility::Appended => self.synced,
            OpenVisibility::CompleteBlocks(block) => {
                // A block is complete only once the next one was begun.
                let complete = (synced_len - 1) / block * block;
                self.base + complete.saturating_sub(HEADER_LEN as u64)
            }
        }
    }

    /// Writes the footer and closes; everything must be synced. Returns the segment's final row.
    pub(super) async fn seal(mut self, shared: &Shared) -> Result<SegmentRow> {
        let id = &shared.identity;
        if self.table.len() as u64 > self.file_len() / TABLE_SHARE {
            self.table.clear();
        }
        let footer = Footer::new(id.stream, self.base, self.appended, &self.table);
        let size = self.file_len() + (self.table.len() + TRAILER_LEN) as u64;
        let mut end = std::mem::take(&mut self.table);
        end.extend_from_slice(&footer.encode());
        if let Some(writer) = self.writer.as_mut() {
            writer.append(Bytes::from(end)).await?;
            writer
                .close()
                .await
                .context(format_args!("closing segment {}", self.path))?;
        }
        Ok(self.row(shared, SegmentState::Sealed, self.appended, size))
    }

    pub(super) fn row(
        &self,
        shared: &Shared,
        state: SegmentState,
        end: Pos,
        size: u64,
    ) -> SegmentRow {
        let stream = shared.identity.stream;
        SegmentRow {
            name: self.name,
            stream,
            base: self.base,
            end,
            state,
            size,
        }
    }
}
