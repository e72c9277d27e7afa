//! Golden files: what stowfs wrote once it must read for ever, and write again byte for byte. They
//! keep FORMAT.md and the code together.
//!
//! `STOWFS_TEST_GOLDEN=write` writes them anew, after a deliberate change of the format.

use std::fmt::Write;
use std::path::PathBuf;
use stowfs::base::{Epoch, Ino, Pos, SegmentName, SessionId, StreamId};
use stowfs::format::frame::{Frame, Parsed, checksums, parse};
use stowfs::format::segment::{Footer, HEADER_LEN, SegmentHeader, TRAILER_LEN};
use stowfs::format::snapshot::{SNAPSHOT_STREAM, SnapshotHeader};
use stowfs::format::{
    Attr, DataFrame, Extent, ForeignHold, ForeignRow, ForeignState, Origin, RecordFrame, Row,
    SegmentRow, SegmentState,
};
use stowfs::volume::owner::Owner;
use stowfs::volume::root::RootFormat;

const ROOT: [u8; 16] = *b"golden-root-uuid";
const CREATED: i64 = 1_700_000_000_123_456_789;

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn log_name(n: u32) -> SegmentName {
    let epoch = Epoch(3);
    SegmentName::Log { epoch, n }
}

fn attr(kind: u32, size: u64) -> Attr {
    Attr {
        mode: kind | 0o640,
        uid: 1000,
        gid: 100,
        nlink: 1,
        rdev: 0,
        size,
        atime: CREATED + 1,
        mtime: CREATED + 2,
        ctime: CREATED + 3,
        crtime: CREATED,
    }
}

fn extent(off: u64, len: u32, stream: u32, pos: Pos, frame: u32, skip: u32) -> Extent {
    Extent {
        off,
        len,
        stream: StreamId(stream),
        pos,
        frame,
        skip,
    }
}

/// One row of every type, with all that is optional both present and absent.
fn all_rows() -> Vec<Row> {
    let (ino, parent) = (Ino(7), Ino::ROOT);
    let lane = SegmentName::Lane {
        session: SessionId(3),
        n: 2,
    };
    vec![
        Row::Session {
            epoch: Epoch(3),
            session: SessionId(3),
            started: CREATED,
        },
        Row::InoRange { next: Ino(65_538) },
        Row::StreamRange { next: StreamId(9) },
        Row::Inode {
            ino,
            attr: attr(libc::S_IFREG, 5000),
        },
        Row::Entry {
            parent,
            name: "chk-1_é".into(),
            ino,
        },
        Row::NoEntry {
            parent,
            name: b"old".to_vec(),
        },
        Row::Extents {
            ino,
            off: 0,
            len: 5000,
            extents: vec![
                extent(0, 10, 0, 1068, 10, 0),
                extent(100, 4000, 5, 4_100, 65_537, 1_000),
                extent(4100, 900, 6, 12, 0, 0),
            ],
        },
        Row::Extents {
            ino,
            off: 5000,
            len: u64::MAX,
            extents: vec![],
        },
        Row::Inode {
            ino: Ino(8),
            attr: attr(libc::S_IFLNK, 6),
        },
        Row::Target {
            ino: Ino(8),
            target: b"../x/y".to_vec(),
        },
        Row::Xattr {
            ino,
            name: b"user.a".to_vec(),
            value: Some(b"value".to_vec()),
        },
        Row::Xattr {
            ino,
            name: b"user.b".to_vec(),
            value: None,
        },
        Row::Segment(SegmentRow {
            name: lane,
            stream: StreamId(5),
            base: 4000,
            end: 90_000,
            state: SegmentState::Sealed,
            size: 86_192,
        }),
        Row::Foreign(ForeignRow {
            stream: StreamId(6),
            path: b"plain/file".to_vec(),
            len: 912,
            mtime: CREATED,
        }),
        Row::Free { ino: Ino(6) },
        Row::Snapshots { oldest: 900 },
    ]
}

/// Rows that came later: files that exist must not change.
fn later_rows() -> Vec<Row> {
    let hold = |stream, state, is_dir, ino| {
        Row::ForeignHold(ForeignHold {
            stream: StreamId(stream),
            state,
            is_dir,
            ino: Ino(ino),
        })
    };
    vec![
        Row::Adopted,
        hold(6, ForeignState::Condemned, false, 0),
        hold(7, ForeignState::Held, true, 70_000),
        hold(8, ForeignState::Gone, false, 0),
    ]
}

