//! Positioned reads of one file.

use super::error::timed_out;
use super::namenode::{Namenode, Repeat};
use crate::base::{Error, ErrorKind, Result};
use crate::store::Reader;
use async_trait::async_trait;
use bytes::Bytes;
use hdfs_native::HdfsError;
use hdfs_native::file::FileReader;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

pub(super) struct HdfsReader {
    namenode: Arc<Namenode>,
    /// The absolute path.
    path: String,
    len: u64,
    /// Never forgets a DataNode that failed once, nor asks where the blocks are now: hence it is
    /// replaced after a failure.
    file: Mutex<Arc<FileReader>>,
}

impl HdfsReader {
    pub async fn open(namenode: Arc<Namenode>, path: String) -> Result<HdfsReader> {
        let file = Arc::new(locate(&namenode, &path, namenode.deadline()).await?);
        let len = file.file_length() as u64;
        Ok(HdfsReader {
            namenode,
            path,
            len,
            file: Mutex::new(file),
        })
    }

    async fn reopen(&self, failed: &Arc<FileReader>, deadline: Instant) -> Result<Arc<FileReader>> {
        let file = Arc::new(locate(&self.namenode, &self.path, deadline).await?);
        if (file.file_length() as u64) < self.len {
            let text = format!(
                "it has {} bytes now, {} when opened",
                file.file_length(),
                self.len
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let mut current = self.file.lock();
        if Arc::ptr_eq(&current, failed) {
            *current = file;
        }
        Ok(current.clone())
    }
}

#[async_trait]
impl Reader for HdfsReader {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let doing = || format!("reading {len} bytes at {offset} of {}", self.path);
        // hdfs-native panics on a range past the end.
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > self.len)
        {
            let text = format!("{}: past the end at {}", doing(), self.len);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if len == 0 {
            return Ok(Bytes::new());
        }
        let limit = self.namenode.options.op_timeout;
        let start = Instant::now();
        let file = self.file.lock().clone();
        let error = match read(&file, offset, len, start + limit / 2).await {
            Ok(bytes) => return Ok(bytes),
            Err(e) => e,
        };
        tracing::warn!("{}: {error}; locating its blocks again", doing());
        let again = async {
            let file = self.reopen(&file, start + limit).await?;
            read(&file, offset, len, start + limit).await
        };
        again.await.map_err(|e| e.context(doing()))
    }
}

async fn locate(namenode: &Namenode, path: &str, deadline: Instant) -> Result<FileReader> {
    let open = |client: hdfs_native::Client| async move { client.read(path).await };
    let doing = format!("opening {path}");
    namenode
        .call(&doing, Repeat::Freely, deadline, open)
        .await
        .result
}

async fn read(file: &FileReader, offset: u64, len: usize, deadline: Instant) -> Result<Bytes> {
    let limit = deadline.saturating_duration_since(Instant::now());
    let read = timeout_at(deadline, file.read_range(offset as usize, len)).await;
    match read.unwrap_or_else(|_| Err(timed_out(limit))) {
        Ok(bytes) if bytes.len() == len => Ok(bytes),
        Ok(bytes) => {
            let text = format!("only {} bytes came", bytes.len());
            Err(Error::new(ErrorKind::Unavailable, text))
        }
        Err(e) => Err(HdfsError::into(e)),
    }
}
