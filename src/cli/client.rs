//! Commands that talk about a running mount: `umount` and `status`.

use super::args::{StatusArgs, UmountArgs};
use super::control::ask;
use super::rundir::{self, MountFiles};
use super::{Exit, complain};
use crate::base::{Error, ErrorKind, Result};
use crate::fuse::{Mountpoint, unmount};
use serde_json::json;
use std::path::Path;
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
    let answer = locate(&args.mountpoint, args.run_dir.as_deref()).and_then(|(_, files)| {
        ask(
            &files.socket(),
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

pub(super) fn locate(
    mountpoint: &Path,
    run_dir: Option<&Path>,
) -> Result<(Mountpoint, MountFiles)> {
    let mountpoint = Mountpoint::named(mountpoint)?;
    let files = MountFiles::new(&rundir::path(run_dir), &mountpoint);
    Ok((mountpoint, files))
}
