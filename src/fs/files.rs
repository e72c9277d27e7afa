//! Open files and directories: open, flush, fsync, release.

use super::commit::stick;
use super::errno::{Errno, Result};
use super::types::{Fh, Opened};
use super::{Fs, Pin, attr_of};
use crate::base::{ErrorKind, Ino, Pos};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Handle {
    pub pin: Pin,
    pub writable: bool,
    /// The end of the log when the file was opened: what was changed before is before it.
    opened_at: Pos,
}

#[derive(Default)]
pub(super) struct Handles {
    map: Mutex<FxHashMap<u64, Arc<Handle>>>,
    next: AtomicU64,
}

impl Handles {
    fn add(&self, handle: Handle) -> Fh {
        let fh = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.map.lock().insert(fh, Arc::new(handle));
        Fh(fh)
    }

    pub fn get(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.map.lock().get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    fn remove(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.map.lock().remove(&fh.0).ok_or(Errno::EBADF)
    }

    pub fn count(&self) -> usize {
        self.map.lock().len()
    }
}

impl Fs {
    pub(super) fn add_handle(&self, pin: Pin, writable: bool) -> Fh {
        pin.state.lock().handles += 1;
        self.handles.add(Handle {
            pin,
            writable,
            opened_at: self.volume.last_pos(),
        })
    }

    pub async fn open(&self, ino: Ino, flags: i32) -> Result<Opened> {
        let pin = self.pin(ino);
        let attr = self.volume.read(|index| attr_of(index, ino))?;
        if attr.is_dir() {
            return Err(Errno::EISDIR);
        }
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_TRUNC == 0;
        if reads {
            self.check_plain_files(ino).await?;
        }
        let fh = self.add_handle(pin, writable);
        Ok(Opened { fh })
    }

    /// What a file from before stowfs consists of may have been changed behind the mount.
    async fn check_plain_files(&self, ino: Ino) -> Result<()> {
        match self.volume.check_plain_files(ino).await {
            Err(e) if e.is(ErrorKind::NotFound) => {
                tracing::error!("{} for a program: {e}", Errno::ENOENT);
                Err(Errno::ENOENT)
            }
            checked => Ok(checked?),
        }
    }

    /// close(2) of one descriptor: a written file, and the names that lead to it, are durable when
    /// this returns. Closing what was only read waits for nothing.
    pub async fn flush(&self, ino: Ino, fh: Fh, _lock_owner: u64) -> Result<()> {
        let handle = self.handles.get(fh)?;
        if !handle.writable || self.is_nameless(ino) {
            return Ok(());
        }
        self.sync(&handle.pin, 0).await
    }

    pub async fn fsync(&self, ino: Ino, fh: Fh, _datasync: bool) -> Result<()> {
        let handle = self.handles.get(fh)?;
        if self.is_nameless(ino) {
            return Ok(());
        }
        self.sync(&handle.pin, handle.opened_at).await
    }

    /// The last user of a handle is gone. What a mapping wrote after the last close is committed
    /// here, as there may be no later moment to report an error.
    pub async fn release(&self, ino: Ino, fh: Fh) -> Result<()> {
        let handle = self.handles.remove(fh)?;
        let pin = &handle.pin;
        let last = {
            let mut state = pin.state.lock();
            state.handles -= 1;
            state.handles == 0 && !state.is_clean()
        };
        if !last {
            return Ok(());
        }
        if self.is_nameless(ino) {
            let _staging = pin.staging.lock().await;
            let mut state = pin.state.lock();
            if state.handles == 0 {
                state.discard();
                self.no_longer_dirty(ino);
            }
            return Ok(());
        }
        if let Err(e) = self.commit(pin).await {
            tracing::warn!(
                "{e}: {} is not committed yet; trying again in a while",
                self.label(ino)
            );
            stick(pin, e);
        }
        Ok(())
    }
}
