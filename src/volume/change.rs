//! Building one atomic change.

use super::BufferPermit;
use crate::base::{Epoch, Error, ErrorKind, Pos, Result, SessionId, StreamId};
use crate::format::frame::{MAX_RECORD, head_len};
use crate::format::{DataFrame, Extent, RecordFrame, Row};
use crate::stream::QueuedFrame;
use bytes::Bytes;
use std::sync::Arc;

/// Rows and data that become visible, and durable, together.
pub struct Change {
    epoch: Epoch,
    /// Log position of the first frame of this change.
    start: Pos,
    at: Pos,
    frames: Vec<QueuedFrame>,
    rows: Vec<Row>,
    held: Vec<BufferPermit>,
}

impl Change {
    pub(super) fn new(epoch: Epoch, start: Pos) -> Change {
        Change {
            epoch,
            start,
            at: start,
            frames: Vec::new(),
            rows: Vec::new(),
            held: Vec::new(),
        }
    }

    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Puts data into the log; the extent says where it will be.
    pub fn data(&mut self, mut frame: DataFrame) -> Extent {
        frame.lsn = self.start;
        let (queued, extent) = place(&frame, StreamId::LOG, self.at, self.epoch);
        self.at = queued.end();
        self.frames.push(queued);
        extent
    }

    /// Keeps a permit until this change is durable.
    pub fn hold(&mut self, permit: BufferPermit) {
        self.held.push(permit);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The frames to queue, the rows to apply, and the position to wait for.
    pub(super) fn finish(
        mut self,
        session: SessionId,
        op: u64,
        durable: Pos,
    ) -> Result<(Vec<QueuedFrame>, Vec<Row>, Pos)> {
        let record = RecordFrame {
            session,
            op,
            durable,
            rows: self.rows,
        };
        let mut head = Vec::new();
        record.encode(self.at, self.epoch, &mut head);
        if head.len() > MAX_RECORD {
            let text = format!(
                "a change of {} bytes is too large for one record",
                head.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let held = (!self.held.is_empty()).then(|| Arc::new(self.held) as Arc<_>);
        let queued = QueuedFrame {
            pos: self.at,
            head: head.into(),
            payload: Bytes::new(),
            trail: Bytes::new(),
            held,
        };
        let end = queued.end();
        self.frames.push(queued);
        Ok((self.frames, record.rows, end))
    }
}

/// Gives a data frame its position in a stream.
pub(super) fn place(
    frame: &DataFrame,
    stream: StreamId,
    pos: Pos,
    epoch: Epoch,
) -> (QueuedFrame, Extent) {
    let len = frame.payload.len();
    let extent = Extent {
        off: frame.off,
        len: len as u32,
        stream,
        pos: pos + head_len(len) as u64,
        frame: len as u32,
        skip: 0,
    };
    let queued = QueuedFrame {
        pos,
        head: frame.encode_head(pos, epoch).into(),
        payload: frame.payload.clone(),
        trail: frame.path.clone().into(),
        held: None,
    };
    (queued, extent)
}
