//! Directories for what a test starts, below the target directory. They go away with the test; the
//! logs of a failed one stay, and their place is printed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

/// A directory whose `logs` folder may outlive it.
pub struct Scratch {
    dir: PathBuf,
    keep_logs: AtomicBool,
}

impl Scratch {
    /// `<what>-<pid>-<n>`, so that what a killed test process left is recognised and removed. The
    /// logs of failed tests are removed after a day.
    pub fn new(what: &str) -> io::Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let prefix = format!("{what}-");
        for entry in std::fs::read_dir(tmp)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(&prefix).and_then(|s| s.split('-').next());
            let ended = pid.is_some_and(|p| !Path::new("/proc").join(p).exists());
            if ended && !was_kept_today(&entry.path()) {
                remove(&entry.path(), false);
            }
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tmp.join(format!("{what}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("logs"))?;
        at_exit().dirs.lock().unwrap().push(dir.clone());
        Ok(Scratch {
            dir,
            keep_logs: AtomicBool::new(false),
        })
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Leaves the logs when the directory goes away.
    pub fn keep_logs(&self) {
        self.keep_logs.store(true, Ordering::Relaxed);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        at_exit().dirs.lock().unwrap().retain(|d| *d != self.dir);
        let keep = self.keep_logs.load(Ordering::Relaxed) || std::thread::panicking();
        remove(&self.dir, keep);
    }
}

fn was_kept_today(dir: &Path) -> bool {
    let kept = std::fs::metadata(dir.join("keep")).and_then(|m| m.modified());
    kept.is_ok_and(|t| {
        t.elapsed()
            .is_ok_and(|age| age < Duration::from_secs(24 * 3600))
    })
}

/// Removes all, or all but the logs.
fn remove(dir: &Path, keep_logs: bool) {
    if !keep_logs {
        let _ = std::fs::remove_dir_all(dir);
        return;
    }
    let _ = std::fs::write(dir.join("keep"), "");
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name() != "logs" && entry.file_name() != "keep" {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    eprintln!("the logs are in {}", dir.join("logs").display());
}

/// What is in a static is never dropped: what to clean when the process ends.
#[derive(Default)]
struct AtExit {
    pids: Mutex<Vec<u32>>,
    dirs: Mutex<Vec<PathBuf>>,
    a_test_failed: AtomicBool,
}

fn at_exit() -> &'static AtExit {
    static STATE: std::sync::LazyLock<AtExit> = std::sync::LazyLock::new(AtExit::default);
    static REGISTER: Once = Once::new();
    extern "C" fn run() {
        for pid in STATE.pids.lock().unwrap().drain(..) {
            // Children that were not waited for: their pids cannot have been given to others.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
        }
        for dir in STATE.dirs.lock().unwrap().drain(..) {
            remove(&dir, STATE.a_test_failed.load(Ordering::Relaxed));
        }
    }
    REGISTER.call_once(|| {
        unsafe { libc::atexit(run) };
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            STATE.a_test_failed.store(true, Ordering::Relaxed);
            previous(info);
        }));
    });
    &STATE
}

pub fn register(pid: u32) {
    at_exit().pids.lock().unwrap().push(pid);
}

pub fn forget(pid: u32) {
    at_exit().pids.lock().unwrap().retain(|p| *p != pid);
}