fn later_frames() -> Vec<Piece> {
    vec![Piece::Record(RecordFrame {
        session: SessionId(3),
        op: 2,
        durable: 1000,
        rows: later_rows(),
    })]
}

fn frames() -> Vec<Piece> {
    let two_blocks: Vec<u8> = (0..65_537u32).map(|i| (i * 7) as u8).collect();
    let mut first = DataFrame::new(Ino(7), 0, b"0123456789".as_slice().into(), b"a/b".to_vec());
    first.lsn = 1000;
    let second = DataFrame::new(Ino(9), 1 << 33, two_blocks.into(), Vec::new());
    let record = |op, durable, rows| RecordFrame {
        session: SessionId(3),
        op,
        durable,
        rows,
    };
    vec![
        Piece::Data(first),
        Piece::Record(record(0, 1000, all_rows())),
        Piece::Data(second),
        Piece::Record(record(1, 1500, vec![])),
    ]
}

enum Piece {
    Data(DataFrame),
    Record(RecordFrame),
}

/// Encodes a segment; returns it with its frame table.
fn encode(header: &SegmentHeader, frames: &[Piece], sealed: Option<bool>) -> Vec<u8> {
    let mut out = header.encode();
    let mut table = Vec::new();
    for frame in frames {
        let pos = header.base + (out.len() - HEADER_LEN) as u64;
        match frame {
            Piece::Data(d) => {
                let head = d.encode_head(pos, header.epoch);
                for part in [&head[..], &d.payload, &d.path] {
                    out.extend_from_slice(part);
                }
                table.extend_from_slice(&head);
                table.extend_from_slice(&d.path);
            }
            Piece::Record(r) => {
                let start = out.len();
                r.encode(pos, header.epoch, &mut out);
                table.extend_from_slice(&out[start..]);
            }
        }
    }
    if let Some(with_table) = sealed {
        let end = header.base + (out.len() - HEADER_LEN) as u64;
        let table = if with_table { table } else { Vec::new() };
        let footer = Footer::new(header.stream, header.base, end, &table);
        out.extend_from_slice(&table);
        out.extend_from_slice(&footer.encode());
    }
    out
}

fn log_header() -> SegmentHeader {
    SegmentHeader {
        root: ROOT,
        name: log_name(1),
        stream: StreamId::LOG,
        epoch: Epoch(3),
        session: SessionId(3),
        base: 1000,
        durable: 1000,
        predecessor: Some(log_name(0)),
        created: CREATED,
        origin: Origin {
            epoch: Epoch(2),
            pos: 900,
        },
    }
}

fn lane_header() -> SegmentHeader {
    SegmentHeader {
        name: SegmentName::Lane {
            session: SessionId(3),
            n: 2,
        },
        stream: StreamId(5),
        base: 4000,
        durable: 4000,
        predecessor: None,
        ..log_header()
    }
}

fn snapshot() -> Vec<u8> {
    let header = SnapshotHeader {
        root: ROOT,
        epoch: Epoch(3),
        from: 1500,
        created: CREATED,
    };
    let mut out = header.encode();
    let record = RecordFrame {
        session: SessionId(3),
        op: 0,
        durable: 0,
        rows: all_rows(),
    };
    record.encode(0, Epoch(3), &mut out);
    let end = (out.len() - HEADER_LEN) as u64;
    out.extend_from_slice(&Footer::new(SNAPSHOT_STREAM, 0, end, &[]).encode());
    out
}

/// The header, and the rows as they are in the segments.
fn snapshot_text(bytes: &[u8]) -> String {
    let header = SnapshotHeader::decode(bytes).expect("a header");
    let Parsed::Frame { frame, .. } = parse(&bytes[HEADER_LEN..], 0, false) else {
        panic!("no frame");
    };
    let trailer = &bytes[bytes.len() - TRAILER_LEN..];
    let footer = Footer::decode(trailer, bytes.len() as u64).expect("a footer");
    format!("{header:#?}\n{frame:#?}\n{footer:#?}\n")
}

