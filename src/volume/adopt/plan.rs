//! Which plain files are new. No I/O, and nothing is changed.

use super::look::{Look, Plain, Refused};
use crate::base::Ino;
use crate::format::ForeignState;
use crate::index::{Foreign, Index};
use crate::store::path;
use std::collections::{HashMap, HashSet};

/// What an adoption would do.
#[derive(Default)]
pub struct Plan {
    /// Directories to make and files to register; a directory comes before what is in it.
    pub new: Vec<Plain>,
    pub files: u64,
    pub bytes: u64,
    pub directories: u64,
    /// Directories of `new` that are registered already, though the mount may not have them.
    pub(super) tracked: HashSet<String>,
    /// Files that are registered already.
    pub known: u64,
    /// Files that cannot be taken.
    pub refused: Vec<Refused>,
    /// Registered files that are not what they were.
    pub notes: Vec<Refused>,
    /// How many of these somebody has changed.
    pub changed: u64,
}

pub fn sort_out(index: &Index, look: Look) -> Plan {
    let known: HashMap<&[u8], &Foreign> = index
        .foreign_files()
        .map(|f| (&f.row.path[..], f))
        .collect();
    let mut plan = Plan {
        refused: look.unfinished,
        ..Plan::default()
    };
    let mut names = Names::new(index);
    let mut wanted: HashSet<String> = HashSet::new();
    for plain in look.found.iter().filter(|plain| !plain.info.is_dir) {
        let path = plain.path.clone();
        match known.get(plain.path.as_bytes()) {
            Some(foreign) => match changed(foreign, plain) {
                None => plan.known += 1,
                Some(why) => {
                    plan.changed += u64::from(foreign.hold.state == ForeignState::Held);
                    plan.notes.push(Refused { path, why });
                }
            },
            None => match names.obstacle(&plain.path) {
                None => {
                    let above = plain.path.match_indices('/');
                    wanted.extend(above.map(|(end, _)| plain.path[..end].to_string()));
                    wanted.insert(path);
                }
                Some(why) => plan.refused.push(Refused { path, why }),
            },
        }
    }
    plan.refused.sort_by(|a, b| a.path.cmp(&b.path));
    for plain in look.found {
        let is_known = known.contains_key(plain.path.as_bytes());
        let exists = plain.info.is_dir && names.directory(&plain.path).is_some();
        let blocked = plain.info.is_dir && !exists && names.obstacle(&plain.path).is_some();
        let new_dir = plain.info.is_dir && !is_known && !blocked;
        if !wanted.contains(&plain.path) && !new_dir {
            continue;
        }
        if plain.info.is_dir {
            plan.directories += u64::from(!exists);
            if is_known {
                plan.tracked.insert(plain.path.clone());
            }
        } else {
            plan.files += 1;
            plan.bytes += plain.info.len;
        }
        plan.new.push(plain);
    }
    plan
}

fn changed(foreign: &Foreign, plain: &Plain) -> Option<String> {
    if foreign.hold.state == ForeignState::Condemned {
        return Some("it was removed through the mount and is about to be deleted".into());
    }
    let (then, now) = (&foreign.row, &plain.info);
    if (then.len, then.mtime) == (now.len, now.mtime) {
        return None;
    }
    Some(format!(
        "it was changed after it was registered ({} bytes then, {} now); in the mount it is an error: \
         remove it there, and adopt again what is here now",
        then.len, now.len
    ))
}

/// Paths in the virtual tree.
struct Names<'a> {
    index: &'a Index,
    /// None: there is nothing. An error: a file is in the way.
    dirs: HashMap<String, Result<Option<Ino>, ()>>,
}

impl<'a> Names<'a> {
    fn new(index: &'a Index) -> Names<'a> {
        let dirs = HashMap::from([(String::new(), Ok(Some(Ino::ROOT)))]);
        Names { index, dirs }
    }

    fn resolve(&mut self, at: &str) -> Result<Option<Ino>, ()> {
        if let Some(known) = self.dirs.get(at) {
            return *known;
        }
        let (parent, name) = path::split(at).unwrap_or_default();
        let found = match self.resolve(parent) {
            Ok(Some(parent)) => match self.index.lookup(parent, name.as_bytes()) {
                Some(ino) if self.index.attr(ino).is_some_and(|a| a.is_dir()) => Ok(Some(ino)),
                Some(_) => Err(()),
                None => Ok(None),
            },
            // A new root has no inode yet.
            other => other,
        };
        self.dirs.insert(at.to_string(), found);
        found
    }

    fn directory(&mut self, at: &str) -> Option<Ino> {
        self.resolve(at).ok().flatten()
    }

    /// Why a file cannot be entered at this path.
    fn obstacle(&mut self, at: &str) -> Option<String> {
        let (parent, name) = path::split(at).unwrap_or_default();
        match self.resolve(parent) {
            Err(()) => Some(format!(
                "in the mount, something on the way to /{at} is no directory"
            )),
            Ok(None) => None,
            Ok(Some(parent)) => self.index.lookup(parent, name.as_bytes()).map(|_| {
                "the mount has something of this name already; remove or rename one of them".into()
            }),
        }
    }
}
