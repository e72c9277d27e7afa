//! What must be true of an index, computed from nothing but the inodes.

use super::inode::Inode;
use super::usage::UsageTable;
use super::{Index, Live};
use crate::base::{Ino, Pos, StreamId};
use crate::format::{Extent, ForeignState, SegmentState};
use rustc_hash::{FxHashMap, FxHashSet};

/// More problems than this help nobody.
const ENOUGH: usize = 1000;

impl Index {
    /// Every invariant that does not hold, as a sentence for a person.
    pub fn check(&self) -> Vec<String> {
        let mut bad = Vec::new();
        let inos = self.inos();
        let names = self.count_names(&inos, &mut bad);
        for ino in &inos {
            if let Some(inode) = self.inode(*ino) {
                self.check_inode(*ino, inode, &names, &mut bad);
            }
            if bad.len() >= ENOUGH {
                bad.push(format!("stopped after {ENOUGH} problems"));
                return bad;
            }
        }
        self.check_reachable(&inos, &mut bad);
        self.check_usage(&inos, &mut bad);
        self.check_foreign(&mut bad);
        bad
    }

    /// Whether the usage of segments, which is kept up with every change, is what all extents
    /// together say.
    pub fn check_counts(&self) -> Vec<String> {
        let mut bad = Vec::new();
        self.check_usage(&self.inos(), &mut bad);
        bad
    }

    fn label(&self, ino: Ino) -> String {
        match self.path(ino) {
            Some(p) => format!("/{} (inode {ino})", String::from_utf8_lossy(&p)),
            None => format!("inode {ino}"),
        }
    }

    /// How many entries name each inode; for a directory, how many directories it holds.
    fn count_names(&self, inos: &[Ino], bad: &mut Vec<String>) -> FxHashMap<Ino, (u64, u64)> {
        let mut names: FxHashMap<Ino, (u64, u64)> = FxHashMap::default();
        for ino in inos {
            for e in self.readdir(*ino, 0) {
                let Some(child) = self.inode(e.ino) else {
                    let name = String::from_utf8_lossy(e.name);
                    bad.push(format!(
                        "{}: entry {name:?} names inode {}, which does not exist",
                        self.label(*ino),
                        e.ino
                    ));
                    continue;
                };
                names.entry(e.ino).or_default().0 += 1;
                if child.attr.is_dir() {
                    names.entry(*ino).or_default().1 += 1;
                    if self.parent(e.ino) != Some(*ino) {
                        bad.push(format!("{}: wrong or second parent", self.label(e.ino)));
                    }
                }
            }
        }
        names
    }

    fn check_inode(
        &self,
        ino: Ino,
        inode: &Inode,
        names: &FxHashMap<Ino, (u64, u64)>,
        bad: &mut Vec<String>,
    ) {
        let (named, subdirs) = names.get(&ino).copied().unwrap_or_default();
        let nlink = inode.attr.nlink as u64;
        let right = match inode.dir() {
            Some(_) if ino == Ino::ROOT => 2 + subdirs,
            Some(_) if named == 0 => 0,
            Some(_) => 2 + subdirs,
            None => named,
        };
        if nlink != right {
            let label = self.label(ino);
            bad.push(format!("{label}: link count {nlink}, should be {right}"));
        }
        if inode.dir().is_some() && named > 1 {
            bad.push(format!(
                "{}: a directory with {named} names",
                self.label(ino)
            ));
        }
        if ino >= self.next_ino() {
            bad.push(format!("{}: beyond the numbers given out", self.label(ino)));
        }
        if let Some(x) = inode.extents() {
            let mut at = 0;
            let mut sum = 0;
            for e in x.iter() {
                if e.len == 0 || e.off < at {
                    bad.push(format!("{}: extents overlap at {}", self.label(ino), e.off));
                }
                at = e.end();
                sum += e.len as u64;
                self.check_place(ino, e, bad);
            }
            if at > inode.attr.size || sum != x.bytes() {
                bad.push(format!(
                    "{}: {sum} bytes of extents up to {at}, size {}",
                    self.label(ino),
                    inode.attr.size
                ));
            }
        }
    }

