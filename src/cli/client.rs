//! Commands that talk about a running mount: `umount` and `status`.

use super::args::{StatusArgs, UmountArgs};
use super::control::ask;
use super::rundir::{self, MountFiles};
use super::{Exit, complain};
use crate::base::{Error, ErrorKind, Result};
use crate::fuse::{Mountpoint, unmount};
use crate::segment::META_DIR;
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
    running(mountpoint, run_dir).map(|(_, files)| files.socket())
}

/// The mount that a command means which also takes a store.
pub(super) fn running_or_store(
    target: &str,
    run_dir: Option<&Path>,
) -> Result<(Mountpoint, MountFiles)> {
    let path = Path::new(target);
    let mounted = Mountpoint::named(path).is_ok_and(|m| m.is_fuse_mount());
    if mounted {
        return running(path, run_dir);
    }
    let root = path.join(META_DIR).is_dir();
    let whole = path.canonicalize().ok().filter(|_| root);
    let hint = match whole {
        Some(whole) => format!(
            "it has the files of a root; that is file://{}",
            whole.display()
        ),
        None => "a store is file:///dir, hdfs://host:port/dir or hdfs://nameservice/dir; \
                 `stowfs mount STORE-URL DIR` mounts one"
            .to_string(),
    };
    let text = format!("{target} is neither a running stowfs mount nor the URL of a store: {hint}");
    Err(Error::new(ErrorKind::NotFound, text))
}

/// A mount that is there and alive.
pub(super) fn running(
    mountpoint: &Path,
    run_dir: Option<&Path>,
) -> Result<(Mountpoint, MountFiles)> {
    let (mountpoint, files) = locate(mountpoint, run_dir)?;
    let socket = files.socket();
    let text = if !mountpoint.is_fuse_mount() {
        format!(
            "{mountpoint} is not a stowfs mount: nothing is mounted there by FUSE; \
             `stowfs mount STORE-URL {mountpoint}` mounts a root there"
        )
    } else if mountpoint.is_dead() {
        format!(
            "the mount at {mountpoint} is dead: its process was killed, or it was fenced because \
             another mount took the root over, or its store vanished; its log says which. Mount again, or `stowfs umount {mountpoint}`"
        )
    } else if !socket.exists() {
        let socket = socket.display();
        format!(
            "{mountpoint} is not a stowfs mount of this user: there is no control socket {socket}; \
             if it was mounted with another run-dir, name that with --run-dir"
        )
    } else {
        return Ok((mountpoint, files));
    };
    Err(Error::new(ErrorKind::NotFound, text))
}

pub(super) fn locate(
    mountpoint: &Path,
    run_dir: Option<&Path>,
) -> Result<(Mountpoint, MountFiles)> {
    refuse_url(mountpoint, run_dir)?;
    let mountpoint = Mountpoint::named(mountpoint)?;
    let files = MountFiles::new(&rundir::path(run_dir), &mountpoint);
    Ok((mountpoint, files))
}

/// Of a store that is mounted on this host, people often name the URL.
pub(super) fn refuse_url(named: &Path, run_dir: Option<&Path>) -> Result<()> {
    let Some(url) = named.to_str().filter(|text| text.contains("://")) else {
        return Ok(());
    };
    if named.exists() {
        return Ok(());
    }
    let wanted = url.trim_end_matches('/');
    let mounts = rundir::live_mounts(&rundir::path(run_dir));
    let mounted = (mounts.into_iter()).find(|(_, m)| m.url.trim_end_matches('/') == wanted);
    let hint = match mounted {
        Some((_, holder)) => format!("; it is mounted on {}", holder.mountpoint),
        None => String::new(),
    };
    let text = format!("this command needs a mountpoint, not a store URL: {url}{hint}");
    Err(Error::new(ErrorKind::Usage, text))
}
