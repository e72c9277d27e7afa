//! Frames: what a segment is made of, between its header and its footer.
//!
//! A frame starts with a prefix of 32 bytes that carries its own position in the stream, so that
//! stale or misplaced bytes are never taken for a frame. A *data frame* holds a run of one file's
//! bytes, a *record frame* one atomic change of the index.

use super::codec::{Cursor, Put, corrupt};
use super::row::Row;
use super::{BLOCK, MAX_PAYLOAD, MAX_POS};
use crate::base::{Epoch, Ino, Pos, Result, SessionId};
use bytes::Bytes;

/// The first bytes of every frame.
pub const FRAME_MAGIC: [u8; 4] = *b"SWFR";
const MAGIC: u32 = u32::from_le_bytes(FRAME_MAGIC);
pub const PREFIX: usize = 32;
/// Fixed part of a data frame's body, before the checksums.
const DATA_HEAD: usize = 32;
/// The longest path that a data frame remembers; longer ones are left out.
const MAX_PATH: usize = 4096;
/// The most bytes in a record's body: bounds what a damaged length can make a reader fetch.
pub const MAX_RECORD: usize = 16 * 1024 * 1024;

const KIND_DATA: u8 = 1;
const KIND_RECORD: u8 = 2;

/// How many checksums cover a payload of `len` bytes.
pub const fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// Bytes of a data frame before its payload: from the payload's place in a stream, the start of
/// its frame follows.
pub const fn head_len(payload: usize) -> usize {
    PREFIX + DATA_HEAD + 4 * blocks(payload)
}

/// crc32c of each block of a payload.
pub fn checksums(payload: &[u8]) -> Vec<u32> {
    payload.chunks(BLOCK).map(crc32c::crc32c).collect()
}

/// A run of one file's bytes, ready to be framed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFrame {
    pub ino: Ino,
    /// Offset in the file.
    pub off: u64,
    /// In the log: the position where the frame's own record will start is not known yet, so this
    /// is the lower bound known when the frame was made. It orders frames when the log is lost.
    pub lsn: Pos,
    pub payload: Bytes,
    pub crcs: Vec<u32>,
    /// The file's path when the frame was made, for salvage. May be empty.
    pub path: Vec<u8>,
}

impl DataFrame {
    pub fn new(ino: Ino, off: u64, payload: Bytes, mut path: Vec<u8>) -> DataFrame {
        debug_assert!(!payload.is_empty() && payload.len() <= MAX_PAYLOAD);
        if path.len() > MAX_PATH {
            path.clear();
        }
        let crcs = checksums(&payload);
        DataFrame {
            ino,
            off,
            lsn: 0,
            payload,
            crcs,
            path,
        }
    }

    pub fn encoded_len(&self) -> usize {
        head_len(self.payload.len()) + self.payload.len() + self.path.len()
    }

    /// Everything before the payload.
    pub fn encode_head(&self, pos: Pos, epoch: Epoch) -> Vec<u8> {
        let mut body = Vec::with_capacity(DATA_HEAD + 4 * self.crcs.len());
        body.put_u64(self.ino.0);
        body.put_u64(self.off);
        body.put_u64(self.lsn);
        body.put_u32(self.payload.len() as u32);
        body.put_u32(self.path.len() as u32);
        self.crcs.iter().for_each(|c| body.put_u32(*c));
        let crc = crc32c::crc32c_append(crc32c::crc32c(&body), &self.path);
        let body_len = body.len() + self.payload.len() + self.path.len();
        let mut out = Vec::with_capacity(PREFIX + body.len());
        encode_prefix(KIND_DATA, pos, body_len, crc, epoch, &mut out);
        out.extend_from_slice(&body);
        out
    }
}

/// One atomic change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFrame {
    pub session: SessionId,
    /// Number of the operation in its session, so that a repeated one can be recognised.
    pub op: u64,
    /// A position of the log that was durable when this record was made. A later reader tells a
    /// torn tail (nothing durable is missing) from damage by it.
    pub durable: Pos,
    pub rows: Vec<Row>,
}

impl RecordFrame {
    pub fn encode(&self, pos: Pos, epoch: Epoch, out: &mut Vec<u8>) {
        let mut frame = Vec::new();
        begin_record(self.session, self.op, self.durable, &mut frame);
        frame.put_u32(0);
        self.rows.iter().for_each(|r| r.encode(&mut frame));
        end_record(self.rows.len() as u32, pos, epoch, &mut frame);
        out.append(&mut frame);
    }

