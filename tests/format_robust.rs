//! Decoders of everything on a store, with bytes that nobody wrote: they never panic, never ask for
//! more memory than the bytes justify, and notice every change.

#[path = "support/decode_all.rs"]
mod decode_all;

use decode_all::{decode_all, framed};
use proptest::collection::vec;
use proptest::prelude::*;
use stowfs::base::{Epoch, Ino, SegmentName, SessionId, StreamId};
use stowfs::format::codec::Cursor;
use stowfs::format::frame::{Frame, Parsed, parse};
use stowfs::format::segment::{Footer, SegmentHeader};
use stowfs::format::{Attr, DataFrame, Extent, Origin, RecordFrame, Row, SegmentRow, SegmentState};
use stowfs::format::{ForeignHold, ForeignRow, ForeignState};

/// What a directory can have: no slash, no NUL, neither `.` nor `..`.
fn file_name() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..40).prop_map(|mut name| {
        name.iter_mut()
            .filter(|b| matches!(b, b'/' | 0 | b'.'))
            .for_each(|b| *b = b'x');
        name
    })
}

fn name() -> impl Strategy<Value = SegmentName> {
    (any::<bool>(), any::<u32>(), any::<u32>()).prop_map(|(log, of, n)| match log {
        true => SegmentName::Log {
            epoch: Epoch(of),
            n,
        },
        false => SegmentName::Lane {
            session: SessionId(of),
            n,
        },
    })
}

fn attr() -> impl Strategy<Value = Attr> {
    (any::<[u32; 5]>(), any::<u64>(), any::<[i64; 4]>()).prop_map(|(a, size, t)| Attr {
        mode: a[0],
        uid: a[1],
        gid: a[2],
        nlink: a[3],
        rdev: a[4],
        size,
        atime: t[0],
        mtime: t[1],
        ctime: t[2],
        crtime: t[3],
    })
}

/// Extents in order, from 1,000 on.
fn extents() -> impl Strategy<Value = (u64, u64, Vec<Extent>)> {
    let one = (
        0..50u64,
        1..1000u32,
        0..9u32,
        0..1u64 << 61,
        0..100u32,
        any::<bool>(),
    );
    vec(one, 0..5).prop_map(|parts| {
        let (start, mut at) = (1000, 1000);
        let mut found = Vec::new();
        for (gap, len, stream, pos, skip, foreign) in parts {
            let off = at + gap;
            at = off + len as u64;
            found.push(Extent {
                off,
                len,
                stream: StreamId(stream),
                pos,
                frame: if foreign { 0 } else { skip + len + 3 },
                skip,
            });
        }
        (start, at - start, found)
    })
}

fn row() -> impl Strategy<Value = Row> {
    let bytes = || vec(any::<u8>(), 0..40);
    let ino = || (1..20u64).prop_map(Ino);
    prop_oneof![
        (ino(), attr()).prop_map(|(ino, attr)| Row::Inode { ino, attr }),
        ino().prop_map(|ino| Row::Free { ino }),
        (ino(), file_name(), ino()).prop_map(|(parent, name, ino)| Row::Entry {
            parent,
            name,
            ino
        }),
        (ino(), bytes()).prop_map(|(parent, name)| Row::NoEntry { parent, name }),
        (ino(), extents()).prop_map(|(ino, (off, len, extents))| Row::Extents {
            ino,
            off,
            len,
            extents
        }),
        (ino(), bytes()).prop_map(|(ino, target)| Row::Target { ino, target }),
        (ino(), bytes(), proptest::option::of(bytes())).prop_map(|(ino, name, value)| Row::Xattr {
            ino,
            name,
            value
        }),
        (name(), 0..9u32, any::<[u64; 3]>(), 0..4u8).prop_map(|(name, stream, n, state)| {
            let state = [
                SegmentState::Open,
                SegmentState::Sealed,
                SegmentState::Condemned,
                SegmentState::Deleted,
            ][state as usize];
            Row::Segment(SegmentRow {
                name,
                stream: StreamId(stream),
                base: n[0],
                end: n[1],
                state,
                size: n[2],
            })
        }),
        (0..9u32, bytes(), any::<u64>(), any::<i64>()).prop_map(|(stream, path, len, mtime)| {
            Row::Foreign(ForeignRow {
                stream: StreamId(stream),
                path,
                len,
                mtime,
            })
        }),
        any::<u64>().prop_map(|n| Row::InoRange { next: Ino(n) }),
        any::<u32>().prop_map(|n| Row::StreamRange { next: StreamId(n) }),
        any::<u64>().prop_map(|oldest| Row::Snapshots { oldest }),
        Just(Row::Adopted),
        (0..9u32, 0..3u8, any::<bool>(), any::<u64>()).prop_map(|(stream, state, is_dir, ino)| {
            Row::ForeignHold(ForeignHold {
                stream: StreamId(stream),
                state: [
                    ForeignState::Held,
                    ForeignState::Condemned,
                    ForeignState::Gone,
                ][state as usize],
                is_dir,
                ino: Ino(ino),
            })
        }),
        (any::<u32>(), any::<u32>(), any::<i64>()).prop_map(|(epoch, session, started)| {
            Row::Session {
                epoch: Epoch(epoch),
                session: SessionId(session),
                started,
            }
        }),
    ]
}

