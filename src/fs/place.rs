//! Where a small file's bytes go when it is committed: into the log, with its record and in the
//! same sync, or first to a lane.
//!
//! The log mixes what lives long with what dies at once, and compaction would have to copy the one
//! out of the other. So a new file that will probably last goes to a lane of such files. That costs
//! a second sync, shared by all that commit at the same time, and is done only for files large
//! enough to be worth it.

use super::Fs;
use super::node::{Node, State};

/// A file is worth a sync of its own from this part of `small_file` on.
const WORTHWHILE: u64 = 16;

impl Fs {
    /// Moves the uncommitted bytes of a new file to the lane of files that last, if it will
    /// probably be one.
    pub(super) async fn place(&self, node: &Node) {
        if !self.belongs_in_lane(node, &node.state.lock()) {
            return;
        }
        let _staging = node.staging.lock().await;
        let (runs, permit) = {
            let mut state = node.state.lock();
            if !self.belongs_in_lane(node, &state) {
                return;
            }
            let runs = state.dirty.take_long(0);
            let bytes = runs.iter().map(|(_, b)| b.len()).sum();
            state.moving = runs.clone();
            (runs, state.take_permit(bytes))
        };
        if let Err(e) = self.stage(node, runs, permit, true).await {
            // Its bytes are uncommitted again, and go to the log.
            tracing::debug!("{:?} is not placed in a lane: {e}", node.ino);
        }
    }

    fn lasting_file(&self) -> u64 {
        let config = self.volume.config();
        let usual = match self.volume.is_remote() {
            // There a sync is a call to the NameNode, which is dearer than copying.
            true => u64::MAX,
            false => config.small_file / WORTHWHILE,
        };
        config.lasting_file.unwrap_or(usual).max(1)
    }

    fn belongs_in_lane(&self, node: &Node, state: &State) -> bool {
        let bytes = state.dirty.bytes() as u64;
        let new = state.size == Some(bytes) && !state.has_staged();
        let committed = || self.volume.read(|index| index.attr(node.ino));
        bytes >= self.lasting_file()
            && new
            && committed().is_some_and(|a| a.size == 0 && a.nlink > 0)
            && self.volume.will_last(bytes)
    }
}
