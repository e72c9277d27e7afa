//! A process that lives no longer than the test, and that can be killed, frozen and restarted.

use super::scratch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

pub struct Daemon {
    name: String,
    command: Box<dyn Fn() -> Command + Send>,
    child: Option<Child>,
}

impl Daemon {
    /// Starts what `command` makes, now and at each restart; its output is appended to `log`.
    pub fn start(
        name: &str,
        log: PathBuf,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Result<Daemon, String> {
        let command = move || {
            let mut c = command();
            let out = std::fs::File::options()
                .create(true)
                .append(true)
                .open(&log)
                .unwrap();
            c.stdout(out.try_clone().unwrap()).stderr(out);
            c
        };
        let mut daemon = Daemon {
            name: name.into(),
            command: Box::new(command),
            child: None,
        };
        daemon.restart()?;
        Ok(daemon)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does nothing if it runs.
    pub fn restart(&mut self) -> Result<(), String> {
        if self.child.is_none() {
            let child = spawn((self.command)()).map_err(|e| format!("{}: {e}", self.name))?;
            scratch::register(child.id());
            self.child = Some(child);
        }
        Ok(())
    }

    pub fn should_run(&self) -> bool {
        self.child.is_some()
    }

    pub fn ended_by_itself(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|c| matches!(c.try_wait(), Ok(Some(_))))
    }

    /// SIGKILL, which reaches a frozen process too.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            scratch::forget(child.id());
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns when every thread has stopped: the signal itself returns at once, and on a busy
    /// machine the threads of a JVM go on answering for a while.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        let begun = Instant::now();
        while !self.is_stopped() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{} does not stop",
                self.name
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_stopped(&self) -> bool {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            return true;
        };
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state stands behind the name, which is in brackets and may hold anything.
            let state = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.trim_start().chars().next());
            matches!(state, None | Some('T' | 'X' | 'Z'))
        })
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        let child = self.child.as_mut()?;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                scratch::forget(child.id());
                self.child = None;
                return Some(status);
            }
            if begun.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        let child = self
            .child
            .as_ref()
            .unwrap_or_else(|| panic!("{} was killed", self.name));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

type Spawned = std::io::Result<Child>;

/// Starts a child that the kernel kills when this process ends. The kernel watches the *thread*
/// that forked, so one that lives as long as the process does all the forking.
pub fn spawn(mut command: Command) -> Spawned {
    static SPAWNER: OnceLock<Sender<(Command, Sender<Spawned>)>> = OnceLock::new();
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::other("the test process has ended"));
            }
            Ok(())
        });
    }
    let spawner = SPAWNER.get_or_init(|| {
        let (tx, rx) = channel::<(Command, Sender<Spawned>)>();
        std::thread::Builder::new()
            .name("test-spawner".into())
            .spawn(move || {
                for (mut command, reply) in rx {
                    let _ = reply.send(command.spawn());
                }
            })
            .unwrap();
        tx
    });
    let (tx, rx) = channel();
    spawner.send((command, tx)).unwrap();
    rx.recv().unwrap()
}
