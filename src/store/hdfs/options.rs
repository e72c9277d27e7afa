//! What a user may decide about an HDFS store.

use std::path::PathBuf;
use std::time::Duration;

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
            recover_timeout: Duration::from_secs(300),
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
