//! A directory of an HDFS as a store, over hdfs-native.
//!
//! What that client leaves open is closed here: no call lasts for ever, a pipeline never shrinks
//! unnoticed, what may have been carried out is looked up where it can be, and a NameNode that is
//! restarted, frozen or failed over is found again without anything being opened anew.

mod conf;
mod error;
mod namenode;
mod open_file;
mod options;
mod publish;
mod reader;
mod recover;
mod writer;

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result, Timestamp};
use crate::store::{FileInfo, OpenVisibility, Reader, Store, StorePath, Usage, Writer, path};
use async_trait::async_trait;
use bytes::Bytes;
use conf::HadoopConf;
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, WriteOptions};
use namenode::{Namenode, Repeat};
pub use options::HdfsOptions;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Names that begin so are made and removed by this layer, and not listed in the root.
const HIDDEN: &str = ".stowfs-tmp-";
/// Where the owner of a root keeps its files.
const OWN_DIR: &str = ".stowfs";

/// What `usage` says of a directory without a quota: hdfs-native cannot ask how large the cluster
/// is.
const NO_QUOTA: u64 = 1 << 50;

/// The NameNode walks the whole tree to sum up usage.
const USAGE_IS_FRESH: Duration = Duration::from_secs(60);

pub struct HdfsStore {
    url: String,
    /// The absolute path of the root, `/` or without a trailing slash.
    root: String,
    namenode: Arc<Namenode>,
    usage: Mutex<Option<(Instant, Usage)>>,
}

