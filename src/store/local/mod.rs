//! A directory on a local filesystem. Every call does its I/O on a thread that may block.

mod lease;
mod reader;
mod recover;
mod tree;
mod writer;

use super::{FileInfo, LeftOut, OpenVisibility, Reader, Store, StorePath, Usage, Writer, path};
use crate::base::{Clock, Context, Error, ErrorKind, Result, SystemClock, Timestamp};
use async_trait::async_trait;
use bytes::Bytes;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::Names;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

pub struct LocalStore {
    url: String,
    root: PathBuf,
    names: Arc<Names>,
}

impl LocalStore {
    /// `root` need not exist: `mkdir("")` makes it.
    pub fn new(url: impl Into<String>, root: impl Into<PathBuf>) -> LocalStore {
        LocalStore {
            url: url.into(),
            root: root.into(),
            names: Arc::default(),
        }
    }

    /// Does I/O on the file at a path of this store; errors name the path.
    async fn run<T: Send + 'static>(
        &self,
        path: &StorePath,
        io: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        path::check(path)?;
        // Joining an empty path would add a slash.
        let full = if path.is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        };
        blocking(move || io(&full).context(full.display())).await
    }
}

async fn blocking<T: Send + 'static>(io: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let lost = |e| Error::new(ErrorKind::Other, format!("an I/O thread ended early: {e}"));
    tokio::task::spawn_blocking(io)
        .await
        .unwrap_or_else(|e| Err(lost(e)))
}

#[async_trait]
impl Store for LocalStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn open_visibility(&self) -> OpenVisibility {
        OpenVisibility::Appended
    }

    async fn create(&self, path: &StorePath) -> Result<Box<dyn Writer>> {
        let writer = self.run(path, writer::LocalWriter::create).await?;
        Ok(Box::new(writer))
    }

    async fn open(&self, path: &StorePath) -> Result<Arc<dyn Reader>> {
        let reader = self.run(path, reader::LocalReader::open).await?;
        Ok(Arc::new(reader))
    }

    async fn stat(&self, path: &StorePath) -> Result<FileInfo> {
        let names = self.names.clone();
        let name = path::split(path).map_or("", |(_, name)| name).to_string();
        self.run(path, move |full| tree::stat(full, name, &names))
            .await
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<FileInfo>> {
        let names = self.names.clone();
        self.run(path, move |full| tree::list(full, &names)).await
    }

    async fn left_out(&self, path: &StorePath) -> Result<Vec<LeftOut>> {
        self.run(path, tree::left_out).await
    }

    async fn mkdir(&self, path: &StorePath) -> Result<()> {
        self.run(path, tree::mkdir).await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        path::check(to)?;
        let to = self.root.join(to);
        let rename = move |from: &Path| {
            rename_noreplace(from, &to).context(format!("renaming to {}", to.display()))?;
            sync_parent(&to)?;
            sync_parent(from)
        };
        self.run(from, rename).await
    }

    async fn delete(&self, path: &StorePath) -> Result<()> {
        self.run(path, tree::delete).await
    }

    async fn is_open(&self, path: &StorePath) -> Result<bool> {
        self.run(path, lease::is_open_for_writing).await
    }

    async fn set_attr(&self, path: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        self.run(path, move |full| tree::set_attr(full, mode, mtime))
            .await
    }

    /// Revokes the file's write permission, which every sync of its writer checks, and makes sure
    /// that a writer which is still there can no longer lengthen it (see `recover.rs`).
    async fn recover(&self, path: &StorePath) -> Result<()> {
        self.run(path, recover::recover).await
    }

    /// The kernel dates local files by its own clock, so that one is the store's clock.
    async fn now(&self) -> Result<Timestamp> {
        Ok(SystemClock.now())
    }

    async fn usage(&self) -> Result<Usage> {
        self.run("", tree::usage).await
    }

    async fn put(&self, path: &StorePath, content: Bytes) -> Result<()> {
        self.run(path, move |full| writer::put(full, &content))
            .await
    }
}

fn rename_noreplace(from: &Path, to: &Path) -> Result<()> {
    let flags = RenameFlags::RENAME_NOREPLACE;
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) {
        // Also the answer to a rename of a directory into itself.
        Err(nix::Error::EINVAL) if !to.starts_with(from) => {
            let text = "this filesystem cannot rename without replacing (RENAME_NOREPLACE); use \
                        ext4, XFS, btrfs or tmpfs";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
        renamed => Ok(renamed.map_err(std::io::Error::from)?),
    }
}

/// Makes the entry of a path durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let sync = File::open(parent).and_then(|dir| dir.sync_all());
    sync.context(format!("syncing directory {}", parent.display()))
}
