//! Reads a whole segment and goes on behind bad places. (A mount stops at the first one.)
//!
//! A segment is only ever appended to, so a frame whose position does not fit its offset in the
//! file is not this segment's: the data of a file may look like frames.

use super::survey::Found;
use crate::base::error::Context;
use crate::base::{Epoch, Error, ErrorKind, Pos, Result, SegmentName};
use crate::format::frame::{
    DataHead, FRAME_MAGIC, Frame, PREFIX, Parsed, Prefix, checksums, parse,
};
use crate::format::segment::{Footer, HEADER_LEN, SegmentHeader, TRAILER_LEN};
use crate::format::{BLOCK, Extent, RecordFrame};
use crate::log::Window;
use crate::store::{Reader, Store};
use crate::upkeep::scrub::wrong_block;
use std::collections::BTreeMap;

const HEAD: u64 = HEADER_LEN as u64;

pub(super) struct DataFound {
    /// Position of the frame.
    pub pos: Pos,
    pub head: DataHead,
    pub path: Vec<u8>,
    /// Blocks of the payload that do not match their checksums.
    pub bad_blocks: Vec<u32>,
}

impl DataFound {
    pub fn payload(&self) -> Pos {
        self.pos + self.head.head_len() as u64
    }

    /// The first block of an extent that does not match its checksum.
    fn first_bad(&self, skip: u32, len: u32) -> Option<u32> {
        let first = skip / BLOCK as u32;
        let last = (skip as u64 + len as u64).div_ceil(BLOCK as u64) as u32;
        let mut bad = self.bad_blocks.iter().copied();
        bad.find(|b| (first..last).contains(b))
    }
}

/// Bytes between two offsets that are not frames.
pub(super) struct BadPlace {
    pub from: u64,
    pub to: u64,
    pub why: String,
}

pub(super) struct Walk {
    pub len: u64,
    pub header: Result<SegmentHeader>,
    /// `Some(Err)` if there is a footer that cannot be right.
    pub footer: Option<Result<Footer>>,
    /// Position of the first byte after the header; from a frame if there is no header.
    pub base: Option<Pos>,
    pub records: BTreeMap<Pos, RecordFrame>,
    /// By position of the payload, which is what extents name.
    pub data: BTreeMap<Pos, DataFound>,
    /// Frames that only the frame table has.
    pub from_table: BTreeMap<Pos, (u64, Option<RecordFrame>)>,
    pub bad: Vec<BadPlace>,
    /// What is wrong with the frame table.
    pub table: Option<String>,
    /// `[from, to)` of the positions that good frames cover.
    pub covered: Vec<(Pos, Pos)>,
}

impl Walk {
    /// Whether this is what an extent says it is, and its bytes are good.
    pub fn verify(&self, e: &Extent) -> std::result::Result<(), String> {
        match self.data.get(&e.pos) {
            None => Err("there is no data frame here".into()),
            Some(d) if d.head.len != e.frame => Err(format!(
                "a data frame of {} bytes where one of {} was expected",
                d.head.len, e.frame
            )),
            Some(d) => match d.first_bad(e.skip, e.len) {
                Some(block) => Err(wrong_block(block as usize)),
                None => Ok(()),
            },
        }
    }

    fn cover(&mut self, from: Pos, to: Pos) {
        match self.covered.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.covered.push((from, to)),
        }
    }
}

pub(super) async fn walk(store: &dyn Store, file: &Found) -> Result<Walk> {
    let path = &file.path;
    let reader = store
        .open(path)
        .await
        .context(format_args!("opening {path}"))?;
    let mut walk = ends(&*reader, path).await?;
    let frames_end = match &walk.footer {
        Some(Ok(f)) => HEAD + (f.end - f.base),
        _ => walk.len,
    };
    let window = Window::new(reader.clone(), path, HEAD, frames_end);
    let epoch = match (&walk.header, file.name) {
        (Ok(h), _) => Some(h.epoch),
        (Err(_), SegmentName::Log { epoch, .. }) => Some(epoch),
        // Today a session has the number of its epoch; a record of many hosts may differ.
        (Err(_), SegmentName::Lane { .. }) => None,
    };
    Walker { window, epoch }.run(&mut walk).await?;
    if let Some(Ok(footer)) = walk.footer.clone().filter(|_| walk.len > 0) {
        read_table(&*reader, &footer, epoch, &mut walk)
            .await
            .context(format_args!("reading the frame table of {path}"))?;
    }
    Ok(walk)
}

