//! Plain files that deleted files have their bytes in: nobody but the store knows whether they are
//! what they were.

use crate::base::{Error, ErrorKind, Result, StreamId};
use crate::format::ForeignRow;
use crate::segment;
use crate::volume::Volume;
use futures::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet};

/// Calls to the store at the same time.
const AT_ONCE: usize = 16;

/// Those that were looked at, and why they are of no use any more.
#[derive(Default)]
pub(super) struct PlainFiles(BTreeMap<StreamId, Option<String>>);

impl PlainFiles {
    pub fn knows(&self, stream: StreamId) -> bool {
        self.0.contains_key(&stream)
    }

    pub fn damage(&self, stream: StreamId) -> Option<&str> {
        self.0.get(&stream)?.as_deref()
    }

    /// Looks at these. False if there are none.
    ///
    /// What garbage collection deletes after this look is condemned in the index before.
    pub async fn look(&mut self, volume: &Volume, streams: BTreeSet<StreamId>) -> Result<bool> {
        let rows: Vec<(StreamId, Option<ForeignRow>)> = volume.read(|index| {
            let row = |s: &StreamId| (*s, index.foreign(*s).cloned());
            streams.iter().map(row).collect()
        });
        for some in rows.chunks(AT_ONCE) {
            let jobs = some.iter().map(|(stream, row)| async {
                let why = match row {
                    Some(row) => look(volume, row).await?,
                    None => Some("its plain file is not known any more".into()),
                };
                Ok::<_, Error>((*stream, why))
            });
            self.0.extend(try_join_all(jobs).await?);
        }
        Ok(!rows.is_empty())
    }
}

async fn look(volume: &Volume, row: &ForeignRow) -> Result<Option<String>> {
    let path = segment::utf8(&row.path)?;
    let what = match volume.store().stat(path).await {
        Ok(info) if info.is_dir => "is a directory now".to_string(),
        Ok(info) if info.len != row.len => {
            format!("has {} bytes now, and had {}", info.len, row.len)
        }
        Ok(info) if info.mtime != row.mtime => "was written again since".to_string(),
        Ok(_) => return Ok(None),
        Err(e) if e.is(ErrorKind::NotFound) => "is gone".to_string(),
        Err(e) => return Err(e.context(format_args!("looking at /{path}"))),
    };
    Ok(Some(format!(
        "its bytes are in the plain file /{path} from before stowfs, which {what}: somebody else did \
         that on the store; put it back as it was, or bring back what else there is"
    )))
}
