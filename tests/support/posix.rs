//! For tests of POSIX behaviour on whole mounts: a mount on a local store, tools, seeds, scale.
//!
//! `STOWFS_TEST_LONG=1` (see tests/long.sh) makes these tests as large as the issue asks for.

use super::fetch;
use super::mount::Mount;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Whether the long forms run.
pub fn long() -> bool {
    std::env::var_os("STOWFS_TEST_LONG").is_some_and(|v| v != "0")
}

/// How much of something, in the short and in the long form.
pub fn scale<T>(short: T, long_form: T) -> T {
    match long() {
        true => long_form,
        false => short,
    }
}

/// A mount on a store of its own, on the local disk if not told otherwise.
pub struct TestMount {
    mount: Mount,
    _store: Option<TempDir>,
}

impl TestMount {
    pub fn new() -> TestMount {
        TestMount::with(&[])
    }

    pub fn with(arguments: &[&str]) -> TestMount {
        let store = tempfile::tempdir().unwrap();
        let url = format!("file://{}", store.path().join("root").display());
        TestMount {
            mount: Mount::with(&url, arguments),
            _store: Some(store),
        }
    }

    pub fn of(mount: Mount) -> TestMount {
        TestMount {
            mount,
            _store: None,
        }
    }

    /// As a crash: everything that was not durable is gone.
    pub fn crash(&mut self) {
        self.mount.kill9();
        self.mount.remount();
    }

    /// Files may be open; they are of no use afterwards.
    pub fn cycle(&mut self) {
        let status = self.mount.terminate();
        assert_eq!(status.code(), Some(0), "{}", self.mount.log());
        self.mount.remount();
    }

    /// Unmounts; nothing may have gone wrong inside.
    pub fn finish(mut self) {
        let status = self.mount.terminate();
        assert_eq!(status.code(), Some(0), "{}", self.mount.log());
        assert_sound(&self.mount);
    }
}

/// No panic was caught, and no invariant found broken.
pub fn assert_sound(mount: &Mount) {
    let log = mount.log();
    for word in ["panicked", "this is a bug", "This is a bug"] {
        assert!(!log.contains(word), "{log}");
    }
}

impl Deref for TestMount {
    type Target = Mount;
    fn deref(&self) -> &Mount {
        &self.mount
    }
}

impl DerefMut for TestMount {
    fn deref_mut(&mut self) -> &mut Mount {
        &mut self.mount
    }
}

/// A command with these arguments.
pub fn command<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[A]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed, and returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Runs a line of shell in a folder.
pub fn shell(folder: &Path, line: &str) -> String {
    run(command("bash", &["-euo", "pipefail", "-c", line]).current_dir(folder))
}

/// A tool that `fetch-posix-tools.sh` builds, once for all tests.
pub fn tool(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        fetch::jars("fetch-posix-tools.sh", &[], "posix").unwrap_or_else(|e| panic!("{e}"))
    });
    folder.join("bin").join(name)
}

/// Seeds to run; `STOWFS_TEST_SEED` replays one.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STOWFS_TEST_SEED") {
        Ok(seed) => vec![seed.parse().expect("STOWFS_TEST_SEED is a number")],
        Err(_) => {
            let first = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
            (0..count).map(|n| first.wrapping_add(n)).collect()
        }
    }
}

/// The error number of a call that must fail.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// The result of a libc call that must succeed.
#[track_caller]
pub fn ok(result: impl TryInto<i64>) -> i64 {
    let value = result.try_into().unwrap_or(-1);
    assert!(value >= 0, "{}", std::io::Error::last_os_error());
    value
}

pub fn c_path(path: &Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap()
}
