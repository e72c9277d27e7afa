//! One JVM.

use super::config::Layout;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

pub struct Daemon {
    name: String,
    command: Box<dyn Fn() -> Command + Send>,
    child: Option<Child>,
}

impl Daemon {
    pub fn start(
        layout: &Layout,
        name: &str,
        heap_mib: u32,
        class: &str,
        args: &[String],
    ) -> Result<Daemon, String> {
        let log: PathBuf = layout.dir.join("logs").join(format!("{name}.log"));
        let (layout, owned, class) = (layout.clone(), name.to_string(), class.to_string());
        let args = args.to_vec();
        let command = move || {
            let mut c = layout.java(&owned, heap_mib, &class);
            let out = std::fs::File::options()
                .create(true)
                .append(true)
                .open(&log)
                .unwrap();
            c.args(&args).stdout(out.try_clone().unwrap()).stderr(out);
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
            super::config::register(child.id());
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
            super::config::forget(child.id());
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self
            .child
            .as_ref()
            .unwrap_or_else(|| panic!("{} was killed", self.name));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }
}

type Spawned = std::io::Result<Child>;

/// Starts a child that the kernel kills when this process ends. The kernel watches the *thread*
/// that forked, so one that lives as long as the process does all the forking.
fn spawn(mut command: Command) -> Spawned {
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
            .name("hdfs-spawner".into())
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
