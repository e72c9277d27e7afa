//! `stowfs mount`: from arguments to a served mount, and to its end.

use super::args::MountArgs;
use super::control::{Commands, Server};
use super::rundir::{self, Holder, MountFiles, MountLock};
use super::shutdown;
use super::upkeep_served;
use super::{Exit, complain, daemon, logging, memory, notify, options, scrub, undo};
use crate::admin::segments_of_volume;
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result, SystemClock};
use crate::fs::{Fs, FsOptions};
use crate::fuse::{self, MountOptions, MountRequest, Mounted, Mountpoint};
use crate::store::connect::{ConnectOptions, connect};
use crate::store::hdfs::HdfsOptions;
use crate::store::url::StoreUrl;
use crate::volume::{OpenOptions, Volume};
use futures::FutureExt;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub fn run(args: &MountArgs) -> ExitCode {
    let gathered = options::gather(args, std::env::vars_os());
    let checked = gathered.and_then(|found| StoreUrl::parse(&args.url).map(|_| found));
    let (config, mount_options) = match checked {
        Ok(found) => found,
        Err(e) => return complain(&e).into(),
    };
    if args.daemon && !args.daemon_child {
        return daemon::start();
    }
    match Plan::make(args, config, mount_options).and_then(Plan::carry_out) {
        Ok(exit) => exit.into(),
        Err(e) => complain(&e).into(),
    }
}

/// A mount that can be tried: everything that can be known before the store is asked.
struct Plan {
    url: String,
    config: Config,
    mount_options: MountOptions,
    mountpoint: Mountpoint,
    files: MountFiles,
    run_dir: PathBuf,
    log_file: Option<PathBuf>,
    daemon: bool,
}

impl Plan {
    fn make(args: &MountArgs, config: Config, mount_options: MountOptions) -> Result<Plan> {
        if args.daemon_child {
            daemon::leave_terminal()?;
        }
        let run_dir = rundir::prepare(&config)?;
        let mountpoint = Mountpoint::named(&args.mountpoint)?;
        let files = MountFiles::new(&run_dir, &mountpoint);
        files.check_length()?;
        let log_file = config
            .log_file
            .clone()
            .or_else(|| args.daemon_child.then(|| files.log()));
        logging::start(&config, log_file.as_deref())?;
        mountpoint.prepare()?;
        if let StoreUrl::File(root) = StoreUrl::parse(&args.url)? {
            mountpoint.refuse_overlap(&root)?;
        }
        let holder = Holder {
            pid: std::process::id(),
            url: args.url.clone(),
            mountpoint: mountpoint.to_string(),
        };
        wait_for_the_last(&mountpoint, &files, config.op_timeout, log_file.is_some())?;
        // Held until the process has ended: who waits for it may rely on all being let go.
        std::mem::forget(MountLock::take(&files, &holder)?);
        Ok(Plan {
            url: args.url.clone(),
            config,
            mount_options,
            mountpoint,
            files,
            run_dir,
            log_file,
            daemon: args.daemon_child,
        })
    }

    fn carry_out(self) -> Result<Exit> {
        memory::share_arenas();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("stowfs-task")
            .build()
            .context("cannot start threads")?;
        let exit = runtime.block_on(self.serve());
        // Tasks that hang in the store must not keep the process.
        runtime.shutdown_background();
        exit
    }

    async fn serve(self) -> Result<Exit> {
        // Before the mount exists, so that no signal can miss it.
        let mut end = shutdown::Signals::listen()?;
        let volume = tokio::select! {
            volume = self.open() => volume?,
            end = end.next() => {
                tracing::info!("{end:?}: giving up before the mount is ready");
                return Ok(Exit::Error);
            }
        };
        let fs = Fs::new(volume.clone(), FsOptions::default());
        let mut mounted = match self.mount(fs.clone()) {
            Ok(mounted) => mounted,
            Err(e) => {
                shutdown::close(&fs, &volume).await?;
                return Err(e);
            }
        };
        let _server = Server::start(self.files.socket(), self.commands(&fs));
        if let Err(e) = &_server {
            tracing::warn!("{e}: `stowfs status` will not work");
        }
        self.announce(&volume)?;
        let ended = end.wait(&volume, &mut mounted).await;
        shutdown::finish(ended, &mounted, &fs, &volume, &mut end).await
    }

