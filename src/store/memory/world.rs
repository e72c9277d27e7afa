//! The shared state: a tree of files, changed by one atomic step at a time, as a NameNode does.

use super::MemoryConfig;
use super::file::{File, State};
use crate::base::{Error, ErrorKind, Random, Result, Timestamp};
use crate::store::{FileInfo, StorePath, Usage, path};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) type FileId = usize;

#[derive(Clone)]
enum Node {
    Dir(Dir),
    File(FileId),
}

#[derive(Clone)]
struct Dir {
    entries: BTreeMap<String, Node>,
    mtime: Timestamp,
    mode: u32,
}

const DIR_MODE: u32 = 0o700;

impl Dir {
    fn walk(&self, at: &StorePath, into: &mut Vec<String>) {
        for (name, node) in &self.entries {
            let below = path::join(at, name);
            match node {
                Node::File(_) => into.push(below),
                Node::Dir(dir) => {
                    into.push(format!("{below}/"));
                    dir.walk(&below, into);
                }
            }
        }
    }
}

#[derive(Clone)]
pub(super) struct World {
    pub config: MemoryConfig,
    pub random: Random,
    root: Dir,
    /// Deleted files stay, empty: their writers and readers must notice.
    files: Vec<File>,
}

impl World {
    pub fn new(config: MemoryConfig, seed: u64) -> World {
        let root = Dir {
            entries: BTreeMap::new(),
            mtime: 0,
            mode: DIR_MODE,
        };
        World {
            config,
            random: Random::new(seed),
            root,
            files: Vec::new(),
        }
    }

    pub fn create(&mut self, at: &StorePath, now: Timestamp) -> Result<FileId> {
        let id = self.files.len();
        let (name, parent) = self.vacant(at)?;
        parent.entries.insert(name.to_string(), Node::File(id));
        parent.mtime = now;
        self.files.push(File::new(now));
        Ok(id)
    }

    pub fn put(&mut self, at: &StorePath, content: &[u8], now: Timestamp) -> Result<()> {
        self.room_for(content.len())?;
        let id = self.create(at, now)?;
        self.files[id].bytes = content.to_vec();
        self.files[id].close(now);
        Ok(())
    }

    pub fn stat(&mut self, at: &StorePath, now: Timestamp) -> Result<FileInfo> {
        self.settle(now);
        let node = self.find(at)?;
        Ok(self.info(path::split(at).map_or("", |(_, name)| name), node))
    }

    pub fn list(&mut self, at: &StorePath, now: Timestamp) -> Result<Vec<FileInfo>> {
        self.settle(now);
        match self.find(at)? {
            NodeRef::Dir(dir) => Ok(dir
                .entries
                .iter()
                .map(|(name, node)| self.info(name, node.into()))
                .collect()),
            NodeRef::File(_) => Err(Error::new(
                ErrorKind::Invalid,
                format!("{at} is a file, not a directory"),
            )),
        }
    }

    pub fn mkdir(&mut self, at: &StorePath, now: Timestamp) -> Result<()> {
        let mut dir = &mut self.root;
        for name in at.split('/').filter(|name| !name.is_empty()) {
            let empty = || {
                Node::Dir(Dir {
                    entries: BTreeMap::new(),
                    mtime: now,
                    mode: DIR_MODE,
                })
            };
            match dir.entries.entry(name.to_string()).or_insert_with(empty) {
                Node::Dir(next) => dir = next,
                Node::File(_) => {
                    let text = format!("{at} is or lies below a file");
                    return Err(Error::new(ErrorKind::AlreadyExists, text));
                }
            }
        }
        Ok(())
    }

    pub fn is_open(&mut self, at: &StorePath, now: Timestamp) -> Result<bool> {
        self.settle(now);
        let id = self.file_at(at)?;
        Ok(self.files[id].state != State::Closed)
    }

