//! Takes a stretch of a sealed segment apart into verified blocks.

use crate::base::{Pos, Result};
use crate::format::BLOCK;
use crate::format::frame::{DataHead, PREFIX, Prefix, blocks};
use bytes::Bytes;
use std::sync::Arc;

/// What is remembered of a data frame's head.
#[derive(Debug)]
pub(super) struct Head {
    pub crcs: Box<[u32]>,
    /// Position of the payload.
    pub payload: Pos,
    pub len: usize,
    /// Position of the next frame.
    pub end: Pos,
}

impl Head {
    /// From the first bytes of the frame at `pos`.
    pub fn decode(bytes: &[u8], pos: Pos) -> Result<Option<Head>> {
        let (prefix, head) = DataHead::decode(bytes)?;
        Ok((prefix.pos == pos).then(|| Head {
            payload: pos + head.head_len() as u64,
            len: head.len as usize,
            end: pos + prefix.frame_len() as u64,
            crcs: head.crcs.into(),
        }))
    }

    /// Positions of a block's bytes.
    fn block(&self, block: u32) -> std::ops::Range<Pos> {
        let from = block as usize * BLOCK;
        let to = (from + BLOCK).min(self.len);
        self.payload + from as u64..self.payload + to as u64
    }

    pub fn is_right(&self, block: u32, bytes: &[u8]) -> bool {
        self.crcs.get(block as usize) == Some(&crc32c::crc32c(bytes))
    }
}

/// A place in a stream from which frames can be read.
#[derive(Clone, Debug)]
pub(super) enum Cursor {
    /// A frame starts here.
    Frame(Pos),
    Block(Arc<Head>, u32),
}

impl Cursor {
    pub fn at(&self) -> Pos {
        match self {
            Cursor::Frame(pos) => *pos,
            Cursor::Block(head, block) => head.block(*block).start,
        }
    }
}

/// Blocks of one stretch, and where the next one begins.
pub(super) struct Window {
    pub blocks: Vec<(Arc<Head>, u32, Bytes)>,
    /// None behind the segment's last frame, or where the rest cannot be understood.
    pub next: Option<Cursor>,
}

/// Takes `bytes`, which begin at `from`, apart. Blocks that do not match their checksum are left out:
/// whoever wants them reads and reports them. `end` is where the segment's frames end.
pub(super) fn take_apart(bytes: &[u8], from: Cursor, end: Pos) -> Window {
    let start = from.at();
    let rest = |pos: Pos| bytes.get((pos - start) as usize..).unwrap_or_default();
    let mut found = Vec::new();
    let mut cursor = from;
    let next = loop {
        let (head, block) = match &cursor {
            Cursor::Frame(pos) if *pos >= end => break None,
            Cursor::Frame(pos) => match begin(rest(*pos), *pos) {
                Begun::Data(head) => (Arc::new(head), 0),
                Begun::Skip(next) => {
                    cursor = Cursor::Frame(next);
                    continue;
                }
                Begun::Short => break Some(cursor),
                Begun::Bad => break None,
            },
            Cursor::Block(head, block) => (head.clone(), *block),
        };
        let mut block = block;
        while (block as usize) < blocks(head.len) {
            let place = head.block(block);
            let len = (place.end - place.start) as usize;
            let Some(bytes) = rest(place.start).get(..len) else {
                break;
            };
            if head.is_right(block, bytes) {
                // Copied: a cached block must not keep the whole stretch alive.
                found.push((head.clone(), block, Bytes::copy_from_slice(bytes)));
            }
            block += 1;
        }
        if (block as usize) < blocks(head.len) {
            break Some(match block {
                0 => cursor,
                _ => Cursor::Block(head, block),
            });
        }
        cursor = Cursor::Frame(head.end);
    };
    Window {
        blocks: found,
        next,
    }
}

enum Begun {
    Data(Head),
    Skip(Pos),
    Short,
    Bad,
}

fn begin(bytes: &[u8], pos: Pos) -> Begun {
    if bytes.len() < PREFIX {
        return Begun::Short;
    }
    match Prefix::decode(bytes) {
        Ok(prefix) if prefix.pos != pos => Begun::Bad,
        Ok(prefix) if prefix.is_record() => Begun::Skip(pos + prefix.frame_len() as u64),
        Err(_) => Begun::Bad,
        Ok(_) => match DataHead::needed(bytes) {
            Some(needed) if bytes.len() >= needed => match Head::decode(bytes, pos) {
                Ok(Some(head)) => Begun::Data(head),
                _ => Begun::Bad,
            },
            Some(_) => Begun::Short,
            None => Begun::Short,
        },
    }
}
