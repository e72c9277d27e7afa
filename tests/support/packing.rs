//! How many files lie in a mount, and how many on its store.

use super::hdfs::Hdfs;
use std::path::Path;

/// Regular files below a directory; hard links count once each.
pub fn files_below(dir: &Path) -> u64 {
    let mut n = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        n += match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path()),
            false => 1,
        };
    }
    n
}

/// Files and bytes below a directory of HDFS.
pub fn on_hdfs(hdfs: &Hdfs, path: &str) -> (u64, u64) {
    let text = hdfs
        .admin("org.apache.hadoop.fs.FsShell", &["-count", path])
        .unwrap();
    // Directories, files, bytes, path.
    let line = text.lines().find(|l| l.trim_end().ends_with(path));
    let fields = line.map(|l| l.split_whitespace().collect::<Vec<_>>());
    match fields.as_deref() {
        Some([_, files, bytes, _]) => (files.parse().unwrap(), bytes.parse().unwrap()),
        _ => panic!("unexpected answer: {text}"),
    }
}

/// Asserts that files were packed, and prints what there is.
pub fn check(what: &str, written: u64, on_store: u64) {
    eprintln!("{what}: {written} files written into the mount, {on_store} files on the store");
    assert!(
        on_store * 5 < written,
        "{what}: {written} files became {on_store} on the store"
    );
}
