//! Rows about plain files and directories that were below the root before stowfs came.

use super::codec::{Cursor, Put, corrupt};
use crate::base::{Ino, Result, StreamId, Timestamp};

/// A plain file; its bytes are a stream of their own. Or a plain directory, if a `ForeignHold` says
/// so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignRow {
    pub stream: StreamId,
    /// Path below the root of the store.
    pub path: Vec<u8>,
    /// 0 for a directory.
    pub len: u64,
    pub mtime: Timestamp,
}

/// What will become of a plain file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum ForeignState {
    /// It stays while something refers to it.
    Held = 0,
    /// Will be deleted; nothing may refer to it any more. Final.
    Condemned = 1,
    /// Deleted, or left to whoever changed it: stowfs does not know it any more.
    Gone = 2,
}

/// More about a foreign row, which comes before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignHold {
    pub stream: StreamId,
    pub state: ForeignState,
    pub is_dir: bool,
    /// The inode that it belongs to while that exists, for what has no bytes that extents could
    /// refer to: a directory, an empty file. 0: none.
    pub ino: Ino,
}

impl ForeignHold {
    /// What is true of a foreign row without more.
    pub fn of(stream: StreamId) -> ForeignHold {
        ForeignHold {
            stream,
            state: ForeignState::Held,
            is_dir: false,
            ino: Ino(0),
        }
    }
}

impl ForeignRow {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.stream.0);
        out.put_short(&self.path);
        out.put_u64(self.len);
        out.put_i64(self.mtime);
    }

    pub(super) fn decode(c: &mut Cursor<'_>) -> Result<ForeignRow> {
        Ok(ForeignRow {
            stream: StreamId(c.u32()?),
            path: c.short()?.to_vec(),
            len: c.u64()?,
            mtime: c.i64()?,
        })
    }
}

impl ForeignHold {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.stream.0);
        out.put_u8(self.state as u8);
        out.put_u8(self.is_dir as u8);
        out.put_u64(self.ino.0);
    }

    pub(super) fn decode(c: &mut Cursor<'_>) -> Result<ForeignHold> {
        Ok(ForeignHold {
            stream: StreamId(c.u32()?),
            state: decode_state(c.u8()?)?,
            is_dir: c.u8()? != 0,
            ino: Ino(c.u64()?),
        })
    }
}

fn decode_state(v: u8) -> Result<ForeignState> {
    Ok(match v {
        0 => ForeignState::Held,
        1 => ForeignState::Condemned,
        2 => ForeignState::Gone,
        _ => return Err(corrupt(format!("state {v} of a foreign file"))),
    })
}
