//! What can be seen of a tree of files, to compare it with another.

use super::posix::c_path;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What must be equal; the size of a directory need not be.
pub fn shown(s: &libc::stat) -> String {
    let is_dir = s.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let size = if is_dir { 0 } else { s.st_size };
    format!(
        "{:o} {} {} {} {size}",
        s.st_mode, s.st_nlink, s.st_uid, s.st_gid
    )
}

pub fn list(dir: &Path) -> std::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        names.push(entry?.file_name());
    }
    names.sort();
    Ok(names)
}

/// Every path below a folder, with all that can be seen of it.
pub fn tree(root: &Path) -> Vec<String> {
    let (mut found, mut todo) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(path) = todo.pop() {
        let full = root.join(&path);
        let mut s: libc::stat = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { libc::lstat(c_path(&full).as_ptr(), &mut s) }, 0);
        let content = match s.st_mode & libc::S_IFMT {
            libc::S_IFREG => format!("{:x}", crc32c::crc32c(&std::fs::read(&full).unwrap())),
            libc::S_IFLNK => format!("{:?}", std::fs::read_link(&full).unwrap()),
            libc::S_IFDIR => {
                let names = list(&full).unwrap();
                todo.extend(names.iter().map(|n| path.join(n)));
                String::new()
            }
            _ => String::new(),
        };
        let mut xattrs = [0u8; 4000];
        let room = xattrs.as_mut_ptr().cast();
        let len = unsafe { libc::llistxattr(c_path(&full).as_ptr(), room, 4000) };
        let listed = xattrs.get(..len.max(0) as usize).unwrap_or_default();
        let mut names: Vec<_> = listed
            .split(|b| *b == 0)
            .map(String::from_utf8_lossy)
            .collect();
        names.sort();
        found.push(format!("{path:?} {} {content} {names:?}", shown(&s)));
    }
    found.sort();
    found
}
