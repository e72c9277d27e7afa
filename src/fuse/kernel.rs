//! What is agreed with the kernel when a mount begins.

use fuser::{InitFlags, KernelConfig};

/// The most bytes in one read or write request. fuser keeps a buffer for it on each thread, and
/// the kernel's default limit (256 pages) allows no more.
pub const MAX_IO: u32 = 1 << 20;

/// Directory entries fetched for one request; the kernel's buffer is usually smaller.
pub const DIR_ITEMS: usize = 1024;
pub const DIR_PLUS_ITEMS: usize = 256;

/// Asked for where the kernel has it.
///
/// HANDLE_KILLPRIV_V2 saves a GETXATTR for each write(2): `fs` clears the set-user-id bits instead.
/// fuser 0.18 does not decode its flag of SETATTR, so `fs` goes by whether the caller is root.
///
/// Not asked for, with reasons:
/// - WRITEBACK_CACHE: slower for whole small files, and `close` must see all bytes here;
/// - POSIX_LOCKS, FLOCK_LOCKS: one host, so the kernel's own locks are right;
/// - DONT_MASK, POSIX_ACL: the kernel applies the umask, and there are no ACLs;
/// - ATOMIC_O_TRUNC: the kernel's separate SETATTR does the same;
/// - AUTO_INVAL_DATA: nobody else changes files, so a new mtime must not drop cached pages;
/// - SETXATTR_EXT, ALLOW_IDMAP, OVER_IO_URING: fuser 0.18 does not implement them.
const WANTED: &[InitFlags] = &[
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Must not panic: a mount whose INIT is never answered hangs for ever.
pub fn configure(config: &mut KernelConfig) {
    for flag in WANTED {
        if config.add_capabilities(*flag).is_err() {
            tracing::info!("this kernel's FUSE lacks {flag:?}; going on without it");
        }
    }
    let limits = [
        ("max_write", config.set_max_write(MAX_IO).err()),
        (
            "max_background",
            config.set_max_background(64).err().map(u32::from),
        ),
    ];
    // The kernel offers its own limit, 128 KiB by default, which is also the most there is.
    let readahead = config
        .set_max_readahead(MAX_IO)
        .or_else(|most| config.set_max_readahead(most));
    for (name, refused) in limits
        .into_iter()
        .chain([("max_readahead", readahead.err())])
    {
        if let Some(nearest) = refused {
            tracing::info!("the kernel refuses {name}; the nearest is {nearest}");
        }
    }
}
