//! Bringing back.

use super::graveyard::Graveyard;
use super::{is_older, reason, trimmed};
use crate::admin::text;
use crate::base::{Error, ErrorKind, Ino, Result, Timestamp};
use crate::format::{Attr, Row};
use crate::index::{Deleted, Index};
use crate::volume::{Change, Volume};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, Default)]
pub struct UndeleteOptions {
    pub path: String,
    /// Where to; None: where it was.
    pub to: Option<String>,
    /// `path` is a directory that exists: bring back what was deleted in it. What has the name of
    /// something that exists, and what is not whole any more, is left out.
    pub into: bool,
    /// Bring back what is whole, and leave out what is not.
    pub partial: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Undeleted {
    pub path: String,
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    /// Names that are not whole any more and were left out.
    pub lost: u64,
    /// Names that went from a directory long before it, and were left out.
    pub older: u64,
    /// Names that exist.
    pub exist: u64,
}

/// The largest change, with a margin to what a record can hold.
const MOST: usize = 12 << 20;

/// Brings back what was deleted last at a path, all of it in one change. Durable when it returns.
pub async fn undelete(volume: &Volume, options: &UndeleteOptions) -> Result<Undeleted> {
    volume.room().await?;
    let mut inos: Vec<Ino> = Vec::new();
    loop {
        // Inode numbers are taken before the index is locked.
        let needed =
            volume.read(|index| Ok::<_, Error>(Plan::make(volume, index, options)?.inos()))?;
        while inos.len() < needed {
            inos.push(volume.new_ino()?);
        }
        let (done, pos) = volume.change(|index, change| {
            let plan = Plan::make(volume, index, options)?;
            match plan.inos() <= inos.len() {
                true => plan.carry_out(change, &inos, volume.now()).map(Some),
                // More was deleted meanwhile.
                false => Ok::<_, Error>(None),
            }
        })?;
        if let Some(done) = done {
            volume.durable(pos).await?;
            return Ok(done);
        }
    }
}

struct Node {
    item: Deleted,
    /// Its directory in the plan; None: the one that everything goes to.
    parent: Option<usize>,
    name: Vec<u8>,
}

struct Plan<'a> {
    index: &'a Index,
    /// Directories come before what is in them.
    nodes: Vec<Node>,
    /// The directory that exists to which everything goes.
    base: Ino,
    /// Directories to make below it on the way, with their attributes.
    missing: Vec<(Vec<u8>, Attr)>,
    done: Undeleted,
}

