use super::*;
use crate::format::row::SegmentRow;
use crate::format::{Row, SegmentState};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// A byte of a file, by where it is: stream, position of its frame, offset in that.
type Place = Option<(StreamId, Pos, u32)>;

#[derive(Clone, Default)]
struct NaiveInode {
    attr: Attr,
    bytes: Vec<Place>,
    entries: BTreeMap<Vec<u8>, Ino>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Vec<u8>,
}

/// The index as one would write it without caring for time or space.
#[derive(Clone, Default)]
struct Naive {
    inodes: BTreeMap<Ino, NaiveInode>,
    segments: BTreeMap<SegmentName, SegmentRow>,
}

const FILE_BYTES: usize = 64;

impl Naive {
    fn apply(&mut self, row: &Row) {
        match row {
            Row::Inode { ino, attr } => self.inodes.entry(*ino).or_default().attr = *attr,
            Row::Free { ino } => drop(self.inodes.remove(ino)),
            Row::Segment(s) if s.state == SegmentState::Deleted => {
                self.segments.remove(&s.name);
            }
            Row::Segment(s) => drop(self.segments.insert(s.name, s.clone())),
            Row::Entry { parent, name, ino } => self.with(*parent, |p| {
                p.entries.insert(name.clone(), *ino);
            }),
            Row::NoEntry { parent, name } => self.with(*parent, |p| {
                p.entries.remove(name);
            }),
            Row::Extents {
                ino,
                off,
                len,
                extents,
            } => self.with(*ino, |i| {
                i.bytes.resize(FILE_BYTES, None);
                let end = off.saturating_add(*len).min(FILE_BYTES as u64);
                i.bytes[*off as usize..end as usize].fill(None);
                for e in extents {
                    for n in 0..e.len {
                        let place = (e.stream, e.pos, e.skip + n);
                        i.bytes[e.off as usize + n as usize] = Some(place);
                    }
                }
            }),
            Row::Target { ino, target } => self.with(*ino, |i| i.target = target.clone()),
            Row::Xattr { ino, name, value } => self.with(*ino, |i| match value {
                Some(v) => drop(i.xattrs.insert(name.clone(), v.clone())),
                None => drop(i.xattrs.remove(name)),
            }),
            Row::Foreign(_)
            | Row::ForeignHold(_)
            | Row::InoRange { .. }
            | Row::StreamRange { .. } => {}
            Row::Session { .. } | Row::Snapshots { .. } | Row::Adopted => {}
        }
    }

    fn with(&mut self, ino: Ino, f: impl FnOnce(&mut NaiveInode)) {
        self.inodes.get_mut(&ino).map(f);
    }

    fn segment_at(&self, stream: StreamId, pos: Pos) -> Option<SegmentName> {
        self.segments
            .values()
            .filter(|s| s.stream == stream && s.base <= pos)
            .filter(|s| s.state == SegmentState::Open || pos < s.end)
            .max_by_key(|s| (s.base, s.name))
            .map(|s| s.name)
    }

    fn live_bytes(&self) -> BTreeMap<(StreamId, Option<SegmentName>), u64> {
        let mut live = BTreeMap::new();
        for i in self.inodes.values() {
            for (stream, pos, _) in i.bytes.iter().flatten() {
                let at = self.segment_at(*stream, *pos);
                *live.entry((*stream, at)).or_default() += 1;
            }
        }
        live
    }
}

/// Random rows as a filesystem makes them: about inodes that exist, a directory's only when
/// nothing is in it, each inode number once.
struct Generator {
    rng: StdRng,
    model: Naive,
    next_ino: u64,
    next_pos: Pos,
    next_segment: u32,
}

impl Generator {
    fn new(seed: u64) -> Generator {
        Generator {
            rng: StdRng::seed_from_u64(seed),
            model: Naive::default(),
            next_ino: 2,
            next_pos: 100,
            next_segment: 0,
        }
    }

    fn pick(&mut self, kind: u32) -> Option<Ino> {
        let all: Vec<Ino> = self
            .model
            .inodes
            .iter()
            .filter(|(_, i)| i.attr.kind() == kind)
            .map(|(ino, _)| *ino)
            .collect();
        all.choose(&mut self.rng).copied()
    }