    /// The record in a frame, from what follows the prefix.
    pub fn from_body(prefix: &Prefix, body: &[u8]) -> Result<RecordFrame> {
        if !prefix.is_record() {
            return Err(corrupt("data where a record was expected"));
        }
        if crc32c::crc32c(body) != prefix.crc {
            return Err(corrupt("a record with a wrong checksum"));
        }
        RecordFrame::decode(body)
    }

    fn decode(body: &[u8]) -> Result<RecordFrame> {
        let mut c = Cursor::new(body);
        let (session, op, durable) = (SessionId(c.u32()?), c.u64()?, c.u64()?);
        let n = c.u32()? as usize;
        // Not by `n`: a row in memory is far larger than the shortest on the store.
        let mut rows = Vec::with_capacity(n.min(256));
        for _ in 0..n {
            rows.push(Row::decode(&mut c)?);
        }
        c.end()?;
        Ok(RecordFrame {
            session,
            op,
            durable,
            rows,
        })
    }
}

/// Bytes of a record's body before its rows: session, number, durable, how many rows.
const RECORD_HEAD: usize = 24;

/// Begins a record's frame in an empty buffer; the number of rows and the rows come next.
pub(super) fn begin_record(session: SessionId, op: u64, durable: Pos, out: &mut Vec<u8>) {
    out.resize(PREFIX, 0);
    out.put_u32(session.0);
    out.put_u64(op);
    out.put_u64(durable);
}

/// Fills in what is known when all rows are there.
pub(super) fn end_record(rows: u32, pos: Pos, epoch: Epoch, out: &mut [u8]) {
    out[PREFIX + RECORD_HEAD - 4..PREFIX + RECORD_HEAD].copy_from_slice(&rows.to_le_bytes());
    let body = &out[PREFIX..];
    let mut prefix = Vec::with_capacity(PREFIX);
    encode_prefix(
        KIND_RECORD,
        pos,
        body.len(),
        crc32c::crc32c(body),
        epoch,
        &mut prefix,
    );
    out[..PREFIX].copy_from_slice(&prefix);
}

fn encode_prefix(kind: u8, pos: Pos, body: usize, crc: u32, epoch: Epoch, out: &mut Vec<u8>) {
    let start = out.len();
    out.put_u32(MAGIC);
    out.put_u32(kind as u32);
    out.put_u64(pos);
    out.put_u32(body as u32);
    out.put_u32(crc);
    out.put_u32(epoch.0);
    let own = crc32c::crc32c(&out[start..]);
    out.put_u32(own);
}

/// A prefix whose own checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    kind: u8,
    pub pos: Pos,
    pub body: usize,
    crc: u32,
    pub epoch: Epoch,
}

impl Prefix {
    pub fn decode(bytes: &[u8]) -> Result<Prefix> {
        let mut c = Cursor::new(bytes);
        let raw = c.take(PREFIX)?;
        let mut c = Cursor::new(raw);
        let (magic, kind, pos) = (c.u32()?, c.u32()?, c.u64()?);
        let (body, crc, epoch, own) = (c.u32()? as usize, c.u32()?, c.u32()?, c.u32()?);
        if magic != MAGIC || crc32c::crc32c(&raw[..PREFIX - 4]) != own {
            return Err(corrupt("no frame here"));
        }
        let limit = match kind as u8 {
            KIND_DATA => DATA_HEAD + 4 * blocks(MAX_PAYLOAD) + MAX_PAYLOAD + MAX_PATH,
            KIND_RECORD => MAX_RECORD,
            _ => return Err(corrupt(format!("frame of unknown kind {kind}"))),
        };
        if kind > u8::MAX as u32 || body > limit || pos > MAX_POS {
            return Err(corrupt(format!(
                "frame of kind {kind} with a body of {body} bytes"
            )));
        }
        Ok(Prefix {
            kind: kind as u8,
            pos,
            body,
            crc,
            epoch: Epoch(epoch),
        })
    }

    /// Bytes of the whole frame.
    pub fn frame_len(&self) -> usize {
        PREFIX + self.body
    }

