//! `stowfs adopt`, from both ends of the control socket.

use super::admin::{show, with_store};
use super::args::AdoptArgs;
use super::control::{Commands, Progress, ask_watching};
use super::mount::hostname;
use super::rundir::{self, MountFiles};
use super::upkeep::Bar;
use super::{Exit, client, complain, options};
use crate::admin::{AdoptReport, AdoptRequest, adopt, adopt_dry, normal_path};
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result, SystemClock};
use crate::fuse::Mountpoint;
use crate::store::Store;
use crate::upkeep::plan::Step;
use crate::volume::{Begin, OpenOptions, Volume};
use futures::FutureExt;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A mount that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(120);

pub fn run(args: &AdoptArgs) -> Exit {
    let done = carry_out(args).and_then(|report| {
        show(&report, args.json)?;
        Ok(report)
    });
    match done {
        Ok(report) if report.is_complete() || args.dry_run => Exit::Ok,
        Ok(_) => Exit::Error,
        Err(e) => complain(&e),
    }
}

fn carry_out(args: &AdoptArgs) -> Result<AdoptReport> {
    let config = options::config(args.config.as_deref(), &args.options, std::env::vars_os())?;
    let mut request = AdoptRequest {
        path: normal_path(args.path.as_deref().unwrap_or_default()),
        dry_run: args.dry_run,
        pack: args.pack,
    };
    if !args.target.contains("://") {
        let (mountpoint, files) =
            client::running_or_store(&args.target, config.run_dir.as_deref())?;
        if let Some(path) = args.path.as_deref() {
            request.path = below(&mountpoint, path);
        }
        return ask_mount(&files, &request);
    }
    let run_dir = rundir::path(config.run_dir.as_deref());
    let wanted = args.target.trim_end_matches('/');
    let live = rundir::live_mounts(&run_dir);
    let mounted = live
        .into_iter()
        .find(|(_, holder)| holder.url.trim_end_matches('/') == wanted);
    if let Some((files, holder)) = mounted {
        eprintln!(
            "stowfs: {wanted} is mounted on {}; asking that mount",
            holder.mountpoint
        );
        return ask_mount(&files, &request);
    }
    with_store(
        &args.target,
        args.config.as_deref(),
        &args.options,
        |store, config| async move {
            match request.dry_run {
                true => adopt_dry(&*store, &request).await,
                false => alone(store, config, &request).await,
            }
        },
    )
}

/// A path may also be given as programs see it.
pub(super) fn below(mountpoint: &Mountpoint, path: &str) -> String {
    let inside = Path::new(path).strip_prefix(mountpoint.path()).ok();
    normal_path(inside.and_then(Path::to_str).unwrap_or(path))
}

fn ask_mount(files: &MountFiles, request: &AdoptRequest) -> Result<AdoptReport> {
    let mut request = json!(request);
    request["command"] = json!("adopt");
    let bar = Bar::new();
    let answer = ask_watching(&files.socket(), &request, SILENCE, &mut |step| {
        bar.step(step)
    });
    bar.end();
    let answer = answer?;
    serde_json::from_value(answer)
        .map_err(|e| Error::new(ErrorKind::Other, format!("the mount's answer: {e}")))
}

/// The mount's side.
pub(super) fn add(commands: &mut Commands, volume: &Arc<Volume>) {
    let volume = volume.clone();
    commands.add_long("adopt", move |request, progress| {
        serve(volume.clone(), request, progress).boxed()
    });
}

async fn serve(volume: Arc<Volume>, request: Value, progress: Progress) -> Result<Value> {
    let other = |e: serde_json::Error| Error::new(ErrorKind::Invalid, e.to_string());
    let request: AdoptRequest = serde_json::from_value(request).map_err(other)?;
    let mut tell = |done, total| {
        progress.tell(&packing(done, total));
    };
    let report = adopt(&volume, &request, &mut tell).await?;
    serde_json::to_value(report).map_err(other)
}

fn packing(done: u64, total: u64) -> Step {
    Step {
        doing: "packing".into(),
        done,
        total,
    }
}

/// Takes the root over for as long as it takes.
async fn alone(
    store: Arc<dyn Store>,
    config: Config,
    request: &AdoptRequest,
) -> Result<AdoptReport> {
    let url = store.url().to_string();
    // A mistyped directory must not become a root.
    store
        .list("")
        .await
        .context(format_args!("opening {url}"))?;
    let volume = Volume::open_as_is(store, open_options(config)?, Begin::Nothing)
        .await
        .map_err(|e| advise(e, "adopt"))
        .context(format_args!("cannot open {url}"))?;
    let bar = Bar::new();
    let mut progress = |done, total| bar.step(&json!(packing(done, total)));
    let done = adopt(&volume, request, &mut progress).await;
    bar.end();
    let closed = volume.shutdown().await;
    let report = done?;
    closed.context("closing the root")?;
    Ok(report)
}

pub(super) fn open_options(config: Config) -> Result<OpenOptions> {
    Ok(OpenOptions {
        lock_dir: Some(rundir::prepare(&config)?),
        takeover: config.takeover,
        config,
        clock: Arc::new(SystemClock),
        host: hostname(),
        pid: std::process::id(),
        read_only: false,
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
    })
}

pub(super) fn advise(e: Error, command: &str) -> Error {
    match e.kind() {
        ErrorKind::Owned => Error::new(
            ErrorKind::Owned,
            format!("{e}; or run `stowfs {command} MOUNTPOINT …` where it is mounted"),
        ),
        _ => e,
    }
}
