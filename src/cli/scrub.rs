//! `stowfs scrub`, and what a mount answers it.

use super::args::ScrubArgs;
use super::control::{Commands, ask};
use super::{Exit, admin, client, complain};
use crate::admin::Problem;
use crate::base::{Error, ErrorKind, Result};
use crate::upkeep::scrub::Damage;
use crate::volume::Volume;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(300);

/// How scrub is, since the mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Summary {
    /// A pass over everything that is under way: bytes done, and all.
    pass: Option<(u64, u64)>,
    passes: u64,
    /// Why the last pass that was asked for failed.
    failed: Option<String>,
    segments: u64,
    bytes: u64,
    damaged_files: usize,
    /// In segments, where no file uses it.
    damaged_unused: usize,
    damage: Vec<Damaged>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Damaged {
    file: Option<String>,
    segment: String,
    path: String,
    offset: u64,
    what: String,
}

impl Damaged {
    fn new(found: &Damage) -> Damaged {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Damaged {
            file: found.file.as_ref().map(text),
            segment: found.segment.to_string(),
            path: found.path.clone(),
            offset: found.offset,
            what: found.what.clone(),
        }
    }
}

impl Damaged {
    /// As fsck says it.
    fn problem(&self) -> Problem {
        let unused = if self.file.is_none() {
            "; no file uses it"
        } else {
            ""
        };
        Problem {
            path: self.path.clone(),
            offset: Some(self.offset),
            file: self.file.as_ref().map(|name| format!("/{name}")),
            what: format!("{}{unused}", self.what),
        }
    }
}

impl Summary {
    fn new(volume: &Volume) -> Summary {
        let state = volume.scrub().state();
        let files = state.damage.iter().filter(|d| d.file.is_some()).count();
        Summary {
            pass: state.pass,
            passes: state.passes,
            failed: state.failed.clone(),
            segments: state.segments,
            bytes: state.bytes,
            damaged_files: files,
            damaged_unused: state.damage.len() - files,
            damage: state.damage.iter().map(Damaged::new).collect(),
        }
    }
}

/// For `status`.
pub(super) fn summary(volume: &Volume) -> Value {
    json!(Summary::new(volume))
}

pub(super) fn add_commands(commands: &mut Commands, volume: &Arc<Volume>) {
    let volume = volume.clone();
    commands.add("scrub", move |request| {
        let volume = volume.clone();
        async move {
            if request["start"].as_bool() == Some(true) {
                let configured = volume.config().scrub_rate;
                let rate = request["rate"].as_u64().unwrap_or(configured);
                let working = volume.clone();
                tokio::spawn(async move {
                    if let Err(e) = working.scrub().pass(&*working, rate).await {
                        tracing::warn!("scrub: {e}");
                    }
                });
                // Whoever asks next shall see that it runs.
                tokio::task::yield_now().await;
            }
            Ok(summary(&volume))
        }
        .boxed()
    });
}

pub fn run(args: &ScrubArgs) -> Exit {
    let done = client::live(&args.mountpoint, args.run_dir.as_deref())
        .and_then(|socket| wait(&socket, args));
    match done.and_then(|summary| admin::show(&summary, args.json).map(|()| summary)) {
        Ok(summary) if summary.damaged_files == 0 => Exit::Ok,
        Ok(_) => Exit::Error,
        Err(e) => complain(&e),
    }
}

fn wait(socket: &Path, args: &ScrubArgs) -> Result<Summary> {
    let before = request(socket, &json!({ "command": "scrub" }))?;
    let start = json!({ "command": "scrub", "start": true, "rate": args.rate });
    let mut now = request(socket, &start)?;
    let terminal = std::io::stderr().is_terminal();
    while now.passes == before.passes {
        if let (Some((done, all)), true) = (now.pass, terminal) {
            eprint!("\rscrub: {done} of {all} bytes");
            let _ = std::io::stderr().flush();
        }
        std::thread::sleep(POLL);
        now = request(socket, &json!({ "command": "scrub" }))?;
    }
    if terminal {
        eprintln!();
    }
    match now.failed {
        Some(why) => Err(Error::new(ErrorKind::Other, why)),
        None => Ok(now),
    }
}

fn request(socket: &Path, request: &Value) -> Result<Summary> {
    serde_json::from_value(ask(socket, request, LIMIT)?)
        .map_err(|e| Error::new(ErrorKind::Other, format!("the mount's answer: {e}")))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for d in &self.damage {
            writeln!(f, "problem: {}", d.problem())?;
        }
        write!(
            f,
            "{} segments, {} bytes read since the mount: {} damaged places in files, {} that no \
             file uses",
            self.segments, self.bytes, self.damaged_files, self.damaged_unused
        )
    }
}
