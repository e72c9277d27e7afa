//! Plain files that were below the root before stowfs came: registered once, read where they are.

use super::Volume;
use crate::base::error::Context;
use crate::base::{Error, Ino, Result, StreamId};
use crate::format::row::ForeignRow;
use crate::format::{Attr, Extent, Row};
use crate::index::Index;
use crate::segment::META_DIR;
use crate::store::FileInfo;
use std::collections::VecDeque;

/// The longest extent of a foreign file; a longer file has several.
const LONGEST: u64 = 1 << 30;

/// Files registered between two waits for the log: its memory stays bounded.
const BATCH: usize = 4096;

/// Registers every plain file and directory below the root, once in the life of a root; what a
/// crash interrupted goes on where it was. Returns how many files.
pub(super) async fn register_plain_files(volume: &Volume) -> Result<usize> {
    if volume.read(Index::adopted) {
        return Ok(0);
    }
    let mut dirs = VecDeque::from([(String::new(), Ino::ROOT)]);
    let mut files = 0;
    while let Some((path, ino)) = dirs.pop_front() {
        let entries = volume
            .store
            .list(&path)
            .await
            .context(format_args!("listing /{path}"))?;
        for entry in entries
            .iter()
            .filter(|e| !path.is_empty() || e.name != META_DIR)
        {
            let at = if path.is_empty() {
                entry.name.clone()
            } else {
                format!("{path}/{}", entry.name)
            };
            let child = register(volume, ino, &at, entry)?;
            if entry.is_dir {
                dirs.push_back((at, child));
            } else {
                files += 1;
            }
            if files % BATCH == BATCH - 1 {
                volume.durable(volume.last_pos()).await?;
            }
        }
    }
    volume.change(|_, change| {
        change.row(Row::Adopted);
        Ok::<_, Error>(())
    })?;
    if files > 0 {
        tracing::info!("{files} plain files are readable through the mount");
    }
    Ok(files)
}

fn register(volume: &Volume, parent: Ino, path: &str, entry: &FileInfo) -> Result<Ino> {
    let name = entry.name.as_bytes();
    if let Some(known) = volume.read(|index| index.lookup(parent, name)) {
        return Ok(known);
    }
    let ino = volume.new_ino()?;
    let root = volume
        .read(|index| index.attr(Ino::ROOT))
        .unwrap_or_default();
    volume.change(|index, change| {
        let attr = Attr {
            mode: (entry.mode & 0o7777)
                | if entry.is_dir {
                    libc::S_IFDIR
                } else {
                    libc::S_IFREG
                },
            uid: root.uid,
            gid: root.gid,
            nlink: if entry.is_dir { 2 } else { 1 },
            rdev: 0,
            size: if entry.is_dir { 0 } else { entry.len },
            atime: entry.mtime,
            mtime: entry.mtime,
            ctime: entry.mtime,
            crtime: entry.mtime,
        };
        change.row(Row::Inode { ino, attr });
        if entry.is_dir {
            if let Some(mut above) = index.attr(parent) {
                above.nlink += 1;
                change.row(Row::Inode {
                    ino: parent,
                    attr: above,
                });
            }
        } else if entry.len > 0 {
            let stream = index.next_stream();
            change.row(Row::StreamRange {
                next: StreamId(stream.0 + 1),
            });
            let (path, len) = (path.as_bytes().to_vec(), entry.len);
            change.row(Row::Foreign(ForeignRow {
                stream,
                path,
                len,
                mtime: entry.mtime,
            }));
            change.row(Row::Extents {
                ino,
                off: 0,
                len,
                extents: extents(stream, len),
            });
        }
        change.row(Row::Entry {
            parent,
            name: entry.name.as_bytes().to_vec(),
            ino,
        });
        Ok::<_, Error>(())
    })?;
    Ok(ino)
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
