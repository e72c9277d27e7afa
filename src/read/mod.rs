//! Layer 4: reads extents from segments on the store: cache, plan, fetch, verify.

mod readers;

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result, Timestamp};
use crate::cache::{BlockCache, BlockKey};
use crate::format::frame::{DataHead, blocks, head_len};
use crate::format::{BLOCK, Extent};
use crate::store::{Reader, Store};
use bytes::{Bytes, BytesMut};
use lru::LruCache;
use parking_lot::Mutex;
use readers::Readers;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// Blocks fetched ahead when a frame is read in order.
const AHEAD: u32 = (1 << 20) / BLOCK as u32;
/// Blocks fetched when a frame is begun: more would be wasted on those who only look at its start.
const AHEAD_AT_START: u32 = (256 << 10) / BLOCK as u32;

const HEADS: NonZeroUsize = NonZeroUsize::new(16 * 1024).unwrap();

/// Where a frame's payload is on the store.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: String,
    /// Offset in the file of stream position `extent.pos`.
    pub offset: u64,
    /// Length and time of change that a plain file must have; None for a segment.
    pub expected: Option<(u64, Timestamp)>,
}

type Heads = LruCache<(u32, u64), Arc<[u32]>>;

pub struct FrameReader {
    blocks: BlockCache,
    readers: Readers,
    /// Checksums of frames that were read in part.
    heads: Mutex<Heads>,
}

impl FrameReader {
    pub fn new(store: Arc<dyn Store>, cache_bytes: u64) -> FrameReader {
        FrameReader {
            blocks: BlockCache::new(cache_bytes),
            readers: Readers::new(store),
            heads: Mutex::new(LruCache::new(HEADS)),
        }
    }

    pub fn cached_bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// An extent's bytes if all of them are cached.
    pub fn cached(&self, extent: &Extent) -> Option<Bytes> {
        let range = block_range(extent);
        let mut found = Vec::with_capacity(range.len());
        for block in range.clone() {
            found.push(self.blocks.get(&key(extent, block))?);
        }
        Some(cut(extent, range.start, &found))
    }

    /// An extent's bytes, verified. A file that was closed, moved or replaced since its reader was
    /// opened is opened again, once.
    pub async fn fetch(&self, extent: &Extent, place: &Place) -> Result<Bytes> {
        if let Some(bytes) = self.cached(extent) {
            return Ok(bytes);
        }
        match self.fetch_once(extent, place).await {
            Err(e) if !e.is(ErrorKind::TimedOut) => {
                self.readers.forget(&place.path);
                self.fetch_once(extent, place).await
            }
            done => done,
        }
    }

    /// The file of this path goes away.
    pub fn forget(&self, path: &str) {
        self.readers.forget(path);
    }

    /// Whether a plain file is what it must be. `NotFound` if there is none, `Corrupt` if it was
    /// changed.
    pub async fn check(&self, place: &Place) -> Result<()> {
        let checked = self.readers.check(place).await;
        if checked.is_err() {
            self.readers.forget(&place.path);
        }
        checked
    }

