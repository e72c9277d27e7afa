//! Rows: the atoms of an index change. Each states a final value, never a condition or a
//! difference, so that applying a row twice, or after a later snapshot, changes nothing.

use super::codec::{Cursor, Put, corrupt};
use super::foreign::{ForeignHold, ForeignRow};
use crate::base::{Epoch, Ino, Pos, Result, SegmentName, SessionId, StreamId, Timestamp};

/// Attributes of an inode. Its kind is in the S_IFMT bits of `mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub crtime: Timestamp,
}

impl Attr {
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }
}

/// A contiguous run of a file's bytes inside a segment.
///
/// The bytes lie in the payload of a data frame (`pos` is where that payload starts in the stream,
/// `frame` its length) at `skip`; so the frame's header and checksums can be found from here. With
/// `frame` 0 there is no frame: a foreign file, whose bytes are its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset in the file.
    pub off: u64,
    pub len: u32,
    pub stream: StreamId,
    pub pos: Pos,
    pub frame: u32,
    pub skip: u32,
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.off + self.len as u64
    }

    /// Where the bytes start in the stream.
    pub fn start(&self) -> Pos {
        self.pos + self.skip as u64
    }

    /// The part within `[from, to)` of the file; the two must overlap.
    pub fn clip(&self, from: u64, to: u64) -> Extent {
        let a = from.max(self.off);
        let b = to.min(self.end());
        debug_assert!(a < b);
        Extent {
            off: a,
            len: (b - a) as u32,
            skip: self.skip + (a - self.off) as u32,
            ..*self
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum SegmentState {
    Open = 0,
    /// Immutable; `end` is final.
    Sealed = 1,
    /// Will be deleted; nothing may refer to it any more. Final.
    Condemned = 2,
    /// Gone from the store.
    Deleted = 3,
}

/// One segment file: the bytes of `stream` from `base` to `end`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentRow {
    pub name: SegmentName,
    pub stream: StreamId,
    pub base: Pos,
    /// Where the stream's bytes in it end; `base` while it is open.
    pub end: Pos,
    pub state: SegmentState,
    /// Size of the file in bytes, with header and footer; 0 while it is open.
    pub size: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Row {
    /// The attributes of an inode; makes it if it is new.
    Inode {
        ino: Ino,
        attr: Attr,
    },
    /// The inode is gone, with its extents, xattrs and target.
    Free {
        ino: Ino,
    },
    /// A name in a directory, new or replaced.
    Entry {
        parent: Ino,
        name: Vec<u8>,
        ino: Ino,
    },
    /// The name is gone.
    NoEntry {
        parent: Ino,
        name: Vec<u8>,
    },
    /// The bytes `[off, off + len)` of a file are these extents and holes between them. A `len`
    /// that reaches past the end of u64 is cut there.
    Extents {
        ino: Ino,
        off: u64,
        len: u64,
        extents: Vec<Extent>,
    },
    /// Where a symbolic link points.
    Target {
        ino: Ino,
        target: Vec<u8>,
    },
    /// An extended attribute; None removes it.
    Xattr {
        ino: Ino,
        name: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    Segment(SegmentRow),
    Foreign(ForeignRow),
    ForeignHold(ForeignHold),
    /// Inode numbers below `next` belong to sessions so far.
    InoRange {
        next: Ino,
    },
    /// Stream numbers below `next` are used.
    StreamRange {
        next: StreamId,
    },
    /// Snapshots before this position are deleted, and with them the need for the log before it.
    Snapshots {
        oldest: Pos,
    },
    /// The plain files that were below the root are registered, all of them.
    Adopted,
    /// A session began.
    Session {
        epoch: Epoch,
        session: SessionId,
        started: Timestamp,
    },
}

impl Row {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Row::Inode { ino, attr } => {
                out.put_u8(1);
                out.put_u64(ino.0);
                encode_attr(attr, out);
            }
            Row::Free { ino } => {
                out.put_u8(2);
                out.put_u64(ino.0);
            }
            Row::Entry { parent, name, ino } => {
                out.put_u8(3);
                out.put_u64(parent.0);
                out.put_u64(ino.0);
                out.put_short(name);
            }
            Row::NoEntry { parent, name } => {
                out.put_u8(4);
                out.put_u64(parent.0);
                out.put_short(name);
            }
            Row::Extents {
                ino,
                off,
                len,
                extents,
            } => {
                out.put_u8(5);
                out.put_u64(ino.0);
                out.put_u64(*off);
                out.put_u64(*len);
                out.put_u32(extents.len() as u32);
                extents.iter().for_each(|e| encode_extent(e, out));
            }
            Row::Target { ino, target } => {
                out.put_u8(6);
                out.put_u64(ino.0);
                out.put_short(target);
            }
            Row::Xattr { ino, name, value } => {
                out.put_u8(7);
                out.put_u64(ino.0);
                out.put_short(name);
                out.put_u8(value.is_some() as u8);
                out.put_long(value.as_deref().unwrap_or_default());
            }
            Row::Segment(s) => {
                out.put_u8(8);
                encode_name(&s.name, out);
                out.put_u32(s.stream.0);
                out.put_u64(s.base);
                out.put_u64(s.end);
                out.put_u8(s.state as u8);
                out.put_u64(s.size);
            }
            Row::Foreign(f) => {
                out.put_u8(9);
                f.encode(out);
            }
            Row::InoRange { next } => {
                out.put_u8(10);
                out.put_u64(next.0);
            }
            Row::StreamRange { next } => {
                out.put_u8(11);
                out.put_u32(next.0);
            }
            Row::Adopted => out.put_u8(14),
            Row::ForeignHold(h) => {
                out.put_u8(15);
                h.encode(out);
            }
            Row::Snapshots { oldest } => {
                out.put_u8(13);
                out.put_u64(*oldest);
            }
            Row::Session {
                epoch,
                session,
                started,
            } => {
                out.put_u8(12);
                out.put_u32(epoch.0);
                out.put_u32(session.0);
                out.put_i64(*started);
            }
        }
    }

    /// About how many bytes it takes.
    pub fn size_hint(&self) -> usize {
        let variable = match self {
            Row::Entry { name, .. } | Row::NoEntry { name, .. } => name.len(),
            Row::Extents { extents, .. } => extents.len() * EXTENT_BYTES,
            Row::Target { target, .. } => target.len(),
            Row::Xattr { name, value, .. } => name.len() + value.as_ref().map_or(0, Vec::len),
            Row::Foreign(f) => f.path.len(),
            _ => 0,
        };
        variable + 70
    }

    pub fn decode(c: &mut Cursor<'_>) -> Result<Row> {
        Ok(match c.u8()? {
            1 => Row::Inode {
                ino: ino(c)?,
                attr: decode_attr(c)?,
            },
            2 => Row::Free { ino: ino(c)? },
            3 => {
                let (parent, child) = (ino(c)?, ino(c)?);
                Row::Entry {
                    parent,
                    ino: child,
                    name: file_name(c)?.to_vec(),
                }
            }
            4 => Row::NoEntry {
                parent: ino(c)?,
                name: c.short()?.to_vec(),
            },
            5 => decode_extents(c)?,
            6 => Row::Target {
                ino: ino(c)?,
                target: c.short()?.to_vec(),
            },
            7 => {
                let (ino, name) = (ino(c)?, c.short()?.to_vec());
                let present = c.u8()? != 0;
                let value = c.long()?.to_vec();
                Row::Xattr {
                    ino,
                    name,
                    value: present.then_some(value),
                }
            }
            8 => Row::Segment(SegmentRow {
                name: decode_name(c)?,
                stream: StreamId(c.u32()?),
                base: c.u64()?,
                end: c.u64()?,
                state: decode_state(c.u8()?)?,
                size: c.u64()?,
            }),
            9 => Row::Foreign(ForeignRow::decode(c)?),
            10 => Row::InoRange { next: ino(c)? },
            11 => Row::StreamRange {
                next: StreamId(c.u32()?),
            },
            12 => Row::Session {
                epoch: Epoch(c.u32()?),
                session: SessionId(c.u32()?),
                started: c.i64()?,
            },
            14 => Row::Adopted,
            15 => Row::ForeignHold(ForeignHold::decode(c)?),
            13 => Row::Snapshots { oldest: c.u64()? },
            other => return Err(corrupt(format!("row of unknown type {other}"))),
        })
    }
}

/// A name that a directory can have: what is exported or restored by it stays where it belongs.
fn file_name<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let name = c.short()?;
    match name {
        b"" | b"." | b".." => Err(corrupt("an entry without a proper name")),
        _ if name.iter().any(|b| matches!(b, b'/' | 0)) => {
            Err(corrupt("an entry whose name has a slash or a NUL"))
        }
        _ => Ok(name),
    }
}

