//! The two ends of a segment file: its header, and the footer that a sealed one has.

use super::codec::{Cursor, Put, corrupt};
use super::row::{decode_name, encode_name};
use super::{FORMAT_VERSION, MAX_POS, row};
use crate::base::{
    Epoch, Error, ErrorKind, Pos, Result, SegmentName, SessionId, StreamId, Timestamp,
};

const HEADER_MAGIC: &[u8; 8] = b"STOWSEG\0";
const TRAILER_MAGIC: &[u8; 8] = b"STOWEND\0";

/// Bytes of the header; the stream's bytes follow.
pub const HEADER_LEN: usize = 128;
/// Bytes of the trailer, the last ones of a sealed segment.
pub const TRAILER_LEN: usize = 64;

/// Where the log begins: position 0 of epoch 0, unless a rebuild began it anew. Log segments of lower
/// epochs are not replayed then; the new log's rows say which of their bytes are still in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub epoch: Epoch,
    pub pos: Pos,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub root: [u8; 16],
    pub name: SegmentName,
    pub stream: StreamId,
    pub epoch: Epoch,
    pub session: SessionId,
    /// Position in the stream of the first byte after the header.
    pub base: Pos,
    /// A position of the stream that was durable, in earlier segments, when this one was begun.
    pub durable: Pos,
    pub predecessor: Option<SegmentName>,
    pub created: Timestamp,
    /// The same in every segment from its epoch on, so that no single one is needed to know it.
    pub origin: Origin,
}

impl SegmentHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(HEADER_MAGIC);
        out.put_u16(FORMAT_VERSION);
        out.put_u16(0);
        out.extend_from_slice(&self.root);
        out.put_u32(self.stream.0);
        out.put_u32(self.epoch.0);
        out.put_u32(self.session.0);
        out.put_u64(self.base);
        out.put_u64(self.durable);
        out.put_i64(self.created);
        encode_name(&self.name, &mut out);
        out.put_u8(self.predecessor.is_some() as u8);
        encode_name(self.predecessor.as_ref().unwrap_or(&self.name), &mut out);
        out.put_u32(self.origin.epoch.0);
        out.put_u64(self.origin.pos);
        out.resize(HEADER_LEN - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader> {
        let mut c = Cursor::new(bytes);
        let raw = c.take(HEADER_LEN)?;
        let mut c = Cursor::new(checked(raw, HEADER_MAGIC, "segment header")?);
        c.take(12)?;
        let mut root = [0; 16];
        root.copy_from_slice(c.take(16)?);
        let (stream, epoch, session) = (StreamId(c.u32()?), Epoch(c.u32()?), SessionId(c.u32()?));
        let (base, durable, created) = (c.u64()?, c.u64()?, c.i64()?);
        let name = row::decode_name(&mut c)?;
        let chained = c.u8()? != 0;
        let before = decode_name(&mut c)?;
        let predecessor = chained.then_some(before);
        check_positions(&[base, durable])?;
        let origin = Origin {
            epoch: Epoch(c.u32()?),
            pos: c.u64()?,
        };
        check_positions(&[origin.pos])?;
        Ok(SegmentHeader {
            root,
            name,
            stream,
            epoch,
            session,
            base,
            durable,
            predecessor,
            created,
            origin,
        })
    }
}

fn check_positions(positions: &[Pos]) -> Result<()> {
    match positions.iter().find(|p| **p > MAX_POS) {
        Some(p) => Err(corrupt(format!("no stream has a position {p}"))),
        None => Ok(()),
    }
}

/// Checks magic, version and checksum of a fixed structure; the checksum is its last 4 bytes. The
/// version is looked at first: a newer structure may be checksummed differently.
pub(super) fn checked<'a>(raw: &'a [u8], magic: &[u8; 8], what: &str) -> Result<&'a [u8]> {
    let mut c = Cursor::new(raw);
    if c.take(8)? != magic {
        return Err(corrupt(format!("no {what} here")));
    }
    let version = c.u16()?;
    let (body, crc) = raw.split_at(raw.len() - 4);
    let right = crc32c::crc32c(body).to_le_bytes() == crc;
    if version > FORMAT_VERSION && right {
        return Err(Error::new(
            ErrorKind::NewerFormat,
            format!("{what} of format version {version}; this stowfs reads up to {FORMAT_VERSION}"),
        ));
    }
    if version != FORMAT_VERSION || !right {
        return Err(corrupt(format!("{what} with a wrong checksum")));
    }
    Ok(body)
}

