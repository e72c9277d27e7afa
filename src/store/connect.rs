//! From a URL to a store.

use super::Store;
use super::hdfs::{HdfsOptions, HdfsStore};
use super::local::LocalStore;
use super::url::StoreUrl;
use crate::base::Result;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub hdfs: HdfsOptions,
}

/// Opens the store that a URL names. Nothing is asked of it yet: an unreachable one shows at the
/// first call.
pub async fn connect(url: &str, options: &ConnectOptions) -> Result<Arc<dyn Store>> {
    match StoreUrl::parse(url)? {
        StoreUrl::File(dir) => Ok(Arc::new(LocalStore::new(url, dir))),
        StoreUrl::Hdfs { authority, dir } => {
            let store = HdfsStore::new(url, authority.as_deref(), &dir, options.hdfs.clone())?;
            Ok(Arc::new(store))
        }
    }
}
