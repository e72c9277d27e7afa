//! The header of a snapshot: a full copy of the index. Record frames follow, then a footer.

use super::FORMAT_VERSION;
use super::codec::{Cursor, Put};
use super::segment::{HEADER_LEN, checked};
use crate::base::{Epoch, Pos, Result, StreamId, Timestamp};

const MAGIC: &[u8; 8] = b"STOWIDX\0";

/// Goes into the footer of a snapshot, where a segment's has its stream.
pub const SNAPSHOT_STREAM: StreamId = StreamId(u32::MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    pub root: [u8; 16],
    pub epoch: Epoch,
    /// Replay goes on here: every record before is contained. Later ones may be, in part.
    pub from: Pos,
    pub created: Timestamp,
}

impl SnapshotHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(MAGIC);
        out.put_u16(FORMAT_VERSION);
        out.put_u16(0);
        out.extend_from_slice(&self.root);
        out.put_u32(self.epoch.0);
        out.put_u64(self.from);
        out.put_i64(self.created);
        out.resize(HEADER_LEN - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<SnapshotHeader> {
        let mut c = Cursor::new(bytes);
        let raw = c.take(HEADER_LEN)?;
        let mut c = Cursor::new(checked(raw, MAGIC, "snapshot header")?);
        c.take(12)?;
        let mut root = [0; 16];
        root.copy_from_slice(c.take(16)?);
        Ok(SnapshotHeader {
            root,
            epoch: Epoch(c.u32()?),
            from: c.u64()?,
            created: c.i64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back() {
        let h = SnapshotHeader {
            root: [3; 16],
            epoch: Epoch(9),
            from: 7,
            created: -1,
        };
        assert_eq!(SnapshotHeader::decode(&h.encode()).unwrap(), h);
        assert!(SnapshotHeader::decode(&h.encode()[1..]).is_err());
    }
}
