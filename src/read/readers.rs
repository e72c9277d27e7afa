//! Open readers, reused: on HDFS each opening is a NameNode call.

use super::Place;
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use crate::store::{Reader, Store};
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::Arc;

const OPEN: NonZeroUsize = NonZeroUsize::new(256).unwrap();

pub(super) struct Readers {
    store: Arc<dyn Store>,
    open: Mutex<LruCache<String, Arc<dyn Reader>>>,
}

impl Readers {
    pub(super) fn new(store: Arc<dyn Store>) -> Readers {
        Readers {
            store,
            open: Mutex::new(LruCache::new(OPEN)),
        }
    }

    pub(super) async fn open(&self, place: &Place) -> Result<Arc<dyn Reader>> {
        if let Some(reader) = self.open.lock().get(&place.path) {
            return Ok(reader.clone());
        }
        let reader = self
            .store
            .open(&place.path)
            .await
            .context(format_args!("opening {}", place.path))?;
        if let Some(len) = place.expected_len.filter(|len| *len != reader.len()) {
            let text = format!("{} has {} bytes instead of {len}", place.path, reader.len());
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        self.open.lock().put(place.path.clone(), reader.clone());
        Ok(reader)
    }

    pub(super) fn forget(&self, path: &str) {
        self.open.lock().pop(path);
    }
}
