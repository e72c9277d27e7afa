//! Where an export writes: a directory of a local filesystem or of an HDFS.

use super::local;
use super::source::{Item, Source};
use crate::admin::text;
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use crate::format::MAX_PAYLOAD;
use crate::segment::META_DIR;
use crate::store::Store;
use crate::store::url::StoreUrl;
use bytes::Bytes;
use nix::unistd::Uid;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Zeros for a hole, where holes cannot be.
const ZEROS: usize = 1 << 20;

pub struct Dest {
    url: String,
    parent_url: String,
    /// The directory in which the destination will be.
    store: Arc<dyn Store>,
    /// The same, if it is local.
    local: Option<PathBuf>,
    name: String,
    /// The name until all is written.
    partial: String,
    /// Whether something may have been written.
    begun: AtomicBool,
}

/// The URL of the directory that a destination is in, and the destination's name in it.
pub fn split(url: &str) -> Result<(String, String)> {
    StoreUrl::parse(url)?;
    let trimmed = url.trim_end_matches('/');
    match trimmed.rsplit_once('/') {
        Some((parent, name)) if !parent.ends_with('/') && !parent.ends_with(':') => {
            let root = parent
                .split_once("://")
                .is_some_and(|(_, rest)| !rest.contains('/'));
            let parent = if root {
                format!("{parent}/")
            } else {
                parent.to_string()
            };
            Ok((parent, name.to_string()))
        }
        Some((parent, name)) if !name.is_empty() && parent.ends_with("//") => {
            Ok((format!("{parent}/"), name.to_string()))
        }
        _ => {
            let text = format!("{url} names no new directory; add a name");
            Err(Error::new(ErrorKind::Usage, text))
        }
    }
}

