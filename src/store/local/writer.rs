//! Writing: appends gather in memory and go to the page cache together, syncs to the disk. Most
//! appends are small and followed by a sync, and then both are one step on a thread that may block.
//!
//! A writer holds an exclusive flock on its file for as long as it lives (the kernel lets go of it
//! when the process dies), which tells `recover` whether anybody can still write.

use super::{FILE_MODE, blocking, rename_noreplace, sync_parent};
use crate::base::{Context, Error, ErrorKind, Result};
use crate::store::Writer;
use async_trait::async_trait;
use bytes::Bytes;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::uio::pwritev;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoError, IoSlice, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Appended bytes that are kept in memory, at most; more go to the page cache.
const GATHERED: usize = 1 << 20;

pub(super) struct LocalWriter {
    file: Option<Arc<Created>>,
    gathered: Gathered,
    entry_durable: bool,
}

/// What was appended but not written yet.
#[derive(Default)]
struct Gathered {
    at: u64,
    pieces: Vec<Bytes>,
    len: usize,
}

impl Gathered {
    /// What there is; nothing is left, and more will follow it.
    fn take(&mut self) -> Gathered {
        let next = Gathered {
            at: self.at + self.len as u64,
            ..Gathered::default()
        };
        std::mem::replace(self, next)
    }

    fn write(&self, file: &File) -> std::io::Result<()> {
        let mut slices: Vec<IoSlice> = self.pieces.iter().map(|p| IoSlice::new(p)).collect();
        let (mut left, mut at) = (&mut slices[..], self.at as i64);
        while !left.is_empty() {
            let most = left.len().min(libc::UIO_MAXIOV as usize);
            match pwritev(file, &left[..most], at) {
                Ok(0) => return Err(IoError::WriteZero.into()),
                Ok(n) => {
                    at += n as i64;
                    IoSlice::advance_slices(&mut left, n);
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// A file that this process created, and where.
struct Created {
    file: Flock<File>,
    path: PathBuf,
    dev_ino: (u64, u64),
}

impl LocalWriter {
    pub fn create(path: &Path) -> Result<LocalWriter> {
        let file = create_new(path)?;
        let created = file.metadata()?;
        let dev_ino = (created.dev(), created.ino());
        // Whoever has the lock already is recovering the file.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| std::io::Error::from(e))
            .context("locking the new file")?;
        let created = Created {
            file,
            path: path.to_path_buf(),
            dev_ino,
        };
        // The kernel finds the parent first and creates second. A rename of the parent in between
        // would let a fenced owner create in the renamed directory: it may, but not write there.
        created
            .still_ours()
            .map_err(|e| Error::new(ErrorKind::NotFound, e.to_string()))?;
        Ok(LocalWriter {
            file: Some(Arc::new(created)),
            gathered: Gathered::default(),
            entry_durable: false,
        })
    }

    /// One step of I/O. The writer is unusable until it has succeeded: a step that failed, or
    /// whose caller gave up while the thread goes on, breaks it.
    async fn step(
        &mut self,
        io: impl FnOnce(&Created) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let file = self.file.take().ok_or_else(broken)?;
        let on_thread = file.clone();
        blocking(move || io(&on_thread).context(on_thread.path.display())).await?;
        self.file = Some(file);
        Ok(())
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Invalid, "the writer is closed or broken")
}

impl Created {
    /// Whether the file is still the one at its path, and nobody has revoked it.
    ///
    /// This is what fences. A take-over renames the directory first, and a recovery revokes the
    /// permission first; they read afterwards. So when a check that follows `fdatasync` passes,
    /// the bytes were on the disk before the new owner looked. (Whether a file may be written is
    /// decided when it is opened, so the revoked permission alone would stop nobody.)
    fn still_ours(&self) -> Result<()> {
        let lost = |what| {
            let text = format!("this writer lost its file: {what}");
            Err(Error::new(ErrorKind::Other, text))
        };
        match std::fs::symlink_metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) != self.dev_ino => lost("it was replaced by another"),
            Ok(now) if now.mode() & 0o200 == 0 => lost("it was recovered"),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let dir = self.path.parent().is_some_and(Path::exists);
                lost(match dir {
                    true => "it was deleted or renamed",
                    false => "its directory was renamed or deleted",
                })
            }
            Err(e) => Err(e.into()),
        }
    }
}

#[async_trait]
impl Writer for LocalWriter {
    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        self.file.as_ref().ok_or_else(broken)?;
        if !bytes.is_empty() {
            self.gathered.len += bytes.len();
            self.gathered.pieces.push(bytes);
        }
        if self.gathered.len < GATHERED {
            return Ok(());
        }
        let gathered = self.gathered.take();
        self.step(move |created| Ok(gathered.write(&created.file)?))
            .await
    }

    async fn sync(&mut self) -> Result<()> {
        let entry_durable = self.entry_durable;
        let gathered = self.gathered.take();
        let sync = move |created: &Created| {
            gathered.write(&created.file)?;
            created.file.sync_data()?;
            if !entry_durable {
                // When the directory is gone the check below says so better.
                let entry = sync_parent(&created.path);
                created.still_ours()?;
                return entry;
            }
            created.still_ours()
        };
        self.step(sync).await?;
        self.entry_durable = true;
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        self.sync().await?;
        self.file = None;
        Ok(())
    }
}

/// Writes a whole file under a name that nobody looks for, then gives it its own.
pub(super) fn put(path: &Path, content: &[u8]) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::new(ErrorKind::AlreadyExists, "exists already"));
    }
    let temporary = temporary_beside(path);
    let put = || {
        let mut file = create_new(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        rename_noreplace(&temporary, path)
    };
    if let Err(e) = put() {
        // Renaming is not ambiguous here: after an error the file still has its temporary name.
        let _ = std::fs::remove_file(&temporary);
        return Err(e);
    }
    sync_parent(path)
}

pub(super) fn temporary_beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".stowfs-{}.tmp", uuid::Uuid::new_v4()))
}

pub(super) fn create_new(path: &Path) -> Result<File> {
    Ok(OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)?)
}
