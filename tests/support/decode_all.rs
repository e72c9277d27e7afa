//! Runs every decoder on some bytes. None may panic, whatever the bytes are; what one accepts must
//! come back from its encoder. Shared by the property tests and the fuzz targets.

use stowfs::format::codec::Cursor;
use stowfs::format::frame::{DataHead, Frame, PREFIX, Parsed, Prefix, find_vouching_record, parse};
use stowfs::format::segment::{Footer, SegmentHeader};
use stowfs::format::snapshot::SnapshotHeader;
use stowfs::format::{DataFrame, RecordFrame, Row};
use stowfs::index::Index;
use stowfs::volume::owner::{Owner, Released};
use stowfs::volume::root::RootFormat;

pub fn decode_all(bytes: &[u8]) {
    frames(bytes);
    rows(bytes);
    ends(bytes);
    texts(bytes);
    // Past the checksums, where random bytes never get.
    for kind in [1, 2] {
        frames(&framed(kind, 12_345, bytes));
    }
    let n = bytes.len();
    for magic in [b"STOWSEG\0", b"STOWIDX\0", b"STOWEND\0"] {
        let len = if magic[4] == b'E' { 64 } else { 128 };
        let mut fixed = vec![0; len];
        fixed[10..].iter_mut().zip(bytes).for_each(|(f, b)| *f = *b);
        fixed[..8].copy_from_slice(magic);
        fixed[8] = 1;
        let crc = crc32c::crc32c(&fixed[..len - 4]);
        fixed[len - 4..].copy_from_slice(&crc.to_le_bytes());
        ends(&fixed);
    }
    assert_eq!(n, bytes.len());
}

/// A frame with these bytes as its body, laid out as FORMAT.md says.
pub fn framed(kind: u32, pos: u64, body: &[u8]) -> Vec<u8> {
    let crc = match kind {
        // The checksum of a data frame covers its head and its path.
        1 => data_crc(body),
        _ => crc32c::crc32c(body),
    };
    let mut out = b"SWFR".to_vec();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&pos.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&7u32.to_le_bytes());
    let own = crc32c::crc32c(&out);
    out.extend_from_slice(&own.to_le_bytes());
    assert_eq!(out.len(), PREFIX);
    out.extend_from_slice(body);
    out
}

fn data_crc(body: &[u8]) -> u32 {
    let u32_at = |at: usize| {
        let four = body.get(at..at + 4).and_then(|b| b.try_into().ok());
        u32::from_le_bytes(four.unwrap_or_default()) as usize
    };
    let (len, path) = (u32_at(24), u32_at(28));
    let head = (32 + 4 * len.div_ceil(65536)).min(body.len());
    let path = &body[body.len().saturating_sub(path)..];
    crc32c::crc32c_append(crc32c::crc32c(&body[..head]), path)
}

fn frames(bytes: &[u8]) {
    let pos = Prefix::decode(bytes).map_or(0, |p| p.pos);
    for elided in [false, true] {
        match parse(bytes, pos, elided) {
            Parsed::Frame { prefix, frame } => comes_back(bytes, &prefix, frame, elided),
            Parsed::Short(need) => {
                assert!(
                    need > bytes.len() && need <= 17 << 20,
                    "asks for {need} bytes"
                );
            }
            Parsed::Bad(_) => {}
        }
    }
    let _ = DataHead::decode(bytes);
    let _ = find_vouching_record(bytes, |_, _| true);
}

fn comes_back(bytes: &[u8], prefix: &Prefix, frame: Frame, elided: bool) {
    match frame {
        Frame::Record(record) => {
            let mut again = Vec::new();
            record.encode(prefix.pos, prefix.epoch, &mut again);
            let Parsed::Frame { frame, .. } = parse(&again, prefix.pos, false) else {
                panic!("what was decoded does not come back");
            };
            assert_eq!(frame, Frame::Record(record.clone()));
            apply(&record);
        }
        Frame::Data { head, path } if !elided => {
            let payload = &bytes[head.head_len()..][..head.len as usize];
            let again = DataFrame {
                ino: head.ino,
                off: head.off,
                lsn: head.lsn,
                payload: payload.to_vec().into(),
                crcs: head.crcs.clone(),
                path: path.clone(),
            };
            let start = again.encode_head(prefix.pos, prefix.epoch);
            assert_eq!(start, bytes[..head.head_len()], "a data frame's head");
        }
        Frame::Data { .. } => {}
    }
}

/// An index takes every row that a decoder lets through.
fn apply(record: &RecordFrame) {
    let mut index = Index::new();
    for row in &record.rows {
        index.apply(row).expect("a decoded row");
    }
    index.check();
    index.rows(|row| {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
    });
}

fn rows(bytes: &[u8]) {
    let mut c = Cursor::new(bytes);
    while let Ok(row) = Row::decode(&mut c) {
        let mut again = Vec::new();
        row.encode(&mut again);
        assert_eq!(Row::decode(&mut Cursor::new(&again)).expect("a row"), row);
    }
}

fn ends(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(
            SegmentHeader::decode(&header.encode()).expect("a header"),
            header
        );
    }
    if let Ok(header) = SnapshotHeader::decode(bytes) {
        assert_eq!(
            SnapshotHeader::decode(&header.encode()).expect("a header"),
            header
        );
    }
    for len in [bytes.len() as u64, 0, 192, u64::MAX] {
        if let Ok(footer) = Footer::decode(bytes, len) {
            assert_eq!(
                Footer::decode(&footer.encode(), len).expect("a footer"),
                footer
            );
        }
    }
}

fn texts(bytes: &[u8]) {
    if let Ok(format) = RootFormat::decode(bytes) {
        assert_eq!(
            RootFormat::decode(&format.encode()).expect("a format"),
            format
        );
    }
    if let Ok(released) = Released::decode(bytes, "released") {
        let again = Released::decode(&released.encode(), "released");
        assert_eq!(again.expect("a promise"), released);
    }
    if let Ok(owner) = Owner::decode(bytes, "owner") {
        assert_eq!(
            Owner::decode(&owner.encode(), "owner").expect("an owner"),
            owner
        );
        let _ = owner.describe();
    }
}
