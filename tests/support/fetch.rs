//! The jars of other programs, from Maven: kept below $STOWFS_TEST_CACHE or the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a script of this folder with `args` and the directory that it fills, which is returned.
pub fn jars(script: &str, args: &[&str], name: &str) -> Result<PathBuf, String> {
    let cache = match std::env::var_os("STOWFS_TEST_CACHE") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("../test-cache"),
    };
    let dir = cache.join(name);
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/support")
        .join(script);
    let out = Command::new(path)
        .args(args)
        .arg(&dir)
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!(
            "{script} failed: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        ));
    }
    dir.canonicalize().map_err(|e| e.to_string())
}
