//! Putting plain files into the index.

use super::look::{Plain, Refused};
use super::{Adopted, Plan};
use crate::base::{Error, ErrorKind, Ino, Result, StreamId};
use crate::format::{Attr, Extent, ForeignHold, ForeignRow, Row};
use crate::index::Index;
use crate::store::path;
use crate::volume::{Change, Volume};
use std::collections::HashMap;

/// The longest extent of a foreign file; a longer file has several.
const LONGEST: u64 = 1 << 30;

/// Files in one record.
const TOGETHER: usize = 256;

/// Files between two waits for the log: its memory stays bounded.
const BATCH: usize = 4096;

/// A directory and the files in it that are new.
#[derive(Default)]
struct Group<'a> {
    dir: Option<&'a Plain>,
    files: Vec<&'a Plain>,
}

pub(super) async fn register(volume: &Volume, plan: &Plan) -> Result<Adopted> {
    let mut groups: Vec<(&str, Group)> = Vec::new();
    let mut by_path: HashMap<&str, usize> = HashMap::new();
    let mut group_of = |groups: &mut Vec<(_, _)>, dir| {
        *by_path.entry(dir).or_insert_with(|| {
            groups.push((dir, Group::default()));
            groups.len() - 1
        })
    };
    for plain in &plan.new {
        if plain.info.is_dir {
            let i = group_of(&mut groups, &plain.path);
            groups[i].1.dir = Some(plain);
        } else {
            let parent = path::split(&plain.path).map_or("", |(parent, _)| parent);
            let i = group_of(&mut groups, parent);
            groups[i].1.files.push(plain);
        }
    }
    let mut registrar = Registrar {
        volume,
        plan,
        dirs: HashMap::from([("", Ino::ROOT)]),
        done: Adopted::default(),
    };
    let mut since = 0;
    for (at, group) in &groups {
        let chunks = group.files.chunks(TOGETHER);
        let chunks: Vec<&[&Plain]> = match group.files.is_empty() {
            true => vec![&[]],
            false => chunks.collect(),
        };
        for chunk in chunks {
            match registrar.chunk(at, group.dir, chunk) {
                // The mount has changed since the plan was made.
                Err(e) if e.is(ErrorKind::NotFound) || e.is(ErrorKind::AlreadyExists) => {
                    let files = chunk.iter().copied();
                    // An empty directory stands for itself.
                    let all = files.chain(group.dir.filter(|_| chunk.is_empty()));
                    registrar.skip(all.map(|plain| plain.path.clone()), &e.to_string());
                }
                done => done?,
            }
            since += chunk.len() + 1;
            if since >= BATCH {
                volume.durable(volume.last_pos()).await?;
                since = 0;
            }
        }
    }
    volume.durable(volume.last_pos()).await?;
    Ok(registrar.done)
}

struct Registrar<'a> {
    volume: &'a Volume,
    plan: &'a Plan,
    dirs: HashMap<&'a str, Ino>,
    done: Adopted,
}

impl<'a> Registrar<'a> {
    /// One change: the directory, if it is new, and some files in it.
    fn chunk(&mut self, at: &'a str, dir: Option<&Plain>, files: &[&Plain]) -> Result<()> {
        let own = self.volume.new_ino()?;
        let inos = files.iter().map(|_| self.volume.new_ino());
        let inos: Vec<Ino> = inos.collect::<Result<_>>()?;
        let known = self.dirs.get(at).copied();
        let above = path::split(at).and_then(|(parent, _)| self.dirs.get(parent).copied());
        let now = self.volume.now();
        let ((ino, taken, bytes), _) = self.volume.change(|index, change| {
            let tracked = self.plan.tracked.contains(at);
            let mut rows = Rows::new(index, change, tracked);
            let (ino, made) = match known {
                Some(ino) if rows.is_dir(ino) => (ino, false),
                Some(_) => return Err(gone(at)),
                None => rows.directory(at, above, dir, own)?,
            };
            let mut taken = Vec::new();
            let mut bytes = 0;
            for (plain, file) in files.iter().zip(&inos) {
                let name = plain.info.name.as_bytes();
                if !made && index.lookup(ino, name).is_some() {
                    taken.push(plain.path.clone());
                    continue;
                }
                rows.file(ino, *file, plain);
                bytes += plain.info.len;
            }
            // Programs see that a directory which they know has new entries.
            if !made && index.adopted() && taken.len() < files.len() {
                rows.touch(ino, now);
            }
            Ok::<_, Error>((ino, taken, bytes))
        })?;
        self.dirs.insert(at, ino);
        self.done.files += (files.len() - taken.len()) as u64;
        self.done.bytes += bytes;
        self.skip(
            taken,
            "the mount has something of this name since a moment ago",
        );
        Ok(())
    }

    fn skip(&mut self, paths: impl IntoIterator<Item = String>, why: &str) {
        let skipped = paths.into_iter().map(|path| Refused {
            path,
            why: why.to_string(),
        });
        self.done.skipped.extend(skipped);
    }
}

fn gone(at: &str) -> Error {
    let text = format!("/{at} was removed from the mount meanwhile; try again");
    Error::new(ErrorKind::NotFound, text)
}