impl HdfsStore {
    /// Reads the configuration; speaks to nobody yet. Must be called in a tokio runtime.
    pub fn new(
        url: &str,
        authority: Option<&str>,
        root: &str,
        options: HdfsOptions,
    ) -> Result<HdfsStore> {
        if options.block_size == 0 || !options.block_size.is_multiple_of(512) {
            let text = format!(
                "an HDFS block size must be a multiple of 512, not {}",
                options.block_size
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let conf = HadoopConf::load(options.conf_dir.as_deref())?;
        let authority = conf.authority(authority).context(url)?;
        let namenode = Arc::new(Namenode::new(&authority, &conf, options)?);
        Ok(HdfsStore {
            url: url.into(),
            root: root.into(),
            namenode,
            usage: Mutex::default(),
        })
    }

    fn absolute(&self, at: &StorePath) -> Result<String> {
        path::check(at)?;
        Ok(match (at, self.root.as_str()) {
            ("", root) => root.to_string(),
            (at, "/") => format!("/{at}"),
            (at, root) => format!("{root}/{at}"),
        })
    }

    async fn status(&self, at: &str) -> Result<FileStatus> {
        let ask = |client: Client| async move { client.get_file_info(at).await };
        let doing = format!("looking up {at}");
        self.namenode
            .call(&doing, Repeat::Freely, self.namenode.deadline(), ask)
            .await
            .result
    }

    async fn create_at(&self, at: &str) -> Result<Box<dyn Writer>> {
        let options = &self.namenode.options;
        let mut how = WriteOptions::default()
            .permission(0o600)
            .overwrite(false)
            .create_parent(false)
            .block_size(options.block_size);
        how.replication = options.replication;
        let (create, doing) = (&how, format!("creating {at}"));
        let create = |client: Client| async move { client.create(at, create).await };
        // Not repeated when it may have been done: whose file it then is cannot be told.
        let deadline = self.namenode.deadline();
        let answer = self
            .namenode
            .call(&doing, Repeat::OnlyIfNotDone, deadline, create)
            .await;
        let file = answer.result?;
        let writer = writer::HdfsWriter::new(
            at.to_string(),
            file,
            options.block_size,
            options.sync_timeout,
        );
        Ok(Box::new(writer))
    }

    async fn remove(&self, at: &str) -> Result<()> {
        let delete = |client: Client| async move { client.delete(at, false).await };
        let (doing, deadline) = (format!("deleting {at}"), self.namenode.deadline());
        let answer = self
            .namenode
            .call(&doing, Repeat::Freely, deadline, delete)
            .await;
        match answer.result {
            Ok(false) if !answer.echo => Err(Error::new(
                ErrorKind::NotFound,
                format!("{doing}: it does not exist"),
            )),
            result => result.map(|_| ()),
        }
    }

    async fn make_dir(&self, at: &str, parents: bool) -> Result<()> {
        let make = |client: Client| async move { client.mkdirs(at, 0o700, parents).await };
        let (doing, deadline) = (format!("making directory {at}"), self.namenode.deadline());
        let answer = self
            .namenode
            .call(&doing, Repeat::Freely, deadline, make)
            .await;
        answer.result
    }
}

#[async_trait]
impl Store for HdfsStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn open_visibility(&self) -> OpenVisibility {
        OpenVisibility::CompleteBlocks(self.namenode.options.block_size)
    }

    async fn create(&self, at: &StorePath) -> Result<Box<dyn Writer>> {
        self.create_at(&self.absolute(at)?).await
    }

    async fn open(&self, at: &StorePath) -> Result<Arc<dyn Reader>> {
        let reader = reader::HdfsReader::open(self.namenode.clone(), self.absolute(at)?).await?;
        Ok(Arc::new(reader))
    }

    async fn stat(&self, at: &StorePath) -> Result<FileInfo> {
        let name = path::split(at).map_or("", |(_, name)| name);
        let status = self.status(&self.absolute(at)?).await?;
        Ok(info(name, status))
    }

    async fn list(&self, at: &StorePath) -> Result<Vec<FileInfo>> {
        let dir = self.absolute(at)?;
        let (dir, limit) = (dir.as_str(), self.namenode.options.rpc_timeout);
        let list = |client: Client| async move {
            let entries = client.list_status_iter(dir, false);
            let mut all = Vec::new();
            loop {
                match timeout(limit, entries.next()).await {
                    Ok(Some(entry)) => all.push(entry?),
                    Ok(None) => return Ok(all),
                    Err(_) => return Err(error::timed_out(limit)),
                }
            }
        };
        let (doing, deadline) = (format!("listing {dir}"), self.namenode.deadline());
        // Whole listings take longer than single questions.
        let whole = self.namenode.options.op_timeout;
        let answer = self
            .namenode
            .call_within(whole, &doing, Repeat::Freely, deadline, list)
            .await;
        let mut infos = Vec::new();
        for status in answer.result? {
            // The NameNode lists a file as itself.
            if status.path == dir && !status.isdir {
                let text = format!("{doing}: it is not a directory");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let name = status
                .path
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_string();
            // Below the root they show: upkeep removes what a crash left of them.
            if !(at.is_empty() && name.starts_with(HIDDEN)) {
                infos.push(info(&name, status));
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    async fn mkdir(&self, at: &StorePath) -> Result<()> {
        let made = self.make_dir(&self.absolute(at)?, true).await;
        // With missing parents made as well, this can only mean that there is a file in the way.
        made.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::AlreadyExists, e.to_string()),
            _ => e,
        })
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<()> {
        self.publish(&self.absolute(from)?, &self.absolute(to)?)
            .await
    }

    async fn delete(&self, at: &StorePath) -> Result<()> {
        self.remove(&self.absolute(at)?).await
    }

    async fn recover(&self, at: &StorePath) -> Result<()> {
        recover::recover(&self.namenode, &self.absolute(at)?).await
    }

    async fn is_open(&self, at: &StorePath) -> Result<bool> {
        self.is_under_construction(&self.absolute(at)?).await
    }

    async fn set_attr(&self, at: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        let at = self.absolute(at)?;
        let (at, millis) = (at.as_str(), (mtime.max(0) / 1_000_000) as u64);
        let set = |client: Client| async move {
            client.set_permission(at, mode & 0o1777).await?;
            client.set_times(at, millis, millis).await
        };
        let (doing, deadline) = (
            format!("setting attributes of {at}"),
            self.namenode.deadline(),
        );
        let answer = self
            .namenode
            .call(&doing, Repeat::Freely, deadline, set)
            .await;
        answer.result
    }

    /// The NameNode tells its time only by dating something. In stowfs's own directory, if there is
    /// one: what a kill leaves there is found and removed.
    async fn now(&self) -> Result<Timestamp> {
        let name = format!("{HIDDEN}{}", uuid::Uuid::new_v4());
        let mut at = self.absolute(&format!("{OWN_DIR}/{name}"))?;
        let mut made = self.make_dir(&at, false).await;
        if made.as_ref().is_err_and(|e| e.is(ErrorKind::NotFound)) {
            at = self.absolute(&name)?;
            made = self.make_dir(&at, false).await;
        }
        made.context("asking for the time")?;
        let status = self.status(&at).await;
        if let Err(e) = self.remove(&at).await {
            tracing::warn!("{at} stays behind: {e}");
        }
        Ok(timestamp(status?.modification_time))
    }

    async fn usage(&self) -> Result<Usage> {
        if let Some((when, usage)) = *self.usage.lock()
            && when.elapsed() < USAGE_IS_FRESH
        {
            return Ok(usage);
        }
        let root = self.root.as_str();
        let sum = |client: Client| async move { client.get_content_summary(root).await };
        let (doing, deadline) = (format!("summing up {root}"), self.namenode.deadline());
        // Asked with patience and once: it is a heavy question.
        let (whole, once) = (self.namenode.options.op_timeout, Repeat::OnlyIfNotDone);
        let answer = self
            .namenode
            .call_within(whole, &doing, once, deadline, sum)
            .await;
        let sum = answer.result?;
        // Quotas count every replica; "none" is -1.
        let replicas = u64::from(self.namenode.options.replication.unwrap_or(3).max(1));
        let quota = Some(sum.space_quota).filter(|q| *q <= i64::MAX as u64);
        let capacity = quota.unwrap_or(NO_QUOTA * replicas);
        let usage = Usage {
            capacity: capacity / replicas,
            available: capacity.saturating_sub(sum.space_consumed) / replicas,
        };
        *self.usage.lock() = Some((Instant::now(), usage));
        Ok(usage)
    }

    async fn put(&self, at: &StorePath, content: Bytes) -> Result<()> {
        self.put_at(&self.absolute(at)?, content).await
    }
}

fn info(name: &str, status: FileStatus) -> FileInfo {
    FileInfo {
        name: name.to_string(),
        is_dir: status.isdir,
        len: status.length as u64,
        mtime: timestamp(status.modification_time),
        mode: u32::from(status.permission),
        owner: status.owner,
        group: status.group,
        ids: None,
    }
}

/// From milliseconds since 1970.
fn timestamp(millis: u64) -> Timestamp {
    Timestamp::try_from(millis)
        .unwrap_or(Timestamp::MAX)
        .saturating_mul(1_000_000)
}
