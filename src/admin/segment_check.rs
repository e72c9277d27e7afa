//! `fsck` of one segment: its frames against its header and footer, against the row about it, and
//! against the extents of files that lie in it.

use super::report::{Problem, Report};
use super::survey::Found;
use super::walk::{Walk, walk};
use crate::base::error::Context;
use crate::base::{ErrorKind, Ino, Result, SegmentName};
use crate::format::segment::HEADER_LEN;
use crate::format::{Extent, Origin, SegmentRow, SegmentState};
use crate::store::Store;
use crate::upkeep::scrub::wrong_block;
use std::collections::BTreeSet;

pub(super) struct Job {
    pub found: Found,
    pub root: Option<[u8; 16]>,
    /// What the log says about it.
    pub row: Option<SegmentRow>,
    /// Whether all of the log could be replayed.
    pub log_is_good: bool,
    /// Whether its last block may be hidden, because its writer has not closed it.
    pub may_be_open: bool,
    pub origin: Origin,
    /// What files need of it.
    pub extents: Vec<(Ino, Extent)>,
}

#[derive(Default)]
pub(super) struct Checked {
    pub report: Report,
    /// Problems of data, and whose it is.
    pub damaged: Vec<(Problem, Ino)>,
}

impl Job {
    pub async fn run(self, store: &dyn Store) -> Result<Checked> {
        let mut checked = Checked::default();
        let report = &mut checked.report;
        let walk = match walk(store, &self.found).await {
            // A mount that goes on may delete it meanwhile.
            Err(e) if e.is(ErrorKind::NotFound) => {
                let what = "the segment went away while it was checked";
                report.problem(&self.found.path, None, what);
                return Ok(checked);
            }
            walked => walked.context("checking a segment")?,
        };
        report.segments = 1;
        self.check_header(&walk, report);
        self.check_footer(&walk, report);
        self.check_frames(&walk, report);
        self.check_row(&walk, report);
        let mut hidden = 0;
        for (ino, e) in &self.extents {
            match walk.verify(e) {
                Ok(()) => {
                    report.extents += 1;
                    report.bytes += e.len as u64;
                }
                Err(_) if self.is_hidden(&walk, e) => hidden += 1,
                Err(what) => checked.damaged.push((self.at(&walk, e, what), *ino)),
            }
        }
        if hidden > 0 {
            let path = &self.found.path;
            report.note(format!(
                "{path}: {hidden} extents are in a block that cannot be read until the next mount \
                 has closed it; they were not checked"
            ));
        }
        Ok(checked)
    }

    fn is_hidden(&self, walk: &Walk, e: &Extent) -> bool {
        let seen = walk.len.saturating_sub(HEADER_LEN as u64);
        let base = self.row.as_ref().map(|r| r.base).or(walk.base);
        let end = e.pos - base.unwrap_or(0).min(e.pos) + e.frame as u64;
        self.may_be_open && walk.footer.is_none() && end > seen
    }

    fn at(&self, walk: &Walk, e: &Extent, what: String) -> Problem {
        let base = self.row.as_ref().map(|r| r.base).or(walk.base);
        // Where its frame begins, as scrub says it, if there is one.
        let pos = walk.data.get(&e.pos).map_or(e.pos, |frame| frame.pos);
        let offset = pos.checked_sub(base.unwrap_or(0));
        Problem {
            path: self.found.path.clone(),
            offset: offset.map(|at| at + HEADER_LEN as u64),
            file: None,
            what,
        }
    }

    /// Whether the log begins after this segment: then only the data that files use counts.
    fn is_history(&self) -> bool {
        match self.found.name {
            SegmentName::Log { epoch, .. } => epoch < self.origin.epoch,
            SegmentName::Lane { .. } => self.rebuilt(),
        }
    }

    /// A rebuild gives each old segment a stream number of its own, and knows sizes only.
    fn rebuilt(&self) -> bool {
        self.found.epoch() < self.origin.epoch.0
    }

    fn complain(&self, report: &mut Report, offset: u64, what: String) {
        if self.is_history() {
            let path = &self.found.path;
            report.note(format!(
                "{path} at offset {offset}, from before a rebuild: {what}"
            ));
        } else {
            report.problem(&self.found.path, Some(offset), what);
        }
    }

    fn check_header(&self, walk: &Walk, report: &mut Report) {
        let header = match &walk.header {
            Ok(header) => header,
            Err(e) if walk.covered.is_empty() => {
                let path = &self.found.path;
                report.note(format!("{path} was never written ({e})"));
                return;
            }
            Err(e) => return self.complain(report, 0, e.to_string()),
        };
        let wrong = if header.name != self.found.name {
            format!("the header is that of segment {}", header.name)
        } else if self.root.is_some_and(|root| root != header.root) {
            "the header is that of another root's segment".into()
        } else {
            return;
        };
        self.complain(report, 0, wrong);
    }

    fn check_footer(&self, walk: &Walk, report: &mut Report) {
        match &walk.footer {
            None => {}
            Some(Err(e)) => self.complain(report, walk.len, e.to_string()),
            Some(Ok(footer)) => {
                if walk.base.is_some_and(|base| base != footer.base) {
                    let text =
                        format!("the footer says that the segment begins at {}", footer.base);
                    self.complain(report, walk.len, text);
                }
                if let Some(what) = &walk.table {
                    self.complain(report, walk.len - footer.table_len as u64, what.clone());
                }
            }
        }
    }

    fn check_frames(&self, walk: &Walk, report: &mut Report) {
        for place in &walk.bad {
            let what = format!("{} ({} bytes)", place.why, place.to - place.from);
            let sealed = matches!(walk.footer, Some(Ok(_)));
            // Whether an unsealed segment lacks something, replay and the extents tell: what was not
            // synced before a power failure may have holes.
            if !sealed && (self.log_is_good || place.to == walk.len) {
                let path = &self.found.path;
                report.note(format!(
                    "{path} at offset {}: what was not committed, or a lost footer: {what}",
                    place.from
                ));
            } else {
                self.complain(report, place.from, what);
            }
        }
        let used: BTreeSet<u64> = self.extents.iter().map(|(_, e)| e.pos).collect();
        let unused = walk.data.values().filter(|d| !used.contains(&d.payload()));
        for frame in unused.filter(|d| !d.bad_blocks.is_empty()) {
            let path = &self.found.path;
            let at = HEADER_LEN as u64 + frame.pos.saturating_sub(walk.base.unwrap_or(frame.pos));
            let what = wrong_block(frame.bad_blocks[0] as usize);
            report.note(format!("{path} at offset {at}: {what}; no file uses it"));
        }
    }

    fn check_row(&self, walk: &Walk, report: &mut Report) {
        let path = &self.found.path;
        let Some(row) = &self.row else {
            if self.log_is_good {
                report.note(format!("{path} is an orphan: the log does not know it"));
            }
            return;
        };
        // One that was condemned as an orphan has a stream of its own.
        if self.rebuilt() || row.state >= SegmentState::Condemned {
            return;
        }
        if let Ok(header) = &walk.header
            && (header.stream, header.base) != (row.stream, row.base)
        {
            let text = format!(
                "the header says position {} of stream {}, the log {} of stream {}",
                header.base, header.stream, row.base, row.stream
            );
            report.problem(path, Some(0), text);
        }
        if self.found.is_log() || row.state != SegmentState::Sealed || row.size == 0 {
            return;
        }
        if row.size != walk.len {
            let text = format!("{} bytes long, the log says {}", walk.len, row.size);
            report.problem(path, Some(walk.len.min(row.size)), text);
        }
    }
}