/// Refuses a destination among stowfs's own files, of whatever root: there it would be taken for
/// something that a crash left, or hide something.
fn refuse_own(url: &str) -> Result<()> {
    let own = match StoreUrl::parse(url)? {
        StoreUrl::Hdfs { dir, .. } => dir.split('/').any(|part| part == META_DIR),
        StoreUrl::File(dir) => {
            // Links may lead there as well.
            let real = dir.ancestors().find_map(|d| d.canonicalize().ok());
            let mut all = dir
                .components()
                .chain(real.iter().flat_map(|d| d.components()));
            all.any(|part| part.as_os_str() == META_DIR)
        }
    };
    match own {
        false => Ok(()),
        true => {
            let text =
                format!("{url} lies in {META_DIR}, where stowfs has its own files; name another");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

impl Dest {
    /// `store` is the one of the parent's URL.
    pub fn new(url: &str, store: Arc<dyn Store>) -> Result<Dest> {
        let (parent_url, name) = split(url)?;
        refuse_own(url)?;
        let local = match StoreUrl::parse(&parent_url)? {
            StoreUrl::File(dir) => Some(dir),
            StoreUrl::Hdfs { .. } => None,
        };
        let id = uuid::Uuid::new_v4().simple().to_string();
        Ok(Dest {
            url: url.to_string(),
            parent_url,
            store,
            local,
            partial: format!("{name}.part-{}", &id[..8]),
            name,
            begun: AtomicBool::new(false),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn partial_url(&self) -> String {
        format!("{}/{}", self.parent_url.trim_end_matches('/'), self.partial)
    }

    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    pub fn keeps_owners(&self) -> bool {
        self.is_local() && Uid::effective().is_root()
    }

    pub async fn refuse_existing(&self) -> Result<()> {
        match self.store.stat(&self.name).await {
            Err(e) if e.is(ErrorKind::NotFound) => Ok(()),
            Err(e) => Err(e.context(format_args!("looking at {}", self.url))),
            Ok(_) => {
                let text = format!("{} exists already; name a new one", self.url);
                Err(Error::new(ErrorKind::AlreadyExists, text))
            }
        }
    }

    /// What an export that did not end well leaves.
    pub fn left(&self) -> String {
        match self.begun.load(Ordering::Relaxed) {
            true => format!("{} is not whole: delete it", self.partial_url()),
            false => "nothing was written".into(),
        }
    }

    pub async fn begin(&self) -> Result<()> {
        self.begun.store(true, Ordering::Relaxed);
        let naming = format!("making {}", self.parent_url);
        if let Some(dir) = self.local.clone() {
            // As any program makes them, and not for their owner alone as those of a store.
            local::make_parents(dir).await.context(&naming)?;
        }
        self.store.mkdir("").await.context(naming)
    }

    pub async fn publish(&self) -> Result<()> {
        let naming = format!("renaming to {}", self.url);
        self.store
            .rename(&self.partial, &self.name)
            .await
            .context(naming)
    }

    /// Where an item goes on a local filesystem.
    fn local(&self, item: &Item) -> Option<PathBuf> {
        let at = self.local.as_ref()?.join(&self.partial);
        Some(match item.path.is_empty() {
            true => at,
            false => at.join(OsStr::from_bytes(&item.path)),
        })
    }

    /// The same on an HDFS, which has names that are text.
    fn remote(&self, item: &Item) -> Result<String> {
        if item.path.is_empty() {
            return Ok(self.partial.clone());
        }
        let path = std::str::from_utf8(&item.path).map_err(|_| {
            let text = format!(
                "the name {:?} is not UTF-8, and HDFS has no others; rename it",
                text(&item.path)
            );
            Error::new(ErrorKind::Unsupported, text)
        })?;
        Ok(format!("{}/{path}", self.partial))
    }

    pub async fn make_dir(&self, item: &Item) -> Result<()> {
        match self.local(item) {
            Some(at) => local::make_dir(at).await,
            None => self.store.mkdir(&self.remote(item)?).await,
        }
    }

    /// Copies a file, reads it back, and gives it its attributes. True if it has holes.
    pub async fn copy_file(&self, source: &dyn Source, item: &Item) -> Result<bool> {
        let data = source.data(item).await?;
        let (crc, found) = match self.local(item) {
            Some(at) => {
                let crc = local::write(at.clone(), source, item, &data).await?;
                source.check(item).await?;
                (crc, local::read_back(at, &data).await?)
            }
            None => {
                let crc = self.write_remote(source, item, &data).await?;
                source.check(item).await?;
                (crc, self.read_back(item, &data).await?)
            }
        };
        if found != (item.size, crc) {
            let text =
                "what was written reads back otherwise; the destination is not to be trusted";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        self.dress(item).await?;
        Ok(data.iter().map(|r| r.end - r.start).sum::<u64>() < item.size)
    }

    /// Takes away what is there of a file that cannot be copied.
    pub async fn drop_file(&self, item: &Item) -> Result<()> {
        let gone = match self.local(item) {
            Some(at) => local::remove(at).await,
            None => match self.remote(item) {
                Ok(path) => self.store.delete(&path).await,
                // It was never begun.
                Err(_) => Ok(()),
            },
        };
        match gone {
            Err(e) if e.is(ErrorKind::NotFound) => Ok(()),
            gone => gone,
        }
    }

    async fn write_remote(
        &self,
        source: &dyn Source,
        item: &Item,
        data: &[Range<u64>],
    ) -> Result<u32> {
        let mut writer = self.store.create(&self.remote(item)?).await?;
        let (mut crc, mut at) = (0, 0);
        let end = item.size..item.size;
        for piece in pieces(data).into_iter().chain([end]) {
            while at < piece.start {
                let n = (piece.start - at).min(ZEROS as u64);
                writer.append(Bytes::from(vec![0; n as usize])).await?;
                at += n;
            }
            if !piece.is_empty() {
                at = piece.end;
                let bytes = source.read(item, piece).await?;
                crc = crc32c::crc32c_append(crc, &bytes);
                writer.append(bytes).await?;
            }
        }
        writer.close().await?;
        Ok(crc)
    }

    /// Length and checksum of what was written.
    async fn read_back(&self, item: &Item, data: &[Range<u64>]) -> Result<(u64, u32)> {
        let reader = self.store.open(&self.remote(item)?).await?;
        let mut found = 0;
        for piece in pieces(data) {
            let len = (piece.end - piece.start) as usize;
            let bytes = reader.read_at(piece.start, len).await?;
            found = crc32c::crc32c_append(found, &bytes);
        }
        Ok((reader.len(), found))
    }

    /// Owner, mode and time.
    pub async fn dress(&self, item: &Item) -> Result<()> {
        match self.local(item) {
            Some(at) => local::dress(at, self.keeps_owners(), item).await,
            None => {
                let path = self.remote(item)?;
                self.store.set_attr(&path, item.mode, item.mtime).await
            }
        }
    }

    pub async fn symlink(&self, item: &Item) -> Result<()> {
        match self.local(item) {
            Some(at) => local::symlink(at, self.keeps_owners(), item).await,
            None => Ok(()),
        }
    }

    pub async fn hard_link(&self, first: &Item, item: &Item) -> Result<()> {
        match (self.local(first), self.local(item)) {
            (Some(from), Some(to)) => local::hard_link(from, to).await,
            _ => Ok(()),
        }
    }
}

pub(super) fn pieces(data: &[Range<u64>]) -> Vec<Range<u64>> {
    let step = MAX_PAYLOAD as u64;
    let cut = |r: &Range<u64>| {
        let end = r.end;
        let starts = (r.start..end).step_by(MAX_PAYLOAD);
        starts
            .map(move |at| at..(at + step).min(end))
            .collect::<Vec<_>>()
    };
    data.iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_name_in_a_directory() {
        let cases = [
            ("file:///a/b", "file:///a", "b"),
            ("file:///b/", "file:///", "b"),
            ("hdfs://nn:8020/a/b", "hdfs://nn:8020/a", "b"),
            ("hdfs://ns/b", "hdfs://ns/", "b"),
            ("hdfs:///b", "hdfs:///", "b"),
        ];
        for (url, parent, name) in cases {
            let expected = (parent.to_string(), name.to_string());
            assert_eq!(split(url).unwrap(), expected, "{url}");
        }
        for bad in ["file:///", "hdfs://ns/", "/a/b"] {
            assert!(split(bad).unwrap_err().is(ErrorKind::Usage), "{bad}");
        }
    }
}
