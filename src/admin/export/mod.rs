//! `export`: writes a tree of a root back as plain files, so that people can leave stowfs at any
//! time.
//!
//! Everything is written below a temporary name beside the destination, read back and compared, and
//! gets its name by one rename at the end: what has the name is whole, but for what the report says.

mod dest;
mod local;
mod mounted;
mod source;

pub use dest::{Dest, split};
pub use mounted::MountSource;
pub use source::{Item, Kind, RootSource, Source};

use super::{shown, size, text};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use futures::future::join_all;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Files that are copied at the same time.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    /// What could not be exported, and was left out.
    pub failed: Vec<Failed>,
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

/// A path below what is exported, and why it was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    pub path: String,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    /// Go on without what cannot be exported.
    pub partial: bool,
}

impl ExportReport {
    fn lost(&mut self, what: &str) {
        *self.not_kept.entry(what.to_string()).or_default() += 1;
    }
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Failed { path, why } in &self.failed {
            writeln!(f, "LEFT OUT: /{}: {}", shown(path), shown(why))?;
        }
        for (what, times) in &self.not_kept {
            writeln!(f, "note: {what}: {times}")?;
        }
        write!(
            f,
            "{} files ({}), {} directories, {} symbolic links and {} hard links exported to {} and \
             compared{}",
            self.files,
            size(self.bytes),
            self.directories,
            self.symlinks,
            self.hard_links,
            self.destination,
            match self.failed.len() {
                0 => String::new(),
                n => format!("; {n} entries were LEFT OUT, see above"),
            }
        )
    }
}

/// Copies what is at a path. `progress` hears how many bytes are done, of how many.
pub async fn export(
    source: &dyn Source,
    path: &str,
    dest: &Dest,
    options: &ExportOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<ExportReport> {
    dest.refuse_existing().await?;
    let mut exporter = Exporter {
        source,
        dest,
        options,
        report: ExportReport {
            destination: dest.url().to_string(),
            ..ExportReport::default()
        },
    };
    let items = exporter.walk(path).await?;
    if let Some(top) = items.first() {
        check_top(top, path, dest)?;
    }
    dest.begin().await?;
    let copied = exporter.copy(&items, progress).await;
    let done = match copied {
        Ok(()) => dest.publish().await,
        Err(e) => Err(e),
    };
    let report = exporter.report;
    done.map_err(|e| {
        let way_out = match options.partial || is_final(&e) {
            true => "",
            false => "; --partial leaves out what cannot be exported",
        };
        let text = format!(
            "{e}; {} of {} entries were written; {}{way_out}",
            report.files + report.directories + report.symlinks + report.hard_links,
            items.len(),
            dest.left(),
        );
        Error::new(e.kind(), text)
    })?;
    Ok(report)
}

/// In a tree such things are left out; alone they leave nothing to export.
fn check_top(top: &Item, path: &str, dest: &Dest) -> Result<()> {
    let what = match top.kind {
        Kind::Special => "a fifo, socket or device, and only files, directories and links are",
        Kind::Symlink if !dest.is_local() => "a symbolic link, and HDFS has none",
        _ => return Ok(()),
    };
    let text = format!("/{path} is not exported: it is {what}");
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// What would fail for every other file as well.
fn is_final(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Fenced) || e.is_ambiguous()
}

/// What remains to be done when the directories are made.
#[derive(Default)]
struct Work<'a> {
    /// The first name of each file that has several.
    names: HashMap<u64, &'a Item>,
    further: Vec<(&'a Item, &'a Item)>,
    files: Vec<&'a Item>,
    /// Directories that could not be made: what is in them goes with them.
    without: HashSet<&'a [u8]>,
}

struct Exporter<'a> {
    source: &'a dyn Source,
    dest: &'a Dest,
    options: &'a ExportOptions,
    report: ExportReport,
}

