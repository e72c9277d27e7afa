//! `--daemon`: the program starts itself again as a child in a session of its own, and returns
//! when the child says that the mount is ready, or with the child's error and exit code.
//!
//! The child's standard output is a pipe to the parent until then. Its errors up to that moment go
//! to the parent's standard error, later ones to the log file.

use super::{Exit, complain};
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};

/// The parent's side.
pub fn start() -> std::process::ExitCode {
    match spawn_and_wait() {
        Ok(code) => code,
        Err(e) => complain(&e).into(),
    }
}

fn spawn_and_wait() -> Result<std::process::ExitCode> {
    let doing = "cannot start the background process";
    let mut arguments = std::env::args_os();
    let mut child = Command::new("/proc/self/exe")
        .arg0(arguments.next().unwrap_or_else(|| "stowfs".into()))
        // The command, then its flags; `--` may follow.
        .args(arguments.next())
        .arg("--daemon-child")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(doing)?;
    let Some(output) = child.stdout.take() else {
        return Err(Error::new(ErrorKind::Other, format!("{doing}: no pipe")));
    };
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .context("the background process")?;
    if !line.is_empty() {
        print!("{line}");
        return Ok(Exit::Ok.into());
    }
    let status = child.wait().context("the background process")?;
    if status.code().is_none() {
        eprintln!("stowfs: the background process ended before the mount was ready: {status}");
    }
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> std::process::ExitCode {
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) | None => Exit::Error.into(),
        Some(code) => code.into(),
    }
}

/// The child's first step: no terminal's signals reach it any more.
pub fn leave_terminal() -> Result<()> {
    nix::unistd::setsid()
        .map(drop)
        .map_err(std::io::Error::from)
        .context("cannot leave the terminal")
}

/// The child's last step before it serves: what was inherited is let go.
pub fn leave_parent(log: File) -> Result<()> {
    let doing = "cannot go to the background";
    let null = OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .context(doing)?;
    std::env::set_current_dir("/").context(doing)?;
    nix::unistd::dup2_stdout(null)
        .map_err(std::io::Error::from)
        .context(doing)?;
    nix::unistd::dup2_stderr(log)
        .map_err(std::io::Error::from)
        .context(doing)
}