    pub fn is_record(&self) -> bool {
        self.kind == KIND_RECORD
    }
}

/// What a data frame says before its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHead {
    pub ino: Ino,
    pub off: u64,
    pub lsn: Pos,
    pub len: u32,
    pub path_len: u32,
    pub crcs: Vec<u32>,
}

impl DataHead {
    /// Decodes prefix and head from the first bytes of a frame. The checksum over head and path is
    /// not checked here (the path lies after the payload); `pos` guards against misplaced bytes,
    /// and each block's checksum against wrong ones.
    pub fn decode(bytes: &[u8]) -> Result<(Prefix, DataHead)> {
        let prefix = Prefix::decode(bytes)?;
        if prefix.kind != KIND_DATA {
            return Err(corrupt("a record where data was expected"));
        }
        let mut c = Cursor::new(bytes);
        c.take(PREFIX)?;
        let (ino, off, lsn) = (Ino(c.u64()?), c.u64()?, c.u64()?);
        let (len, path_len) = (c.u32()?, c.u32()?);
        let n = blocks(len as usize);
        let whole = DATA_HEAD as u64 + 4 * n as u64 + len as u64 + path_len as u64;
        if len == 0 || len as usize > MAX_PAYLOAD || whole != prefix.body as u64 {
            return Err(corrupt(format!(
                "a data frame whose lengths disagree ({len} bytes)"
            )));
        }
        let mut crcs = Vec::with_capacity(n);
        for _ in 0..n {
            crcs.push(c.u32()?);
        }
        Ok((
            prefix,
            DataHead {
                ino,
                off,
                lsn,
                len,
                path_len,
                crcs,
            },
        ))
    }

    pub fn head_len(&self) -> usize {
        head_len(self.len as usize)
    }

    /// How many bytes of a data frame `decode` needs, by its first ones; None if these are too few.
    pub fn needed(bytes: &[u8]) -> Option<usize> {
        payload_len(bytes).map(|len| head_len(len.min(MAX_PAYLOAD)))
    }
}

/// A frame as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The payload's checksums are not verified by parsing.
    Data {
        head: DataHead,
        path: Vec<u8>,
    },
    Record(RecordFrame),
}

/// The outcome of looking for a frame at the start of some bytes.
#[derive(Debug)]
pub enum Parsed {
    Frame {
        prefix: Prefix,
        frame: Frame,
    },
    /// The bytes end within the frame; this many are needed from its start.
    Short(usize),
    Bad(String),
}

/// Parses the frame that must stand at the start of `bytes` with position `pos`. With
/// `payload_elided` (in a footer) data frames lack their payload.
pub fn parse(bytes: &[u8], pos: Pos, payload_elided: bool) -> Parsed {
    if bytes.len() < PREFIX {
        return Parsed::Short(PREFIX);
    }
    match Prefix::decode(bytes) {
        Err(e) => Parsed::Bad(e.to_string()),
        Ok(p) if p.pos != pos => Parsed::Bad(format!(
            "a frame of position {} where {pos} was expected",
            p.pos
        )),
        Ok(p) if p.is_record() => parse_record(bytes, p),
        Ok(p) => parse_data(bytes, p, payload_elided),
    }
}

fn parse_record(bytes: &[u8], prefix: Prefix) -> Parsed {
    let Some(body) = bytes.get(PREFIX..prefix.frame_len()) else {
        return Parsed::Short(prefix.frame_len());
    };
    match RecordFrame::from_body(&prefix, body) {
        Ok(record) => Parsed::Frame {
            prefix,
            frame: Frame::Record(record),
        },
        Err(e) => Parsed::Bad(e.to_string()),
    }
}

/// What a data frame says its payload's length is; None if the bytes end before that.
fn payload_len(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(PREFIX..PREFIX + DATA_HEAD)?;
    let len = head[24..].first_chunk()?;
    Some(u32::from_le_bytes(*len) as usize)
}

