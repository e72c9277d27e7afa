//! Makes a tree again of what was salvaged.

use super::places::{Places, streams_of};
use super::salvage::Salvage;
use super::{RebuildReport, Source};
use crate::admin::text;
use crate::admin::walk::DataFound;
use crate::base::{Ino, Pos, Result, Timestamp};
use crate::format::{Attr, Extent, Row};
use crate::index::Index;
use std::collections::{BTreeMap, BTreeSet};

const LOST_AND_FOUND: &[u8] = b"lost+found";
const NAME_MAX: usize = 255;

/// A root directory; no entry without its inode; no inode without an entry; directories form a
/// tree.
pub(super) fn repair(index: &mut Index, now: Timestamp, report: &mut RebuildReport) -> Result<()> {
    if !index.attr(Ino::ROOT).is_some_and(|a| a.is_dir()) {
        report.notes.push("the root directory was made anew".into());
        index.apply(&new_dir(Ino::ROOT, 0o755, now))?;
    }
    drop_bad_entries(index, report)?;
    adopt_unreachable(index, now, report)?;
    end_within_size(index)
}

fn new_dir(ino: Ino, mode: u32, now: Timestamp) -> Row {
    let attr = Attr {
        mode: libc::S_IFDIR | mode,
        nlink: 2,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        ..Attr::default()
    };
    Row::Inode { ino, attr }
}

fn drop_bad_entries(index: &mut Index, report: &mut RebuildReport) -> Result<()> {
    let mut bad = Vec::new();
    let mut named_dirs = BTreeSet::from([Ino::ROOT]);
    for dir in index.inos() {
        for e in index.readdir(dir, 0) {
            let why = match index.attr(e.ino) {
                None => "it is not known what it was",
                Some(a) if !a.is_dir() => continue,
                Some(_) if index.parent(e.ino) == Some(dir) && named_dirs.insert(e.ino) => continue,
                Some(_) => "the directory has another name",
            };
            bad.push((dir, e.name.to_vec(), why));
        }
    }
    for (parent, name, why) in bad {
        let path = index.path(parent).unwrap_or_default();
        let (path, shown) = (text(&path), text(&name));
        report
            .notes
            .push(format!("dropped {shown:?} in /{path}: {why}"));
        index.apply(&Row::NoEntry { parent, name })?;
    }
    Ok(())
}

/// Everything that can be reached from a directory.
fn reach(index: &Index, from: Ino, seen: &mut BTreeSet<Ino>) {
    let mut todo = vec![from];
    while let Some(ino) = todo.pop() {
        if seen.insert(ino) {
            todo.extend(index.readdir(ino, 0).map(|e| e.ino));
        }
    }
}

fn adopt_unreachable(index: &mut Index, now: Timestamp, report: &mut RebuildReport) -> Result<()> {
    let mut seen = BTreeSet::new();
    reach(index, Ino::ROOT, &mut seen);
    let (mut entered, mut above) = (BTreeSet::new(), BTreeMap::new());
    for dir in index.inos() {
        for e in index.readdir(dir, 0) {
            entered.insert(e.ino);
            above.insert(e.ino, (dir, e.name.to_vec()));
        }
    }
    // First what has no name at all, with what is below it; what is left then are cycles.
    for cycles in [false, true] {
        for ino in index.inos() {
            if seen.contains(&ino) || (entered.contains(&ino) && !cycles) {
                continue;
            }
            let Some(attr) = index.attr(ino) else {
                continue;
            };
            if attr.nlink == 0 && !cycles {
                index.apply(&Row::Free { ino })?; // it was open when it was unlinked
                continue;
            }
            if let Some((parent, name)) = above.remove(&ino) {
                index.apply(&Row::NoEntry { parent, name })?;
            }
            let lost = lost_and_found(index, now)?;
            seen.insert(lost);
            let name = free_name(index, lost, ino.to_string());
            index.apply(&Row::Entry {
                parent: lost,
                name,
                ino,
            })?;
            report.lost_and_found += 1;
            reach(index, ino, &mut seen);
        }
    }
    Ok(())
}

/// A file's last extent ends within the file.
fn end_within_size(index: &mut Index) -> Result<()> {
    for ino in index.inos() {
        let end = index
            .extents(ino, 0, u64::MAX)
            .last()
            .map_or(0, Extent::end);
        if let Some(attr) = index.attr(ino).filter(|a| a.size < end) {
            let attr = Attr { size: end, ..attr };
            index.apply(&Row::Inode { ino, attr })?;
        }
    }
    Ok(())
}