    async fn open(&self) -> Result<Arc<Volume>> {
        let store = connect(&self.url, &store_options(&self.config)).await?;
        let mut config = self.config.clone();
        // Lower layers give up first: they know what was slow, and say so.
        config.op_timeout = config.op_timeout.mul_f32(0.9);
        let options = OpenOptions {
            config,
            clock: Arc::new(SystemClock),
            host: hostname(),
            pid: std::process::id(),
            lock_dir: Some(self.run_dir.clone()),
            takeover: self.config.takeover,
            read_only: self.mount_options.read_only,
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
        };
        Volume::open(store, options)
            .await
            .context(format!("cannot mount {}", self.url))
    }

    fn mount(&self, fs: Arc<Fs>) -> Result<Mounted> {
        fuse::mount(
            fs,
            MountRequest {
                source: &self.url,
                mountpoint: self.mountpoint.clone(),
                options: &self.mount_options,
                config: &self.config,
                run_dir: &self.run_dir,
            },
        )
    }

    /// What the control socket answers.
    fn commands(&self, fs: &Arc<Fs>) -> Commands {
        let mut commands = Commands::default();
        let volume = fs.volume();
        let (url, mountpoint) = (self.url.clone(), self.mountpoint.to_string());
        upkeep_served::add(&mut commands, volume);
        undo::add_commands(&mut commands, volume);
        scrub::add_commands(&mut commands, volume);
        super::adopt::add(&mut commands, volume);
        let (fs, listed) = (fs.clone(), volume.clone());
        commands.add("segments", move |_| {
            let volume = listed.clone();
            async move {
                let segments = segments_of_volume(&volume).await?;
                serde_json::to_value(segments)
                    .map_err(|e| Error::new(ErrorKind::Other, e.to_string()))
            }
            .boxed()
        });
        commands.add("status", move |_| {
            let volume = fs.volume();
            let status = json!({
                "url": url,
                "mountpoint": mountpoint,
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "epoch": volume.epoch().0,
                "inodes": volume.read(|index| index.inodes()),
                "fenced": volume.is_fenced(),
                "scrub": scrub::summary(volume),
                "memory": memory::summary(&fs),
            });
            async move { Ok(status) }.boxed()
        });
        commands
    }

    /// One line for the user (and, with `--daemon`, for the parent).
    fn announce(&self, volume: &Volume) -> Result<()> {
        let found = volume.recovered();
        let (epoch, files, ms) = (volume.epoch(), found.files, found.took.as_millis());
        let line = format!(
            "stowfs: {} mounted on {} (epoch {epoch}, {files} files, recovered in {ms} ms)",
            self.url, self.mountpoint
        );
        println!("{line}");
        notify::ready();
        if let Some(log) = &self.log_file {
            tracing::info!("{line}");
            if self.daemon {
                daemon::leave_parent(logging::open(log)?)?;
            }
        }
        Ok(())
    }
}

/// After `umount`, above all a lazy one, the process of the mount may live on for a while.
fn wait_for_the_last(
    mountpoint: &Mountpoint,
    files: &MountFiles,
    limit: Duration,
    logs_to_file: bool,
) -> Result<()> {
    let live = mountpoint.is_fuse_mount() && !mountpoint.is_dead();
    if live || rundir::wait_for_end(files, Duration::ZERO)? {
        return Ok(());
    }
    let pid = files.holder_pid();
    let limit_shown = humantime::format_duration(limit);
    let text = format!(
        "{mountpoint} is unmounted, but its last process (pid {pid}) has not ended: it commits what is \
         left, or somebody has files open; waiting for it, for at most {limit_shown}"
    );
    tracing::warn!("{text}");
    if logs_to_file {
        eprintln!("stowfs: {text}");
    }
    if rundir::wait_for_end(files, limit)? {
        return Ok(());
    }
    let text = format!(
        "the last process of {mountpoint} (pid {pid}) has not ended after {limit_shown}: close the files \
         that are open there, or end it, and mount again"
    );
    Err(Error::new(ErrorKind::Owned, text))
}

pub(super) fn store_options(config: &Config) -> ConnectOptions {
    ConnectOptions {
        hdfs: HdfsOptions {
            replication: Some(config.replication.into()),
            block_size: config.block_size,
            conf_dir: config.hadoop_conf.clone(),
            ..HdfsOptions::within(config.op_timeout / 2)
        },
    }
}

pub(super) fn hostname() -> String {
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "unknown".to_string())
}
