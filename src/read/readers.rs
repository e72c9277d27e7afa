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

fn changed(place: &Place, what: &str) -> Error {
    let text = format!(
        "/{}, a plain file from before stowfs, was changed on the store behind the mount (it has \
         {what}): put it back as it was, or remove it from the mount; `stowfs adopt` then takes in \
         what is there now",
        place.path
    );
    Error::new(ErrorKind::Corrupt, text)
}

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

    /// The reader of a file that is open anyway.
    pub(super) fn opened(&self, path: &str) -> Option<Arc<dyn Reader>> {
        self.open.lock().peek(path).cloned()
    }

    pub(super) async fn open(&self, place: &Place) -> Result<Arc<dyn Reader>> {
        if let Some(reader) = self.open.lock().get(&place.path) {
            return Ok(reader.clone());
        }
        self.look(place).await?;
        let reader = self
            .store
            .open(&place.path)
            .await
            .context(format_args!("opening {}", place.path))?;
        if let Some((len, _)) = place.expected.filter(|(len, _)| *len != reader.len()) {
            return Err(changed(
                place,
                &format!("{} bytes instead of {len}", reader.len()),
            ));
        }
        self.open.lock().put(place.path.clone(), reader.clone());
        Ok(reader)
    }

    /// Looks at a plain file, and opens it for those who read it next.
    pub(super) async fn check(&self, place: &Place) -> Result<()> {
        if self.open.lock().contains(&place.path) {
            return self.look(place).await;
        }
        self.open(place).await.map(|_| ())
    }

    async fn look(&self, place: &Place) -> Result<()> {
        let Some((len, mtime)) = place.expected else {
            return Ok(());
        };
        match self.store.stat(&place.path).await {
            Ok(info) if info.len != len => Err(changed(
                place,
                &format!("{} bytes instead of {len}", info.len),
            )),
            Ok(info) if info.mtime != mtime => Err(changed(place, "another time of change")),
            Ok(_) => Ok(()),
            Err(e) if e.is(ErrorKind::NotFound) => {
                let text = format!(
                    "/{}, a plain file from before stowfs, was deleted on the store behind the mount: \
                     put it back as it was, or remove it from the mount",
                    place.path
                );
                Err(Error::new(ErrorKind::NotFound, text))
            }
            Err(e) => Err(e.context(format_args!("looking at {}", place.path))),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    pub(super) fn forget(&self, path: &str) {
        self.open.lock().pop(path);
    }
}
