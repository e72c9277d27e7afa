//! stowfs: a filesystem that packs the small files of checkpoints into large segments.
//!
//! Modules are layers; each imports only from lower ones (`tests/layering.rs` enforces it).
//! ARCHITECTURE.md has the map.

pub mod base; // 0
pub mod format; // 1
pub mod index; // 3
pub mod segment; // 3
pub mod store; // 2
pub mod stream; // 4
