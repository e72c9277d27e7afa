//! Packing: moves the bytes of plain files into segments, the way compaction moves bytes.

use super::Root;
use super::compact::{self, CompactOptions, Copied};
use crate::base::Result;

/// Moves every byte that files have in plain files at or below a path (empty: all). The plain files
/// go afterwards like all that nothing refers to. What cannot be read is left where it is.
pub async fn pack(
    root: &dyn Root,
    at: &[u8],
    options: &CompactOptions,
    progress: &mut (dyn FnMut(Copied) + Send),
) -> Result<Copied> {
    let wanted = |index: &crate::index::Index, e: &crate::format::Extent| {
        let foreign = index.foreign(e.stream).filter(|_| e.frame == 0);
        foreign.is_some_and(|f| is_at_or_below(&f.path, at))
    };
    compact::copy_out(root, &wanted, options, progress).await
}

pub fn is_at_or_below(path: &[u8], at: &[u8]) -> bool {
    let rest = path.strip_prefix(at);
    at.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
