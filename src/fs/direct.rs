//! Files that are written past the kernel's page cache.
//!
//! A new file that is opened only to be written is: nobody has pages of it, mostly nobody wants any,
//! and the kernel spares itself much work. Whoever opens it meanwhile goes past the cache as well, so
//! a handle of this kind that writes and one that reads cached pages are never open at the same time.
//! Mappings always have pages. The kernel drops those that a write concerns before it sends the write,
//! and one may be fetched again before the write is carried out; so they are dropped once more after
//! it, if anybody else has the file open.

use super::errno::Result;
use super::types::{Fh, WriteMode};
use super::{Fs, Pin};
use crate::base::Ino;
use std::sync::Arc;

/// Makes the kernel drop its pages of `len` bytes at an offset of a file. May wait for requests of
/// the kernel to be answered.
pub type DropPages = Arc<dyn Fn(Ino, u64, u64) + Send + Sync>;

impl Fs {
    /// Lets new files be written past the page cache. The kernel must be one that lets such files be
    /// mapped.
    pub fn allow_direct_io(&self, drop_pages: DropPages) {
        // There is one kernel, so a second call can only say the same.
        let _ = self.direct_io.set(drop_pages);
    }

    /// Whether a file that was just made is written past the cache.
    pub(super) fn begins_direct(&self, flags: i32) -> bool {
        // The kernel asks for no sync after such a write; what asks for many is better off without.
        let synced = flags & libc::O_DSYNC != 0;
        let only_writes = flags & libc::O_ACCMODE == libc::O_WRONLY;
        only_writes && !synced && self.direct_io.get().is_some()
    }

    /// What the kernel does after a write through its cache, but not after one past it.
    pub(super) async fn after_direct_write(
        &self,
        pin: &Pin,
        fh: Fh,
        (off, len): (u64, u64),
        mode: WriteMode,
    ) -> Result<()> {
        if !self.handles.get(fh).is_ok_and(|handle| handle.direct) {
            return Ok(());
        }
        let shared = pin.state.lock().handles > 1;
        if let Some(drop_pages) = self.direct_io.get().filter(|_| shared) {
            let (drop_pages, ino) = (drop_pages.clone(), pin.ino);
            // A panic there would be logged; the write itself is done.
            let _ = tokio::task::spawn_blocking(move || drop_pages(ino, off, len)).await;
        }
        match mode.synced {
            true => self.fsync(pin.ino, fh, true).await,
            false => Ok(()),
        }
    }
}
