//! What all decorators share: a store, its writers and its readers, with something around each
//! call.

use super::{FileInfo, LeftOut, OpenVisibility, Reader, Store, StorePath, Usage, Writer};
use crate::base::{Error, ErrorKind, Result, Timestamp};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Create,
    Open,
    Stat,
    IsOpen,
    SetAttr,
    List,
    Mkdir,
    Rename,
    Delete,
    Recover,
    Now,
    Usage,
    Put,
    Append,
    Sync,
    Close,
    Read,
}

impl Op {
    /// Whether a second call after a first that was carried out gives the same result.
    pub fn is_idempotent(self) -> bool {
        match self {
            Op::IsOpen | Op::SetAttr => true,
            Op::Open | Op::Stat | Op::List | Op::Mkdir | Op::Recover => true,
            Op::Now | Op::Usage | Op::Read => true,
            Op::Create | Op::Rename | Op::Delete | Op::Put => false,
            Op::Append | Op::Sync | Op::Close => false,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub op: Op,
    pub path: &'a StorePath,
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            format!("{:?}", self.op).to_lowercase(),
            self.path
        )
    }
}

pub(super) trait Around: Send + Sync + 'static {
    /// Makes one call.
    fn once<'a, T: Send + 'a>(
        &'a self,
        _call: Call<'a>,
        run: impl Future<Output = Result<T>> + Send + 'a,
    ) -> impl Future<Output = Result<T>> + Send + 'a {
        run
    }

    /// After how long to try again, if at all. Asked for idempotent calls only.
    fn again(
        &self,
        _call: Call<'_>,
        _e: &Error,
        _tries: u32,
        _spent: Duration,
    ) -> Option<Duration> {
        None
    }

    /// What is read instead of these bytes.
    fn bytes_read(&self, _path: &StorePath, bytes: Bytes) -> Bytes {
        bytes
    }

    /// How long a file seems to be.
    fn file_len(&self, _call: Call<'_>, len: u64) -> u64 {
        len
    }
}

pub(super) struct Decorated<A> {
    inner: Arc<dyn Store>,
    around: Arc<A>,
}

impl<A: Around> Decorated<A> {
    pub fn new(inner: Arc<dyn Store>, around: Arc<A>) -> Decorated<A> {
        Decorated { inner, around }
    }

    fn shorten(&self, call: Call<'_>, info: FileInfo) -> FileInfo {
        FileInfo {
            len: self.around.file_len(call, info.len),
            ..info
        }
    }
}

/// Makes an idempotent call until it succeeds or the decorator gives up.
macro_rules! repeat {
    ($around:expr, $call:expr, $run:expr) => {{
        let (start, mut tries) = (Instant::now(), 1);
        loop {
            match $around.once($call, $run).await {
                Ok(result) => break Ok(result),
                Err(e) => match $around.again($call, &e, tries, start.elapsed()) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => break Err(e),
                },
            }
            tries += 1;
        }
    }};
}

#[async_trait]
impl<A: Around> Store for Decorated<A> {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn open_visibility(&self) -> OpenVisibility {
        self.inner.open_visibility()
    }

    async fn create(&self, path: &StorePath) -> Result<Box<dyn Writer>> {
        let call = Call {
            op: Op::Create,
            path,
        };
        let inner = self.around.once(call, self.inner.create(path)).await?;
        let (around, path) = (self.around.clone(), path.to_string());
        Ok(Box::new(DecoratedWriter {
            inner: Some(inner),
            around,
            path,
        }))
    }

    async fn open(&self, path: &StorePath) -> Result<Arc<dyn Reader>> {
        let call = Call { op: Op::Open, path };
        let inner = repeat!(self.around, call, self.inner.open(path))?;
        let len = self.around.file_len(call, inner.len());
        let (around, path) = (self.around.clone(), path.to_string());
        Ok(Arc::new(DecoratedReader {
            inner,
            around,
            path,
            len,
        }))
    }

