//! rename(2): atomic, and durable when it returns. An engine publishes a checkpoint by it.

use super::errno::{Errno, Result};
use super::names::{check_name, find, living_directory};
use super::types::Caller;
use super::{Fs, attr_of};
use crate::base::{Ino, Timestamp};
use crate::format::{Attr, Row};
use crate::index::Index;
use crate::volume::Change;
use bytes::Bytes;

/// A name in a directory.
#[derive(Clone)]
struct Name {
    parent: Ino,
    name: Bytes,
}

impl Name {
    fn entry(&self, ino: Ino) -> Row {
        Row::Entry {
            parent: self.parent,
            name: self.name.to_vec(),
            ino,
        }
    }

    fn no_entry(&self) -> Row {
        Row::NoEntry {
            parent: self.parent,
            name: self.name.to_vec(),
        }
    }
}

/// New attributes of the inodes in one change; an inode may take part in several ways.
struct Attrs<'a> {
    index: &'a Index,
    new: Vec<(Ino, Attr)>,
}

impl Attrs<'_> {
    fn of(&mut self, ino: Ino) -> Result<&mut Attr> {
        let at = match self.new.iter().position(|(i, _)| *i == ino) {
            Some(at) => at,
            None => {
                self.new.push((ino, attr_of(self.index, ino)?));
                self.new.len() - 1
            }
        };
        Ok(&mut self.new[at].1)
    }

    /// The entries of a directory have changed, and how many directories it holds.
    fn touch(&mut self, dir: Ino, subdirs: i32, now: Timestamp) -> Result<()> {
        let attr = self.of(dir)?;
        attr.nlink = attr.nlink.saturating_add_signed(subdirs);
        attr.mtime = now;
        attr.ctime = now;
        Ok(())
    }
}

impl Fs {
    pub async fn rename(
        &self,
        _caller: Caller,
        parent: Ino,
        name: Bytes,
        newparent: Ino,
        newname: Bytes,
        flags: u32,
    ) -> Result<()> {
        self.volume.room().await?;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0
            || flags == libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE
        {
            return Err(Errno::EINVAL);
        }
        check_name(&newname)?;
        let from = Name { parent, name };
        let to = Name {
            parent: newparent,
            name: newname,
        };
        let find_source = |index: &Index| find(index, from.parent, &from.name);
        let (ino, _) = self.volume.read(find_source)?;
        // What was written to the file comes before its new name in the log.
        let mut written = 0;
        if self.table.node(ino).is_some() {
            let pin = self.pin(ino);
            self.commit(&pin).await?;
            written = pin.state.lock().pos;
        }
        let now = self.volume.now();
        let (moved, pos) = self.change(|index, change| match flags & libc::RENAME_EXCHANGE {
            0 => self.replace(index, change, &from, &to, flags, now),
            _ => exchange(index, change, &from, &to, now),
        })?;
        moved.iter().for_each(|ino| self.note(*ino, pos));
        // Also if there was nothing to rename, as when both names are the same.
        Ok(self.volume.durable(pos.max(written)).await?)
    }

    /// Returns the inodes whose names changed.
    fn replace(
        &self,
        index: &Index,
        change: &mut Change,
        from: &Name,
        to: &Name,
        flags: u32,
        now: Timestamp,
    ) -> Result<Vec<Ino>> {
        let (ino, attr) = find(index, from.parent, &from.name)?;
        living_directory(index, to.parent)?;
        let target = index.lookup(to.parent, &to.name);
        if target.is_some() && flags & libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EEXIST);
        }
        if target == Some(ino) {
            // Two names of one file: POSIX leaves both.
            return Ok(Vec::new());
        }
        if attr.is_dir() {
            refuse_cycle(index, ino, to.parent)?;
        }
        let mut attrs = Attrs {
            index,
            new: Vec::new(),
        };
        let mut changed = vec![ino];
        let mut new_subdirs = attr.is_dir() as i32;
        if let Some(target) = target {
            let gone = attrs.of(target)?;
            replaceable(index, &attr, target, gone)?;
            new_subdirs -= gone.is_dir() as i32;
            gone.nlink = match gone.is_dir() {
                true => 0,
                false => gone.nlink.saturating_sub(1),
            };
            gone.ctime = now;
            changed.push(target);
        }
        attrs.of(ino)?.ctime = now;
        attrs.touch(from.parent, -(attr.is_dir() as i32), now)?;
        attrs.touch(to.parent, new_subdirs, now)?;
        change.row(from.no_entry());
        change.row(to.entry(ino));
        // Directories first: their times say when what is freed was deleted.
        for (ino, attr) in attrs.new.into_iter().rev() {
            self.put_or_free(change, ino, attr);
        }
        Ok(changed)
    }
}

/// Whether a name that is in use may be taken by what has `attr`.
fn replaceable(index: &Index, attr: &Attr, target: Ino, gone: &Attr) -> Result<()> {
    match (attr.is_dir(), gone.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        (true, true) if index.entries(target) > 0 => Err(Errno::ENOTEMPTY),
        _ => Ok(()),
    }
}

/// A directory does not become its own descendant.
fn refuse_cycle(index: &Index, dir: Ino, newparent: Ino) -> Result<()> {
    let mut at = Some(newparent);
    while let Some(ino) = at {
        if ino == dir {
            return Err(Errno::EINVAL);
        }
        at = index.parent(ino).filter(|_| ino != Ino::ROOT);
    }
    Ok(())
}

fn exchange(
    index: &Index,
    change: &mut Change,
    from: &Name,
    to: &Name,
    now: Timestamp,
) -> Result<Vec<Ino>> {
    let (a, a_attr) = find(index, from.parent, &from.name)?;
    let (b, b_attr) = find(index, to.parent, &to.name)?;
    if a == b {
        return Ok(Vec::new());
    }
    if a_attr.is_dir() {
        refuse_cycle(index, a, to.parent)?;
    }
    if b_attr.is_dir() {
        refuse_cycle(index, b, from.parent)?;
    }
    let mut attrs = Attrs {
        index,
        new: Vec::new(),
    };
    attrs.of(a)?.ctime = now;
    attrs.of(b)?.ctime = now;
    let more = b_attr.is_dir() as i32 - a_attr.is_dir() as i32;
    attrs.touch(from.parent, more, now)?;
    attrs.touch(to.parent, -more, now)?;
    change.row(from.entry(b));
    change.row(to.entry(a));
    for (ino, attr) in attrs.new {
        change.row(Row::Inode { ino, attr });
    }
    Ok(vec![a, b])
}