    fn any(&mut self) -> Option<Ino> {
        let kinds = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK];
        let kind = *kinds.choose(&mut self.rng)?;
        self.pick(kind)
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.random_range(0..12)).into_bytes()
    }

    fn row(&mut self) -> Option<Row> {
        Some(match self.rng.random_range(0..20) {
            0..3 => {
                let kinds = [libc::S_IFREG, libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK];
                let mode = *kinds.choose(&mut self.rng)? | 0o644;
                let ino = Ino(self.next_ino);
                self.next_ino += 1;
                let attr = Attr {
                    mode,
                    ..Attr::default()
                };
                Row::Inode { ino, attr }
            }
            3 => {
                let ino = self.any()?;
                let mut attr = self.model.inodes[&ino].attr;
                attr.mtime = self.rng.random();
                Row::Inode { ino, attr }
            }
            4 => Row::Free { ino: self.any()? },
            5..8 => Row::Entry {
                parent: self.pick(libc::S_IFDIR)?,
                name: self.name(),
                ino: self.any()?,
            },
            8 => Row::NoEntry {
                parent: self.pick(libc::S_IFDIR)?,
                name: self.name(),
            },
            9 => Row::Target {
                ino: self.pick(libc::S_IFLNK)?,
                target: self.name(),
            },
            10 => Row::Xattr {
                ino: self.any()?,
                name: self.name(),
                value: Some(self.name()).filter(|_| self.rng.random_bool(0.7)),
            },
            11..14 => self.segment()?,
            _ => self.extents()?,
        })
    }

    /// Mostly in order; sometimes one begins where others have begun or ended already.
    fn segment(&mut self) -> Option<Row> {
        let known: Vec<SegmentRow> = self.model.segments.values().cloned().collect();
        if self.rng.random_bool(0.5)
            && let Some(mut row) = known.choose(&mut self.rng).cloned()
        {
            row.state = *[
                SegmentState::Sealed,
                SegmentState::Sealed,
                SegmentState::Condemned,
                SegmentState::Deleted,
            ]
            .choose(&mut self.rng)?;
            row.end = row.base + self.rng.random_range(0..60);
            return Some(Row::Segment(row));
        }
        let back = if self.rng.random_bool(0.3) { 80 } else { 20 };
        let base = self.next_pos - self.rng.random_range(0..back);
        self.next_segment += 1;
        Some(Row::Segment(SegmentRow {
            name: SegmentName::Log {
                epoch: Epoch(1),
                n: self.next_segment,
            },
            stream: StreamId(self.rng.random_range(0..2)),
            base,
            end: base,
            state: SegmentState::Open,
            size: 0,
        }))
    }

    fn extents(&mut self) -> Option<Row> {
        let ino = self.pick(libc::S_IFREG)?;
        let off = self.rng.random_range(0..FILE_BYTES as u64);
        let len = match self.rng.random_bool(0.2) {
            true => u64::MAX,
            false => self.rng.random_range(0..=FILE_BYTES as u64 - off),
        };
        let end = off.saturating_add(len).min(FILE_BYTES as u64);
        let mut extents = Vec::new();
        let mut at = off;
        while self.rng.random_bool(0.7) {
            let a = at + self.rng.random_range(0..4);
            let n = self.rng.random_range(1..12);
            if a + n as u64 > end {
                break;
            }
            // Now and then the same frame again, as a clone or the next part of it.
            if self.rng.random_bool(0.6) {
                self.next_pos += self.rng.random_range(1..30);
            }
            extents.push(Extent {
                off: a,
                len: n,
                stream: StreamId(self.rng.random_range(0..2)),
                pos: self.next_pos,
                frame: 1000,
                skip: a as u32,
            });
            at = a + n as u64;
        }
        Some(Row::Extents {
            ino,
            off,
            len,
            extents,
        })
    }
}

fn compare(index: &Index, model: &Naive) {
    assert_eq!(index.inodes(), model.inodes.len());
    for (ino, want) in &model.inodes {
        assert_eq!(index.attr(*ino), Some(want.attr));
        let entries: BTreeMap<Vec<u8>, Ino> = index
            .readdir(*ino, 0)
            .map(|e| (e.name.to_vec(), e.ino))
            .collect();
        assert_eq!(entries, want.entries);
        assert_eq!(index.entries(*ino), want.entries.len());
        for (name, child) in &want.entries {
            assert_eq!(index.lookup(*ino, name), Some(*child));
        }
        let names: Vec<&[u8]> = index.xattrs(*ino).collect();
        assert_eq!(names, want.xattrs.keys().collect::<Vec<_>>());
        for (name, value) in &want.xattrs {
            assert_eq!(index.xattr(*ino, name), Some(&value[..]));
        }
        assert_eq!(index.target(*ino).unwrap_or_default(), want.target);
        compare_bytes(index, *ino, &want.bytes);
    }
    let mut live: BTreeMap<_, _> = index
        .segments()
        .map(|s| ((s.row.stream, Some(s.row.name)), s.live.bytes))
        .collect();
    for stream in [StreamId(0), StreamId(1)] {
        live.insert((stream, None), index.live_outside(stream).bytes);
    }
    live.retain(|_, v| *v > 0);
    assert_eq!(live, model.live_bytes());
    let counted: u64 = index.segments().map(|s| s.live.extents).sum::<u64>()
        + index.live_outside(StreamId(0)).extents
        + index.live_outside(StreamId(1)).extents;
    let found: usize = index.inos().iter().map(|i| index.extent_count(*i)).sum();
    assert_eq!(counted, found as u64);
}

