//! The store's contract on top of the model.

use super::host::MemoryStore;
use super::world::{FileId, World};
use crate::base::{Context, Error, ErrorKind, Result, Timestamp};
use crate::store::{
    FileInfo, OpenVisibility, Reader, Store, StorePath, Usage, Writer, check_range, path,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

impl MemoryStore {
    async fn at<T: Send + 'static>(
        &self,
        path: &StorePath,
        step: impl FnOnce(&mut World, &StorePath, Timestamp) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        path::check(path)?;
        let path = path.to_string();
        self.call(move |world, now| step(world, &path, now)).await
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn open_visibility(&self) -> OpenVisibility {
        OpenVisibility::CompleteBlocks(self.block_size)
    }

    async fn create(&self, path: &StorePath) -> Result<Box<dyn Writer>> {
        let id = self.at(path, World::create).await?;
        let (host, path) = (self.clone(), path.to_string());
        Ok(Box::new(MemoryWriter {
            host,
            id,
            path,
            usable: true,
        }))
    }

    async fn open(&self, path: &StorePath) -> Result<Arc<dyn Reader>> {
        let (id, len) = self.at(path, World::open).await?;
        let (host, path) = (self.clone(), path.to_string());
        Ok(Arc::new(MemoryReader {
            host,
            id,
            path,
            len: len as u64,
        }))
    }

    async fn stat(&self, path: &StorePath) -> Result<FileInfo> {
        self.at(path, World::stat).await
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<FileInfo>> {
        self.at(path, World::list).await
    }

    async fn mkdir(&self, path: &StorePath) -> Result<()> {
        self.at(path, World::mkdir).await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        path::check(to)?;
        let to = to.to_string();
        self.at(from, move |world, from, now| world.rename(from, &to, now))
            .await
    }

    async fn delete(&self, path: &StorePath) -> Result<()> {
        self.at(path, World::delete).await
    }

    async fn is_open(&self, path: &StorePath) -> Result<bool> {
        self.at(path, World::is_open).await
    }

    async fn set_attr(&self, path: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        self.at(path, move |world, path, _| {
            world.set_attr(path, mode, mtime)
        })
        .await
    }

    async fn recover(&self, path: &StorePath) -> Result<()> {
        while let Some(wait) = self.at(path, World::recover).await? {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    async fn now(&self) -> Result<Timestamp> {
        self.call(|_, now| Ok(now)).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.call(|world, _| Ok(world.usage())).await
    }

    async fn put(&self, path: &StorePath, content: Bytes) -> Result<()> {
        self.at(path, move |world, path, now| world.put(path, &content, now))
            .await
    }
}

struct MemoryWriter {
    host: MemoryStore,
    id: FileId,
    path: String,
    /// False from the start of a call until it succeeded: a call that failed, or whose caller
    /// gave up, breaks the writer.
    usable: bool,
}

impl MemoryWriter {
    async fn step(
        &mut self,
        step: impl FnOnce(&mut World, FileId, Timestamp) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        if !std::mem::replace(&mut self.usable, false) {
            let text = format!("{}: the writer is closed or broken", self.path);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let id = self.id;
        self.host
            .call(move |world, now| step(world, id, now))
            .await
            .context(&self.path)?;
        self.usable = true;
        Ok(())
    }
}

#[async_trait]
impl Writer for MemoryWriter {
    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        self.step(move |world, id, _| world.append(id, &bytes))
            .await
    }

    async fn sync(&mut self) -> Result<()> {
        self.step(|world, id, _| world.sync(id)).await
    }

    async fn close(&mut self) -> Result<()> {
        self.step(World::close).await?;
        self.usable = false;
        Ok(())
    }
}

struct MemoryReader {
    host: MemoryStore,
    id: FileId,
    path: String,
    len: u64,
}

#[async_trait]
impl Reader for MemoryReader {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        check_range(&self.path, self.len, offset, len)?;
        let id = self.id;
        let read = self
            .host
            .call(move |world, _| world.read(id, offset as usize, len))
            .await;
        read.map(Bytes::from).context(&self.path)
    }
}
