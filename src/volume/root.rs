//! The root of a store: what makes a directory a stowfs.

use crate::base::error::Context;
use crate::base::{Clock, Error, ErrorKind, Result, Timestamp};
use crate::format::FORMAT_VERSION;
use crate::segment::{DATA_DIR, FORMAT_FILE, LOG_DIR, META_DIR, OWNER_DIR};
use crate::store::Store;
use serde::{Deserialize, Serialize};

/// The FORMAT file: written once, read by everybody first. JSON, so that people can read it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFormat {
    pub format_version: u16,
    pub uuid: uuid::Uuid,
    /// Nanoseconds since 1970, by the clock of the host that created the root.
    pub created: Timestamp,
}

impl RootFormat {
    pub fn decode(bytes: &[u8]) -> Result<RootFormat> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u16,
        }
        let bad = |e: serde_json::Error| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{FORMAT_FILE} is not what stowfs wrote: {e}"),
            )
        };
        let Version { format_version } = serde_json::from_slice(bytes).map_err(bad)?;
        if format_version > FORMAT_VERSION {
            let text = format!(
                "the root has format version {format_version}; this stowfs reads up to \
                 {FORMAT_VERSION}: use a newer one"
            );
            return Err(Error::new(ErrorKind::NewerFormat, text));
        }
        serde_json::from_slice(bytes).map_err(bad)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// The format of an existing root; `NotFound` if there is none.
pub async fn read_format(store: &dyn Store) -> Result<RootFormat> {
    let reader = store.open(FORMAT_FILE).await?;
    let len = usize::try_from(reader.len().min(1 << 20)).unwrap_or(0);
    RootFormat::decode(&reader.read_at(0, len).await?)
}

/// Reads the format, or makes the root. True if it was made now.
pub async fn open_or_create(store: &dyn Store, clock: &dyn Clock) -> Result<(RootFormat, bool)> {
    match read_format(store).await {
        Err(e) if e.is(ErrorKind::NotFound) => {}
        found => {
            return found
                .map(|f| (f, false))
                .context(format_args!("opening {}", store.url()));
        }
    }
    for dir in [META_DIR, OWNER_DIR, LOG_DIR, DATA_DIR] {
        store
            .mkdir(dir)
            .await
            .context(format_args!("creating the root {}", store.url()))?;
    }
    let format = RootFormat {
        format_version: FORMAT_VERSION,
        uuid: uuid::Uuid::new_v4(),
        created: clock.now(),
    };
    match store.put(FORMAT_FILE, format.encode().into()).await {
        Ok(()) => Ok((format, true)),
        // Somebody else made it, or the answer was lost: what is there counts.
        Err(e) if e.is(ErrorKind::AlreadyExists) || e.is_ambiguous() => read_format(store)
            .await
            .map(|f| (f, true))
            .context("creating the root"),
        Err(e) => Err(e.context(format_args!("creating the root {}", store.url()))),
    }
}
