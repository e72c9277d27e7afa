//! A shared mapping of the beginning of a file.

use std::fs::File;
use std::os::fd::AsRawFd;

pub struct Map {
    pub at: *mut u8,
    pub len: usize,
}

// One thread may look while another has the file written.
unsafe impl Sync for Map {}

impl Map {
    /// To be read and written.
    pub fn of(file: &File, len: usize) -> Map {
        Map::with(file, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub fn to_read(file: &File, len: usize) -> Map {
        Map::with(file, len, libc::PROT_READ)
    }

    fn with(file: &File, len: usize, protection: i32) -> Map {
        let (fd, shared) = (file.as_raw_fd(), libc::MAP_SHARED);
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, shared, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Map { at: at.cast(), len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// As it is now, whoever changes it.
    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        unsafe { self.at.add(at).read_volatile() }
    }

    pub fn sync(&self) {
        super::posix::ok(unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) });
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}