fn parse_data(bytes: &[u8], prefix: Prefix, payload_elided: bool) -> Parsed {
    // The payload's length is needed to know how much to ask for; it is checked by `decode`.
    let Some(len) = payload_len(bytes) else {
        return Parsed::Short(PREFIX + DATA_HEAD);
    };
    if len > MAX_PAYLOAD || len > prefix.body {
        return Parsed::Bad("a data frame whose lengths disagree".into());
    }
    let stored = prefix.frame_len() - if payload_elided { len } else { 0 };
    if bytes.len() < stored {
        return Parsed::Short(stored);
    }
    match DataHead::decode(bytes) {
        Err(e) => Parsed::Bad(e.to_string()),
        Ok((_, head)) => {
            let path = &bytes[stored - head.path_len as usize..stored];
            let fixed = &bytes[PREFIX..head.head_len()];
            if crc32c::crc32c_append(crc32c::crc32c(fixed), path) != prefix.crc {
                return Parsed::Bad("a data frame with a wrong header checksum".into());
            }
            Parsed::Frame {
                prefix,
                frame: Frame::Data {
                    path: path.to_vec(),
                    head,
                },
            }
        }
    }
}

/// Looks through bytes that are not a frame for a whole record further on, and returns the highest
/// `durable` position that any of them vouches for. Used to tell damage from a torn tail. `ours` says
/// by offset and prefix whether a record belongs there: files may hold the segments of other roots.
pub fn find_vouching_record(bytes: &[u8], ours: impl Fn(usize, &Prefix) -> bool) -> Option<Pos> {
    let mut best = None;
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|r| r.len() >= PREFIX) {
        let Some(hit) = rest.windows(4).position(|w| w == FRAME_MAGIC) else {
            break;
        };
        let here = &rest[hit..];
        let record = Prefix::decode(here)
            .ok()
            .filter(|p| p.is_record() && ours(at + hit, p));
        if let Some(Parsed::Frame {
            frame: Frame::Record(r),
            ..
        }) = record.map(|p| parse_record(here, p))
        {
            best = best.max(Some(r.durable));
        }
        at += hit + 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> (DataFrame, Vec<u8>) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
        let f = DataFrame::new(Ino(7), 100, payload.into(), b"a/b".to_vec());
        let mut bytes = f.encode_head(5000, Epoch(3));
        bytes.extend_from_slice(&f.payload);
        bytes.extend_from_slice(&f.path);
        assert_eq!(bytes.len(), f.encoded_len());
        (f, bytes)
    }

    #[test]
    fn a_data_frame_comes_back_and_its_head_is_where_arithmetic_says() {
        for len in [1, BLOCK - 1, BLOCK, BLOCK + 1, 300_000] {
            let (f, bytes) = data(len);
            let Parsed::Frame {
                prefix,
                frame: Frame::Data { head, path },
            } = parse(&bytes, 5000, false)
            else {
                panic!("not parsed");
            };
            assert_eq!(prefix.frame_len(), bytes.len());
            assert_eq!((head.ino, head.off, head.len as usize), (f.ino, f.off, len));
            assert_eq!(path, f.path);
            assert_eq!(head.crcs, f.crcs);
            assert_eq!(&bytes[head_len(len)..head_len(len) + len], &f.payload[..]);
        }
    }

    #[test]
    fn every_single_bit_flip_outside_the_payload_is_noticed() {
        let (_, bytes) = data(10);
        let payload = head_len(10)..head_len(10) + 10;
        for bit in 0..bytes.len() * 8 {
            if payload.contains(&(bit / 8)) {
                continue;
            }
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(parse(&bad, 5000, false), Parsed::Frame { .. }),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_record_comes_back_and_vouches_for_what_was_durable() {
        let r = RecordFrame {
            session: SessionId(4),
            op: 9,
            durable: 77,
            rows: vec![Row::Free { ino: Ino(12) }],
        };
        let mut bytes = vec![0x53; 41];
        r.encode(900, Epoch(1), &mut bytes);
        let Parsed::Frame {
            frame: Frame::Record(back),
            ..
        } = parse(&bytes[41..], 900, false)
        else {
            panic!("not parsed");
        };
        assert_eq!(back, r);
        assert!(matches!(parse(&bytes[41..], 901, false), Parsed::Bad(_)));
        let any = |_: usize, _: &Prefix| true;
        assert_eq!(find_vouching_record(&bytes, any), Some(77));
        assert_eq!(find_vouching_record(&bytes[..bytes.len() - 1], any), None);
        let here = |at: usize, p: &Prefix| p.pos == at as u64;
        assert_eq!(find_vouching_record(&bytes, here), None);
    }
}
