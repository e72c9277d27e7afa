//! What `stowfs status` says of memory: enough to tell a cache that fills from a leak.

use crate::fs::Fs;
use serde_json::{Value, json};

/// Bytes, and counts of what is held in memory.
pub fn summary(fs: &Fs) -> Value {
    let parts = fs.volume().memory();
    let [known, nodes, dirty, handles] = fs.held();
    let (used, free) = heap().unzip();
    json!({
        "resident": resident(),
        "heap_used": used,
        // Given back by the program, and kept by the C library for the next request.
        "heap_free": free,
        "cache": parts.cache,
        "written": parts.written,
        "tail": parts.tail,
        "undo": parts.undo,
        "store_readers": parts.store_readers,
        "known_inodes": known,
        "nodes": nodes,
        "dirty_inodes": dirty,
        "handles": handles,
    })
}

/// The most arenas of the C library. Its default, eight for each processor, lets each thread have one
/// that keeps what the thread once needed: tens of MiB that nobody uses.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 8;

/// Before there are threads. `MALLOC_ARENA_MAX` of the environment goes first.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: it sets a number.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
    }
}

/// Bytes of the heap that are in use, and bytes that are free in it.
#[cfg(target_env = "gnu")]
fn heap() -> Option<(u64, u64)> {
    // SAFETY: it only fills in a struct of its own.
    let info = unsafe { libc::mallinfo2() };
    Some(((info.uordblks + info.hblkhd) as u64, info.fordblks as u64))
}

#[cfg(not(target_env = "gnu"))]
fn heap() -> Option<(u64, u64)> {
    None
}

/// Memory of the process that is not swapped out.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: a query without arguments in memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_seen() {
        let before = heap();
        let large = std::hint::black_box(vec![1u8; 64 << 20]);
        if let (Some((before, _)), Some((after, _))) = (before, heap()) {
            assert!(after >= before + (48 << 20), "{before} {after}");
        }
        assert!(resident().unwrap() > 64 << 20);
        drop(large);
    }
}