/// The end of a sealed segment: where its frame table is and where its bytes end.
///
/// The frame table is every frame in order with the payloads of data frames left out, so a mount
/// reads it instead of the data. A table that would be too large (many tiny files) is left out, and
/// the segment is scanned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub stream: StreamId,
    pub base: Pos,
    /// Position in the stream after the last frame.
    pub end: Pos,
    /// Bytes of the frame table, which ends where the trailer starts; 0 if left out.
    pub table_len: u32,
    pub table_crc: u32,
}

impl Footer {
    pub fn new(stream: StreamId, base: Pos, end: Pos, table: &[u8]) -> Footer {
        let table_crc = crc32c::crc32c(table);
        Footer {
            stream,
            base,
            end,
            table_len: table.len() as u32,
            table_crc,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TRAILER_LEN);
        out.extend_from_slice(TRAILER_MAGIC);
        out.put_u16(FORMAT_VERSION);
        out.put_u16(0);
        out.put_u32(self.stream.0);
        out.put_u64(self.base);
        out.put_u64(self.end);
        out.put_u32(self.table_len);
        out.put_u32(self.table_crc);
        out.resize(TRAILER_LEN - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Whether a trailer was written here, be it whole or not.
    pub fn looks_like(trailer: &[u8]) -> bool {
        trailer.starts_with(TRAILER_MAGIC)
    }

    /// Decodes the trailer: the last `TRAILER_LEN` bytes of a file of `file_len` bytes.
    pub fn decode(trailer: &[u8], file_len: u64) -> Result<Footer> {
        let mut c = Cursor::new(checked(trailer, TRAILER_MAGIC, "segment footer")?);
        c.take(12)?;
        let f = Footer {
            stream: StreamId(c.u32()?),
            base: c.u64()?,
            end: c.u64()?,
            table_len: c.u32()?,
            table_crc: c.u32()?,
        };
        check_positions(&[f.base, f.end])?;
        let whole = f.end.checked_sub(f.base).map(|n| n + f.table_len as u64);
        if whole != file_len.checked_sub((HEADER_LEN + TRAILER_LEN) as u64) {
            return Err(corrupt(
                "a segment footer that does not fit the length of its file",
            ));
        }
        Ok(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_footer_come_back_and_a_newer_version_is_named() {
        let h = SegmentHeader {
            root: [9; 16],
            name: SegmentName::Log {
                epoch: Epoch(2),
                n: 3,
            },
            stream: StreamId::LOG,
            epoch: Epoch(2),
            session: SessionId(2),
            base: 1 << 40,
            durable: 1 << 39,
            predecessor: Some(SegmentName::Log {
                epoch: Epoch(2),
                n: 2,
            }),
            created: -5,
            origin: Origin {
                epoch: Epoch(1),
                pos: 77,
            },
        };
        let bytes = h.encode();
        assert_eq!(bytes.len(), HEADER_LEN);
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), h);

        let mut newer = bytes.clone();
        newer[8] = 9;
        let crc = crc32c::crc32c(&newer[..HEADER_LEN - 4]);
        newer[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            SegmentHeader::decode(&newer).unwrap_err().kind(),
            ErrorKind::NewerFormat
        );

        let f = Footer::new(StreamId(5), 10, 30, b"table");
        let file_len = (HEADER_LEN + 20 + 5 + TRAILER_LEN) as u64;
        assert_eq!(Footer::decode(&f.encode(), file_len).unwrap(), f);
        assert!(Footer::decode(&f.encode(), file_len + 1).is_err());
    }
}