impl Exporter<'_> {
    /// Something cannot be exported: the end, or left out.
    fn leave_out(&mut self, path: &[u8], e: Error) -> Result<()> {
        if !self.options.partial || is_final(&e) {
            return Err(e.context(format_args!("exporting {:?}", format!("/{}", text(path)))));
        }
        self.report.failed.push(Failed {
            path: text(path),
            why: e.to_string(),
        });
        Ok(())
    }

    /// Everything at and below a path; a directory comes before what is in it.
    async fn walk(&mut self, path: &str) -> Result<Vec<Item>> {
        let mut items = vec![self.source.find(path).await?];
        let mut next = 0;
        while let Some(item) = items.get(next).cloned() {
            if item.kind == Kind::Directory {
                match self.source.list(&item).await {
                    Err(e) => self.leave_out(&item.path, e)?,
                    Ok(inside) => {
                        for entry in inside {
                            match entry {
                                Ok(item) => items.push(item),
                                Err((path, e)) => self.leave_out(&path, e)?,
                            }
                        }
                    }
                }
            }
            next += 1;
        }
        Ok(items)
    }

    async fn copy(
        &mut self,
        items: &[Item],
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<()> {
        let mut work = Work::default();
        for item in items {
            self.begin(item, &mut work).await?;
        }
        self.copy_files(&work.files, progress).await?;
        self.link(&work.further).await?;
        if !self.dest.keeps_owners() {
            let what = "owners are not kept (only root can set them, on a local store)";
            self.report.lost(what);
        }
        // Now that nothing more is made in them.
        let dirs = items.iter().rev().filter(|i| i.kind == Kind::Directory);
        for item in dirs.filter(|i| !work.without.contains(&i.path[..])) {
            self.dest.dress(item).await.context(item.shown())?;
        }
        Ok(())
    }

    /// Makes what has no bytes of its own, and notes the rest.
    async fn begin<'a>(&mut self, item: &'a Item, work: &mut Work<'a>) -> Result<()> {
        let dest = self.dest;
        if !item.path.is_empty() && work.without.contains(parent(&item.path)) {
            work.without.insert(&item.path);
            let text = "its directory was left out";
            return self.leave_out(&item.path, Error::new(ErrorKind::Other, text));
        }
        if item.xattrs > 0 {
            self.report.lost("extended attributes are not exported");
        }
        match item.kind {
            Kind::Directory => match dest.make_dir(item).await {
                Ok(()) => self.report.directories += 1,
                Err(e) => {
                    self.leave_out(&item.path, e)?;
                    work.without.insert(&item.path);
                }
            },
            Kind::Symlink if dest.is_local() => match dest.symlink(item).await {
                Ok(()) => self.report.symlinks += 1,
                Err(e) => self.leave_out(&item.path, e)?,
            },
            Kind::Symlink => self
                .report
                .lost("symbolic links are left out: HDFS has none"),
            Kind::Special => self.report.lost("fifos, sockets and devices are left out"),
            Kind::File => match work.names.get(&item.id) {
                Some(first) if item.nlink > 1 && dest.is_local() => {
                    work.further.push((first, item));
                }
                known => {
                    if known.is_some() {
                        let what = "hard links became files of their own: HDFS has none";
                        self.report.lost(what);
                    }
                    work.names.insert(item.id, item);
                    work.files.push(item);
                }
            },
        }
        Ok(())
    }

    /// Gives files their further names.
    async fn link(&mut self, further: &[(&Item, &Item)]) -> Result<()> {
        for (first, item) in further {
            let shown = text(&first.path);
            if self.report.failed.iter().any(|f| f.path == shown) {
                let text = format!("/{shown}, the same file, was left out");
                self.leave_out(&item.path, Error::new(ErrorKind::Other, text))?;
                continue;
            }
            match self.dest.hard_link(first, item).await {
                Ok(()) => self.report.hard_links += 1,
                Err(e) => self.leave_out(&item.path, e)?,
            }
        }
        Ok(())
    }

    async fn copy_files(
        &mut self,
        files: &[&Item],
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<()> {
        let (source, dest) = (self.source, self.dest);
        let all = files.iter().map(|i| i.size).sum();
        let mut done = 0;
        for some in files.chunks(AT_ONCE) {
            let jobs = some.iter().map(|item| dest.copy_file(source, item));
            for (item, copied) in some.iter().zip(join_all(jobs).await) {
                done += item.size;
                match copied {
                    Ok(holes) => {
                        if holes && !dest.is_local() {
                            self.report.lost("holes became zeros: HDFS has none");
                        }
                        self.report.files += 1;
                        self.report.bytes += item.size;
                    }
                    Err(e) => {
                        // Another file's, whose name is the same to the destination, stays.
                        let is_ours = !e.is(ErrorKind::AlreadyExists);
                        self.leave_out(&item.path, e)?;
                        if is_ours {
                            // A half of it would look like the whole.
                            dest.drop_file(item).await.context(item.shown())?;
                        }
                    }
                }
            }
            progress(done, all);
        }
        Ok(())
    }
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    &path[..end]
}

/// A source gave less than it said.
fn short(item: &Item) -> Error {
    let text = format!(
        "{} was changed while it was exported; try again",
        item.shown()
    );
    Error::new(ErrorKind::Other, text)
}

/// Runs on a thread that may wait.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let lost = |e| Error::new(ErrorKind::Other, format!("a thread ended early: {e}"));
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}