fn ino(c: &mut Cursor<'_>) -> Result<Ino> {
    Ok(Ino(c.u64()?))
}

fn encode_attr(a: &Attr, out: &mut Vec<u8>) {
    for v in [a.mode, a.uid, a.gid, a.nlink, a.rdev] {
        out.put_u32(v);
    }
    out.put_u64(a.size);
    for t in [a.atime, a.mtime, a.ctime, a.crtime] {
        out.put_i64(t);
    }
}

fn decode_attr(c: &mut Cursor<'_>) -> Result<Attr> {
    Ok(Attr {
        mode: c.u32()?,
        uid: c.u32()?,
        gid: c.u32()?,
        nlink: c.u32()?,
        rdev: c.u32()?,
        size: c.u64()?,
        atime: c.i64()?,
        mtime: c.i64()?,
        ctime: c.i64()?,
        crtime: c.i64()?,
    })
}

const EXTENT_BYTES: usize = 32;

fn encode_extent(e: &Extent, out: &mut Vec<u8>) {
    out.put_u64(e.off);
    out.put_u32(e.len);
    out.put_u32(e.stream.0);
    out.put_u64(e.pos);
    out.put_u32(e.frame);
    out.put_u32(e.skip);
}

fn decode_extents(c: &mut Cursor<'_>) -> Result<Row> {
    let (ino, off, len) = (ino(c)?, c.u64()?, c.u64()?);
    let n = c.u32()? as usize;
    if n > c.left() / EXTENT_BYTES {
        return Err(corrupt(format!("{n} extents in {} bytes", c.left())));
    }
    let mut extents = Vec::with_capacity(n);
    let mut at = off;
    for _ in 0..n {
        let e = Extent {
            off: c.u64()?,
            len: c.u32()?,
            stream: StreamId(c.u32()?),
            pos: c.u64()?,
            frame: c.u32()?,
            skip: c.u32()?,
        };
        check_extent(&e, at, off.saturating_add(len))?;
        at = e.end();
        extents.push(e);
    }
    Ok(Row::Extents {
        ino,
        off,
        len,
        extents,
    })
}

