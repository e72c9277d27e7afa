//! What a reply gives the kernel for a time, and how it is taken back when the kernel was told
//! EIO instead because the operation was late.

use super::task::{Granted, nothing_granted};
use crate::base::Ino;
use crate::fs::{DirItem, Entry, Fh, Fs, Stat, StatFs};
use bytes::Bytes;
use std::sync::Arc;

/// An open file.
pub struct File(pub Ino, pub Fh);

/// An open directory.
pub struct Dir(pub Ino, pub Fh);

nothing_granted!((), u32, u64, Bytes, Stat, StatFs, Vec<DirItem>);

/// Nobody is left to be told that handing back failed; it has its own log line.
fn ignore<T, E>(_result: Result<T, E>) {}

impl Granted for File {
    async fn hand_back(self, fs: Arc<Fs>) {
        ignore(fs.release(self.0, self.1).await);
    }
}

impl Granted for Dir {
    async fn hand_back(self, fs: Arc<Fs>) {
        ignore(fs.releasedir(self.0, self.1).await);
    }
}

impl Granted for Entry {
    async fn hand_back(self, fs: Arc<Fs>) {
        fs.forget(self.ino, 1);
    }
}

impl Granted for (Entry, Fh) {
    async fn hand_back(self, fs: Arc<Fs>) {
        ignore(fs.release(self.0.ino, self.1).await);
        fs.forget(self.0.ino, 1);
    }
}
