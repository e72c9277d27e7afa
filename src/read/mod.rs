//! Layer 4: reads extents from segments on the store: cache, plan, fetch ahead, verify.

mod ahead;
mod readers;
mod window;

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Pos, Result, StreamId, Timestamp};
use crate::cache::{BlockCache, BlockKey};
use crate::format::frame::{blocks, head_len};
use crate::format::segment::HEADER_LEN;
use crate::format::{BLOCK, Extent, MAX_PAYLOAD};
use crate::store::{Reader, Store};
use ahead::{Ahead, REGION, Step, Ticket};
use bytes::{Bytes, BytesMut};
use lru::LruCache;
use parking_lot::Mutex;
use readers::Readers;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use window::{Cursor, Head};

/// Blocks fetched ahead when a frame is read in order.
const AHEAD: u32 = (1 << 20) / BLOCK as u32;
/// Blocks fetched when a frame is begun: more would be wasted on those who only look at its start.
const AHEAD_AT_START: u32 = (256 << 10) / BLOCK as u32;
/// A request for so many blocks of a long file is a scan. The kernel keeps what it asked for, so a second
/// copy of it here would only push out what others need, and cost a copy.
const SCAN: usize = (512 << 10) / BLOCK;
/// Long files are cut into frames that are nearly as long as can be. The neighbours of shorter ones are
/// worth reading ahead.
const LONG: u32 = (MAX_PAYLOAD / 8 * 7) as u32;
/// A smaller cache does not hold what several readers fetch ahead.
const CACHE_FOR_REGIONS: u64 = 16 * REGION;

const HEADS: NonZeroUsize = NonZeroUsize::new(16 * 1024).unwrap();

/// Where a frame's payload is on the store.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: String,
    /// Offset in the file of stream position `extent.pos`.
    pub offset: u64,
    /// Length and time of change that a plain file must have; None for a segment.
    pub expected: Option<(u64, Timestamp)>,
    /// The positions of a segment to which nothing is added any more. Only in such a one is every
    /// byte known to be what its position says, and may be cached before an extent leads there.
    pub sealed: Option<Range<Pos>>,
}

type Heads = LruCache<(StreamId, Pos), Arc<Head>>;

pub struct FrameReader(Arc<Shared>);

struct Shared {
    blocks: BlockCache,
    readers: Readers,
    /// Checksums of frames that were read in part.
    heads: Mutex<Heads>,
    ahead: Option<Ahead>,
}

impl FrameReader {
    pub fn new(store: Arc<dyn Store>, cache_bytes: u64) -> FrameReader {
        FrameReader(Arc::new(Shared {
            blocks: BlockCache::new(cache_bytes),
            readers: Readers::new(store),
            heads: Mutex::new(LruCache::new(HEADS)),
            ahead: (cache_bytes >= CACHE_FOR_REGIONS).then(Ahead::new),
        }))
    }

    /// An extent's bytes, verified. A file that was closed, moved or replaced since its reader was
    /// opened is opened again, once.
    pub async fn fetch(&self, extent: &Extent, place: &Place) -> Result<Bytes> {
        let shared = &self.0;
        let wanted = block_range(extent);
        let mut got = Vec::with_capacity(wanted.len());
        let mut tried = None;
        loop {
            let next = wanted.start + got.len() as u32;
            if next == wanted.end {
                break;
            }
            let scans = is_scan(extent, &(next..wanted.end));
            if let Some(bytes) = shared.cached(extent, next, place) {
                got.push(bytes);
            } else if !scans && tried != Some(next) && shared.read_ahead(extent, next, place).await
            {
                tried = Some(next);
            } else {
                got.push(shared.fetch_blocks(extent, next..wanted.end, place).await?);
                break;
            }
        }
        let bytes = cut(extent, wanted.start, &got);
        if bytes.len() != extent.len as usize {
            let text = format!("{} ends within an extent of it", place.path);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(bytes)
    }

    /// Bytes in the cache of blocks.
    pub fn cached_bytes(&self) -> usize {
        self.0.blocks.bytes()
    }

    /// Files on the store that are kept open.
    pub fn open_files(&self) -> usize {
        self.0.readers.count()
    }

    /// The file of this path goes away.
    pub fn forget(&self, path: &str) {
        self.0.readers.forget(path);
    }

    /// Whether a plain file is what it must be. `NotFound` if there is none, `Corrupt` if it was
    /// changed.
    pub async fn check(&self, place: &Place) -> Result<()> {
        let checked = self.0.readers.check(place).await;
        if checked.is_err() {
            self.0.readers.forget(&place.path);
        }
        checked
    }
}

impl Shared {
    fn cached(self: &Arc<Shared>, extent: &Extent, block: u32, place: &Place) -> Option<Bytes> {
        let hit = self.blocks.get(&key(extent, block))?;
        if let Some(ahead) = self.ahead.as_ref().filter(|_| hit.was_ahead)
            && let Some((cursor, ticket)) = ahead.used(extent.stream, block_end(extent, block))
        {
            let (shared, stream, place) = (self.clone(), extent.stream, place.clone());
            tokio::spawn(async move {
                // Not opened for this: the file may be going away, and nobody waits.
                let Some(reader) = shared.readers.opened(&place.path) else {
                    return;
                };
                let done = shared.window(stream, cursor, &*reader, &place, ticket);
                if let Err(e) = done.await {
                    tracing::debug!("reading {} ahead: {e}", place.path);
                }
            });
        }
        Some(hit.bytes)
    }