impl<'a> Plan<'a> {
    fn make(volume: &Volume, index: &'a Index, options: &UndeleteOptions) -> Result<Plan<'a>> {
        let yard = Graveyard::new(index);
        let path = trimmed(&options.path);
        let mut plan = Plan {
            index,
            nodes: Vec::new(),
            base: Ino::ROOT,
            missing: Vec::new(),
            done: Undeleted::default(),
        };
        if options.into {
            plan.base = existing_dir(index, path)?;
            plan.done.path = text(path);
            for top in yard.held(plan.base) {
                let name = yard.items[top].name.clone();
                match index.lookup(plan.base, &name) {
                    Some(_) => plan.done.exist += 1,
                    None => plan.add(volume, &yard, top, name, options)?,
                }
            }
        } else {
            let top = yard.find(path).ok_or_else(|| unknown(path))?;
            let to = options.to.as_deref().map_or(path, trimmed);
            check_path(to)?;
            let (dir, name) = split(to);
            plan.find_base(&yard, dir)?;
            if plan.missing.is_empty() && index.lookup(plan.base, name).is_some() {
                return Err(exists(to));
            }
            plan.done.path = text(to);
            plan.add(volume, &yard, top, name.to_vec(), options)?;
        }
        if plan.nodes.is_empty() {
            return Err(nothing(path, &plan.done));
        }
        Ok(plan)
    }

    /// Adds an item with all that is below it.
    fn add(
        &mut self,
        volume: &Volume,
        yard: &Graveyard<'_>,
        top: usize,
        name: Vec<u8>,
        options: &UndeleteOptions,
    ) -> Result<()> {
        let tree = yard.tree(top);
        // Places in the tree and in the plan differ: some are left out.
        let mut placed: Vec<Option<usize>> = Vec::with_capacity(tree.len());
        for (n, parent) in &tree {
            let item = &yard.items[*n];
            let orphaned = parent.is_some_and(|p| placed[p].is_none());
            if orphaned || is_older(volume, &yard.items[top], item) {
                self.done.older += 1;
                placed.push(None);
                continue;
            }
            if let Some(damage) = yard.damage(item) {
                if !options.partial && !options.into {
                    return Err(lost(volume, yard, item, &damage, tree.len()));
                }
                self.done.lost += 1;
                placed.push(None);
                continue;
            }
            placed.push(Some(self.nodes.len()));
            match item.attr.filter(|_| Graveyard::is_dir(item)) {
                Some(_) => self.done.directories += 1,
                None => {
                    self.done.files += 1;
                    self.done.bytes += item.attr.map_or(0, |a| a.size);
                }
            }
            self.nodes.push(Node {
                item: item.clone(),
                parent: parent.and_then(|p| placed[p]),
                name: match parent {
                    Some(_) => item.name.clone(),
                    None => name.clone(),
                },
            });
        }
        Ok(())
    }

    /// Where a directory is, or would be.
    fn find_base(&mut self, yard: &Graveyard<'_>, path: &[u8]) -> Result<()> {
        let mut at = 0;
        for name in path.split(|c| *c == b'/').filter(|n| !n.is_empty()) {
            at += name.len() + usize::from(at > 0);
            let found = match self.missing.is_empty() {
                true => self.index.lookup(self.base, name),
                false => None,
            };
            if let Some(ino) = found {
                if !self.index.attr(ino).is_some_and(|a| a.is_dir()) {
                    let text = format!("/{} is not a directory", text(&path[..at]));
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                self.base = ino;
                continue;
            }
            let was = yard.find(&path[..at]).map(|n| &yard.items[n]);
            let was = was.and_then(|item| item.attr).filter(Attr::is_dir);
            let above = self.index.attr(self.base).unwrap_or_default();
            let attr = was.unwrap_or(Attr {
                mode: libc::S_IFDIR | 0o755,
                ..above
            });
            self.missing.push((name.to_vec(), attr));
        }
        Ok(())
    }

    fn inos(&self) -> usize {
        self.nodes.len() + self.missing.len()
    }

    fn carry_out(self, change: &mut Change, inos: &[Ino], now: Timestamp) -> Result<Undeleted> {
        let (made, rest) = inos.split_at(self.missing.len());
        let top_dirs = self.nodes.iter().filter(|n| n.parent.is_none());
        let top_dirs = top_dirs.filter(|n| Graveyard::is_dir(&n.item)).count() as u32;
        let mut entries = Vec::new();
        let mut into = self.base;
        for (n, (name, attr)) in self.missing.iter().enumerate() {
            let last = n + 1 == self.missing.len();
            let nlink = 2 + if last { top_dirs } else { 1 };
            let attr = Attr {
                nlink,
                size: 0,
                ctime: now,
                mtime: now,
                ..*attr
            };
            change.row(Row::Inode { ino: made[n], attr });
            entries.push((into, name.clone(), made[n]));
            into = made[n];
        }
        let new = self.inode_rows(change, rest, now);
        for (node, ino) in self.nodes.iter().zip(&new) {
            let parent = node.parent.map_or(into, |p| new[p]);
            entries.push((parent, node.name.clone(), *ino));
        }
        for (parent, name, ino) in entries {
            change.row(Row::Entry { parent, name, ino });
        }
        let mut base = self.index.attr(self.base).unwrap_or_default();
        base.nlink += if made.is_empty() { top_dirs } else { 1 };
        (base.mtime, base.ctime) = (now, now);
        let ino = self.base;
        change.row(Row::Inode { ino, attr: base });
        let size: usize = change.rows().iter().map(Row::size_hint).sum();
        if size > MOST {
            let text = format!(
                "{} names are too many for one step; bring its parts back one after the other",
                self.nodes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(self.done)
    }

    /// The inodes themselves; returns the number of each node. Names of one file share one.
    fn inode_rows(&self, change: &mut Change, inos: &[Ino], now: Timestamp) -> Vec<Ino> {
        let mut names: FxHashMap<Ino, u32> = FxHashMap::default();
        let mut subdirs: FxHashMap<usize, u32> = FxHashMap::default();
        for node in &self.nodes {
            *names.entry(node.item.ino).or_default() += 1;
            if let Some(parent) = node.parent.filter(|_| Graveyard::is_dir(&node.item)) {
                *subdirs.entry(parent).or_default() += 1;
            }
        }
        let mut known: FxHashMap<Ino, Ino> = FxHashMap::default();
        let mut new = Vec::with_capacity(self.nodes.len());
        for (n, node) in self.nodes.iter().enumerate() {
            let old = node.item.ino;
            if let Some(ino) = known.get(&old) {
                new.push(*ino);
                continue;
            }
            let mut attr = node.item.attr.unwrap_or_default();
            attr.ctime = now;
            let ino = match node.item.alive {
                true => {
                    attr.nlink += names[&old];
                    change.row(Row::Inode { ino: old, attr });
                    old
                }
                false => {
                    attr.nlink = match attr.is_dir() {
                        true => 2 + subdirs.get(&n).copied().unwrap_or(0),
                        false => names[&old],
                    };
                    let mut add = |row| change.row(row);
                    self.index.revive(old, inos[n], attr, &mut add);
                    inos[n]
                }
            };
            known.insert(old, ino);
            new.push(ino);
        }
        new
    }
}

/// A path that can be made.
fn check_path(path: &[u8]) -> Result<()> {
    let bad = |n: &[u8]| n.is_empty() || n == b"." || n == b".." || n.len() > 255 || n.contains(&0);
    if !path.split(|c| *c == b'/').any(bad) {
        return Ok(());
    }
    let text = format!("/{} is no path to bring back to", text(path));
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|c| *c == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

fn existing_dir(index: &Index, path: &[u8]) -> Result<Ino> {
    let mut at = Ino::ROOT;
    for name in path.split(|c| *c == b'/').filter(|n| !n.is_empty()) {
        at = index.lookup(at, name).ok_or_else(|| {
            let text = format!("/{} does not exist", text(path));
            Error::new(ErrorKind::NotFound, text)
        })?;
    }
    match index.attr(at).is_some_and(|a| a.is_dir()) {
        true => Ok(at),
        false => {
            let text = format!("/{} is not a directory", text(path));
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

fn unknown(path: &[u8]) -> Error {
    let text = format!(
        "nothing that was deleted at /{} is remembered; `stowfs deleted` lists what is",
        text(path)
    );
    Error::new(ErrorKind::NotFound, text)
}

fn exists(path: &[u8]) -> Error {
    let text = format!(
        "/{} exists; --to brings back under another path, --into what was deleted in it",
        text(path)
    );
    Error::new(ErrorKind::AlreadyExists, text)
}

fn nothing(path: &[u8], done: &Undeleted) -> Error {
    let text = format!(
        "nothing in /{} can be brought back: {} names are not whole any more, {} exist",
        text(path),
        done.lost,
        done.exist
    );
    Error::new(ErrorKind::NotFound, text)
}

fn lost(
    volume: &Volume,
    yard: &Graveyard<'_>,
    item: &Deleted,
    damage: &str,
    names: usize,
) -> Error {
    let path = yard.path(item).unwrap_or_else(|| item.name.clone());
    let why = reason(volume, item, damage);
    let way_out = match names {
        1 => "",
        _ => "; --partial brings back the rest",
    };
    let text = format!("/{} cannot be brought back: {why}{way_out}", text(&path));
    Error::new(ErrorKind::NotFound, text)
}

impl fmt::Display for Undeleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "/{}: {} files, {} directories, {} bytes brought back",
            self.path, self.files, self.directories, self.bytes
        )?;
        if self.lost > 0 {
            write!(f, "; {} names are not whole any more", self.lost)?;
        }
        if self.older > 0 {
            write!(f, "; {} names had gone long before", self.older)?;
        }
        if self.exist > 0 {
            write!(f, "; {} names exist and were left alone", self.exist)?;
        }
        Ok(())
    }
}