fn compare_bytes(index: &Index, ino: Ino, want: &[Place]) {
    let mut bytes = vec![None; want.len()];
    for e in index.extents(ino, 0, u64::MAX) {
        for n in 0..e.len {
            bytes[e.off as usize + n as usize] = Some((e.stream, e.pos, e.skip + n));
        }
    }
    assert_eq!(bytes, want);
    let some = want.iter().flatten().count();
    assert_eq!(index.allocated(ino), some as u64);
    let part = index.extents(ino, 10, 20);
    let inside = want.iter().skip(10).take(10).flatten().count();
    assert_eq!(part.iter().map(|e| e.len as usize).sum::<usize>(), inside);
    // Nothing that could be one extent is two.
    let all = index.extents(ino, 0, u64::MAX);
    assert!(all.windows(2).all(|w| w[0].end() < w[1].off
        || (w[0].stream, w[0].pos) != (w[1].stream, w[1].pos)
        || w[0].skip + w[0].len != w[1].skip));
}

fn all_rows(index: &Index) -> Vec<Row> {
    let mut rows = Vec::new();
    index.rows(|r| rows.push(r));
    rows
}

/// More than a row of these tests takes.
const ROW: usize = 1000;

/// The same in slices, as a snapshot takes them.
fn sliced_rows(index: &Index, most: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    index.counter_rows(&mut |r| rows.push(r));
    let mut next = Some(StreamId(0));
    while let Some(after) = next {
        next = index.foreign_slice(after, most, &mut |r| rows.push(r));
    }
    let mut next = Some(Ino(0));
    while let Some(after) = next {
        next = index.inode_slice(after, most, &mut |r| rows.push(r));
    }
    let mut next = Some((Ino(0), 0));
    while let Some(after) = next {
        let before = rows.len();
        next = index.entry_slice(after, most, &mut |r| rows.push(r));
        let entries = &rows[before..];
        let bytes: usize = entries.iter().map(Row::size_hint).sum();
        assert!(
            bytes < most + ROW || entries.len() == 1,
            "a slice of {bytes}"
        );
    }
    rows
}

fn no_usage_or_structure_problem(index: &Index) {
    for most in [1, 500, 1 << 20] {
        assert_eq!(sliced_rows(index, most), all_rows(index));
    }
    // Random rows do not keep link counts and sizes; everything counted must be right.
    let bad = index.check();
    let bad: Vec<&String> = bad
        .iter()
        .filter(|b| b.contains("counted") || b.contains("overlap"))
        .collect();
    assert_eq!(bad, Vec::<&String>::new());
}

#[test]
fn random_rows_give_what_a_naive_index_gives() {
    let base: u64 = match std::env::var("STOWFS_SEED") {
        Ok(s) => s.parse().expect("STOWFS_SEED is a number"),
        Err(_) => rand::random::<u32>() as u64,
    };
    for seed in base..base + 100 {
        eprintln!("STOWFS_SEED={seed}");
        let mut g = Generator::new(seed);
        let mut index = Index::new();
        let mut log = Vec::new();
        for step in 0..200 {
            let Some(row) = g.row() else { continue };
            g.model.apply(&row);
            index.apply(&row).unwrap();
            index.apply(&row).unwrap(); // again: nothing changes
            log.push(row);
            if step % 20 == 0 {
                compare(&index, &g.model);
            }
        }
        compare(&index, &g.model);
        no_usage_or_structure_problem(&index);
        // As a snapshot, and with the whole log once more on top of it.
        let rows = all_rows(&index);
        let mut again = Index::new();
        rows.iter().for_each(|r| again.apply(r).unwrap());
        compare(&again, &g.model);
        assert_eq!(all_rows(&again), rows);
        log.iter().for_each(|r| again.apply(r).unwrap());
        compare(&again, &g.model);
    }
}

fn attr(mode: u32, nlink: u32, size: u64) -> Attr {
    Attr {
        mode,
        nlink,
        size,
        ..Attr::default()
    }
}

fn inode(ino: u64, mode: u32, nlink: u32, size: u64) -> Row {
    Row::Inode {
        ino: Ino(ino),
        attr: attr(mode, nlink, size),
    }
}

fn entry(parent: u64, name: &str, ino: u64) -> Row {
    Row::Entry {
        parent: Ino(parent),
        name: name.into(),
        ino: Ino(ino),
    }
}

