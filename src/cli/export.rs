//! `stowfs export`.

use super::admin::show;
use super::adopt::{advise, below, open_options};
use super::args::ExportArgs;
use super::mount::store_options;
use super::shutdown::{End, Signals};
use super::upkeep::Bar;
use super::{Exit, complain, logging, options, rundir};
use crate::admin::{
    Dest, ExportOptions, ExportReport, MountSource, RootSource, Source, export, normal_path,
    split_destination,
};
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use crate::fuse::Mountpoint;
use crate::store::Store;
use crate::store::connect::connect;
use crate::store::url::StoreUrl;
use crate::upkeep::plan::Step;
use crate::volume::{Begin, Volume};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

pub fn run(args: &ExportArgs) -> Exit {
    let done = carry_out(args).and_then(|report| {
        show(&report, args.json)?;
        Ok(report)
    });
    match done {
        Ok(report) if report.failed.is_empty() => Exit::Ok,
        Ok(_) => Exit::Error,
        Err(e) => complain(&e),
    }
}

fn carry_out(args: &ExportArgs) -> Result<ExportReport> {
    let config = options::config(args.config.as_deref(), &args.options, std::env::vars_os())?;
    logging::start(&config, None)?;
    let mountpoint = mountpoint(args, &config)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let done = runtime.block_on(async {
        let (parent, _) = split_destination(&args.dest)?;
        let dest = Dest::new(&args.dest, connect(&parent, &store_options(&config)).await?)?;
        match mountpoint {
            Some(mountpoint) => from_mount(&mountpoint, args, &dest).await,
            None => from_store(args, config, &dest).await,
        }
    });
    runtime.shutdown_background();
    done
}

/// Where the root is mounted, if it is, on this host.
fn mountpoint(args: &ExportArgs, config: &Config) -> Result<Option<Mountpoint>> {
    if args.source.contains("://") {
        let wanted = args.source.trim_end_matches('/');
        let live = rundir::live_mounts(&rundir::path(config.run_dir.as_deref()));
        let found = live
            .into_iter()
            .find(|(_, holder)| holder.url.trim_end_matches('/') == wanted);
        let Some((_, holder)) = found else {
            return Ok(None);
        };
        let at = holder.mountpoint;
        eprintln!("stowfs: {wanted} is mounted on {at}; reading there");
        return Mountpoint::named(Path::new(&at)).map(Some);
    }
    let mountpoint = Mountpoint::named(Path::new(&args.source))?;
    if !mountpoint.is_fuse_mount() || mountpoint.is_dead() {
        let text =
            format!("{mountpoint} is not a running mount; name its store to export from there");
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    Ok(Some(mountpoint))
}

async fn from_mount(
    mountpoint: &Mountpoint,
    args: &ExportArgs,
    dest: &Dest,
) -> Result<ExportReport> {
    let path = below(mountpoint, &args.path);
    if path.split('/').any(|part| part == "..") {
        let text = format!("{}: write the path without ..", args.path);
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if let StoreUrl::File(to) = StoreUrl::parse(&args.dest)?
        && to.starts_with(mountpoint.path().join(&path))
    {
        let text = format!("{} lies in what is exported", args.dest);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let source = MountSource::new(mountpoint.path(), &path);
    carry(&source, &path, args, dest).await
}

async fn from_store(args: &ExportArgs, config: Config, dest: &Dest) -> Result<ExportReport> {
    let store: Arc<dyn Store> = connect(&args.source, &store_options(&config)).await?;
    let path = normal_path(&args.path);
    if let Some(source) = RootSource::released(store.clone()).await? {
        return carry(&source, &path, args, dest).await;
    }
    // Its owner lives, or died: who opens it finds out, and closes what was left open.
    let volume = Volume::open_as_is(store, open_options(config)?, Begin::Nothing)
        .await
        .map_err(|e| advise(e, "export"))
        .context(format_args!("cannot open {}", args.source))?;
    let done = carry(&RootSource::owned(volume.clone()), &path, args, dest).await;
    let closed = volume.shutdown().await;
    let report = done?;
    closed.context("closing the root")?;
    Ok(report)
}

/// Until it is done or somebody has enough of it. The caller goes on either way, so that a root that
/// was taken over is released.
async fn carry(
    source: &dyn Source,
    path: &str,
    args: &ExportArgs,
    dest: &Dest,
) -> Result<ExportReport> {
    let mut signals = Signals::listen()?;
    let bar = Bar::new();
    let mut progress = |done, total| {
        bar.step(&json!(Step {
            doing: "exporting".into(),
            done,
            total,
        }));
    };
    let options = ExportOptions {
        partial: args.partial,
    };
    let work = export(source, path, dest, &options, &mut progress);
    let done = tokio::select! {
        done = work => done,
        end = signals.next() => {
            let why = match end {
                End::Signal(name) => name,
                _ => "a failure of a thread",
            };
            let text = format!("interrupted by {why}; {}", dest.left());
            Err(Error::new(ErrorKind::Other, text))
        }
    };
    bar.end();
    done
}
