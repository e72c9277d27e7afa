//! Mounts the program that was just built, and cleans up whatever happens: at the end of a test,
//! also of a failed one, no process and no mount is left.

use super::daemon;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a mount may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// A take-over on HDFS waits until the segments of the dead are closed, and that can take minutes: a
/// DataNode that failed to recover a block waits 60 s for a thread that writes no more, and the
/// NameNode lets 30 heartbeats pass between two attempts.
const READY: Duration = Duration::from_secs(240);

/// The program under test.
pub fn stowfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stowfs"));
    command.stdin(Stdio::null());
    command
}

/// A store on the local disk.
pub struct LocalStore(pub TempDir);

impl LocalStore {
    pub fn new() -> LocalStore {
        LocalStore(tempfile::tempdir().unwrap())
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.0.path().join("root").display())
    }
}

/// A mount, its process, and the folder with its mountpoint, run-dir and log.
pub struct Mount {
    url: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    dir: Option<TempDir>,
    child: Option<Child>,
    ready: String,
}

impl Mount {
    /// Mounts `url`; panics with the log if that fails.
    pub fn new(url: &str) -> Mount {
        Mount::with(url, &[])
    }

    /// Mounts with further arguments.
    pub fn with(url: &str, arguments: &[&str]) -> Mount {
        Mount::try_with(url, arguments).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Mounts, or tells what the program said.
    pub fn try_with(url: &str, arguments: &[&str]) -> Result<Mount, String> {
        let mut mount = Mount::unmounted(url, arguments);
        mount.try_start()?;
        Ok(mount)
    }

    /// Everything but the mount itself.
    pub fn unmounted(url: &str, arguments: &[&str]) -> Mount {
        let dir = tempfile::Builder::new()
            .prefix("stowfs-mount-")
            .tempdir()
            .unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        Mount {
            url: url.to_string(),
            arguments: arguments.iter().map(|a| a.to_string()).collect(),
            environment: Vec::new(),
            dir: Some(dir),
            child: None,
            ready: String::new(),
        }
    }

    /// A variable of the program's environment.
    pub fn env(mut self, name: &str, value: &str) -> Mount {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The folder of the mountpoint, the run-dir and the log.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// The mountpoint.
    pub fn path(&self) -> PathBuf {
        self.dir().join("mnt")
    }

    /// A path in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir().join("run")
    }

    /// The line that was printed when the mount was ready.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("not mounted").id()
    }

    /// Memory of the process (bytes).
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    /// What the process has logged, over all its lives.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// `stowfs mount` with all arguments; not started.
    pub fn command(&self) -> Command {
        let mut command = stowfs();
        command.arg("mount").arg(&self.url).arg(self.path());
        command.arg("--run-dir").arg(self.run_dir());
        command.args(&self.arguments);
        command.envs(self.environment.iter().cloned());
        command
    }

    fn try_start(&mut self) -> Result<(), String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir().join("log"))
            .unwrap();
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = daemon::spawn(command).unwrap();
        let output = child.stdout.take().unwrap();
        self.child = Some(child);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = send.send(line);
        });
        match receive.recv_timeout(READY) {
            Ok(line) if !line.is_empty() => {
                self.ready = line;
                Ok(())
            }
            Ok(_) => {
                let status = self.wait();
                Err(format!(
                    "stowfs ended before it was ready ({status}):\n{}",
                    self.log()
                ))
            }
            Err(_) => Err(format!(
                "stowfs is not ready after {READY:?}:\n{}",
                self.log()
            )),
        }
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> ExitStatus {
        self.try_wait(PATIENCE)
            .unwrap_or_else(|| panic!("stowfs has not ended after {PATIENCE:?}:\n{}", self.log()))
    }

    /// None if the process has not ended in time.
    pub fn try_wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        let child = self.child.as_mut()?;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return Some(status);
            }
            if begun.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Kills the process as a crash would; the mountpoint stays, dead.
    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    /// SIGTERM, and how the process ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// `stowfs umount`, which must succeed, and how the process of the mount ended.
    pub fn umount(&mut self) -> ExitStatus {
        let output = self.umount_command(&[]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.wait()
    }

    pub fn umount_command(&self, arguments: &[&str]) -> Output {
        let mut command = stowfs();
        command
            .arg("umount")
            .arg(self.path())
            .arg("--run-dir")
            .arg(self.run_dir());
        command.args(arguments).output().unwrap()
    }

    /// Mounts again after the process has ended, however it did.
    pub fn remount(&mut self) {
        self.try_remount().unwrap_or_else(|e| panic!("{e}"));
    }

    pub fn try_remount(&mut self) -> Result<(), String> {
        assert!(self.child.is_none(), "still mounted");
        self.try_start()
    }

    pub fn is_in_mount_table(&self) -> bool {
        is_mounted(&self.path())
    }
}

pub fn is_mounted(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|l| l.split(' ').nth(4) == path.to_str())
}

fn detach(path: &Path) {
    if is_mounted(path) && umount2(path, MntFlags::MNT_DETACH).is_err() {
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "--"])
            .arg(path)
            .output();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(child) = &self.child {
            // A frozen process gets the signal when it is thawed.
            let pid = Pid::from_raw(child.id() as i32);
            let _ = kill(pid, Signal::SIGTERM);
            let _ = kill(pid, Signal::SIGCONT);
            if self.try_wait(Duration::from_secs(10)).is_none() {
                let _ = kill(pid, Signal::SIGKILL);
                self.try_wait(PATIENCE);
            }
        }
        let path = self.path();
        detach(&path);
        if std::thread::panicking() {
            eprintln!("--- log of stowfs on {}:\n{}", path.display(), self.log());
        }
        if is_mounted(&path) {
            // Removing the folder would remove what is in the mount.
            let _kept = self.dir.take().map(TempDir::keep);
        }
    }
}