/// Header and footer. A newer format is an error: nothing behind it can be judged.
async fn ends(reader: &dyn Reader, path: &str) -> Result<Walk> {
    let len = reader.len();
    let head = reader
        .read_at(0, len.min(HEAD) as usize)
        .await
        .context(format_args!("reading {path}"))?;
    let header = SegmentHeader::decode(&head);
    let at = len.checked_sub(TRAILER_LEN as u64).filter(|at| *at >= HEAD);
    let footer = match at {
        Some(at) => {
            let trailer = reader
                .read_at(at, TRAILER_LEN)
                .await
                .context(format_args!("reading {path}"))?;
            Footer::looks_like(&trailer).then(|| Footer::decode(&trailer, len))
        }
        None => None,
    };
    let newer = |e: &&Error| e.is(ErrorKind::NewerFormat);
    let footer_error = footer.as_ref().and_then(|f| f.as_ref().err());
    if let Some(e) = header
        .as_ref()
        .err()
        .filter(newer)
        .or(footer_error.filter(newer))
    {
        return Err(e.clone().context(path));
    }
    let base = header.as_ref().ok().map(|h| h.base);
    Ok(Walk {
        len,
        header,
        footer,
        base,
        records: BTreeMap::new(),
        data: BTreeMap::new(),
        from_table: BTreeMap::new(),
        bad: Vec::new(),
        table: None,
        covered: Vec::new(),
    })
}

struct Walker {
    window: Window,
    epoch: Option<Epoch>,
}

impl Walker {
    async fn run(mut self, walk: &mut Walk) -> Result<()> {
        let mut bad: Option<BadPlace> = None;
        self.window.fill(PREFIX).await?;
        while !self.window.bytes().is_empty() {
            let offset = self.window.offset();
            match self.frame_here(walk.base).await? {
                Ok((prefix, frame)) => {
                    if let Some(place) = bad.take() {
                        walk.bad.push(BadPlace {
                            to: offset,
                            ..place
                        });
                    }
                    walk.base.get_or_insert(prefix.pos - (offset - HEAD));
                    self.add(prefix, frame, walk);
                    self.window.consume(prefix.frame_len());
                }
                Err(why) => {
                    bad.get_or_insert(BadPlace {
                        from: offset,
                        to: walk.len,
                        why,
                    });
                    self.seek().await?;
                }
            }
            self.window.fill(PREFIX).await?;
        }
        let to = self.window.offset();
        walk.bad.extend(bad.map(|place| BadPlace { to, ..place }));
        Ok(())
    }

    /// The frame at the start of the window, if it belongs there.
    async fn frame_here(
        &mut self,
        base: Option<Pos>,
    ) -> Result<std::result::Result<(Prefix, Frame), String>> {
        let behind = self.window.offset() - HEAD;
        loop {
            let bytes = self.window.bytes();
            let pos = match (base, Prefix::decode(bytes)) {
                (Some(base), _) => base + behind,
                (None, Ok(p)) if p.pos >= behind => p.pos,
                (None, _) => return Ok(Err("no frame here".into())),
            };
            match parse(bytes, pos, false) {
                Parsed::Frame { prefix, frame } => {
                    let other = self.epoch.filter(|e| *e != prefix.epoch);
                    return Ok(match other {
                        Some(e) => Err(format!("a frame of epoch {} in epoch {e}", prefix.epoch)),
                        None => Ok((prefix, frame)),
                    });
                }
                Parsed::Bad(why) => return Ok(Err(why)),
                Parsed::Short(need) => {
                    if !self.window.fill(need).await? {
                        return Ok(Err("the last frame is cut".into()));
                    }
                }
            }
        }
    }