    fn check_place(&self, ino: Ino, e: &Extent, bad: &mut Vec<String>) {
        if let Some(wrong) = self.misplaced(e) {
            let at = format!("bytes {} to {}", e.off, e.end());
            let place = format!("stream {} at {}", e.stream, e.pos);
            bad.push(format!(
                "{}: {at}, in {place}, are {wrong}",
                self.label(ino)
            ));
        }
    }

    /// Whether something has these bytes, and keeps them.
    pub fn is_placed(&self, e: &Extent) -> bool {
        self.misplaced(e).is_none()
    }

    /// Why the bytes of an extent cannot be relied upon to be there.
    pub(super) fn misplaced(&self, e: &Extent) -> Option<&'static str> {
        match (e.frame, self.foreign_use(e.stream)) {
            (0, Some(f)) if f.hold.state != ForeignState::Held => Some("in a condemned plain file"),
            (0, Some(f)) if e.start() + e.len as u64 <= f.row.len => None,
            (0, Some(_)) => Some("past the end of its foreign file"),
            (0, None) => Some("in a foreign file that is not known"),
            _ => match self.segment_at(e.stream, e.pos).map(|u| &u.row) {
                // What was queued last for the log is in no segment yet.
                None if e.stream == StreamId::LOG && self.is_young_log(e.pos) => None,
                None => Some("in no segment"),
                Some(s) if s.state >= SegmentState::Condemned => Some("in a condemned segment"),
                Some(s) if s.state == SegmentState::Open => None,
                Some(s) if e.pos + e.frame as u64 > s.end => Some("across the end of its segment"),
                Some(_) => None,
            },
        }
    }

    fn is_young_log(&self, pos: Pos) -> bool {
        pos >= self.log_needed && !self.usage.is_settled(StreamId::LOG, pos)
    }

    fn check_reachable(&self, inos: &[Ino], bad: &mut Vec<String>) {
        let mut good: FxHashSet<Ino> = FxHashSet::from_iter([Ino::ROOT]);
        let dirs = inos
            .iter()
            .filter(|i| self.attr(**i).is_some_and(|a| a.is_dir()));
        for dir in dirs {
            let mut way = vec![*dir];
            let mut seen = FxHashSet::from_iter([*dir]);
            while let Some(last) = way.last()
                && !good.contains(last)
            {
                match self.parent(*last) {
                    Some(up) if seen.insert(up) => way.push(up),
                    Some(_) => {
                        bad.push(format!("{}: in a cycle of directories", self.label(*dir)));
                        break;
                    }
                    // Removed while it was open; its link count was checked.
                    None => break,
                }
            }
            good.extend(way);
        }
        if !inos.is_empty() && self.attr(Ino::ROOT).is_none() {
            bad.push("there is no root directory".into());
        }
    }

    fn check_usage(&self, inos: &[Ino], bad: &mut Vec<String>) {
        let mut fresh = UsageTable::default();
        for s in self.segments() {
            // Nothing is counted yet, so there is nothing to count again.
            let _ = fresh.apply(&s.row);
        }
        for x in inos.iter().filter_map(|i| self.inode(*i)?.extents()) {
            x.iter().for_each(|e| fresh.add(e));
        }
        for (kept, right) in self.segments().zip(fresh.segments()) {
            if kept.live != right.live {
                bad.push(format!(
                    "segment {}: {} counted, {} found",
                    kept.row.name, kept.live, right.live
                ));
            }
        }
        let streams = self
            .foreign_files()
            .map(|f| f.row.stream)
            .chain([StreamId::LOG]);
        for stream in streams {
            let (kept, right): (Live, Live) = (self.live_outside(stream), fresh.outside(stream));
            if kept != right {
                bad.push(format!("stream {stream}: {kept} counted, {right} found"));
            }
        }
    }
}