    async fn fetch_once(&self, extent: &Extent, place: &Place) -> Result<Bytes> {
        let reader = self.readers.open(place).await?;
        let wanted = block_range(extent);
        let range = self.plan(extent, wanted, &*reader, place);
        let got = if extent.frame == 0 {
            self.read_plain(&*reader, &range).await
        } else {
            self.read_framed(extent, place, &*reader, &range).await
        };
        let got = got.context(format_args!("reading {} at {}", place.path, place.offset))?;
        for (block, bytes) in range.clone().zip(&got) {
            self.blocks.put(key(extent, block), bytes.clone());
        }
        let bytes = cut(extent, range.start, &got);
        if bytes.len() != extent.len as usize {
            let text = format!("{} ends within an extent of it", place.path);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(bytes)
    }

    /// The blocks to fetch: those wanted, and more if the frame seems to be read in order.
    fn plan(
        &self,
        e: &Extent,
        wanted: Range<u32>,
        reader: &dyn Reader,
        place: &Place,
    ) -> Range<u32> {
        let ahead = match wanted.start {
            0 => AHEAD_AT_START,
            n if self.blocks.contains(&key(e, n - 1)) => AHEAD,
            _ => 0,
        };
        let last = match e.frame {
            0 => reader
                .len()
                .saturating_sub(place.offset)
                .div_ceil(BLOCK as u64) as u32,
            len => blocks(len as usize) as u32,
        };
        wanted.start..wanted.end.max((wanted.start + ahead).min(last))
    }

    async fn read_plain(&self, reader: &dyn Reader, range: &Range<u32>) -> Result<Vec<Bytes>> {
        let from = range.start as u64 * BLOCK as u64;
        let to = (range.end as u64 * BLOCK as u64).min(reader.len());
        let bytes = reader
            .read_at(from, to.saturating_sub(from) as usize)
            .await?;
        Ok(bytes.chunks(BLOCK).map(Bytes::copy_from_slice).collect())
    }

    async fn read_framed(
        &self,
        extent: &Extent,
        place: &Place,
        reader: &dyn Reader,
        range: &Range<u32>,
    ) -> Result<Vec<Bytes>> {
        let len = extent.frame as usize;
        let head = head_len(len);
        let from = range.start as usize * BLOCK;
        let to = (range.end as usize * BLOCK).min(len);
        let known = self
            .heads
            .lock()
            .get(&(extent.stream.0, extent.pos))
            .cloned();
        let (crcs, payload) = match known {
            Some(crcs) => (
                crcs,
                reader
                    .read_at(place.offset + from as u64, to - from)
                    .await?,
            ),
            None if from == 0 => {
                let all = reader
                    .read_at(place.offset - head as u64, head + to)
                    .await?;
                (self.learn(extent, &all)?, all.slice(head..))
            }
            None => {
                let first = reader.read_at(place.offset - head as u64, head).await?;
                let crcs = self.learn(extent, &first)?;
                (
                    crcs,
                    reader
                        .read_at(place.offset + from as u64, to - from)
                        .await?,
                )
            }
        };
        verified(&payload, range, &crcs)
    }

    /// Decodes a frame's head and remembers its checksums.
    fn learn(&self, extent: &Extent, bytes: &[u8]) -> Result<Arc<[u32]>> {
        let (prefix, head) = DataHead::decode(bytes)?;
        let start = extent.pos - head_len(extent.frame as usize) as u64;
        if prefix.pos != start || head.len != extent.frame {
            let text = format!(
                "the frame of position {} where {start} was expected",
                prefix.pos
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let crcs: Arc<[u32]> = head.crcs.into();
        if crcs.len() > 1 {
            self.heads
                .lock()
                .put((extent.stream.0, extent.pos), crcs.clone());
        }
        Ok(crcs)
    }
}

/// Splits a payload into its blocks, each copied out (a cached block must not keep more alive) and
/// checked.
fn verified(payload: &[u8], range: &Range<u32>, crcs: &[u32]) -> Result<Vec<Bytes>> {
    let mut out = Vec::with_capacity(range.len());
    for (block, bytes) in range.clone().zip(payload.chunks(BLOCK)) {
        if crcs.get(block as usize) != Some(&crc32c::crc32c(bytes)) {
            let text = format!("block {block} does not match its checksum");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        out.push(Bytes::copy_from_slice(bytes));
    }
    Ok(out)
}

/// Where the extent's bytes start, counted from block 0.
fn first_byte(e: &Extent) -> u64 {
    // A foreign file's blocks are counted from its own start.
    if e.frame == 0 {
        e.start()
    } else {
        e.skip as u64
    }
}

fn block_range(e: &Extent) -> Range<u32> {
    let first = first_byte(e);
    (first / BLOCK as u64) as u32..(first + e.len as u64).div_ceil(BLOCK as u64) as u32
}

fn key(e: &Extent, block: u32) -> BlockKey {
    BlockKey {
        stream: e.stream,
        pos: if e.frame == 0 { 0 } else { e.pos },
        block,
    }
}

/// The extent's bytes out of consecutive blocks, the first of which is `start`.
fn cut(e: &Extent, start: u32, blocks: &[Bytes]) -> Bytes {
    let from = (first_byte(e) - start as u64 * BLOCK as u64) as usize;
    let len = e.len as usize;
    if let Some(only) = blocks.first().filter(|b| from + len <= b.len()) {
        return only.slice(from..from + len);
    }
    let mut out = BytesMut::with_capacity(len);
    let mut skip = from;
    for b in blocks {
        let part = &b[skip.min(b.len())..];
        out.extend_from_slice(&part[..part.len().min(len - out.len())]);
        skip = skip.saturating_sub(b.len());
    }
    out.freeze()
}
