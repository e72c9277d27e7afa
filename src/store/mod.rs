//! Layer 2: where bytes live. A store is a directory tree of append-only files.
//!
//! The contract below is what HDFS can promise; every backend keeps it, and one conformance suite
//! runs on all of them (`tests/support/store_suite.rs`).

pub mod connect;
mod decorate;
pub mod faulty;
pub mod hdfs;
pub mod local;
pub mod memory;
pub mod path;
pub mod retry;
pub mod timeout;
pub mod url;

pub use connect::{ConnectOptions, connect};
pub use decorate::Op;

use crate::base::{Error, ErrorKind, Result, Timestamp};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// A path below the root of the store: `/`-separated, no leading `/`, no `.` or `..`.
/// The empty path is the root itself.
pub type StorePath = str;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The last component.
    pub name: String,
    pub is_dir: bool,
    /// Bytes. For a file that is open for writing: at least what was synced.
    pub len: u64,
    /// By the store's clock.
    pub mtime: Timestamp,
    /// Permission bits, as far as the store knows them.
    pub mode: u32,
    pub owner: String,
    pub group: String,
    /// Their numbers, where the store has numbers (a local one).
    pub ids: Option<(u32, u32)>,
}

/// What a reader may see of a file while its writer has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenVisibility {
    /// Every appended byte (a local file).
    Appended,
    /// Only whole blocks of this many bytes, and those only once the next block was begun (HDFS).
    CompleteBlocks(u64),
}

impl OpenVisibility {
    /// Whether the store is a service, which each file and each sync costs calls.
    pub fn is_remote(self) -> bool {
        matches!(self, OpenVisibility::CompleteBlocks(_))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub capacity: u64,
    pub available: u64,
}

/// An entry that is no part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Of a name that is not UTF-8 other bytes are escaped, as in `\xff`.
    pub name: String,
    pub what: &'static str,
}

/// A tree of append-only files.
///
/// Every call is bounded in time by the backend or by a decorator: it ends with a result or an
/// error. An error of kind `TimedOut` or `Unavailable` says nothing about whether the call was
/// carried out. Calls are safe to make concurrently.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The URL as the user gave it, for messages.
    fn url(&self) -> &str;

    fn open_visibility(&self) -> OpenVisibility;

    /// Creates a file for appending. Exactly one of several racing callers succeeds, the others
    /// get `AlreadyExists`; a missing parent is `NotFound` (it is never created, which is what
    /// fences an owner whose directory was renamed). The entry itself is durable when the first
    /// `sync` or `close` returns.
    async fn create(&self, path: &StorePath) -> Result<Box<dyn Writer>>;

    /// Opens a file for positioned reads. `NotFound` if there is none.
    async fn open(&self, path: &StorePath) -> Result<Arc<dyn Reader>>;

    /// `NotFound` if there is nothing at the path.
    async fn stat(&self, path: &StorePath) -> Result<FileInfo>;

    /// The entries of a directory, by name. A listing is whole or an error, never cut.
    async fn list(&self, path: &StorePath) -> Result<Vec<FileInfo>>;

    /// What a directory holds that `list` leaves out, because it is neither file nor directory or its
    /// name is not UTF-8. Not to be called on every listing.
    async fn left_out(&self, _path: &StorePath) -> Result<Vec<LeftOut>> {
        Ok(Vec::new())
    }

    /// Makes a directory and its missing parents, with mode 0700. An existing directory is fine.
    /// Durable when it returns.
    async fn mkdir(&self, path: &StorePath) -> Result<()>;

    /// Atomic; never replaces: an existing target is `AlreadyExists`, a missing source
    /// `NotFound`. Durable when it returns. Writers of files below a renamed directory keep
    /// their files, but their next `sync` may fail, and creating in the old directory does.
    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()>;

    /// Deletes one file or one empty directory. `NotFound` if there is none, `Invalid` if the
    /// directory is not empty. Durable when it returns.
    async fn delete(&self, path: &StorePath) -> Result<()>;

    /// Whether somebody has the file open for writing, as far as the store can tell: false may also
    /// mean that it cannot. Changes nothing.
    async fn is_open(&self, path: &StorePath) -> Result<bool>;

    /// Gives a file or directory permission bits and the time of its last change, to the precision
    /// of the store.
    async fn set_attr(&self, path: &StorePath, mode: u32, mtime: Timestamp) -> Result<()>;

    /// Closes a file on behalf of a writer that may be dead, and fences that writer: no `sync` of
    /// it returns Ok afterwards. Returns once the file is closed and its length final. All bytes
    /// that any `sync` acknowledged are kept; later ones may be, as a prefix. A closed file is
    /// fine. May take seconds.
    async fn recover(&self, path: &StorePath) -> Result<()>;

    /// The store's clock, which dates its files. (May cost a small write.)
    async fn now(&self) -> Result<Timestamp>;

    async fn usage(&self) -> Result<Usage>;

    /// Creates a whole small file atomically: readers see all of it or no file. `AlreadyExists`
    /// if there is one, `NotFound` without the parent. Durable when it returns. After an ambiguous error the caller must look.
    async fn put(&self, path: &StorePath, content: Bytes) -> Result<()>;
}

/// The one writer of a file. Dropping it without `close` abandons the file as it is.
#[async_trait]
pub trait Writer: Send {
    /// Adds bytes at the end. Not durable yet. After an error the writer is broken.
    async fn append(&mut self, bytes: Bytes) -> Result<()>;

    /// Makes all that was appended durable: on HDFS on every replica of the pipeline, on a local
    /// disk by `fdatasync`. After an error the writer is broken and what of the bytes since the
    /// last good sync was kept is unknown. A writer that lost its file (see `Store::recover`,
    /// `Store::rename`, `Store::delete`) gets an error, but never `Fenced`: whether
    /// the root has a new owner only `owner/` says. (Anybody may recover the lease of an HDFS file,
    /// and a directory that is not at its path any more may have been deleted with the whole store.)
    async fn sync(&mut self) -> Result<()>;

    /// Syncs and closes. The file cannot be written again.
    async fn close(&mut self) -> Result<()>;
}

/// Positioned reads of one file, by any number of tasks.
#[async_trait]
pub trait Reader: Send + Sync {
    /// The length that was visible when the reader was opened.
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Exactly `len` bytes at `offset`, or an error: a range past the end is `Invalid`.
    async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes>;
}

/// Refuses a read past the end; the same check for every backend.
fn check_range(path: &StorePath, file_len: u64, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= file_len => Ok(()),
        _ => {
            let text = format!("{path}: {len} bytes at {offset} are past the end at {file_len}");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}
