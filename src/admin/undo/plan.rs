//! What would come back, and where to. No I/O, and nothing is changed.

use super::graveyard::{Damage, Graveyard};
use super::plain::PlainFiles;
use super::revive::{UndeleteOptions, Undeleted};
use super::{is_older, reason, trimmed};
use crate::admin::text;
use crate::base::{Error, ErrorKind, Ino, Result, StreamId};
use crate::format::Attr;
use crate::index::{Deleted, Index};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};

/// Paths of what exists that a report names.
const NAMED: usize = 20;

/// The directory that something comes back to.
#[derive(Clone, Copy)]
pub(super) enum Home {
    /// A node of the plan.
    Node(usize),
    /// One that exists.
    Dir(Ino),
    /// The last of those that are made on the way.
    Made,
}

pub(super) struct Node {
    pub item: Deleted,
    pub home: Home,
    pub name: Vec<u8>,
}

pub(super) struct Plan<'a> {
    pub index: &'a Index,
    /// Directories come before what is in them.
    pub nodes: Vec<Node>,
    /// The directory that exists to which everything goes.
    pub base: Ino,
    /// Directories to make below it on the way, with their attributes.
    pub missing: Vec<(Vec<u8>, Attr)>,
    pub done: Undeleted,
}

/// Something that may come back.
#[derive(Clone, Copy)]
struct Candidate {
    n: usize,
    /// The deleted tree that it is part of: what its age is compared to.
    since: usize,
}

impl Candidate {
    fn alone(n: usize) -> Candidate {
        Candidate { n, since: n }
    }
}

/// A directory that something comes back into.
struct Level {
    /// None: it comes back itself.
    living: Option<Ino>,
    home: Home,
    path: Vec<u8>,
    /// Directories that were at its path and were deleted.
    gone: Vec<Candidate>,
}

struct Maker<'a, 'p> {
    volume: &'a Volume,
    yard: &'a Graveyard<'p>,
    options: &'a UndeleteOptions,
}

