//! Layer 8: a thin adapter from the kernel's FUSE requests to `fs`, and the life of a mount.
//!
//! ```text
//! kernel -> loop thread -> adapter (decode) -> task (poll once, or spawn) -> fs
//!                                           <- reply (encode), from either
//! ```

mod adapter;
mod convert;
mod executor;
mod granted;
mod kernel;
mod mountpoint;
mod options;
mod reply;
mod session;
mod staging;
mod task;

pub use mountpoint::{Mountpoint, unmount};
pub use options::MountOptions;
pub use session::{MountRequest, Mounted, mount};
pub use task::in_handler;
