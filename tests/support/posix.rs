//! For tests of POSIX behaviour on whole mounts: a mount on a local store, tools, seeds, scale.
//!
//! `STOWFS_TEST_LONG=1` (see tests/long.sh) makes these tests as large as the issue asks for, and
//! `STOWFS_TEST_STORE=hdfs` puts their stores on a real HDFS.

use super::fetch;
use super::hdfs::Hdfs;
use super::mount::Mount;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// Whether stores are on HDFS.
pub fn on_hdfs() -> bool {
    match std::env::var("STOWFS_TEST_STORE") {
        Ok(kind) if kind == "hdfs" => true,
        Ok(kind) => {
            panic!("STOWFS_TEST_STORE={kind}: the only kind besides the local disk is hdfs")
        }
        Err(_) => false,
    }
}

/// One cluster for all tests of a process; each test has a root of its own.
fn cluster() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| Hdfs::builder().datanodes(2).replication(2).start())
}

/// A mount on a store of its own, on the local disk if not told otherwise.
pub struct TestMount {
    mount: Mount,
    store: Option<TempDir>,
}

impl TestMount {
    pub fn new() -> TestMount {
        TestMount::with(&[])
    }

    pub fn with(arguments: &[&str]) -> TestMount {
        if on_hdfs() {
            return TestMount::on_hdfs(arguments);
        }
        let store = tempfile::tempdir().unwrap();
        let url = format!("file://{}", store.path().join("root").display());
        TestMount {
            mount: Mount::with(&url, arguments),
            store: Some(store),
        }
    }

    /// On HDFS in any case.
    pub fn on_hdfs(arguments: &[&str]) -> TestMount {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}/root-{n}", cluster().url());
        let conf = cluster().conf_dir();
        let own = ["--replication=2", "--hadoop-conf", conf.to_str().unwrap()];
        TestMount {
            mount: Mount::with(&url, &[&own, arguments].concat()),
            store: None,
        }
    }

    /// The root's folder, if it is on the local disk.
    pub fn store(&self) -> Option<PathBuf> {
        Some(self.store.as_ref()?.path().join("root"))
    }

    /// What `stowfs status` says.
    pub fn status(&self) -> serde_json::Value {
        let mut status = super::mount::stowfs();
        status.arg("status").arg(self.path());
        let text = run(status.arg("--run-dir").arg(self.run_dir()));
        serde_json::from_str(&text).unwrap()
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

/// No panic was caught, no invariant found broken, and no call failed for want of the store.
fn assert_sound(mount: &Mount) {
    let log = mount.log();
    for word in [
        "panicked",
        "this is a bug",
        "This is a bug",
        "EIO for a program",
    ] {
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
