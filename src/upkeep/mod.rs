//! Layer 5: what keeps a root small, its recovery short and its bytes sound, in the background:
//! snapshots, garbage collection, deletion, compaction, scrub. Each is one function that makes one
//! pass; who calls them when is `duty`, and `command` for people.

pub mod choice;
mod command;
pub mod compact;
pub mod deletion;
pub mod duty;
pub mod gc;
pub mod lives;
pub mod orphans;
pub mod pack;
pub mod plain;
pub mod plan;
pub mod scrub;
pub mod snapshot;

use crate::base::{Epoch, Error, Pos, Result, SegmentName, Timestamp};
use crate::format::{DataFrame, Extent, Origin, Row, SegmentRow};
use crate::index::Index;
use crate::store::Store;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// What upkeep needs of a mounted root.
#[async_trait]
pub trait Root: Send + Sync + 'static {
    fn store(&self) -> &Arc<dyn Store>;
    fn uuid(&self) -> [u8; 16];
    fn epoch(&self) -> Epoch;
    fn now(&self) -> Timestamp;

    /// Where the log begins.
    fn origin(&self) -> Origin;

    /// Whether a segment that the index does not know may still be announced.
    fn is_claimed(&self, segment: &SegmentName) -> bool;

    /// Lets go of a file on the store that is about to be deleted: another one may get its name, and
    /// a local disk keeps the space of a file that is open.
    fn forget_reader(&self, path: &str);

    /// Looks at the index; short, without waiting.
    fn view(&self, look: &mut dyn FnMut(&Index));

    /// Makes one atomic change of the rows that `make` states; none if there are none. Returns the
    /// position to wait for.
    fn commit(&self, make: &mut dyn FnMut(&Index) -> Vec<Row>) -> Result<Pos>;

    /// The position of the next record. Inside `view`: every earlier record is applied.
    fn log_end(&self) -> Pos;

    async fn durable(&self, pos: Pos) -> Result<()>;

    /// Every read that is under way planned at or after this position of the log.
    fn oldest_read(&self) -> Pos;

    /// Whether the segment holds bytes that somebody is about to commit.
    fn is_staged(&self, segment: &SegmentRow) -> bool;

    /// Whether somebody waits for the store to take what was written.
    fn is_busy(&self) -> bool;

    async fn fetch(&self, extent: &Extent) -> Result<Bytes>;

    /// Writes a copy of live bytes; durable after `sync_copies`.
    async fn copy(&self, frame: DataFrame) -> Result<Extent>;

    async fn sync_copies(&self, copies: &[Extent]) -> Result<()>;

    /// New segments are sealed at this size, if that is below the configured one.
    fn set_segment_size(&self, bytes: u64);

    /// Stops everything for good, because going on would destroy something.
    fn stop(&self, error: Error);

    /// Whether programs are reading from the store just now.
    fn has_readers(&self) -> bool;

    /// Forgets copies that will not be committed.
    fn drop_copies(&self, copies: &[Extent]);
}
