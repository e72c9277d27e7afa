//! How much memory the bounded parts of a volume use.

use super::Volume;

/// Bytes, about, beside the index itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Blocks that were read (`cache_size`).
    pub cache: usize,
    /// Written and not durable yet (`write_buffer`).
    pub written: usize,
    /// Durable, but not shown to readers by the store yet.
    pub tail: usize,
    /// What was deleted and can perhaps be brought back (`undo_memory`).
    pub undo: usize,
    /// Not bytes: files on the store that are kept open for reading.
    pub store_readers: usize,
}

impl Volume {
    pub fn memory(&self) -> Memory {
        Memory {
            cache: self.reader.cached_bytes(),
            written: self
                .buffer_size
                .saturating_sub(self.buffer.available_permits()),
            tail: self.log.tail_bytes() + self.lanes.tail_bytes(),
            undo: self.read(|index| index.deleted_memory()),
            store_readers: self.reader.open_files(),
        }
    }
}
