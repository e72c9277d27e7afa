//! stowfs: a filesystem that packs the small files of checkpoints into large segments.
//!
//! Modules are layers; each imports only from lower ones (`tests/layering.rs` enforces it).
//! ARCHITECTURE.md has the map.

pub mod admin; // 7
pub mod base; // 0
pub mod cache; // 3
pub mod cli; // 8
pub mod format; // 1
pub mod fs; // 7
pub mod fuse; // 8
pub mod index; // 3
pub mod log; // 4
pub mod read; // 4
pub mod segment; // 3
pub mod store; // 2
pub mod stream; // 4
pub mod upkeep; // 5
pub mod volume; // 6