struct Rows<'a> {
    index: &'a Index,
    change: &'a mut Change,
    root: Attr,
    next_stream: u32,
    /// The plain directory is registered already.
    tracked: bool,
}

impl<'a> Rows<'a> {
    fn new(index: &'a Index, change: &'a mut Change, tracked: bool) -> Rows<'a> {
        Rows {
            index,
            change,
            root: index.attr(Ino::ROOT).unwrap_or_default(),
            next_stream: index.next_stream().0,
            tracked,
        }
    }

    /// The directory at a path, and whether it is made now.
    fn directory(
        &mut self,
        at: &str,
        above: Option<Ino>,
        dir: Option<&Plain>,
        own: Ino,
    ) -> Result<(Ino, bool)> {
        let gone = || gone(at);
        let name = path::split(at).map_or("", |(_, name)| name).as_bytes();
        let parent = match above {
            Some(parent) => parent,
            None => self
                .find(path::split(at).map_or("", |(p, _)| p))
                .ok_or_else(gone)?,
        };
        // What was a directory in the plan may be a file by now, or unlinked.
        if !self.is_dir(parent) {
            return Err(gone());
        }
        if let Some(ino) = self.index.lookup(parent, name) {
            if !self.is_dir(ino) {
                let text = format!("/{at} is no directory in the mount");
                return Err(Error::new(ErrorKind::AlreadyExists, text));
            }
            if let Some(dir) = dir.filter(|_| !self.tracked) {
                self.hold(dir, ino);
            }
            return Ok((ino, false));
        }
        let dir = dir.ok_or_else(gone)?;
        let mut parent_attr = self.index.attr(parent).ok_or_else(gone)?;
        parent_attr.nlink += 1;
        let attr = self.attr(dir);
        let name = name.to_vec();
        self.change.row(Row::Inode { ino: own, attr });
        self.change.row(Row::Inode {
            ino: parent,
            attr: parent_attr,
        });
        if !self.tracked {
            self.hold(dir, own);
        }
        self.change.row(Row::Entry {
            parent,
            name,
            ino: own,
        });
        Ok((own, true))
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.index
            .attr(ino)
            .is_some_and(|a| a.is_dir() && a.nlink > 0)
    }

    fn find(&self, at: &str) -> Option<Ino> {
        let mut names = at.split('/').filter(|name| !name.is_empty());
        names.try_fold(Ino::ROOT, |dir, name| {
            self.index.lookup(dir, name.as_bytes())
        })
    }

    fn file(&mut self, parent: Ino, ino: Ino, plain: &Plain) {
        let len = plain.info.len;
        let attr = self.attr(plain);
        self.change.row(Row::Inode { ino, attr });
        if len == 0 {
            self.hold(plain, ino);
        } else {
            let stream = self.foreign(plain);
            self.change.row(Row::Extents {
                ino,
                off: 0,
                len,
                extents: extents(stream, len),
            });
        }
        self.change.row(Row::Entry {
            parent,
            name: plain.info.name.as_bytes().to_vec(),
            ino,
        });
    }

    fn touch(&mut self, ino: Ino, now: crate::base::Timestamp) {
        if let Some(mut attr) = self.index.attr(ino) {
            (attr.mtime, attr.ctime) = (now, now);
            self.change.row(Row::Inode { ino, attr });
        }
    }

    fn foreign(&mut self, plain: &Plain) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        self.change.row(Row::StreamRange {
            next: StreamId(self.next_stream),
        });
        self.change.row(Row::Foreign(ForeignRow {
            stream,
            path: plain.path.as_bytes().to_vec(),
            len: if plain.info.is_dir { 0 } else { plain.info.len },
            mtime: plain.info.mtime,
        }));
        stream
    }

    /// What has no bytes belongs to its inode.
    fn hold(&mut self, plain: &Plain, ino: Ino) {
        let stream = self.foreign(plain);
        self.change.row(Row::ForeignHold(ForeignHold {
            is_dir: plain.info.is_dir,
            ino,
            ..ForeignHold::of(stream)
        }));
    }

    fn attr(&self, plain: &Plain) -> Attr {
        let info = &plain.info;
        let (kind, nlink) = match info.is_dir {
            true => (libc::S_IFDIR, 2),
            false => (libc::S_IFREG, 1),
        };
        let (uid, gid) = info.ids.unwrap_or((self.root.uid, self.root.gid));
        Attr {
            mode: (info.mode & 0o7777) | kind,
            uid,
            gid,
            nlink,
            rdev: 0,
            size: if info.is_dir { 0 } else { info.len },
            atime: info.mtime,
            mtime: info.mtime,
            ctime: info.mtime,
            crtime: info.mtime,
        }
    }
}

fn extents(stream: StreamId, len: u64) -> Vec<Extent> {
    (0..len.div_ceil(LONGEST))
        .map(|i| {
            let off = i * LONGEST;
            let len = LONGEST.min(len - off) as u32;
            Extent {
                off,
                len,
                stream,
                pos: off,
                frame: 0,
                skip: 0,
            }
        })
        .collect()
}
