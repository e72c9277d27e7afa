//! Names of segments that are not announced yet but may be: their files are no orphans.

use crate::base::SegmentName;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Default)]
pub struct Claims(Mutex<BTreeSet<SegmentName>>);

impl Claims {
    pub fn has(&self, name: &SegmentName) -> bool {
        self.0.lock().contains(name)
    }

    pub(super) fn take(self: &Arc<Self>, name: SegmentName) -> Claim {
        self.0.lock().insert(name);
        Claim {
            name,
            claims: self.clone(),
        }
    }
}

/// Held from before the file is made until its segment is announced or given up.
pub(super) struct Claim {
    pub(super) name: SegmentName,
    claims: Arc<Claims>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.0.lock().remove(&self.name);
    }
}