fn record() -> impl Strategy<Value = RecordFrame> {
    (any::<u32>(), any::<u64>(), any::<u64>(), vec(row(), 0..20)).prop_map(
        |(session, op, durable, rows)| RecordFrame {
            session: SessionId(session),
            op,
            durable,
            rows,
        },
    )
}

fn data() -> impl Strategy<Value = DataFrame> {
    let payload = prop_oneof![vec(any::<u8>(), 1..200), vec(any::<u8>(), 65_530..65_545)];
    let path = vec(any::<u8>(), 0..50);
    (any::<u64>(), any::<u64>(), payload, path)
        .prop_map(|(ino, off, payload, path)| DataFrame::new(Ino(ino), off, payload.into(), path))
}

fn encoded(pos: u64) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        record().prop_map(move |r| {
            let mut out = Vec::new();
            r.encode(pos, Epoch(7), &mut out);
            out
        }),
        data().prop_map(move |d| {
            let mut out = d.encode_head(pos, Epoch(7));
            out.extend_from_slice(&d.payload);
            out.extend_from_slice(&d.path);
            out
        }),
    ]
}

fn header() -> impl Strategy<Value = SegmentHeader> {
    let pos = || 0..=1u64 << 62;
    let ids = (any::<[u8; 16]>(), any::<[u32; 4]>(), any::<i64>());
    (
        ids,
        name(),
        proptest::option::of(name()),
        (pos(), pos(), pos()),
    )
        .prop_map(
            |((root, n, created), name, predecessor, (base, durable, origin))| SegmentHeader {
                root,
                name,
                stream: StreamId(n[0]),
                epoch: Epoch(n[1]),
                session: SessionId(n[2]),
                base,
                durable,
                predecessor,
                created,
                origin: Origin {
                    epoch: Epoch(n[3]),
                    pos: origin,
                },
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in vec(any::<u8>(), 0..600)) {
        decode_all(&bytes);
    }

    /// Small numbers are what lengths and counts are made of.
    #[test]
    fn small_numbers(bytes in vec(prop_oneof![3 => 0u8..13, 1 => any::<u8>()], 0..300)) {
        decode_all(&bytes);
    }

    #[test]
    fn frames_come_back_and_no_change_goes_unnoticed(
        bytes in encoded(500), at in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        decode_all(&bytes);
        let Parsed::Frame { prefix, frame } = parse(&bytes, 500, false) else {
            panic!("a good frame is refused");
        };
        prop_assert_eq!(prefix.frame_len(), bytes.len());
        let payload = match &frame {
            Frame::Data { head, .. } => head.head_len()..head.head_len() + head.len as usize,
            Frame::Record(_) => 0..0,
        };
        let at = at.index(bytes.len());
        let mut bad = bytes.clone();
        bad[at] ^= flip;
        let noticed = !matches!(parse(&bad, 500, false), Parsed::Frame { .. });
        prop_assert!(noticed || payload.contains(&at), "byte {} of {}", at, bytes.len());
        decode_all(&bad);
    }

    #[test]
    fn a_cut_frame_is_short(bytes in encoded(500), at in any::<prop::sample::Index>()) {
        let cut = &bytes[..at.index(bytes.len())];
        match parse(cut, 500, false) {
            Parsed::Short(need) => prop_assert!(need > cut.len() && need <= bytes.len()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    /// Bodies that are wrong though their checksum is right: a bug of a writer, or malice.
    #[test]
    fn changed_bodies_with_right_checksums(
        bytes in encoded(500), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let mut body = bytes[32..].to_vec();
        let at = at.index(body.len());
        body[at] = to;
        for kind in [1, 2] {
            decode_all(&framed(kind, 500, &body));
        }
    }

    #[test]
    fn headers_come_back(header in header(), at in 0..128usize, flip in 1..=255u8) {
        let mut bytes = header.encode();
        prop_assert_eq!(&SegmentHeader::decode(&bytes).unwrap(), &header);
        bytes[at] ^= flip;
        prop_assert!(SegmentHeader::decode(&bytes).is_err());
        prop_assert!(SegmentHeader::decode(&bytes[..at]).is_err());
    }

    #[test]
    fn footers_come_back(
        base in 0..1u64 << 61, len in 0..1u64 << 40, table in vec(any::<u8>(), 0..50),
        at in 0..64usize, flip in 1..=255u8,
    ) {
        let footer = Footer::new(StreamId(3), base, base + len, &table);
        let file = 128 + 64 + len + table.len() as u64;
        let mut bytes = footer.encode();
        prop_assert_eq!(&Footer::decode(&bytes, file).unwrap(), &footer);
        prop_assert!(Footer::decode(&bytes, file + 1).is_err());
        bytes[at] ^= flip;
        prop_assert!(Footer::decode(&bytes, file).is_err());
        prop_assert!(Footer::decode(&bytes[..at], file).is_err());
    }

    #[test]
    fn texts_do_not_panic(text in "[{}\",:a-z0-9_. -]{0,80}") {
        decode_all(text.as_bytes());
        let format = format!("{{\"format_version\": 1, \"uuid\": \"{text}\", \"created\": {text}}}");
        decode_all(format.as_bytes());
    }
}

/// A count of rows was taken for how much memory to reserve: a record of 16 MiB that claims as many
/// rows as it has bytes asked for more than a gigabyte.
#[test]
fn a_count_does_not_decide_how_much_memory_is_taken() {
    let mut body = vec![0; 20];
    body.extend_from_slice(&u32::MAX.to_le_bytes());
    body.resize(16 << 20, 99);
    let record = framed(2, 500, &body);
    let before = peak_kib();
    assert!(matches!(parse(&record, 500, false), Parsed::Bad(_)));
    let grown = peak_kib() - before;
    assert!(grown < 200 << 10, "{grown} KiB more");
}

/// Peak of the address space, which reserved memory counts in though it is never touched.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status
        .lines()
        .find(|l| l.starts_with("VmPeak"))
        .expect("VmPeak");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A crafted index must not lead an export out of its destination.
#[test]
fn an_entry_has_a_proper_name_or_is_refused() {
    let decode = |name: &[u8]| {
        let mut bytes = Vec::new();
        let row = Row::Entry {
            parent: Ino::ROOT,
            name: name.to_vec(),
            ino: Ino(7),
        };
        row.encode(&mut bytes);
        Row::decode(&mut Cursor::new(&bytes))
    };
    for name in [&b""[..], b".", b"..", b"/", b"../../etc/x", b"a/b", b"a\0b"] {
        assert!(decode(name).is_err(), "{name:?}");
    }
    for name in [&b"..."[..], b".a", b"\xff\n", &[b'x'; 255]] {
        assert!(decode(name).is_ok(), "{name:?}");
    }
}