    /// Fetches this block with its neighbours if that promises well. False if it does not, or failed:
    /// the block is to be fetched alone then.
    async fn read_ahead(&self, extent: &Extent, block: u32, place: &Place) -> bool {
        let (Some(ahead), Some(_)) = (&self.ahead, &place.sealed) else {
            return false;
        };
        match ahead.miss(extent.stream, block_end(extent, block)) {
            Step::Alone => false,
            Step::Wait(turn) => {
                drop(turn.lock().await);
                true
            }
            Step::Window(ticket) => {
                let done = async {
                    let reader = self.readers.open(place).await?;
                    let cursor = match block {
                        0 => Cursor::Frame(frame_pos(extent)),
                        _ => Cursor::Block(self.head(extent, place, &*reader).await?, block),
                    };
                    self.window(extent.stream, cursor, &*reader, place, ticket)
                        .await
                };
                // What is wrong is told by the one who fetches the block alone.
                done.await.is_ok()
            }
        }
    }

    /// Fetches and caches all from `cursor` to where the ticket says.
    async fn window(
        &self,
        stream: StreamId,
        cursor: Cursor,
        reader: &dyn Reader,
        place: &Place,
        ticket: Ticket,
    ) -> Result<()> {
        let from = cursor.at();
        let Some(sealed) = place.sealed.clone().filter(|s| s.contains(&from)) else {
            return Ok(());
        };
        let to = ticket.to.min(sealed.end);
        let offset = HEADER_LEN as u64 + (from - sealed.start);
        let len = to.saturating_sub(from) as usize;
        let bytes = reader.read_at(offset, len).await?;
        let window = window::take_apart(&bytes, cursor, sealed.end);
        let blocks = window.blocks.len() as u64;
        for (head, block, bytes) in window.blocks {
            let pos = head.payload;
            let key = BlockKey { stream, pos, block };
            self.blocks.put_ahead(key, bytes);
            if head.crcs.len() > 1 && !self.heads.lock().contains(&(stream, pos)) {
                self.heads.lock().put((stream, pos), head);
            }
        }
        let reached = window.next.as_ref().map_or(to, Cursor::at);
        ticket.done(from, reached, blocks, window.next);
        Ok(())
    }

    /// The bytes of these blocks of an extent's frame, and perhaps of more behind them.
    async fn fetch_blocks(
        &self,
        extent: &Extent,
        wanted: Range<u32>,
        place: &Place,
    ) -> Result<Bytes> {
        match self.fetch_once(extent, wanted.clone(), place).await {
            Err(e) if !e.is(ErrorKind::TimedOut) => {
                self.readers.forget(&place.path);
                self.fetch_once(extent, wanted, place).await
            }
            done => done,
        }
    }

