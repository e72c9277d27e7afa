//! `stowfs fsck` and `stowfs segments`.

use super::args::{FsckArgs, SegmentsArgs};
use super::control::ask;
use super::mount::{hostname, store_options};
use super::options::OptionArgs;
use super::{Exit, client, complain, logging, options, rundir};
use crate::admin::{
    FsckOptions, RebuildOptions, Segments, fsck, rebuild, segments_of_store, shown,
};
use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result, SystemClock};
use crate::store::Store;
use crate::store::connect::connect;
use serde::Serialize;
use serde_json::json;
use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Of fsck: as fsck(8) has them, roughly.
const PROBLEMS: u8 = 1;
const COULD_NOT_RUN: u8 = 2;

/// Segments read at once by fsck.
const PARALLEL: usize = 4;

/// A large index takes a while to go through.
const SEGMENTS_LIMIT: Duration = Duration::from_secs(120);

pub fn run_fsck(args: &FsckArgs) -> ExitCode {
    let done = with_store(
        &args.url,
        args.config.as_deref(),
        &args.options,
        |store, config| async move {
            if args.rebuild {
                run_rebuild(store, &config, args.json).await
            } else {
                let report = fsck(store, &FsckOptions { parallel: PARALLEL }).await?;
                show(&report, args.json)?;
                Ok(report.is_clean())
            }
        },
    );
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => PROBLEMS.into(),
        Err(e) => {
            complain(&e);
            COULD_NOT_RUN.into()
        }
    }
}

/// True if nothing was lost.
async fn run_rebuild(store: Arc<dyn Store>, config: &Config, json: bool) -> Result<bool> {
    let options = RebuildOptions {
        clock: Arc::new(SystemClock),
        host: hostname(),
        pid: std::process::id(),
        lock_dir: Some(rundir::prepare(config)?),
        takeover: config.takeover,
        parallel: PARALLEL,
    };
    let report = rebuild(store, &options).await?;
    show(&report, json)?;
    Ok(report.damaged.is_empty() && report.notes.is_empty() && report.lost_and_found == 0)
}

pub fn run_segments(args: &SegmentsArgs) -> Exit {
    let target = &args.target;
    let found = match target.contains("://") {
        true => with_store(
            target,
            args.config.as_deref(),
            &args.options,
            |store, _| async move { segments_of_store(&*store).await },
        ),
        false => of_mount(args),
    };
    match found.and_then(|segments| show(&segments, args.json)) {
        Ok(()) => Exit::Ok,
        Err(e) => complain(&e),
    }
}

fn of_mount(args: &SegmentsArgs) -> Result<Segments> {
    let config = options::config(args.config.as_deref(), &args.options, std::env::vars_os())?;
    let (_, files) = client::running_or_store(&args.target, config.run_dir.as_deref())?;
    let request = json!({ "command": "segments" });
    let answer = ask(&files.socket(), &request, SEGMENTS_LIMIT)?;
    serde_json::from_value(answer)
        .map_err(|e| Error::new(ErrorKind::Other, format!("the mount's answer: {e}")))
}

/// Connects to a store and does something with it.
pub(super) fn with_store<T, F: Future<Output = Result<T>>>(
    url: &str,
    file: Option<&Path>,
    given: &OptionArgs,
    work: impl FnOnce(Arc<dyn Store>, Config) -> F,
) -> Result<T> {
    let config = options::config(file, given, std::env::vars_os())?;
    logging::start(&config, None)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let done = runtime.block_on(async {
        let store = connect(url, &store_options(&config)).await?;
        work(store, config).await
    });
    runtime.shutdown_background();
    done
}

/// Keeps lines, and escapes other control characters: a name must not steer a terminal.
pub(super) fn printable(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(shown).collect();
    lines.join("\n")
}

pub(super) fn show(what: &(impl Serialize + Display), json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string_pretty(what)
            .map_err(|e| Error::new(ErrorKind::Other, e.to_string()))?;
        println!("{text}");
    } else {
        println!("{}", printable(&what.to_string()).trim_end());
    }
    Ok(())
}
