//! Rewriting the end of a file that grows by small synced appends.
//!
//! Each append makes an extent of its own. When eight of about the same size have gathered at the
//! end of the file, the next commit writes them as one, and so on with those: a byte is rewritten
//! once for each power of eight up to a megabyte, and a log of 100,000 lines has some dozens of
//! extents.

use super::Fs;
use super::node::{Node, State};
use crate::format::Extent;
use bytes::{Bytes, BytesMut};

/// Extents of similar size that are merged.
const GATHER: usize = 7;
/// Longer extents are left alone, and so are longer appends.
const LONG: u64 = 1 << 20;
/// Extents that are looked at: some of each power of eight.
const LOOK: usize = 8 * GATHER;

/// Committed bytes at the end of a file, to be written again with what follows.
pub(super) struct Tail {
    version: u64,
    off: u64,
    bytes: Bytes,
}

impl Tail {
    /// Makes the tail a part of what is to be committed, unless the file has changed meanwhile:
    /// committed bytes, or bytes that went to a lane, which the tail would come to lie above.
    pub fn put_below(self, state: &mut State) {
        if state.version == self.version && !state.has_staged() {
            state.dirty.put_below(self.off, self.bytes);
        }
    }
}

impl Fs {
    /// The bytes that a commit of this node should write again. None if there are none, or if they
    /// cannot be read now: rewriting is never necessary.
    pub(super) async fn tail_to_rewrite(&self, node: &Node) -> Option<Tail> {
        let (version, extents) = self.plan_tail(node)?;
        let off = extents.first()?.off;
        let mut bytes = BytesMut::new();
        for e in &extents {
            bytes.extend_from_slice(&self.volume.fetch(e).await.ok()?);
        }
        Some(Tail {
            version,
            off,
            bytes: bytes.freeze(),
        })
    }

    /// What to rewrite, in order; only if all that is uncommitted is one small append.
    fn plan_tail(&self, node: &Node) -> Option<(u64, Vec<Extent>)> {
        let state = node.state.lock();
        if state.dirty.count() != 1 || state.has_staged() {
            return None;
        }
        let (start, end) = state.dirty.next(0)?;
        if end - start >= LONG {
            return None;
        }
        let last = self.volume.read(|index| {
            let size = index.attr(node.ino)?.size;
            (size == start).then(|| index.last_extents(node.ino, LOOK))
        })?;
        let n = gathered(start, end - start, &last);
        let mut extents = last[..n].to_vec();
        extents.reverse();
        (n > 0).then_some((state.version, extents))
    }
}

/// How many of the last extents (the last one first) to write again with `new` bytes at `at`.
fn gathered(at: u64, new: u64, last: &[Extent]) -> usize {
    let mut whole = new;
    let mut taken = 0;
    loop {
        let similar = last[taken..]
            .iter()
            .scan((at - (whole - new), whole), |(end, sum), e| {
                *sum += e.len as u64;
                let next = (e.end() == *end
                    && *sum <= LONG
                    && magnitude(e.len as u64) <= magnitude(whole))
                .then_some(*sum);
                *end = e.off;
                next
            })
            .collect::<Vec<u64>>();
        if similar.len() < GATHER {
            return taken;
        }
        taken += similar.len();
        whole = similar[similar.len() - 1];
    }
}

fn magnitude(len: u64) -> u32 {
    len.max(1).ilog2() / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StreamId;

    /// Found by `tests/fs_crash.rs`: while the tail was fetched, a write into it was staged, and
    /// the commit put the old bytes above the new ones.
    #[test]
    fn a_tail_that_was_overtaken_is_left_out() {
        let tail = || Tail {
            version: 3,
            off: 0,
            bytes: Bytes::from_static(b"committed"),
        };
        let mut state = State {
            version: 3,
            ..State::default()
        };
        let staged = Extent {
            off: 2,
            len: 4,
            stream: StreamId(1),
            pos: 0,
            frame: 4,
            skip: 0,
        };
        state.staged.replace(2, 6, &[staged]);
        tail().put_below(&mut state);
        assert!(state.dirty.is_empty());
        state.staged = Default::default();
        state.version = 4;
        tail().put_below(&mut state);
        assert!(state.dirty.is_empty());
        state.version = 3;
        state.dirty.write(4, Bytes::from_static(b"NEW"));
        tail().put_below(&mut state);
        assert_eq!(
            state.dirty.pieces(),
            [(0, Bytes::from_static(b"commNEWed"))]
        );
    }

    #[test]
    fn a_hundred_thousand_appends_leave_few_extents_and_little_rewriting() {
        let mut extents: Vec<Extent> = Vec::new(); // the last one last
        let (mut size, mut written) = (0u64, 0u64);
        for _ in 0..100_000 {
            let last: Vec<Extent> = extents.iter().rev().take(LOOK).copied().collect();
            let n = gathered(size, 10, &last);
            let merged: u64 = last[..n].iter().map(|e| e.len as u64).sum();
            extents.truncate(extents.len() - n);
            extents.push(Extent {
                off: size - merged,
                len: (merged + 10) as u32,
                stream: StreamId::LOG,
                pos: 0,
                frame: 1 << 20,
                skip: 0,
            });
            size += 10;
            written += merged + 10;
            assert!(extents.len() < LOOK);
        }
        assert!(written < 8 * size, "{written} bytes written for {size}");
        let gap = Extent {
            off: size - 1,
            ..extents[0]
        };
        assert_eq!(gathered(size + 100, 10, &[gap; 20]), 0);
    }
}
