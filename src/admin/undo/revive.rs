//! Bringing back.

use super::graveyard::Graveyard;
use super::plain::PlainFiles;
use super::plan::{Home, Plan};
use crate::admin::shown;
use crate::base::{Error, ErrorKind, Ino, Result, Timestamp};
use crate::format::{Attr, Row};
use crate::volume::{Change, Volume};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Default)]
pub struct UndeleteOptions {
    pub path: String,
    /// Which of several things that were deleted there, as `DeletedLine` has it; None: the last.
    pub id: Option<u64>,
    /// Where to; None: where it was.
    pub to: Option<String>,
    /// `path` is a directory that exists: bring back what was deleted in it, and what the directory
    /// held that was deleted there before it. What has the name of something that exists, and what
    /// is not whole any more, is left out.
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
    /// The first of these, as paths.
    #[serde(default)]
    pub existing: Vec<String>,
}

/// The largest change, with a margin to what a record can hold.
const MOST: usize = 12 << 20;

/// Brings back what was deleted last at a path, all of it in one change. Durable when it returns.
pub async fn undelete(volume: &Volume, options: &UndeleteOptions) -> Result<Undeleted> {
    volume.room().await?;
    let mut inos: Vec<Ino> = Vec::new();
    let mut plain = PlainFiles::default();
    loop {
        // Inode numbers are taken, and the store is asked, before the index is locked.
        let (needed, ask) = volume.read(|index| {
            let plan = Plan::make(volume, index, &plain, options)?;
            Ok::<_, Error>((plan.inos(), plan.unknown_plain(&plain)))
        })?;
        if plain.look(volume, ask).await? {
            continue;
        }
        while inos.len() < needed {
            inos.push(volume.new_ino()?);
        }
        let (done, pos) = volume.change(|index, change| {
            let plan = Plan::make(volume, index, &plain, options)?;
            match plan.inos() <= inos.len() && plan.unknown_plain(&plain).is_empty() {
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

impl Plan<'_> {
    fn carry_out(self, change: &mut Change, inos: &[Ino], now: Timestamp) -> Result<Undeleted> {
        let (made, rest) = inos.split_at(self.missing.len());
        // Directories that exist and get something, with how many directories they get.
        let mut grown: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut dirs_made = 0;
        for node in &self.nodes {
            let dirs = u32::from(Graveyard::is_dir(&node.item));
            match node.home {
                Home::Dir(ino) => *grown.entry(ino).or_default() += dirs,
                Home::Made => dirs_made += dirs,
                Home::Node(_) => {}
            }
        }
        if !made.is_empty() {
            *grown.entry(self.base).or_default() += 1;
        }
        let mut entries = Vec::new();
        let mut into = self.base;
        for (n, (name, attr)) in self.missing.iter().enumerate() {
            let last = n + 1 == self.missing.len();
            let nlink = 2 + if last { dirs_made } else { 1 };
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
            let parent = match node.home {
                Home::Node(n) => new[n],
                Home::Dir(ino) => ino,
                Home::Made => into,
            };
            entries.push((parent, node.name.clone(), *ino));
        }
        for (parent, name, ino) in entries {
            change.row(Row::Entry { parent, name, ino });
        }
        for (ino, dirs) in grown {
            let mut attr = self.index.attr(ino).unwrap_or_default();
            attr.nlink += dirs;
            (attr.mtime, attr.ctime) = (now, now);
            change.row(Row::Inode { ino, attr });
        }
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
            if let Home::Node(parent) = node.home
                && Graveyard::is_dir(&node.item)
            {
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

impl fmt::Display for Undeleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "/{}: {} files, {} directories, {} bytes brought back",
            shown(&self.path),
            self.files,
            self.directories,
            self.bytes
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
        for path in &self.existing {
            write!(f, "\nexists: /{}", shown(path))?;
        }
        if self.exist > self.existing.len() as u64 {
            let more = self.exist - self.existing.len() as u64;
            write!(f, "\nexist: {more} more")?;
        }
        Ok(())
    }
}