/// Name and content of every golden file.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let only_data = || frames().into_iter().filter(|f| matches!(f, Piece::Data(_)));
    let format = RootFormat {
        format_version: 1,
        uuid: uuid::Uuid::from_bytes(ROOT),
        created: CREATED,
    };
    let owner = Owner {
        epoch: 3,
        host: "worker-1".into(),
        pid: 4711,
        since: CREATED,
        lock: Some("boot:1:2".into()),
    };
    let torn = encode(&log_header(), &frames(), None);
    vec![
        ("FORMAT", format.encode()),
        ("owner", owner.encode()),
        ("log.seg", encode(&log_header(), &frames(), Some(true))),
        (
            "log-no-table.seg",
            encode(&log_header(), &frames()[..2], Some(false)),
        ),
        (
            "log-later.seg",
            encode(&log_header(), &later_frames(), Some(true)),
        ),
        ("log-torn.seg", torn[..torn.len() - 5].to_vec()),
        ("snapshot.idx", snapshot()),
        (
            "lane.seg",
            encode(&lane_header(), &only_data().collect::<Vec<_>>(), Some(true)),
        ),
    ]
}

/// What a reader finds in a segment, as text; and its parts, to be encoded again.
fn decode(bytes: &[u8]) -> (String, SegmentHeader, Vec<Piece>, Option<bool>) {
    let header = SegmentHeader::decode(bytes).expect("a header");
    let trailer = &bytes[bytes.len() - TRAILER_LEN..];
    let footer = Footer::decode(trailer, bytes.len() as u64).ok();
    let end = footer.as_ref().map(|f| f.end);
    let mut text = format!("{header:#?}\n");
    let (mut at, mut found) = (HEADER_LEN, Vec::new());
    loop {
        let pos = header.base + (at - HEADER_LEN) as u64;
        if end == Some(pos) {
            break;
        }
        match parse(&bytes[at..], pos, false) {
            Parsed::Frame { prefix, frame } => {
                writeln!(text, "offset {at}, position {pos}: {frame:#?}").unwrap();
                found.push(owned(frame, &bytes[at..]));
                at += prefix.frame_len();
            }
            other => {
                writeln!(text, "offset {at}, position {pos}: {other:?}").unwrap();
                break;
            }
        }
    }
    writeln!(text, "{footer:#?}").unwrap();
    (text, header, found, footer.map(|f| f.table_len > 0))
}

fn owned(frame: Frame, bytes: &[u8]) -> Piece {
    match frame {
        Frame::Record(r) => Piece::Record(r),
        Frame::Data { head, path } => {
            let payload = bytes[head.head_len()..][..head.len as usize].to_vec();
            assert_eq!(checksums(&payload), head.crcs);
            Piece::Data(DataFrame {
                ino: head.ino,
                off: head.off,
                lsn: head.lsn,
                payload: payload.into(),
                crcs: head.crcs,
                path,
            })
        }
    }
}

fn text_of(name: &str, bytes: &[u8]) -> String {
    match name {
        "FORMAT" => format!("{:#?}\n", RootFormat::decode(bytes).expect("a format")),
        "snapshot.idx" => snapshot_text(bytes),
        "owner" => format!("{:#?}\n", Owner::decode(bytes, name).expect("an owner")),
        _ => decode(bytes).0,
    }
}

#[test]
fn golden_files_are_read_and_written_again_byte_for_byte() {
    let writing = std::env::var_os("STOWFS_TEST_GOLDEN").is_some_and(|v| v == "write");
    for (name, sample) in samples() {
        let (path, text_path) = (dir().join(name), dir().join(format!("{name}.txt")));
        if writing {
            std::fs::write(&path, &sample).unwrap();
            std::fs::write(&text_path, text_of(name, &sample)).unwrap();
        }
        let bytes = std::fs::read(&path).expect(name);
        let text = std::fs::read_to_string(&text_path).expect(name);
        assert_eq!(text_of(name, &bytes), text, "{name} is read otherwise now");
        assert_eq!(sample, bytes, "{name} is written otherwise now");
        if name.ends_with(".seg") {
            let (_, header, frames, sealed) = decode(&bytes);
            let again = encode(&header, &frames, sealed);
            assert_eq!(again[..], bytes[..again.len()], "{name}");
            let torn = name == "log-torn.seg";
            assert!(again.len() == bytes.len() || torn, "{name}");
        }
    }
}
