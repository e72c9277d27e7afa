//! Layer 8: the command line.

mod admin;
mod adopt;
mod args;
mod client;
mod control;
mod daemon;
mod export;
mod logging;
mod memory;
mod mount;
mod notify;
mod options;
mod rundir;
mod scrub;
mod shutdown;
mod stat;
mod undo;
mod upkeep;
mod upkeep_served;

pub use control::{Commands, Progress, Reply};

use crate::base::{Error, ErrorKind};
use args::{Args, Command};
use clap::Parser;
use nix::sys::signal::{SigHandler, Signal};
use std::process::ExitCode;

/// How a process ends. `--help` and README.md list these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Ok = 0,
    /// Also of a mount whose store vanished.
    Error = 1,
    /// Also what clap exits with.
    Usage = 2,
    /// Another mount has taken the root over; EX_UNAVAILABLE of sysexits.h.
    Fenced = 69,
}

impl Exit {
    fn of(error: &Error) -> Exit {
        match error.kind() {
            ErrorKind::Fenced => Exit::Fenced,
            ErrorKind::Usage => Exit::Usage,
            _ => Exit::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let command = Args::parse().command;
    if !matches!(command, Command::Mount(_)) {
        end_with_the_reader();
    }
    match command {
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => client::umount(&args).into(),
        Command::Status(args) => client::status(&args).into(),
        Command::Stat(args) => stat::run(&args).into(),
        Command::Segments(args) => admin::run_segments(&args).into(),
        Command::Gc(args) => upkeep::gc(&args).into(),
        Command::Compact(args) => upkeep::compact(&args).into(),
        Command::Adopt(args) => adopt::run(&args).into(),
        Command::Export(args) => export::run(&args).into(),
        Command::Fsck(args) => admin::run_fsck(&args),
        Command::Deleted(args) => undo::run_deleted(&args).into(),
        Command::Scrub(args) => scrub::run(&args).into(),
        Command::Undelete(args) => undo::run_undelete(&args).into(),
    }
}

/// In `stowfs segments DIR | head` the reader ends first; that is no reason to panic. A mount has
/// sockets, and must not end that way.
fn end_with_the_reader() {
    // SAFETY: the default action is no handler of ours, and no other thread runs yet.
    let _ = unsafe { nix::sys::signal::signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Tells the user what went wrong.
fn complain(error: &Error) -> Exit {
    eprintln!("stowfs: {}", admin::printable(&error.to_string()));
    Exit::of(error)
}
