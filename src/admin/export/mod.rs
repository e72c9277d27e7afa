//! `export`: writes a tree of a root back as plain files, so that people can leave stowfs at any
//! time.
//!
//! Everything is written below a temporary name beside the destination, read back and compared, and
//! gets its name by one rename at the end: what has the name is whole.

mod dest;
mod mounted;
mod source;

pub use dest::{Dest, split};
pub use mounted::MountSource;
pub use source::{Item, Kind, RootSource, Source};

use super::size;
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use futures::future::join_all;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Files that are copied at the same time.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    pub destination: String,
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    pub bytes: u64,
    /// What the destination cannot keep, and how often that was so.
    pub not_kept: BTreeMap<String, u64>,
}

impl ExportReport {
    fn lost(&mut self, what: &str) {
        *self.not_kept.entry(what.to_string()).or_default() += 1;
    }
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in &self.not_kept {
            writeln!(f, "note: {what}: {times}")?;
        }
        write!(
            f,
            "{} files ({}), {} directories, {} symbolic links and {} hard links exported to {} and \
             compared",
            self.files,
            size(self.bytes),
            self.directories,
            self.symlinks,
            self.hard_links,
            self.destination
        )
    }
}

/// Copies what is at a path. `progress` hears how many bytes are done, of how many.
pub async fn export(
    source: &dyn Source,
    path: &str,
    dest: &Dest,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<ExportReport> {
    dest.refuse_existing().await?;
    let items = walk(source, path).await?;
    dest.begin().await?;
    let mut report = ExportReport {
        destination: dest.url().to_string(),
        ..ExportReport::default()
    };
    let copied = copy(source, dest, &items, &mut report, progress).await;
    let done = match copied {
        Ok(()) => dest.publish().await,
        Err(e) => Err(e),
    };
    done.map_err(|e| {
        let text = format!(
            "{e}; {} of {} entries were written to {}, which is not whole: delete it",
            report.files + report.directories + report.symlinks + report.hard_links,
            items.len(),
            dest.partial_url()
        );
        Error::new(e.kind(), text)
    })?;
    Ok(report)
}

/// Everything at and below a path; a directory comes before what is in it.
async fn walk(source: &dyn Source, path: &str) -> Result<Vec<Item>> {
    let mut items = vec![source.find(path).await?];
    let mut next = 0;
    while let Some(item) = items.get(next) {
        if item.kind == Kind::Directory {
            let inside = source.list(item).await?;
            items.extend(inside);
        }
        next += 1;
    }
    Ok(items)
}

async fn copy(
    source: &dyn Source,
    dest: &Dest,
    items: &[Item],
    report: &mut ExportReport,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<()> {
    let all = items.iter().map(|i| i.size).sum();
    // The first name of each file that has several.
    let mut names: HashMap<u64, &Item> = HashMap::new();
    let mut further: Vec<(&Item, &Item)> = Vec::new();
    let mut files: Vec<&Item> = Vec::new();
    for item in items {
        if item.xattrs > 0 {
            report.lost("extended attributes are not exported");
        }
        match item.kind {
            Kind::Directory => {
                dest.make_dir(item).await.context(item.shown())?;
                report.directories += 1;
            }
            Kind::Symlink if dest.is_local() => {
                dest.symlink(item).await.context(item.shown())?;
                report.symlinks += 1;
            }
            Kind::Symlink => report.lost("symbolic links are left out: HDFS has none"),
            Kind::Special => report.lost("fifos, sockets and devices are left out"),
            Kind::File => match names.get(&item.id) {
                Some(first) if item.nlink > 1 && dest.is_local() => further.push((first, item)),
                known => {
                    if known.is_some() {
                        report.lost("hard links became files of their own: HDFS has none");
                    }
                    names.insert(item.id, item);
                    files.push(item);
                }
            },
        }
    }
    for some in files.chunks(AT_ONCE) {
        let jobs = some.iter().map(|item| dest.copy_file(source, item));
        for (item, done) in some.iter().zip(join_all(jobs).await) {
            if done.context(item.shown())? && !dest.is_local() {
                report.lost("holes became zeros: HDFS has none");
            }
            report.files += 1;
            report.bytes += item.size;
        }
        progress(report.bytes, all);
    }
    for (first, item) in further {
        dest.hard_link(first, item).await.context(item.shown())?;
        report.hard_links += 1;
    }
    if !dest.keeps_owners() {
        report.lost("owners are not kept (only root can set them, on a local store)");
    }
    // Now that nothing more is made in them.
    for item in items.iter().rev().filter(|i| i.kind == Kind::Directory) {
        dest.dress(item).await.context(item.shown())?;
    }
    Ok(())
}

/// A source gave less than it said.
fn short(item: &Item) -> Error {
    let text = format!(
        "{} was changed while it was exported; try again",
        item.shown()
    );
    Error::new(ErrorKind::Other, text)
}
