//! Reads one segment file: its ends, and the frames between them.

use super::window::{CHUNK, Window};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Pos, Result};
use crate::format::frame::{self, DataHead, Frame, Parsed, RecordFrame, checksums};
use crate::format::segment::{Footer, HEADER_LEN, SegmentHeader, TRAILER_LEN};
use crate::store::{Reader, Store};
use std::sync::Arc;

/// A segment file that has a readable header.
pub struct SegmentFile {
    pub path: String,
    pub len: u64,
    pub header: SegmentHeader,
    /// Only a sealed segment has one.
    pub footer: Option<Footer>,
    reader: Arc<dyn Reader>,
}

/// Opens a segment and reads its two ends. `Corrupt` if there is no valid header.
pub async fn open_segment(store: &dyn Store, path: &str) -> Result<SegmentFile> {
    let reader = store
        .open(path)
        .await
        .context(format_args!("opening {path}"))?;
    let len = reader.len();
    if len < HEADER_LEN as u64 {
        let text = format!("{path}: {len} bytes are too few for a segment header");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let head = reader
        .read_at(0, HEADER_LEN)
        .await
        .context(format_args!("reading {path}"))?;
    let header = SegmentHeader::decode(&head).context(path)?;
    let footer = read_footer(&*reader, len, path).await?;
    Ok(SegmentFile {
        path: path.to_string(),
        len,
        header,
        footer,
        reader,
    })
}

/// None if it was never sealed.
pub async fn read_footer(reader: &dyn Reader, len: u64, path: &str) -> Result<Option<Footer>> {
    let Some(at) = len
        .checked_sub(TRAILER_LEN as u64)
        .filter(|at| *at >= HEADER_LEN as u64)
    else {
        return Ok(None);
    };
    let bytes = reader
        .read_at(at, TRAILER_LEN)
        .await
        .context(format_args!("reading {path}"))?;
    match Footer::decode(&bytes, len) {
        Ok(footer) => Ok(Some(footer)),
        Err(e) if e.is(ErrorKind::Corrupt) => Ok(None),
        Err(e) => Err(e.context(path)),
    }
}

/// What a segment holds.
#[derive(Default)]
pub struct Scan {
    pub records: Vec<(Pos, RecordFrame)>,
    pub data: Vec<ScannedData>,
    /// Frames are whole and in order up to here.
    pub end: Pos,
    /// Why the scan stopped there, if not at the regular end of the bytes.
    pub stopped: Option<String>,
    /// Positions of data frames whose payload does not match its checksums. Only a scan of the
    /// bytes knows; a frame table does not.
    pub suspects: Vec<Pos>,
    /// The highest position that the footer, or any record here, also one after the stop, vouches
    /// to be durable.
    pub vouched: Pos,
}

pub struct ScannedData {
    /// Position of the frame.
    pub pos: Pos,
    pub head: DataHead,
    pub path: Vec<u8>,
}

impl Scan {
    fn add(&mut self, pos: Pos, frame: Frame) {
        match frame {
            Frame::Record(r) => {
                self.vouched = self.vouched.max(r.durable);
                self.records.push((pos, r));
            }
            Frame::Data { head, path } => self.data.push(ScannedData { pos, head, path }),
        }
    }
}

/// Reads the frames of a segment: from its frame table if it has a good one, else from the bytes
/// from `start` on, where a frame begins. What is before that may be damaged.
pub async fn scan(file: &SegmentFile, start: Pos) -> Result<Scan> {
    if let Some(footer) = file.footer.as_ref().filter(|f| f.table_len > 0) {
        match scan_table(file, footer).await {
            Ok(scan) => return Ok(scan),
            Err(e) if e.is(ErrorKind::Corrupt) => {
                tracing::warn!("{}: {e}; reading the whole segment instead", file.path);
            }
            Err(e) => return Err(e),
        }
    }
    scan_bytes(file, start).await
}

async fn scan_table(file: &SegmentFile, footer: &Footer) -> Result<Scan> {
    let at = file.len - TRAILER_LEN as u64 - footer.table_len as u64;
    let table = file
        .reader
        .read_at(at, footer.table_len as usize)
        .await
        .context(format_args!("reading the frame table of {}", file.path))?;
    let bad = |why: String| Error::new(ErrorKind::Corrupt, format!("bad frame table: {why}"));
    if crc32c::crc32c(&table) != footer.table_crc {
        return Err(bad("wrong checksum".into()));
    }
    let mut scan = Scan {
        end: footer.base,
        ..Scan::default()
    };
    let mut rest = &table[..];
    while !rest.is_empty() {
        match frame::parse(rest, scan.end, true) {
            Parsed::Frame { prefix, frame } => {
                let elided = match &frame {
                    Frame::Data { head, .. } => head.len as usize,
                    Frame::Record(_) => 0,
                };
                rest = &rest[prefix.frame_len() - elided..];
                scan.add(prefix.pos, frame);
                scan.end = prefix.pos + prefix.frame_len() as u64;
            }
            Parsed::Short(_) => return Err(bad("it is cut".into())),
            Parsed::Bad(why) => return Err(bad(why)),
        }
    }
    if scan.end != footer.end {
        return Err(bad(format!(
            "it ends at {} instead of {}",
            scan.end, footer.end
        )));
    }
    Ok(scan)
}

/// Reads frames from the bytes themselves, and verifies the payloads.
async fn scan_bytes(file: &SegmentFile, start: Pos) -> Result<Scan> {
    let stop_at = file.footer.as_ref().map(|f| f.end);
    let mut scan = Scan {
        end: start,
        // A footer is written when all before it is durable.
        vouched: stop_at.unwrap_or(0),
        ..Scan::default()
    };
    let offset = HEADER_LEN as u64 + (start - file.header.base);
    let mut window = Window::new(file.reader.clone(), &file.path, offset, file.len);
    window.fill(frame::PREFIX).await?;
    while !window.bytes().is_empty() && stop_at != Some(scan.end) {
        match frame::parse(window.bytes(), scan.end, false) {
            Parsed::Frame { prefix, frame } => {
                if let Frame::Data { head, .. } = &frame {
                    let payload = &window.bytes()[head.head_len()..][..head.len as usize];
                    if checksums(payload) != head.crcs {
                        scan.suspects.push(prefix.pos);
                    }
                }
                scan.add(prefix.pos, frame);
                scan.end = prefix.pos + prefix.frame_len() as u64;
                window.consume(prefix.frame_len());
                window.fill(frame::PREFIX).await?;
            }
            Parsed::Short(need) if window.fill(need).await? => {}
            Parsed::Short(_) => {
                scan.stopped = Some("the last frame is cut".into());
                break;
            }
            Parsed::Bad(why) => {
                scan.stopped = Some(why);
                break;
            }
        }
    }
    if scan.stopped.is_some() {
        scan.vouched = scan
            .vouched
            .max(vouched_after(&mut window, &file.header).await?);
    }
    Ok(scan)
}

/// The highest durable position that records after a bad place vouch for.
async fn vouched_after(window: &mut Window, header: &SegmentHeader) -> Result<Pos> {
    let mut vouched = 0;
    loop {
        // A record is at most MAX_RECORD long, so windows overlap by that.
        let more = window.fill(frame::MAX_RECORD + CHUNK).await?;
        let offset = window.offset() - HEADER_LEN as u64;
        let ours = |at: usize, p: &frame::Prefix| {
            p.epoch == header.epoch && p.pos == header.base + offset + at as u64
        };
        vouched = vouched.max(frame::find_vouching_record(window.bytes(), ours).unwrap_or(0));
        if !more {
            return Ok(vouched);
        }
        window.consume(CHUNK);
    }
}
