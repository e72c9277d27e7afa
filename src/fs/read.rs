//! read(2): what is uncommitted lies over what the index has, and where nothing is there are zeros.

use super::errno::{Errno, Result};
use super::node::State;
use super::types::Fh;
use super::{Fs, attr_of};
use crate::base::{Error, Ino};
use crate::format::Extent;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};

/// Extents that one read fetches at the same time.
const AT_ONCE: usize = 16;
/// The most bytes that one call returns.
const MAX_READ: usize = 16 << 20;

#[derive(PartialEq)]
enum Source {
    Memory(Bytes),
    Extent(Extent),
}

/// The bytes `[off, off + len)` of a file, and where they are. Holes are left out.
#[derive(PartialEq)]
struct Plan {
    off: u64,
    len: usize,
    parts: Vec<(u64, Source)>,
}

impl Fs {
    /// Up to `len` bytes; fewer only at the end of the file.
    pub async fn read(&self, ino: Ino, _fh: Fh, off: u64, len: usize) -> Result<Bytes> {
        let to = off.saturating_add(len.min(MAX_READ) as u64);
        // Segments that the plan names stay until the read has ended.
        let _reading = self.volume.reading();
        let plan = self.plan(ino, off, to)?;
        match self.carry_out(&plan).await {
            Ok(bytes) => Ok(bytes),
            // Compaction may have moved the bytes, and deleted where they were.
            Err(e) => {
                let again = self.plan(ino, off, to)?;
                if again == plan {
                    return Err(e.into());
                }
                Ok(self.carry_out(&again).await?)
            }
        }
    }

    fn plan(&self, ino: Ino, from: u64, to: u64) -> Result<Plan> {
        let node = self.table.node(ino);
        let state = node.as_ref().map(|n| n.state.lock());
        let state = state.as_deref().filter(|s| !s.is_clean());
        self.volume.read(|index| {
            let attr = attr_of(index, ino)?;
            if !attr.is_file() {
                return Err(Errno::EINVAL);
            }
            let size = state.and_then(|s| s.size).unwrap_or(attr.size);
            let to = to.min(size);
            let mut plan = Plan {
                off: from,
                len: to.saturating_sub(from) as usize,
                parts: Vec::new(),
            };
            if plan.len == 0 {
                return Ok(plan);
            }
            let mut gaps = vec![(from, to)];
            if let Some(state) = state {
                gaps = plan.uncommitted(state, gaps);
            }
            for (a, b) in gaps {
                let extents = index.extents(ino, a, b).into_iter();
                plan.parts
                    .extend(extents.map(|e| (e.off, Source::Extent(e))));
            }
            Ok(plan)
        })
    }

    async fn carry_out(&self, plan: &Plan) -> Result<Bytes, Error> {
        let fetch = |(off, source): &(u64, Source)| {
            let (off, source) = (
                *off,
                match source {
                    Source::Memory(bytes) => Ok(bytes.clone()),
                    Source::Extent(e) => Err(*e),
                },
            );
            async move {
                let bytes = match source {
                    Ok(bytes) => bytes,
                    Err(e) => self.volume.fetch(&e).await?,
                };
                Ok::<_, Error>((off, bytes))
            }
        };
        if let [one] = &plan.parts[..] {
            let (off, bytes) = fetch(one).await?;
            if off == plan.off && bytes.len() == plan.len {
                return Ok(bytes);
            }
            return Ok(plan.assemble(vec![(off, bytes)]));
        }
        let fetches: Vec<_> = plan.parts.iter().map(fetch).collect();
        let parts: Vec<(u64, Bytes)> = futures::stream::iter(fetches)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(plan.assemble(parts))
    }
}

impl Plan {
    /// Adds what is uncommitted in these gaps; returns what gaps are left.
    fn uncommitted(&mut self, state: &State, gaps: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let gaps = self.layer(gaps, |a, b| {
            let parts = state.dirty.within(a, b).into_iter();
            parts
                .map(|(off, bytes)| (off, bytes.len() as u64, Source::Memory(bytes)))
                .collect()
        });
        let gaps = self.layer(gaps, |a, b| {
            let mut parts = Vec::new();
            for (off, bytes) in &state.moving {
                let (from, to) = (a.max(*off), b.min(off + bytes.len() as u64));
                if from < to {
                    let part = bytes.slice((from - off) as usize..(to - off) as usize);
                    parts.push((from, to - from, Source::Memory(part)));
                }
            }
            parts
        });
        self.layer(gaps, |a, b| {
            let parts = state.staged.within(a, b).into_iter();
            parts
                .map(|e| (e.off, e.len as u64, Source::Extent(e)))
                .collect()
        })
    }

    /// Fills gaps with the parts (in order) that `find` gives for each.
    fn layer(
        &mut self,
        gaps: Vec<(u64, u64)>,
        find: impl Fn(u64, u64) -> Vec<(u64, u64, Source)>,
    ) -> Vec<(u64, u64)> {
        let mut left = Vec::new();
        for (a, b) in gaps {
            let mut at = a;
            for (off, len, source) in find(a, b) {
                if off > at {
                    left.push((at, off));
                }
                at = off + len;
                self.parts.push((off, source));
            }
            if at < b {
                left.push((at, b));
            }
        }
        left
    }

    /// Joins the parts, in any order, with zeros where none is.
    fn assemble(&self, mut parts: Vec<(u64, Bytes)>) -> Bytes {
        parts.sort_unstable_by_key(|(off, _)| *off);
        let mut out = BytesMut::with_capacity(self.len);
        for (off, bytes) in parts {
            out.resize((off - self.off) as usize, 0);
            out.extend_from_slice(&bytes);
        }
        out.resize(self.len, 0);
        out.freeze()
    }
}