    /// Moves to the next place where a frame may begin.
    async fn seek(&mut self) -> Result<()> {
        self.window.consume(1);
        while self.window.fill(FRAME_MAGIC.len()).await? {
            let hit = find(self.window.bytes(), &FRAME_MAGIC);
            let keep = self.window.bytes().len() - (FRAME_MAGIC.len() - 1);
            self.window.consume(hit.unwrap_or(keep));
            if hit.is_some() {
                return Ok(());
            }
        }
        self.window.consume(FRAME_MAGIC.len());
        Ok(())
    }

    fn add(&self, prefix: Prefix, frame: Frame, walk: &mut Walk) {
        let pos = prefix.pos;
        walk.cover(pos, pos + prefix.frame_len() as u64);
        match frame {
            Frame::Record(r) => drop(walk.records.insert(pos, r)),
            Frame::Data { head, path } => {
                let payload = &self.window.bytes()[head.head_len()..][..head.len as usize];
                let right = checksums(payload);
                let pairs = right.iter().zip(&head.crcs).enumerate();
                let bad_blocks = pairs.filter(|(_, (a, b))| a != b).map(|(i, _)| i as u32);
                let found = DataFound {
                    pos,
                    bad_blocks: bad_blocks.collect(),
                    head,
                    path,
                };
                walk.data.insert(found.payload(), found);
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// Compares the frame table with the frames, and keeps what only the table has.
async fn read_table(
    reader: &dyn Reader,
    footer: &Footer,
    epoch: Option<Epoch>,
    walk: &mut Walk,
) -> Result<()> {
    if footer.table_len == 0 {
        return Ok(());
    }
    let at = walk.len - TRAILER_LEN as u64 - footer.table_len as u64;
    let table = reader.read_at(at, footer.table_len as usize).await?;
    if crc32c::crc32c(&table) != footer.table_crc {
        walk.table = Some("the frame table does not match its checksum".into());
    }
    let (mut rest, mut pos) = (&table[..], footer.base);
    while !rest.is_empty() {
        let Parsed::Frame { prefix, frame } = parse(rest, pos, true) else {
            walk.table
                .get_or_insert_with(|| format!("the frame table has no frame for position {pos}"));
            let within = |p: &Prefix| {
                p.pos > pos && p.pos < footer.end && epoch.is_none_or(|e| e == p.epoch)
            };
            match next_in_table(rest, within) {
                Some((skip, next)) => (rest, pos) = (&rest[skip..], next),
                None => break,
            }
            continue;
        };
        let end = prefix.pos + prefix.frame_len() as u64;
        let (elided, agrees) = match &frame {
            Frame::Record(r) => (0, walk.records.get(&pos).map(|x| x == r)),
            Frame::Data { head, path } => {
                let same = walk.data.get(&(pos + head.head_len() as u64));
                let same = same.map(|d| d.head == *head && d.path == *path);
                (head.len as usize, same)
            }
        };
        if agrees != Some(true) {
            walk.table.get_or_insert_with(|| {
                format!("the frame table and the frames differ at position {pos}")
            });
        }
        if agrees.is_none() {
            let record = match frame {
                Frame::Record(r) => Some(r),
                Frame::Data { .. } => None,
            };
            walk.from_table.insert(pos, (end, record));
        }
        rest = &rest[prefix.frame_len() - elided..];
        pos = end;
    }
    Ok(())
}

/// Where the next entry of a damaged table begins, and its position.
fn next_in_table(table: &[u8], fits: impl Fn(&Prefix) -> bool) -> Option<(usize, Pos)> {
    let mut at = 1;
    loop {
        at += find(table.get(at..)?, &FRAME_MAGIC)?;
        match Prefix::decode(&table[at..]) {
            Ok(p) if fits(&p) => return Some((at, p.pos)),
            _ => at += 1,
        }
    }
}