fn lost_and_found(index: &mut Index, now: Timestamp) -> Result<Ino> {
    let mut name = LOST_AND_FOUND.to_vec();
    while let Some(ino) = index.lookup(Ino::ROOT, &name) {
        if index.attr(ino).is_some_and(|a| a.is_dir()) {
            return Ok(ino);
        }
        name.push(b'+');
    }
    let ino = index.next_ino();
    index.apply(&new_dir(ino, 0o700, now))?;
    let parent = Ino::ROOT;
    index.apply(&Row::Entry { parent, name, ino })?;
    Ok(ino)
}

fn free_name(index: &Index, dir: Ino, wanted: String) -> Vec<u8> {
    let mut name = wanted.into_bytes();
    name.truncate(NAME_MAX - 8);
    while index.lookup(dir, &name).is_some() {
        name.push(b'+');
    }
    name
}

/// Data whose record is lost: nothing says where it belongs but the frame itself. All of one inode
/// becomes one file `lost+found/<inode>-<last name>`.
pub(super) fn add_lost_frames(
    salvage: &mut Salvage,
    sources: &[Source],
    places: &Places,
    now: Timestamp,
    report: &mut RebuildReport,
) -> Result<()> {
    let mut lost: BTreeMap<Ino, Vec<(Pos, usize, &DataFound)>> = BTreeMap::new();
    for (i, source) in sources.iter().enumerate() {
        let streams = streams_of(source, salvage);
        for frame in source.walk.data.values() {
            let payload = frame.payload();
            let named = streams
                .iter()
                .any(|s| salvage.named.contains(&(*s, payload)));
            let ino = frame.head.ino;
            let freed = salvage.freed.contains(&ino); // numbers are never used again
            let known = frame.head.lsn < salvage.known;
            let good = frame.bad_blocks.is_empty() && salvage.counts(source, frame.pos);
            if good && !named && !freed && !known {
                lost.entry(ino)
                    .or_default()
                    .push((frame.head.lsn, i, frame));
            }
        }
    }
    for (old, mut frames) in lost {
        frames.sort_by_key(|(lsn, i, frame)| (*lsn, *i, frame.pos));
        let size = frames.iter().map(|(_, _, f)| end_of(f)).max().unwrap_or(0);
        let hint = frames
            .iter()
            .rev()
            .map(|(_, _, f)| &f.path)
            .find(|p| !p.is_empty());
        let name = match hint.and_then(|p| p.rsplit(|b| *b == b'/').next()) {
            Some(base) if !base.is_empty() => format!("{old}-{}", text(base)),
            _ => old.to_string(),
        };
        let index = &mut salvage.index;
        let parent = lost_and_found(index, now)?;
        let name = free_name(index, parent, name);
        let ino = index.next_ino().max(Ino(old.0.saturating_add(1)));
        let attr = Attr {
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            size,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            ..Attr::default()
        };
        index.apply(&Row::Inode { ino, attr })?;
        index.apply(&Row::Entry { parent, name, ino })?;
        for (_, i, frame) in frames {
            let off = frame.head.off;
            let len = frame.head.len;
            let extent = Extent {
                off,
                len,
                stream: places.stream(i),
                pos: frame.payload(),
                frame: len,
                skip: 0,
            };
            index.apply(&Row::Extents {
                ino,
                off,
                len: len as u64,
                extents: vec![extent],
            })?;
        }
        report.lost_and_found += 1;
    }
    Ok(())
}

fn end_of(frame: &DataFound) -> u64 {
    frame.head.off.saturating_add(frame.head.len as u64)
}

/// Makes every link count what the entries say.
pub(super) fn count_links(index: &mut Index, report: &mut RebuildReport) -> Result<()> {
    let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
    for dir in index.inos() {
        for e in index.readdir(dir, 0) {
            let is_dir = index.attr(e.ino).is_some_and(|a| a.is_dir());
            *links.entry(e.ino).or_default() += 1;
            *links.entry(dir).or_default() += u32::from(is_dir);
        }
    }
    for ino in index.inos() {
        let Some(attr) = index.attr(ino) else {
            continue;
        };
        let counted = links.get(&ino).copied().unwrap_or(0);
        let nlink = match (attr.is_dir(), ino == Ino::ROOT) {
            (true, true) => counted + 2,
            (true, false) => counted + 1, // its one name and "."
            (false, _) => counted,
        };
        match attr.is_dir() {
            true => report.directories += 1,
            false => report.files += 1,
        }
        if nlink != attr.nlink {
            let attr = Attr { nlink, ..attr };
            index.apply(&Row::Inode { ino, attr })?;
        }
    }
    Ok(())
}
