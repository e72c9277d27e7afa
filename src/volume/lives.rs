//! What the volume learns of the lives of files: it sees each change.

use super::Volume;
use crate::format::{Attr, Row};
use crate::index::Index;

impl Volume {
    /// Whether a new file of this size will probably live long.
    pub fn will_last(&self, size: u64) -> bool {
        self.lives.lock().lasts(size)
    }

    /// Notes births and deaths in the rows of a change that is about to be applied.
    pub(super) fn observe(&self, index: &Index, rows: &[Row]) {
        for row in rows {
            match row {
                Row::Inode { ino, attr } if attr.is_file() => {
                    self.observe_file(index.attr(*ino), Some(attr))
                }
                Row::Free { ino } => self.observe_file(index.attr(*ino), None),
                _ => {}
            }
        }
    }

    fn observe_file(&self, old: Option<Attr>, new: Option<&Attr>) {
        let named = |a: &&Attr| a.is_file() && a.nlink > 0;
        let old = old.as_ref().filter(named);
        let size = |a: Option<&Attr>| a.map_or(0, |a| a.size);
        let new = new.filter(named);
        if new.is_some() && size(old) == size(new) {
            return;
        }
        let now = self.now();
        let mut lives = self.lives.lock();
        match (old, new) {
            (Some(old), Some(new)) if old.size > 0 => lives.resized(old.size, new.size, now),
            (_, Some(new)) => lives.born(new.size, now),
            (Some(old), None) if old.size > 0 => lives.died(old.size, old.crtime, now),
            _ => {}
        }
    }
}
