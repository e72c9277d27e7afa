//! From a URL to a store.

use super::Store;
use super::hdfs::{HdfsOptions, HdfsStore};
use super::local::LocalStore;
use super::timeout::{Limits, with_time_out};
use super::url::StoreUrl;
use crate::base::Result;
use std::sync::Arc;
use std::time::Duration;

/// A call that takes longer is named in the log.
const SLOW: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub hdfs: HdfsOptions,
}

/// Opens the store that a URL names. Nothing is asked of it yet: an unreachable one shows at the
/// first call.
pub async fn connect(url: &str, options: &ConnectOptions) -> Result<Arc<dyn Store>> {
    let (inner, limit): (Arc<dyn Store>, _) = match StoreUrl::parse(url)? {
        StoreUrl::File(dir) => (Arc::new(LocalStore::new(url, dir)), options.hdfs.op_timeout),
        StoreUrl::Hdfs { authority, dir } => {
            let store = HdfsStore::new(url, authority.as_deref(), &dir, options.hdfs.clone())?;
            // It keeps its limits itself.
            (Arc::new(store), Duration::MAX)
        }
    };
    // Recovering a local file may copy it.
    let limits = Limits {
        call: limit,
        recover: limit.saturating_mul(4),
        slow: SLOW,
    };
    Ok(with_time_out(inner, limits))
}
