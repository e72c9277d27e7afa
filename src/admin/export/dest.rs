//! Where an export writes: a directory of a local filesystem or of an HDFS.

use super::source::{Item, Source};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use crate::format::MAX_PAYLOAD;
use crate::store::Store;
use crate::store::url::StoreUrl;
use bytes::Bytes;
use nix::unistd::{Gid, Uid};
use std::ffi::OsStr;
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

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
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

impl Dest {
    /// `store` is the one of the parent's URL.
    pub fn new(url: &str, store: Arc<dyn Store>) -> Result<Dest> {
        let (parent_url, name) = split(url)?;
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

    pub async fn begin(&self) -> Result<()> {
        let naming = format!("making {}", self.parent_url);
        self.store.mkdir("").await.context(naming)
    }

    pub async fn publish(&self) -> Result<()> {
        let naming = format!("renaming to {}", self.url);
        self.store
            .rename(&self.partial, &self.name)
            .await
            .context(naming)
    }

    /// Below the parent.
    fn path(&self, item: &Item) -> String {
        match item.path.is_empty() {
            true => self.partial.clone(),
            false => format!("{}/{}", self.partial, item.path),
        }
    }

    pub async fn make_dir(&self, item: &Item) -> Result<()> {
        self.store.mkdir(&self.path(item)).await
    }

    /// Copies a file, reads it back, and gives it its attributes. True if it has holes.
    pub async fn copy_file(&self, source: &dyn Source, item: &Item) -> Result<bool> {
        let data = source.data(item).await?;
        let crc = match &self.local {
            Some(dir) => {
                self.write_local(dir.join(self.path(item)), source, item, &data)
                    .await?
            }
            None => self.write_remote(source, item, &data).await?,
        };
        source.check(item).await?;
        self.compare(item, &data, crc).await?;
        self.dress(item).await?;
        Ok(data.iter().map(|r| r.end - r.start).sum::<u64>() < item.size)
    }

    /// Returns a checksum of all data.
    async fn write_local(
        &self,
        at: PathBuf,
        source: &dyn Source,
        item: &Item,
        data: &[Range<u64>],
    ) -> Result<u32> {
        let create = move || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            Ok(Arc::new(options.open(at)?))
        };
        let file: Arc<File> = blocking(create).await?;
        let mut crc = 0;
        for piece in pieces(data) {
            let (file, off) = (file.clone(), piece.start);
            let bytes = source.read(item, piece).await?;
            crc = crc32c::crc32c_append(crc, &bytes);
            blocking(move || Ok(file.write_all_at(&bytes, off)?)).await?;
        }
        let size = item.size;
        let end = move || {
            file.set_len(size)?;
            Ok(file.sync_all()?)
        };
        blocking(end).await?;
        Ok(crc)
    }

    async fn write_remote(
        &self,
        source: &dyn Source,
        item: &Item,
        data: &[Range<u64>],
    ) -> Result<u32> {
        let mut writer = self.store.create(&self.path(item)).await?;
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

    /// Reads a file back.
    async fn compare(&self, item: &Item, data: &[Range<u64>], crc: u32) -> Result<()> {
        let reader = self.store.open(&self.path(item)).await?;
        let mut found = 0;
        for piece in pieces(data) {
            let len = (piece.end - piece.start) as usize;
            let bytes = reader.read_at(piece.start, len).await?;
            found = crc32c::crc32c_append(found, &bytes);
        }
        if (reader.len(), found) == (item.size, crc) {
            return Ok(());
        }
        let text = "what was written reads back otherwise; the destination is not to be trusted";
        Err(Error::new(ErrorKind::Corrupt, text))
    }

    /// Owner, mode and time.
    pub async fn dress(&self, item: &Item) -> Result<()> {
        let path = self.path(item);
        let Some(dir) = &self.local else {
            return self.store.set_attr(&path, item.mode, item.mtime).await;
        };
        let (at, owners, item) = (dir.join(path), self.keeps_owners(), item.clone());
        let dress = move || {
            let file = File::open(&at)?;
            if owners {
                fchown(&file, Some(item.uid), Some(item.gid))?;
            }
            let nanos = Duration::from_nanos(item.mtime.unsigned_abs());
            let time = match item.mtime < 0 {
                true => UNIX_EPOCH - nanos,
                false => UNIX_EPOCH + nanos,
            };
            file.set_times(FileTimes::new().set_modified(time).set_accessed(time))?;
            Ok(file.set_permissions(Permissions::from_mode(item.mode))?)
        };
        blocking(dress).await
    }

    pub async fn symlink(&self, item: &Item) -> Result<()> {
        let Some(dir) = &self.local else {
            return Ok(());
        };
        let (at, owners, item) = (dir.join(self.path(item)), self.keeps_owners(), item.clone());
        let link = move || {
            std::os::unix::fs::symlink(OsStr::from_bytes(&item.target), &at)?;
            if owners {
                let (uid, gid) = (Uid::from_raw(item.uid), Gid::from_raw(item.gid));
                std::os::unix::fs::lchown(&at, Some(uid.as_raw()), Some(gid.as_raw()))?;
            }
            Ok(())
        };
        blocking(link).await
    }

    pub async fn hard_link(&self, first: &Item, item: &Item) -> Result<()> {
        let Some(dir) = &self.local else {
            return Ok(());
        };
        let (from, to) = (dir.join(self.path(first)), dir.join(self.path(item)));
        blocking(move || Ok(std::fs::hard_link(from, to)?)).await
    }
}

fn pieces(data: &[Range<u64>]) -> Vec<Range<u64>> {
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

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let lost = |e| Error::new(ErrorKind::Other, format!("a thread ended early: {e}"));
    tokio::task::spawn_blocking(work).await.map_err(lost)?
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
            assert!(split(bad).unwrap_err().is(ErrorKind::Invalid), "{bad}");
        }
    }
}
