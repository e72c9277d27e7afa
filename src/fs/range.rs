//! Operations on a range of a file: fallocate, lseek for data and holes, copy_file_range.

use super::attr::MAX_SIZE;
use super::errno::{Errno, Result};
use super::node::State;
use super::types::{Caller, Fh};
use super::{Fs, attr_of};
use crate::base::Ino;
use crate::format::Extent;
use crate::index::Index;

const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;

/// Extents that one call clones; the caller asks again for the rest.
const CLONED_AT_ONCE: usize = 50_000;

fn end_of(off: u64, len: u64) -> Result<u64> {
    let end = off.checked_add(len).filter(|end| *end <= MAX_SIZE);
    end.ok_or(Errno::EFBIG)
}

impl Fs {
    /// Space is not reserved (the store has no way to), but a file that could not fit is refused.
    pub async fn fallocate(
        &self,
        caller: Caller,
        ino: Ino,
        _fh: Fh,
        off: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        let zeroes = match mode & !KEEP_SIZE {
            0 => false,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => true,
            ZERO_RANGE => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = end_of(off, len)?;
        let usage = self.volume.usage();
        if !zeroes && usage.capacity > 0 && usage.available < len {
            return Err(Errno::ENOSPC);
        }
        if mode == KEEP_SIZE {
            return Ok(());
        }
        let now = self.volume.now();
        let pin = self.pin(ino);
        let mut locked = self.settle(&pin).await?;
        self.commit_with(&mut locked, |edit| {
            if !edit.attr.is_file() {
                return Err(Errno::EINVAL);
            }
            let size = edit.attr.size;
            if zeroes && off < size {
                edit.hole(off, end.min(size));
            }
            if mode & KEEP_SIZE == 0 {
                edit.attr.size = size.max(end);
            }
            if zeroes || edit.attr.size != size {
                edit.attr.mtime = now;
            }
            edit.attr.ctime = now;
            edit.drop_privileges(caller);
            Ok(())
        })
    }

    /// Where data or a hole is, at or after an offset. The end of the file is a hole.
    pub async fn lseek(&self, ino: Ino, _fh: Fh, off: u64, whence: i32) -> Result<u64> {
        let node = self.table.node(ino);
        let state = node.as_ref().map(|n| n.state.lock());
        let state = state.as_deref();
        self.volume.read(|index| {
            let size = attr_of(index, ino)?.size;
            let size = state.and_then(|s| s.size).unwrap_or(size);
            if off >= size {
                return Err(Errno::ENXIO);
            }
            let next = |at| pieces(index, state, ino, at);
            match whence {
                libc::SEEK_DATA => {
                    let starts = next(off)
                        .into_iter()
                        .flatten()
                        .map(|(start, _)| start.max(off));
                    starts.min().filter(|at| *at < size).ok_or(Errno::ENXIO)
                }
                libc::SEEK_HOLE => {
                    let mut at = off;
                    while at < size {
                        let here = next(at)
                            .into_iter()
                            .flatten()
                            .filter(|(start, _)| *start <= at);
                        match here.map(|(_, end)| end).max() {
                            Some(end) => at = end,
                            None => break,
                        }
                    }
                    Ok(at.min(size))
                }
                _ => Err(Errno::EINVAL),
            }
        })
    }

    /// Makes a range of one file share the bytes of a range of another. No data is moved.
    #[allow(clippy::too_many_arguments)] // as many as the call has
    pub async fn copy_file_range(
        &self,
        caller: Caller,
        ino_in: Ino,
        _fh_in: Fh,
        off_in: u64,
        ino_out: Ino,
        _fh_out: Fh,
        off_out: u64,
        len: u64,
    ) -> Result<u64> {
        let (end_in, end_out) = (off_in.saturating_add(len), off_out.saturating_add(len));
        if ino_in == ino_out && off_in < end_out && off_out < end_in {
            return Err(Errno::EINVAL);
        }
        if off_out > MAX_SIZE - len.min(MAX_SIZE) {
            return Err(Errno::EFBIG);
        }
        let source = self.pin(ino_in);
        self.commit(&source).await?;
        let target = self.pin(ino_out);
        let now = self.volume.now();
        let mut locked = self.settle(&target).await?;
        self.commit_with(&mut locked, |edit| {
            let from = attr_of(edit.index, ino_in)?;
            if !from.is_file() || !edit.attr.is_file() {
                return Err(Errno::EINVAL);
            }
            let end = end_in.min(from.size);
            if off_in >= end {
                return Ok(0);
            }
            let (len, mut extents) = cloned(edit.index, ino_in, off_in, end);
            for e in &mut extents {
                e.off = e.off - off_in + off_out;
            }
            edit.extents(off_out, len, extents);
            edit.attr.size = edit.attr.size.max(off_out + len);
            edit.attr.mtime = now;
            edit.attr.ctime = now;
            edit.drop_privileges(caller);
            Ok(len)
        })
    }
}

/// What `[from, to)` of a file consists of; with very many extents only a first part.
fn cloned(index: &Index, ino: Ino, from: u64, to: u64) -> (u64, Vec<Extent>) {
    let mut extents = index.extents(ino, from, to);
    let mut end = to;
    if let Some(first_left_out) = extents.get(CLONED_AT_ONCE) {
        end = first_left_out.off;
        extents.truncate(CLONED_AT_ONCE);
    }
    (end - from, extents)
}

/// In each layer of a file, the first piece that ends after an offset: its start and end.
fn pieces(index: &Index, state: Option<&State>, ino: Ino, at: u64) -> [Option<(u64, u64)>; 4] {
    let extent = |e: Extent| (e.off, e.end());
    let moving = state.and_then(|s| {
        let all = s.moving.iter().map(|(off, b)| (*off, off + b.len() as u64));
        all.filter(|(_, end)| *end > at).min()
    });
    [
        state.and_then(|s| s.dirty.next(at)),
        moving,
        state.and_then(|s| s.staged.next(at)).map(extent),
        index.next_extent(ino, at).map(extent),
    ]
}
