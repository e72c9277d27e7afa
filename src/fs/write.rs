//! write(2), and moving the bytes of long files to a lane while they are being written.

use super::attr::{MAX_SIZE, drop_capability, has_capability, without_suid};
use super::background::CACHED_AGE;
use super::commit::stick;
use super::errno::{Errno, Result};
use super::node::{Node, State};
use super::types::{Fh, WriteMode};
use super::{Fs, Pin, attr_of};
use crate::base::Ino;
use crate::format::{DataFrame, Extent, MAX_PAYLOAD, Row};
use crate::volume::BufferPermit;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// More separate runs than this are committed at once: each costs a row.
const MANY_RUNS: usize = 4096;
/// How often those who wait for the write buffer ask the background to empty it.
const PRESSURE_AGAIN: Duration = Duration::from_millis(100);

impl Fs {
    /// Adds bytes to what is uncommitted. Waits only if the write buffer is full, or for room in
    /// a lane.
    pub async fn write(
        &self,
        ino: Ino,
        _fh: Fh,
        off: u64,
        data: Bytes,
        mode: WriteMode,
    ) -> Result<u32> {
        let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let end = off.checked_add(len as u64).filter(|end| *end <= MAX_SIZE);
        end.ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Ok(0);
        }
        let permit = self.take_buffer(data.len()).await?;
        let pin = self.pin(ino);
        if self.add(&pin, off, data, mode, permit)? {
            // The bytes are taken; if moving them on fails, the next fsync or close says so.
            if let Err(e) = self.relieve(&pin).await {
                stick(&pin, e);
            }
        }
        Ok(len)
    }

    async fn take_buffer(&self, bytes: usize) -> Result<BufferPermit> {
        if let Some(permit) = self.volume.try_buffer(bytes) {
            return Ok(permit);
        }
        // Open files may hold all of it, and others that get some first may go idle with it.
        let mut waiting = std::pin::pin!(self.volume.buffer(bytes));
        loop {
            self.pressure.notify_one();
            if let Ok(permit) = tokio::time::timeout(PRESSURE_AGAIN, &mut waiting).await {
                return Ok(permit?);
            }
        }
    }

    /// Returns whether so much is uncommitted that some should go on.
    fn add(
        &self,
        pin: &Pin,
        off: u64,
        data: Bytes,
        mode: WriteMode,
        permit: BufferPermit,
    ) -> Result<bool> {
        let (ino, end) = (pin.ino, off + data.len() as u64);
        let mut state = pin.state.lock();
        let (attr, capable) = self
            .volume
            .read(|index| Ok::<_, Errno>((attr_of(index, ino)?, has_capability(index, ino))))?;
        if !attr.is_file() {
            return Err(Errno::EINVAL);
        }
        let kill_suid = mode.kill_suid && without_suid(attr.mode) != attr.mode;
        if kill_suid || capable {
            self.drop_privileges(&mut state, ino, kill_suid)?;
        }
        let size = state.size.unwrap_or(attr.size);
        state.dirty.write(off, data);
        match &mut state.permit {
            Some(have) => have.merge(permit),
            none => *none = Some(permit),
        }
        state.trim_permit();
        if end > size {
            state.size = Some(end);
        }
        state.written = Some(self.volume.now());
        let config = self.volume.config();
        let age = match mode.cached {
            true => config.dirty_age.min(CACHED_AGE),
            false => config.dirty_age,
        };
        let due = Instant::now() + age;
        state.due = Some(state.due.map_or(due, |d| d.min(due)));
        self.now_dirty(ino);
        Ok(state.dirty.bytes() as u64 > config.small_file || state.dirty.count() > MANY_RUNS)
    }

    fn drop_privileges(&self, state: &mut State, ino: Ino, kill_suid: bool) -> Result<()> {
        let now = self.volume.now();
        let (_, pos) = self.change(|index, change| {
            let mut attr = attr_of(index, ino)?;
            drop_capability(index, change, ino);
            if kill_suid {
                attr.mode = without_suid(attr.mode);
            }
            attr.ctime = now;
            change.row(Row::Inode { ino, attr });
            Ok(())
        })?;
        state.pos = state.pos.max(pos);
        Ok(())
    }

    /// Moves long runs to a lane; if there are none, commits all of the many small ones.
    async fn relieve(&self, node: &Node) -> Result<()> {
        let staging = node.staging.lock().await;
        let small = self.volume.config().small_file as usize;
        let (runs, permit) = {
            let mut state = node.state.lock();
            if state.dirty.bytes() <= small && state.dirty.count() <= MANY_RUNS {
                return Ok(());
            }
            let full = small.min(MAX_PAYLOAD);
            let mut runs = state.dirty.take_long(full / 2);
            if runs.is_empty() {
                runs = state.dirty.take_long(full / 16);
            }
            let bytes = runs.iter().map(|(_, b)| b.len()).sum();
            state.moving = runs.clone();
            (runs, state.take_permit(bytes))
        };
        if runs.is_empty() {
            drop(staging);
            return self.commit(node).await;
        }
        self.stage(node, runs, permit, false).await
    }

    /// The caller holds `staging`; `runs` are in `moving`.
    pub(super) async fn stage(
        &self,
        node: &Node,
        runs: Vec<(u64, Bytes)>,
        mut permit: Option<BufferPermit>,
        lasting: bool,
    ) -> Result<()> {
        let path = self.volume.read(|index| index.path(node.ino));
        let path = path.unwrap_or_default();
        for (off, bytes) in runs {
            let frame = DataFrame::new(node.ino, off, bytes.clone(), path.clone());
            let own = permit.as_mut().and_then(|p| {
                let n = p.num_permits().min(bytes.len());
                p.split(n)
            });
            let appended = match lasting {
                true => self.volume.lane_append_lasting(frame, own).await,
                false => self.volume.lane_append(frame, own).await,
            };
            let mut state = node.state.lock();
            match appended {
                Ok(extent) => state.staged_one(off, &extent),
                Err(e) => {
                    state.put_back(permit);
                    return Err(e.into());
                }
            }
        }
        Ok(())
    }
}

impl State {
    /// The bytes at `off` have left `moving` for a lane.
    fn staged_one(&mut self, off: u64, extent: &Extent) {
        self.moving.retain(|(start, _)| *start != off);
        self.staged.replace(extent.off, extent.end(), &[*extent]);
    }

    /// Bytes that could not be moved are dirty again, below what was written since.
    fn put_back(&mut self, permit: Option<BufferPermit>) {
        for (off, bytes) in std::mem::take(&mut self.moving) {
            self.dirty.put_below(off, bytes);
        }
        if let Some(permit) = permit {
            match &mut self.permit {
                Some(have) => have.merge(permit),
                none => *none = Some(permit),
            }
        }
    }
}