/// Extents are in order, do not overlap, stay within their range and within their frame.
fn check_extent(e: &Extent, from: u64, to: u64) -> Result<()> {
    let end = e.off.checked_add(e.len as u64);
    let in_frame = e.frame == 0 || e.skip as u64 + e.len as u64 <= e.frame as u64;
    let in_stream = e.pos.checked_add(u32::MAX as u64 * 2).is_some();
    if e.len == 0 || e.off < from || end.is_none_or(|end| end > to) || !in_frame || !in_stream {
        return Err(corrupt(format!(
            "impossible extent {e:?} in [{from}, {to})"
        )));
    }
    Ok(())
}

pub(super) fn encode_name(name: &SegmentName, out: &mut Vec<u8>) {
    let (kind, owner, n) = match *name {
        SegmentName::Log { epoch, n } => (0, epoch.0, n),
        SegmentName::Lane { session, n } => (1, session.0, n),
    };
    out.put_u8(kind);
    out.put_u32(owner);
    out.put_u32(n);
}

pub(super) fn decode_name(c: &mut Cursor<'_>) -> Result<SegmentName> {
    let (kind, owner, n) = (c.u8()?, c.u32()?, c.u32()?);
    match kind {
        0 => Ok(SegmentName::Log {
            epoch: Epoch(owner),
            n,
        }),
        1 => Ok(SegmentName::Lane {
            session: SessionId(owner),
            n,
        }),
        _ => Err(corrupt(format!("segment name of unknown kind {kind}"))),
    }
}

fn decode_state(v: u8) -> Result<SegmentState> {
    Ok(match v {
        0 => SegmentState::Open,
        1 => SegmentState::Sealed,
        2 => SegmentState::Condemned,
        3 => SegmentState::Deleted,
        _ => return Err(corrupt(format!("segment state {v}"))),
    })
}
