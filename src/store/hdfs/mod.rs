//! A directory of an HDFS as a store, over hdfs-native.
//!
//! What that client leaves open is closed here: no call lasts for ever, a pipeline never shrinks
//! unnoticed, what may have been carried out is looked up where it can be, and a NameNode that is
//! restarted, frozen or failed over is found again without anything being opened anew.

mod conf;
mod error;
mod namenode;
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
use hdfs_native::WriteOptions;
use hdfs_native::client::FileStatus;
use namenode::{Namenode, Repeat};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Names that begin so are made and removed by this layer, and not listed.
const HIDDEN: &str = ".stowfs-tmp-";

/// What `usage` says of a directory without a quota: hdfs-native cannot ask how large the cluster
/// is.
const NO_QUOTA: u64 = 1 << 50;

/// The NameNode walks the whole tree to sum up usage.
const USAGE_IS_FRESH: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct HdfsOptions {
    /// Bounds every call of the store, with all its retries; of `recover` and of writers, see below.
    pub op_timeout: Duration,
    /// Bounds one question to the NameNode, which is then asked again over a new connection (and
    /// another NameNode of the nameservice first).
    pub rpc_timeout: Duration,
    /// Bounds one step of a writer: a sync, or handing over 4 MiB. After it the writer is lost.
    pub sync_timeout: Duration,
    /// Bounds connecting to a DataNode and waiting for its next bytes.
    pub socket_timeout: Duration,
    /// Bounds closing the file of another writer.
    pub recover_timeout: Duration,
    /// Of new files; the cluster's default if not set.
    pub replication: Option<u32>,
    /// Of new files; a multiple of 512 that the NameNode admits.
    pub block_size: u64,
    /// The folder of core-site.xml and hdfs-site.xml, instead of $HADOOP_CONF_DIR.
    pub conf_dir: Option<PathBuf>,
    /// Instead of $HADOOP_USER_NAME or the user of the process.
    pub user: Option<String>,
}

impl Default for HdfsOptions {
    fn default() -> HdfsOptions {
        HdfsOptions {
            op_timeout: Duration::from_secs(30),
            rpc_timeout: Duration::from_secs(8),
            sync_timeout: Duration::from_secs(15),
            socket_timeout: Duration::from_secs(4),
            recover_timeout: Duration::from_secs(120),
            replication: None,
            block_size: 64 << 20,
            conf_dir: None,
            user: None,
        }
    }
}

impl HdfsOptions {
    /// Limits that leave room for a second try, or a third, within one operation.
    pub fn within(op_timeout: Duration) -> HdfsOptions {
        let all = HdfsOptions::default();
        HdfsOptions {
            op_timeout,
            rpc_timeout: all.rpc_timeout.min(op_timeout / 4),
            sync_timeout: all.sync_timeout.min(op_timeout / 2),
            socket_timeout: all.socket_timeout.min(op_timeout / 6),
            ..all
        }
    }
}

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
        let authority = authority_of(authority, &conf).context(url)?;
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
        let ask = |client: hdfs_native::Client| async move { client.get_file_info(at).await };
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
        let create = |client: hdfs_native::Client| async move { client.create(at, create).await };
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
        let delete = |client: hdfs_native::Client| async move { client.delete(at, false).await };
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
        let make =
            |client: hdfs_native::Client| async move { client.mkdirs(at, 0o700, parents).await };
        let (doing, deadline) = (format!("making directory {at}"), self.namenode.deadline());
        self.namenode
            .call(&doing, Repeat::Freely, deadline, make)
            .await
            .result
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
        let list = |client: hdfs_native::Client| async move {
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
            if !name.starts_with(HIDDEN) {
                infos.push(info(&name, status));
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    async fn mkdir(&self, at: &StorePath) -> Result<()> {
        self.make_dir(&self.absolute(at)?, true).await
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

    /// The NameNode tells its time only by dating something.
    async fn now(&self) -> Result<Timestamp> {
        let at = self.absolute(&format!("{HIDDEN}{}", uuid::Uuid::new_v4()))?;
        self.make_dir(&at, false)
            .await
            .context("asking for the time")?;
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
        let sum =
            |client: hdfs_native::Client| async move { client.get_content_summary(root).await };
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

fn authority_of(given: Option<&str>, conf: &HadoopConf) -> Result<String> {
    let authority = match given {
        Some(given) => given.to_string(),
        None => {
            let default = conf
                .get("fs.defaultFS")
                .and_then(|fs| fs.strip_prefix("hdfs://"));
            let authority = default.map(|fs| fs.split('/').next().unwrap_or_default().to_string());
            authority.filter(|a| !a.is_empty()).ok_or_else(|| {
                let text = format!(
                    "it names no NameNode, and {} gives no fs.defaultFS; say hdfs://host:port/dir",
                    conf.place()
                );
                Error::new(ErrorKind::Invalid, text)
            })?
        }
    };
    let host = authority.rsplit(']').next().unwrap_or(&authority);
    if !host.contains(':') && conf.namenodes(&authority).is_empty() {
        let text = format!(
            "{authority} is no nameservice of {}; name its folder with HADOOP_CONF_DIR, or say \
             hdfs://{authority}:8020/… if it is a host",
            conf.place()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(authority)
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
    }
}

/// From milliseconds since 1970.
fn timestamp(millis: u64) -> Timestamp {
    Timestamp::try_from(millis)
        .unwrap_or(Timestamp::MAX)
        .saturating_mul(1_000_000)
}