fn index_of(rows: &[Row]) -> Index {
    let mut index = Index::new();
    rows.iter().for_each(|r| index.apply(r).unwrap());
    index
}

const DIR: u32 = libc::S_IFDIR | 0o755;
const FILE: u32 = libc::S_IFREG | 0o644;

#[test]
fn paths_follow_renames_and_check_is_silent_about_a_sound_tree() {
    let mut index = index_of(&[
        inode(1, DIR, 3, 0),
        inode(2, DIR, 2, 0),
        entry(1, "a", 2),
        inode(3, FILE, 2, 0),
        entry(2, "x", 3),
        entry(1, "hard", 3),
    ]);
    assert_eq!(index.path(Ino(3)).unwrap(), b"hard");
    assert_eq!(index.path(Ino(1)).unwrap(), b"");
    assert_eq!(index.check(), Vec::<String>::new());
    let gone = Row::NoEntry {
        parent: Ino(1),
        name: b"a".into(),
    };
    // A rename whose rows come in the less usual order.
    index.apply(&entry(1, "b", 2)).unwrap();
    index.apply(&gone).unwrap();
    index.apply(&entry(2, "x", 3)).unwrap();
    assert_eq!(index.path(Ino(3)).unwrap(), b"b/x");
    assert_eq!(index.parent(Ino(2)), Some(Ino(1)));
    assert_eq!(index.check(), Vec::<String>::new());
}

#[test]
fn check_names_what_is_wrong() {
    let index = index_of(&[
        inode(1, DIR, 2, 0),
        inode(2, FILE, 1, 5),
        entry(1, "two", 2),
        entry(1, "three", 2),
        entry(1, "ghost", 77),
        inode(4, DIR, 3, 0),
        inode(5, DIR, 3, 0),
        entry(4, "five", 5),
        entry(5, "four", 4),
        Row::Extents {
            ino: Ino(2),
            off: 0,
            len: 9,
            extents: vec![Extent {
                off: 0,
                len: 9,
                stream: StreamId(4),
                pos: 10,
                frame: 9,
                skip: 0,
            }],
        },
    ]);
    let bad = index.check().join("\n");
    for want in [
        "ghost",
        "link count 1, should be 2",
        "cycle",
        "size 5",
        "in no segment",
    ] {
        assert!(bad.contains(want), "{want} not in:\n{bad}");
    }
}

#[test]
fn rows_that_no_decoder_lets_through_change_nothing() {
    let mut index = index_of(&[inode(1, DIR, 2, 0), inode(2, FILE, 1, 5)]);
    let extent = |off, len, frame, skip| Extent {
        off,
        len,
        stream: StreamId(1),
        pos: u64::MAX,
        frame,
        skip,
    };
    for bad in [
        vec![extent(0, 0, 5, 0)],
        vec![extent(5, 5, 9, 0), extent(9, 1, 9, 0)],
        vec![extent(u64::MAX, 2, 9, 0)],
        vec![extent(0, 5, 5, 1)],
        vec![extent(0, 5, 0, u32::MAX)],
    ] {
        let row = Row::Extents {
            ino: Ino(2),
            off: 0,
            len: u64::MAX,
            extents: bad,
        };
        assert!(index.apply(&row).is_err());
    }
    assert_eq!(index.extent_count(Ino(2)), 0);
    assert_eq!(index.strays(), 0);
    index.apply(&entry(9, "stray", 2)).unwrap();
    assert_eq!(index.strays(), 1);
}

/// Prints what a file costs. Run it alone: `cargo test --lib memory_per_file -- --ignored`.
#[test]
#[ignore = "measures the memory of the whole process"]
fn memory_per_file() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    let before = resident();
    let mut index = index_of(&[inode(1, DIR, 2, 0)]);
    let files = 1_000_000;
    for n in 2..files + 2 {
        index.apply(&inode(n, FILE, 1, 100)).unwrap();
        index.apply(&entry(1, &format!("{n:036}"), n)).unwrap();
        index
            .apply(&Row::Extents {
                ino: Ino(n),
                off: 0,
                len: 100,
                extents: vec![Extent {
                    off: 0,
                    len: 100,
                    stream: StreamId(0),
                    pos: n * 200,
                    frame: 100,
                    skip: 0,
                }],
            })
            .unwrap();
        if n % 100_000 == 0 {
            index
                .apply(&Row::Segment(SegmentRow {
                    name: SegmentName::Log {
                        epoch: Epoch(1),
                        n: n as u32,
                    },
                    stream: StreamId(0),
                    base: n * 200,
                    end: n * 200,
                    state: SegmentState::Open,
                    size: 0,
                }))
                .unwrap();
        }
    }
    let per_file = (resident() - before) / files;
    eprintln!("{per_file} bytes per file");
    assert!(per_file <= 400);
}
