//! A store that counts what is written to it, and what lies on it.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stowfs::base::{Result, Timestamp};
use stowfs::store::{FileInfo, OpenVisibility, Reader, Store, StorePath, Usage, Writer};

#[derive(Default)]
pub struct Meter {
    /// The length of each file that exists.
    files: Mutex<BTreeMap<String, u64>>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub appended: u64,
    /// Of those, bytes of snapshots.
    pub snapshots: u64,
    /// Calls that cost a NameNode something: create, sync, close, rename, delete, mkdir.
    pub calls: u64,
    pub created: u64,
}

impl Meter {
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    pub fn len(&self, path: &str) -> u64 {
        self.files.lock().get(path).copied().unwrap_or(0)
    }

    fn call(&self) {
        self.counts.lock().calls += 1;
    }

    fn append(&self, path: &str, bytes: u64) {
        *self.files.lock().entry(path.to_string()).or_default() += bytes;
        let mut counts = self.counts.lock();
        counts.appended += bytes;
        if path.contains("/snapshot/") {
            counts.snapshots += bytes;
        }
    }
}

pub struct Metered {
    pub inner: Arc<dyn Store>,
    pub meter: Arc<Meter>,
}

struct MeteredWriter {
    inner: Box<dyn Writer>,
    meter: Arc<Meter>,
    path: String,
}

#[async_trait]
impl Writer for MeteredWriter {
    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        self.meter.append(&self.path, bytes.len() as u64);
        self.inner.append(bytes).await
    }

    async fn sync(&mut self) -> Result<()> {
        self.meter.call();
        self.inner.sync().await
    }

    async fn close(&mut self) -> Result<()> {
        self.meter.call();
        self.inner.close().await
    }
}

#[async_trait]
impl Store for Metered {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn open_visibility(&self) -> OpenVisibility {
        self.inner.open_visibility()
    }

    async fn create(&self, path: &StorePath) -> Result<Box<dyn Writer>> {
        self.meter.call();
        let inner = self.inner.create(path).await?;
        self.meter.counts.lock().created += 1;
        self.meter.files.lock().insert(path.to_string(), 0);
        Ok(Box::new(MeteredWriter {
            inner,
            meter: self.meter.clone(),
            path: path.to_string(),
        }))
    }

    async fn open(&self, path: &StorePath) -> Result<Arc<dyn Reader>> {
        self.inner.open(path).await
    }

    async fn stat(&self, path: &StorePath) -> Result<FileInfo> {
        self.inner.stat(path).await
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<FileInfo>> {
        self.inner.list(path).await
    }

    async fn mkdir(&self, path: &StorePath) -> Result<()> {
        self.meter.call();
        self.inner.mkdir(path).await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        self.meter.call();
        self.inner.rename(from, to).await?;
        let mut files = self.meter.files.lock();
        if let Some(len) = files.remove(from) {
            files.insert(to.to_string(), len);
        }
        Ok(())
    }

    async fn delete(&self, path: &StorePath) -> Result<()> {
        self.meter.call();
        self.inner.delete(path).await?;
        self.meter.files.lock().remove(path);
        Ok(())
    }

    async fn is_open(&self, path: &StorePath) -> Result<bool> {
        self.inner.is_open(path).await
    }

    async fn set_attr(&self, path: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        self.meter.call();
        self.inner.set_attr(path, mode, mtime).await
    }

    async fn recover(&self, path: &StorePath) -> Result<()> {
        self.meter.call();
        self.inner.recover(path).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner.now().await
    }

    async fn usage(&self) -> Result<Usage> {
        self.inner.usage().await
    }

    async fn put(&self, path: &StorePath, content: Bytes) -> Result<()> {
        self.meter.call();
        self.inner.put(path, content.clone()).await?;
        self.meter.append(path, content.len() as u64);
        Ok(())
    }
}
