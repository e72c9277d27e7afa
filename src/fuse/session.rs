//! The life of a mount: it begins here, and ends by us, by umount(8), or by an abort.

use super::adapter::{Adapter, Timeouts};
use super::kernel::MAX_IO;
use super::mountpoint::Mountpoint;
use super::options::MountOptions;
use super::staging::Staging;
use super::task::{Runner, Waiting};
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use crate::fs::Fs;
use fuser::{Session, SessionACL};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

pub struct MountRequest<'a> {
    /// What the mount table shows as the source.
    pub source: &'a str,
    pub mountpoint: Mountpoint,
    pub options: &'a MountOptions,
    pub config: &'a Config,
    /// A directory that only we use.
    pub run_dir: &'a Path,
}

/// A mount that the kernel knows.
pub struct Mounted {
    mountpoint: Mountpoint,
    /// Device number of our mount, to tell it from one that took its place.
    device: Option<String>,
    ended: oneshot::Receiver<()>,
    waiting: Waiting,
}

/// Mounts; the kernel's requests are served from now on, by own threads and the current runtime.
pub fn mount(fs: Arc<Fs>, request: MountRequest<'_>) -> Result<Mounted> {
    let MountRequest {
        source,
        mountpoint,
        options,
        config,
        run_dir,
    } = request;
    let runtime = tokio::runtime::Handle::current();
    let (alive, ended) = oneshot::channel();
    let runner = Runner::new(fs, runtime, config.op_timeout);
    let waiting = runner.waiting();
    let adapter = Adapter {
        runner,
        squash: options.squash,
        timeouts: Timeouts {
            entry: config.entry_timeout,
            attr: config.attr_timeout,
        },
        _alive: alive,
    };
    let threads = loop_threads(config.threads);
    let mut settings = fuser::Config::default();
    settings.mount_options = options.to_fuser(source);
    settings.acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    settings.n_threads = Some(threads);
    settings.clone_fd = threads > 1;
    let doing = format!("cannot mount on {mountpoint}");
    let staging = instead_of_dead(&mountpoint, run_dir)?;
    let first = staging.as_ref().map_or(mountpoint.path(), Staging::path);
    let session = Session::new(adapter, first, &settings)
        .map_err(explain)
        .context(&doing)?;
    let background = session.spawn().context(&doing)?;
    // Dropped, it would unmount whatever is at the mountpoint by then; `detach` looks first.
    std::mem::forget(background);
    if let Some(staging) = staging {
        staging.replace(&mountpoint)?;
    }
    let device = mountpoint.mounted_device();
    if let Some(device) = &device {
        read_far_ahead(device);
    }
    Ok(Mounted {
        mountpoint,
        device,
        ended,
        waiting,
    })
}

/// Where to mount first if a dead mount is in the way; it is detached here if there is no such place.
fn instead_of_dead(mountpoint: &Mountpoint, run_dir: &Path) -> Result<Option<Staging>> {
    if !mountpoint.is_dead() {
        return Ok(None);
    }
    tracing::warn!("{mountpoint} is a dead mount (its process is gone): replacing it");
    let staging = Staging::make(run_dir)?;
    if staging.is_none() {
        mountpoint.detach()?;
    }
    Ok(staging)
}

/// Lets the kernel read ahead as much as one request holds; its default is 128 KiB. Only root can.
fn read_far_ahead(device: &str) {
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(e) = std::fs::write(&setting, (MAX_IO / 1024).to_string()) {
        tracing::debug!("{setting}: {e}");
    }
}

impl Mounted {
    /// Returns when the kernel has ended the session: unmounted and unused, or aborted.
    pub async fn ended(&mut self) {
        // The adapter holds the sender, and the session drops the adapter last.
        let _dropped = (&mut self.ended).await;
    }

    /// Lets operations that are under way reply, once what they wait for has happened.
    pub async fn drain(&self) {
        self.waiting.drain(Duration::from_secs(2)).await;
    }

    /// Takes the mount out of the namespace. Files that are open stay usable until the process
    /// exits. Nothing happens when it is gone already.
    pub fn detach(&self) -> Result<()> {
        if self.device.is_some() && self.mountpoint.mounted_device() == self.device {
            self.mountpoint.detach()?;
        }
        Ok(())
    }
}

/// fuser opens the device itself, also where fusermount3 does the mounting.
fn explain(e: std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            "/dev/fuse is missing; try `modprobe fuse`",
        ),
        std::io::ErrorKind::PermissionDenied => Error::new(
            ErrorKind::Denied,
            format!(
                "{}; a user must be able to write to /dev/fuse and to the mountpoint, and \
                 allow_other needs user_allow_other in /etc/fuse.conf",
                e.to_string().trim_end()
            ),
        ),
        _ => e.into(),
    }
}

fn loop_threads(configured: u16) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
        n => usize::from(n),
    }
}
