//! Where an export reads: a root that nobody has mounted.

use crate::admin::text;
use crate::base::error::Context;
use crate::base::{Epoch, Error, ErrorKind, Ino, Result, Timestamp};
use crate::format::Extent;
use crate::index::Index;
use crate::read::FrameReader;
use crate::store::Store;
use crate::volume::owner;
use crate::volume::{self, Volume};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Memory for blocks that were read; each is needed once.
const CACHE: u64 = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Special,
}

/// An entry of the tree.
#[derive(Clone, Debug)]
pub struct Item {
    /// Below the path that is exported; empty for what is there itself. Any bytes, as names are.
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a file; else 0.
    pub size: u64,
    pub mtime: Timestamp,
    /// The same for all names of a file.
    pub id: u64,
    pub nlink: u32,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    pub xattrs: u64,
}

impl Item {
    pub fn shown(&self) -> String {
        format!("exporting {:?}", format!("/{}", text(&self.path)))
    }
}

/// An entry of a directory, or the path of one that cannot be looked at.
pub type Entry = std::result::Result<Item, (Vec<u8>, Error)>;

#[async_trait]
pub trait Source: Send + Sync {
    /// What is at a path below the root.
    async fn find(&self, path: &str) -> Result<Item>;

    async fn list(&self, dir: &Item) -> Result<Vec<Entry>>;

    /// The parts of a file that are not holes, in order.
    async fn data(&self, file: &Item) -> Result<Vec<Range<u64>>>;

    async fn read(&self, file: &Item, range: Range<u64>) -> Result<Bytes>;

    /// Fails if the file is not what it was when it was found.
    async fn check(&self, file: &Item) -> Result<()>;
}

enum Backing {
    Released {
        index: Box<Index>,
        reader: FrameReader,
        epoch: Epoch,
    },
    Owned(Arc<Volume>),
}

/// A root that nobody else has: one that was unmounted is only read, one that was left by a crash is
/// taken over.
pub struct RootSource {
    backing: Backing,
}

impl RootSource {
    /// None if the root was not released by its last owner: then it must be opened.
    pub async fn released(store: Arc<dyn Store>) -> Result<Option<RootSource>> {
        let naming = format!("opening {}", store.url());
        let format = volume::root::read_format(&*store).await.context(&naming)?;
        let found = owner::look(&*store).await?;
        if !found.released {
            return Ok(None);
        }
        let recovered = volume::recover(&*store, format.uuid.as_bytes(), None).await;
        let index = Box::new(recovered.context(&naming)?.index);
        let backing = Backing::Released {
            index,
            reader: FrameReader::new(store, CACHE),
            epoch: Epoch(found.highest),
        };
        Ok(Some(RootSource { backing }))
    }

    pub fn owned(volume: Arc<Volume>) -> RootSource {
        let backing = Backing::Owned(volume);
        RootSource { backing }
    }

    fn view<R>(&self, look: impl FnOnce(&Index) -> R) -> R {
        match &self.backing {
            Backing::Released { index, .. } => look(index),
            Backing::Owned(volume) => volume.read(look),
        }
    }

    async fn fetch(&self, extent: &Extent) -> Result<Bytes> {
        match &self.backing {
            Backing::Released {
                index,
                reader,
                epoch,
            } => {
                let place = volume::place(index, *epoch, extent)?;
                reader.fetch(extent, &place).await
            }
            Backing::Owned(volume) => volume.fetch(extent).await,
        }
    }
}

fn item(index: &Index, ino: Ino, path: Vec<u8>) -> Result<Item> {
    let gone = || {
        let text = format!("/{}: inode {ino} is missing", text(&path));
        Error::new(ErrorKind::NotFound, text)
    };
    let attr = index.attr(ino).ok_or_else(gone)?;
    let kind = match attr.kind() {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        _ => Kind::Special,
    };
    Ok(Item {
        path,
        kind,
        mode: attr.mode & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        size: if kind == Kind::File { attr.size } else { 0 },
        mtime: attr.mtime,
        id: ino.0,
        nlink: attr.nlink,
        target: index.target(ino).unwrap_or_default().to_vec(),
        xattrs: index.xattrs(ino).count() as u64,
    })
}

#[async_trait]
impl Source for RootSource {
    async fn find(&self, path: &str) -> Result<Item> {
        self.view(|index| {
            let mut names = path.split('/').filter(|name| !name.is_empty());
            let found = names.try_fold(Ino::ROOT, |dir, n| index.lookup(dir, n.as_bytes()));
            let none = || {
                Error::new(
                    ErrorKind::NotFound,
                    format!("there is no /{path} in the root"),
                )
            };
            item(index, found.ok_or_else(none)?, Vec::new())
        })
    }

    async fn list(&self, dir: &Item) -> Result<Vec<Entry>> {
        Ok(self.view(|index| {
            let inside = index.readdir(Ino(dir.id), 0).map(|entry| {
                let path = below(&dir.path, entry.name);
                item(index, entry.ino, path.clone()).map_err(|e| (path, e))
            });
            inside.collect()
        }))
    }

    async fn data(&self, file: &Item) -> Result<Vec<Range<u64>>> {
        let extents = self.view(|index| index.extents(Ino(file.id), 0, file.size));
        Ok(extents.iter().map(|e| e.off..e.end()).collect())
    }

    async fn read(&self, file: &Item, range: Range<u64>) -> Result<Bytes> {
        let extents = self.view(|index| index.extents(Ino(file.id), range.start, range.end));
        match &extents[..] {
            [one] if one.off == range.start && one.end() == range.end => self.fetch(one).await,
            _ => Err(super::short(file)),
        }
    }

    async fn check(&self, _file: &Item) -> Result<()> {
        Ok(())
    }
}

pub(super) fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}
