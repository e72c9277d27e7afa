//! Commands that talk about a running mount: `umount` and `status`.

use super::args::{StatusArgs, UmountArgs};
use super::control::ask;
use super::rundir::{self, MountFiles};
use super::{Exit, complain};
use crate::base::{Error, ErrorKind, Result};
use crate::fuse::{Mountpoint, unmount};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest that a mount may take to commit and seal once it is unmounted.
const UMOUNT_LIMIT: Duration = Duration::from_secs(300);

pub fn umount(args: &UmountArgs) -> Exit {
    match try_umount(args) {
        Ok(()) => Exit::Ok,
        Err(e) => complain(&e),
    }
}

fn try_umount(args: &UmountArgs) -> Result<()> {
    let (mountpoint, files) = locate(&args.mountpoint, args.run_dir.as_deref())?;
    if !mountpoint.is_fuse_mount() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{mountpoint} is not mounted"),
        ));
    }
    unmount(&mountpoint, args.lazy)?;
    // After a lazy unmount the process lives on for as long as files are open.
    if args.lazy || rundir::wait_for_end(&files, UMOUNT_LIMIT)? {
        return Ok(());
    }
    let limit = UMOUNT_LIMIT.as_secs();
    let text = format!("{mountpoint} is unmounted, but its process has not ended after {limit} s");
    Err(Error::new(ErrorKind::TimedOut, text))
}

pub fn status(args: &StatusArgs) -> Exit {
    let answer = live(&args.mountpoint, args.run_dir.as_deref()).and_then(|socket| {
        ask(
            &socket,
            &json!({ "command": "status" }),
            Duration::from_secs(10),
        )
    });
    match answer {
        Ok(value) => {
            println!("{value:#}");
            Exit::Ok
        }
        Err(e) => complain(&e),
    }
}

/// The control socket of a mount that is there and alive.
pub(super) fn live(mountpoint: &Path, run_dir: Option<&Path>) -> Result<PathBuf> {
    let (mountpoint, files) = locate(mountpoint, run_dir)?;
    let socket = files.socket();
    let text = if !mountpoint.is_fuse_mount() {
        format!("{mountpoint} is not a stowfs mount: nothing is mounted there by FUSE")
    } else if mountpoint.is_dead() {
        format!(
            "the mount at {mountpoint} is dead: its process was killed, or it was fenced because \
             another mount took the root over; mount again, or `stowfs umount {mountpoint}`"
        )
    } else if !socket.exists() {
        let socket = socket.display();
        format!(
            "{mountpoint} is not a stowfs mount of this user: there is no control socket {socket}; \
             if it was mounted with another run-dir, name that with --run-dir"
        )
    } else {
        return Ok(socket);
    };
    Err(Error::new(ErrorKind::NotFound, text))
}

pub(super) fn locate(
    mountpoint: &Path,
    run_dir: Option<&Path>,
) -> Result<(Mountpoint, MountFiles)> {
    let mountpoint = Mountpoint::named(mountpoint)?;
    let files = MountFiles::new(&rundir::path(run_dir), &mountpoint);
    Ok((mountpoint, files))
}