    async fn fetch_once(
        &self,
        extent: &Extent,
        wanted: Range<u32>,
        place: &Place,
    ) -> Result<Bytes> {
        let reader = self.readers.open(place).await?;
        let scans = is_scan(extent, &wanted);
        let range = match scans {
            true => wanted,
            false => self.plan(extent, wanted, &*reader, place),
        };
        let got = if extent.frame == 0 {
            self.read_plain(&*reader, &range).await
        } else {
            self.read_framed(extent, place, &*reader, &range).await
        };
        let got = got.context(format_args!("reading {} at {}", place.path, place.offset))?;
        for (block, bytes) in range.zip(got.chunks(BLOCK)) {
            if !(scans && is_whole(extent, block)) {
                // Copied: a cached block must not keep all that was fetched alive.
                let copy = Bytes::copy_from_slice(bytes);
                self.blocks.put(key(extent, block), copy);
            }
        }
        Ok(got)
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

    async fn read_plain(&self, reader: &dyn Reader, range: &Range<u32>) -> Result<Bytes> {
        let from = range.start as u64 * BLOCK as u64;
        let to = (range.end as u64 * BLOCK as u64).min(reader.len());
        let len = to.saturating_sub(from) as usize;
        reader.read_at(from, len).await
    }

    async fn read_framed(
        &self,
        extent: &Extent,
        place: &Place,
        reader: &dyn Reader,
        range: &Range<u32>,
    ) -> Result<Bytes> {
        let len = extent.frame as usize;
        let from = range.start as usize * BLOCK;
        let to = (range.end as usize * BLOCK).min(len);
        let known = self.remembered(extent);
        if known.is_none() && from == 0 {
            // Head and payload in one request.
            let front = head_len(len);
            let all = reader
                .read_at(place.offset - front as u64, front + to)
                .await?;
            let head = self.learn(extent, &all)?;
            return verified(all.slice(front..), range, &head);
        }
        let head = match known {
            Some(head) => head,
            None => self.head(extent, place, reader).await?,
        };
        let payload = reader
            .read_at(place.offset + from as u64, to - from)
            .await?;
        verified(payload, range, &head)
    }

    fn remembered(&self, extent: &Extent) -> Option<Arc<Head>> {
        let key = (extent.stream, extent.pos);
        let head = self.heads.lock().get(&key).cloned()?;
        (head.len == extent.frame as usize).then_some(head)
    }

    async fn head(&self, extent: &Extent, place: &Place, reader: &dyn Reader) -> Result<Arc<Head>> {
        if let Some(head) = self.remembered(extent) {
            return Ok(head);
        }
        let len = head_len(extent.frame as usize);
        let bytes = reader.read_at(place.offset - len as u64, len).await?;
        self.learn(extent, &bytes)
    }

    /// Decodes a frame's head and remembers it.
    fn learn(&self, extent: &Extent, bytes: &[u8]) -> Result<Arc<Head>> {
        let start = frame_pos(extent);
        let head = Head::decode(bytes, start)?.filter(|h| h.len == extent.frame as usize);
        let Some(head) = head.map(Arc::new) else {
            let text = format!("another frame than that of position {start}");
            return Err(Error::new(ErrorKind::Corrupt, text));
        };
        if head.crcs.len() > 1 {
            let key = (extent.stream, extent.pos);
            self.heads.lock().put(key, head.clone());
        }
        Ok(head)
    }
}

/// Checks each block of a part of a payload.
fn verified(payload: Bytes, range: &Range<u32>, head: &Head) -> Result<Bytes> {
    for (block, bytes) in range.clone().zip(payload.chunks(BLOCK)) {
        if !head.is_right(block, bytes) {
            let text = format!("block {block} does not match its checksum");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
    }
    Ok(payload)
}

/// Position of the frame whose payload an extent points into.
fn frame_pos(e: &Extent) -> Pos {
    e.pos - head_len(e.frame as usize) as u64
}

/// Position behind a block's last byte.
fn block_end(e: &Extent, block: u32) -> Pos {
    let end = (block as u64 + 1) * BLOCK as u64;
    e.pos + end.min(e.frame as u64)
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

/// Whether somebody who asks for these blocks reads a long file on and on.
fn is_scan(e: &Extent, wanted: &Range<u32>) -> bool {
    wanted.len() >= SCAN && (e.frame == 0 || e.frame >= LONG)
}

/// Whether an extent has all of a block's bytes.
fn is_whole(e: &Extent, block: u32) -> bool {
    let from = block as u64 * BLOCK as u64;
    let first = first_byte(e);
    first <= from && from + BLOCK as u64 <= first + e.len as u64
}

/// The extent's bytes out of consecutive parts, the first of which begins with block `start`.
fn cut(e: &Extent, start: u32, parts: &[Bytes]) -> Bytes {
    let from = (first_byte(e) - start as u64 * BLOCK as u64) as usize;
    let len = e.len as usize;
    if let Some(only) = parts.first().filter(|b| from + len <= b.len()) {
        let cut = only.slice(from..from + len);
        // What is kept for long must not keep alive more than twice of what is counted.
        return match len < only.len() / 2 {
            true => Bytes::copy_from_slice(&cut),
            false => cut,
        };
    }
    let mut out = BytesMut::with_capacity(len);
    let mut skip = from;
    for b in parts {
        let part = &b[skip.min(b.len())..];
        out.extend_from_slice(&part[..part.len().min(len - out.len())]);
        skip = skip.saturating_sub(b.len());
    }
    out.freeze()
}