    pub fn set_attr(&mut self, at: &StorePath, mode: u32, mtime: Timestamp) -> Result<()> {
        if let NodeRef::File(id) = self.find(at)? {
            (self.files[id].mode, self.files[id].mtime) = (mode & 0o7777, mtime);
            return Ok(());
        }
        let mut dir = &mut self.root;
        for name in at.split('/').filter(|name| !name.is_empty()) {
            match dir.entries.get_mut(name) {
                Some(Node::Dir(next)) => dir = next,
                _ => return Err(not_found(at)),
            }
        }
        (dir.mode, dir.mtime) = (mode & 0o7777, mtime);
        Ok(())
    }

    pub fn rename(&mut self, from: &StorePath, to: &StorePath, now: Timestamp) -> Result<()> {
        self.find(from)?;
        self.vacant(to)?;
        if path::is_below(to, from) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{to} is below {from}"),
            ));
        }
        let node = self.take(from, now)?;
        let (name, parent) = self.vacant(to)?;
        parent.entries.insert(name.to_string(), node);
        parent.mtime = now;
        Ok(())
    }

    pub fn delete(&mut self, at: &StorePath, now: Timestamp) -> Result<()> {
        if let NodeRef::Dir(dir) = self.find(at)?
            && !dir.entries.is_empty()
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("directory {at} is not empty"),
            ));
        }
        if let Node::File(id) = self.take(at, now)? {
            let file = &mut self.files[id];
            *file = File {
                bytes: Vec::new(),
                synced: 0,
                deleted: true,
                ..file.clone()
            };
        }
        Ok(())
    }

    /// Begins to recover a file, or says how long a recovery under way still takes; `None` when
    /// the file is closed.
    pub fn recover(&mut self, at: &StorePath, now: Timestamp) -> Result<Option<Duration>> {
        let id = self.file_at(at)?;
        let takes = self.random.duration(&self.config.recovery).as_nanos() as Timestamp;
        let file = &mut self.files[id];
        if file.state == State::Open {
            file.state = State::Recovering(now + takes);
        }
        file.settle(now, &mut self.random);
        Ok(match file.state {
            State::Recovering(until) => Some(Duration::from_nanos((until - now) as u64)),
            _ => None,
        })
    }

    pub fn open(&mut self, at: &StorePath, now: Timestamp) -> Result<(FileId, usize)> {
        self.settle(now);
        let id = self.file_at(at)?;
        Ok((id, self.files[id].visible(self.config.block())))
    }

    pub fn read(&self, id: FileId, offset: usize, len: usize) -> Result<Vec<u8>> {
        let file = &self.files[id];
        if file.deleted {
            return Err(Error::new(ErrorKind::NotFound, "the file was deleted"));
        }
        let range = file.bytes.get(offset..).and_then(|rest| rest.get(..len));
        let short = || {
            Error::new(
                ErrorKind::Corrupt,
                "the file is shorter than when it was opened",
            )
        };
        range.map(<[u8]>::to_vec).ok_or_else(short)
    }

    pub fn append(&mut self, id: FileId, bytes: &[u8]) -> Result<()> {
        if self.files[id].is_written() {
            self.room_for(bytes.len())?;
            self.files[id].bytes.extend_from_slice(bytes);
            return Ok(());
        }
        // A client buffers: it may learn of its lost lease only when it syncs.
        if self.random.one_in(2) {
            Ok(())
        } else {
            Err(lost_lease())
        }
    }

    pub fn sync(&mut self, id: FileId) -> Result<()> {
        let file = &mut self.files[id];
        if !file.is_written() {
            return Err(lost_lease());
        }
        file.synced = file.bytes.len();
        Ok(())
    }

    pub fn close(&mut self, id: FileId, now: Timestamp) -> Result<()> {
        self.sync(id)?;
        self.files[id].close(now);
        Ok(())
    }

    pub fn usage(&self) -> Usage {
        let used: usize = self.files.iter().map(|f| f.bytes.len()).sum();
        let capacity = self.config.capacity;
        Usage {
            capacity,
            available: capacity.saturating_sub(used as u64),
        }
    }

    /// A file as it is, for tests to inspect and to damage.
    pub fn file(&mut self, at: &StorePath) -> Result<&mut File> {
        let id = self.file_at(at)?;
        Ok(&mut self.files[id])
    }

    /// Every path, directories with a trailing slash.
    pub fn tree(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.root.walk("", &mut paths);
        paths
    }

    fn room_for(&self, bytes: usize) -> Result<()> {
        if self.usage().available < bytes as u64 {
            return Err(Error::new(ErrorKind::NoSpace, "the store is full"));
        }
        Ok(())
    }

    fn settle(&mut self, now: Timestamp) {
        for file in &mut self.files {
            file.settle(now, &mut self.random);
        }
    }

    fn info(&self, name: &str, node: NodeRef<'_>) -> FileInfo {
        let (is_dir, len, mtime, mode) = match node {
            NodeRef::Dir(dir) => (true, 0, dir.mtime, dir.mode),
            NodeRef::File(id) => {
                let file = &self.files[id];
                let len = file.reported(self.config.block()) as u64;
                (false, len, file.mtime, file.mode)
            }
        };
        let (owner, group) = ("stowfs".to_string(), "stowfs".to_string());
        FileInfo {
            name: name.to_string(),
            is_dir,
            len,
            mtime,
            mode,
            owner,
            group,
            ids: None,
        }
    }

    fn find(&self, at: &StorePath) -> Result<NodeRef<'_>> {
        let mut node = NodeRef::Dir(&self.root);
        for name in at.split('/').filter(|name| !name.is_empty()) {
            let NodeRef::Dir(dir) = node else {
                return Err(not_found(at));
            };
            node = dir.entries.get(name).ok_or_else(|| not_found(at))?.into();
        }
        Ok(node)
    }

    fn file_at(&self, at: &StorePath) -> Result<FileId> {
        match self.find(at)? {
            NodeRef::File(id) => Ok(id),
            NodeRef::Dir(_) => Err(Error::new(
                ErrorKind::Invalid,
                format!("{at} is a directory, not a file"),
            )),
        }
    }

    fn parent_mut<'p>(&mut self, at: &'p StorePath) -> Result<(&'p str, &mut Dir)> {
        let no_parent = || Error::new(ErrorKind::Invalid, "the root itself");
        let (parent, name) = path::split(at).ok_or_else(no_parent)?;
        let mut dir = &mut self.root;
        for part in parent.split('/').filter(|part| !part.is_empty()) {
            match dir.entries.get_mut(part) {
                Some(Node::Dir(next)) => dir = next,
                _ => return Err(not_found(parent)),
            }
        }
        Ok((name, dir))
    }

    /// The parent of a path at which there is nothing yet.
    fn vacant<'p>(&mut self, at: &'p StorePath) -> Result<(&'p str, &mut Dir)> {
        let (name, parent) = self.parent_mut(at)?;
        if parent.entries.contains_key(name) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{at} exists already"),
            ));
        }
        Ok((name, parent))
    }

    fn take(&mut self, at: &StorePath, now: Timestamp) -> Result<Node> {
        let (name, parent) = self.parent_mut(at)?;
        parent.mtime = now;
        parent.entries.remove(name).ok_or_else(|| not_found(at))
    }
}

#[derive(Clone, Copy)]
enum NodeRef<'w> {
    Dir(&'w Dir),
    File(FileId),
}

impl<'w> From<&'w Node> for NodeRef<'w> {
    fn from(node: &'w Node) -> NodeRef<'w> {
        match node {
            Node::Dir(dir) => NodeRef::Dir(dir),
            Node::File(id) => NodeRef::File(*id),
        }
    }
}

fn not_found(at: &StorePath) -> Error {
    Error::new(ErrorKind::NotFound, format!("{at} does not exist"))
}

fn lost_lease() -> Error {
    Error::new(
        ErrorKind::Other,
        "the file was recovered, closed or deleted under its writer",
    )
}