impl<'a> Plan<'a> {
    pub fn make(
        volume: &Volume,
        index: &'a Index,
        plain: &PlainFiles,
        options: &UndeleteOptions,
    ) -> Result<Plan<'a>> {
        let yard = Graveyard::new(index, Some(plain));
        let maker = Maker {
            volume,
            yard: &yard,
            options,
        };
        let path = trimmed(&options.path);
        let mut plan = Plan {
            index,
            nodes: Vec::new(),
            base: Ino::ROOT,
            missing: Vec::new(),
            done: Undeleted::default(),
        };
        let found = yard.find(path, options.id);
        if options.id.is_some() && found.is_none() {
            return Err(unknown(path, options.id));
        }
        if options.into {
            plan.base = existing_dir(index, path)?;
            plan.done.path = text(path);
            let gone = match options.id {
                Some(_) => found.into_iter().collect(),
                None => yard.all_at(path),
            };
            let dirs = gone
                .into_iter()
                .filter(|n| Graveyard::is_dir(&yard.items[*n]));
            plan.merge(&maker, dirs.map(Candidate::alone).collect())?;
        } else {
            let top = found.ok_or_else(|| unknown(path, None))?;
            let to = options.to.as_deref().map_or(path, trimmed);
            check_path(to)?;
            let (dir, name) = split(to);
            plan.find_base(&yard, dir)?;
            let home = match plan.missing.is_empty() {
                true if index.lookup(plan.base, name).is_some() => return Err(exists(to)),
                true => Home::Dir(plan.base),
                false => Home::Made,
            };
            plan.done.path = text(to);
            plan.add(&maker, top, name.to_vec(), home)?;
        }
        if plan.nodes.is_empty() {
            return Err(nothing(path, &plan.done));
        }
        Ok(plan)
    }

    /// Brings back into directories that exist what they lack: what was deleted in them, and what
    /// all directories held that were at their paths before (`gone`: those at that of the base). At
    /// each path that which was deleted last.
    fn merge(&mut self, maker: &Maker<'_, '_>, gone: Vec<Candidate>) -> Result<()> {
        let mut left = vec![Level {
            living: Some(self.base),
            home: Home::Dir(self.base),
            path: self.done.path.clone().into_bytes(),
            gone,
        }];
        while let Some(level) = left.pop() {
            for (name, found) in self.names(maker, &level) {
                let Some(last) = found.last().copied() else {
                    continue;
                };
                let is_dir = |c: &Candidate| Graveyard::is_dir(&maker.yard.items[c.n]);
                let path = joined(&level.path, name);
                let living = level.living.and_then(|dir| self.index.lookup(dir, name));
                let gone: Vec<Candidate> = found.into_iter().filter(is_dir).collect();
                let home = match living {
                    None => match self.place(maker, last, name, level.home, 1)? {
                        Some(node) if is_dir(&last) => Home::Node(node),
                        Some(_) => continue,
                        None => {
                            self.done.older += maker.yard.tree(last.n).len() as u64 - 1;
                            continue;
                        }
                    },
                    Some(dir) if !gone.is_empty() && self.is_dir(dir) => Home::Dir(dir),
                    Some(_) => {
                        self.note_existing(&path);
                        continue;
                    }
                };
                left.push(Level {
                    living,
                    home,
                    path,
                    gone,
                });
            }
        }
        Ok(())
    }

    /// What was deleted at each name of a directory, in the order of deletion.
    fn names<'y>(
        &self,
        maker: &Maker<'y, '_>,
        level: &Level,
    ) -> BTreeMap<&'y [u8], Vec<Candidate>> {
        let yard = maker.yard;
        let mut all: Vec<Candidate> = Vec::new();
        for dir in &level.gone {
            let held = yard.within(yard.items[dir.n].ino);
            all.extend(held.iter().map(|n| Candidate {
                n: *n,
                since: dir.since,
            }));
        }
        // Who names one of several trees wants that one alone.
        if maker.options.id.is_none() || level.living != Some(self.base) {
            let own = level.living.map_or(&[][..], |dir| yard.within(dir));
            all.extend(own.iter().map(|n| Candidate::alone(*n)));
        }
        all.sort_unstable_by_key(|c| c.n);
        let mut names: BTreeMap<&[u8], Vec<Candidate>> = BTreeMap::new();
        for candidate in all {
            let name = &yard.items[candidate.n].name[..];
            names.entry(name).or_default().push(candidate);
        }
        names
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.index.attr(ino).is_some_and(|a| a.is_dir())
    }

    fn note_existing(&mut self, path: &[u8]) {
        self.done.exist += 1;
        if self.done.existing.len() < NAMED {
            self.done.existing.push(text(path));
        }
    }

    /// Adds an item with all that is below it. What had gone long before it is left out.
    fn add(&mut self, maker: &Maker<'_, '_>, top: usize, name: Vec<u8>, home: Home) -> Result<()> {
        let tree = maker.yard.tree(top);
        // Places in the tree and in the plan differ: some are left out.
        let mut placed: Vec<Option<usize>> = Vec::with_capacity(tree.len());
        for (n, parent) in &tree {
            let (name, home) = match parent.map(|p| placed[p]) {
                None => (&name[..], home),
                Some(Some(node)) => (&maker.yard.items[*n].name[..], Home::Node(node)),
                Some(None) => {
                    self.done.older += 1;
                    placed.push(None);
                    continue;
                }
            };
            let candidate = Candidate { n: *n, since: top };
            placed.push(self.place(maker, candidate, name, home, tree.len())?);
        }
        Ok(())
    }

    /// Adds one item. None: it is left out. `names`: how many come with it.
    fn place(
        &mut self,
        maker: &Maker<'_, '_>,
        candidate: Candidate,
        name: &[u8],
        home: Home,
        names: usize,
    ) -> Result<Option<usize>> {
        let Maker {
            volume,
            yard,
            options,
        } = *maker;
        let item = &yard.items[candidate.n];
        if is_older(volume, &yard.items[candidate.since], item) {
            self.done.older += 1;
            return Ok(None);
        }
        if let Some(damage) = yard.damage(item) {
            if !options.partial && !options.into {
                return Err(lost(volume, yard, item, &damage, names));
            }
            self.done.lost += 1;
            return Ok(None);
        }
        match Graveyard::is_dir(item) {
            true => self.done.directories += 1,
            false => {
                self.done.files += 1;
                self.done.bytes += item.attr.map_or(0, |a| a.size);
            }
        }
        self.nodes.push(Node {
            item: item.clone(),
            home,
            name: name.to_vec(),
        });
        Ok(Some(self.nodes.len() - 1))
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
            let was = yard.find(&path[..at], None).map(|n| &yard.items[n]);
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

    pub fn inos(&self) -> usize {
        self.nodes.len() + self.missing.len()
    }

    /// The plain files that would be read, and that nobody has looked at yet.
    pub fn unknown_plain(&self, plain: &PlainFiles) -> BTreeSet<StreamId> {
        let dead = self.nodes.iter().filter(|node| !node.item.alive);
        let streams = dead.flat_map(|node| self.index.deleted_plain(node.item.ino));
        streams.filter(|s| !plain.knows(*s)).collect()
    }
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
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

fn unknown(path: &[u8], id: Option<u64>) -> Error {
    let which = id.map_or(String::new(), |id| format!(" with the id {id}"));
    let text = format!(
        "nothing{which} that was deleted at /{} is remembered; `stowfs deleted` lists what is",
        text(path)
    );
    Error::new(ErrorKind::NotFound, text)
}

fn exists(path: &[u8]) -> Error {
    let text = format!(
        "/{} exists; --to brings back under another path, --into what is missing in it",
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
    damage: &Damage,
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