    async fn stat(&self, path: &StorePath) -> Result<FileInfo> {
        let call = Call { op: Op::Stat, path };
        let info = repeat!(self.around, call, self.inner.stat(path))?;
        Ok(self.shorten(call, info))
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<FileInfo>> {
        let call = Call { op: Op::List, path };
        let infos = repeat!(self.around, call, self.inner.list(path))?;
        let shorten = |info: FileInfo| {
            let path = super::path::join(path, &info.name);
            self.shorten(
                Call {
                    op: Op::List,
                    path: &path,
                },
                info,
            )
        };
        Ok(infos.into_iter().map(shorten).collect())
    }

    async fn mkdir(&self, path: &StorePath) -> Result<()> {
        repeat!(
            self.around,
            Call {
                op: Op::Mkdir,
                path
            },
            self.inner.mkdir(path)
        )
    }

    async fn left_out(&self, path: &StorePath) -> Result<Vec<LeftOut>> {
        let op = Op::List;
        repeat!(self.around, Call { op, path }, self.inner.left_out(path))
    }

    async fn is_open(&self, path: &StorePath) -> Result<bool> {
        let op = Op::IsOpen;
        repeat!(self.around, Call { op, path }, self.inner.is_open(path))
    }

    async fn set_attr(&self, path: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        let call = Call {
            op: Op::SetAttr,
            path,
        };
        repeat!(self.around, call, self.inner.set_attr(path, mode, mtime))
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        let call = Call {
            op: Op::Rename,
            path: from,
        };
        self.around.once(call, self.inner.rename(from, to)).await
    }

    async fn delete(&self, path: &StorePath) -> Result<()> {
        self.around
            .once(
                Call {
                    op: Op::Delete,
                    path,
                },
                self.inner.delete(path),
            )
            .await
    }

    async fn recover(&self, path: &StorePath) -> Result<()> {
        repeat!(
            self.around,
            Call {
                op: Op::Recover,
                path
            },
            self.inner.recover(path)
        )
    }

    async fn now(&self) -> Result<Timestamp> {
        repeat!(
            self.around,
            Call {
                op: Op::Now,
                path: ""
            },
            self.inner.now()
        )
    }

    async fn usage(&self) -> Result<Usage> {
        repeat!(
            self.around,
            Call {
                op: Op::Usage,
                path: ""
            },
            self.inner.usage()
        )
    }

    async fn put(&self, path: &StorePath, content: Bytes) -> Result<()> {
        self.around
            .once(Call { op: Op::Put, path }, self.inner.put(path, content))
            .await
    }
}

struct DecoratedWriter<A> {
    /// Gone after an error, or when a caller gave up on a call: what the inner writer's state is
    /// then, nobody knows.
    inner: Option<Box<dyn Writer>>,
    around: Arc<A>,
    path: String,
}

impl<A> DecoratedWriter<A> {
    fn take(&mut self) -> Result<Box<dyn Writer>> {
        let text = || format!("{}: the writer is closed or broken", self.path);
        self.inner
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, text()))
    }
}

#[async_trait]
impl<A: Around> Writer for DecoratedWriter<A> {
    async fn append(&mut self, bytes: Bytes) -> Result<()> {
        let mut inner = self.take()?;
        let call = Call {
            op: Op::Append,
            path: &self.path,
        };
        self.around.once(call, inner.append(bytes)).await?;
        self.inner = Some(inner);
        Ok(())
    }

    async fn sync(&mut self) -> Result<()> {
        let mut inner = self.take()?;
        self.around
            .once(
                Call {
                    op: Op::Sync,
                    path: &self.path,
                },
                inner.sync(),
            )
            .await?;
        self.inner = Some(inner);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let mut inner = self.take()?;
        self.around
            .once(
                Call {
                    op: Op::Close,
                    path: &self.path,
                },
                inner.close(),
            )
            .await
    }
}

struct DecoratedReader<A> {
    inner: Arc<dyn Reader>,
    around: Arc<A>,
    path: String,
    len: u64,
}

#[async_trait]
impl<A: Around> Reader for DecoratedReader<A> {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        super::check_range(&self.path, self.len, offset, len)?;
        let call = Call {
            op: Op::Read,
            path: &self.path,
        };
        let bytes = repeat!(self.around, call, self.inner.read_at(offset, len))?;
        Ok(self.around.bytes_read(&self.path, bytes))
    }
}
