//! `stowfs gc` and `stowfs compact`: show a plan, have the mount carry it out, tell what came of it.

use super::args::{CompactArgs, GcArgs, UpkeepArgs};
use super::control::ask_watching;
use super::{Exit, client, complain};
use crate::admin::shown;
use crate::base::{Error, ErrorKind, Result};
use crate::upkeep::plan::{Collected, Compacted, Plan, Space, Step};
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A mount that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(120);

pub fn gc(args: &GcArgs) -> Exit {
    let request = json!({ "command": "gc", "now": args.now });
    run(&args.mountpoint, &args.common, request, told_gc)
}

pub fn compact(args: &CompactArgs) -> Exit {
    let request = json!({ "command": "compact", "target": args.target });
    run(&args.mountpoint, &args.common, request, told_compact)
}

fn run<D: Serialize + DeserializeOwned>(
    mountpoint: &Path,
    args: &UpkeepArgs,
    request: Value,
    told: fn(&D) -> String,
) -> Exit {
    let mount = match client::live(mountpoint, args.run_dir.as_deref()) {
        Ok(socket) => Mount { socket, request },
        Err(e) => return complain(&e),
    };
    match carry_out(&mount, args, told) {
        Ok(()) => Exit::Ok,
        Err(e) => complain(&e),
    }
}

struct Mount {
    socket: PathBuf,
    request: Value,
}

fn carry_out<D: Serialize + DeserializeOwned>(
    mount: &Mount,
    args: &UpkeepArgs,
    told: fn(&D) -> String,
) -> Result<()> {
    let plan: Plan = mount.ask(true, &mut |_| {})?;
    if !args.json {
        print!("{}", as_text(&plan));
    }
    if args.dry_run {
        if args.json {
            println!("{:#}", json!({ "plan": plan }));
        }
        return Ok(());
    }
    let bar = Bar::new();
    let done: D = mount.ask(false, &mut |step| bar.step(step))?;
    bar.end();
    if args.json {
        println!("{:#}", json!({ "plan": plan, "done": done }));
    } else {
        println!("{}", told(&done));
    }
    Ok(())
}

impl Mount {
    fn ask<T: DeserializeOwned>(&self, dry_run: bool, watch: &mut dyn FnMut(&Value)) -> Result<T> {
        let mut request = self.request.clone();
        request["dry_run"] = dry_run.into();
        let answer = ask_watching(&self.socket, &request, SILENCE, watch)?;
        let strange = |e| Error::new(ErrorKind::Other, format!("the mount's answer: {e}"));
        serde_json::from_value(answer).map_err(strange)
    }
}

/// On a terminal only.
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    pub(super) fn new() -> Bar {
        let style = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style);
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Bar(bar)
    }

    pub(super) fn step(&self, step: &Value) {
        let Some(bar) = &self.0 else { return };
        // A heartbeat has no content.
        if let Ok(step) = serde_json::from_value::<Step>(step.clone()) {
            bar.set_message(step.doing);
            bar.set_length(step.total);
            bar.set_position(step.done);
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn as_text(plan: &Plan) -> String {
    let mut text = String::new();
    if plan.segments.is_empty() && plan.orphans.is_empty() && plan.plain_files.is_empty() {
        text.push_str("Nothing to do.\n");
    }
    if !plan.segments.is_empty() {
        let names = plan.segments.iter().map(|s| s.segment.len());
        let width = names.max().unwrap_or(0).max("SEGMENT".len());
        let mut row = |name: &str, size: &str, live: &str, amplification: &str, action: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{name:width$}  {size:>10}  {live:>10}  {amplification:>13}  {action}"
            );
        };
        row(
            "SEGMENT",
            "SIZE",
            "LIVE",
            "AMPLIFICATION",
            "WHAT WILL BE DONE",
        );
        for s in &plan.segments {
            let (size, live) = (size(s.size), size(s.live_bytes));
            row(&s.segment, &size, &live, &ratio(s.amplification), &s.action);
        }
    }
    for o in &plan.orphans {
        let _ = writeln!(
            text,
            "orphan {}: {}, {}; {}",
            shown(&o.path),
            o.what,
            size(o.size),
            o.action
        );
    }
    for p in &plan.plain_files {
        let (path, size) = (shown(&p.path), size(p.size));
        let _ = writeln!(text, "plain file /{path}: not needed, {size}; {}", p.action);
    }
    let _ = writeln!(text, "{}", space("The root has", &plan.space));
    text
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn ratio(amplification: Option<f64>) -> String {
    amplification.map_or("-".into(), |a| format!("{a:.2}"))
}

fn space(what: &str, space: &Space) -> String {
    let (all, live) = (size(space.size), size(space.live_bytes));
    let a = ratio(space.amplification);
    format!("{what} {all} in segments for {live} live bytes: amplification {a}.")
}

fn told_gc(done: &Collected) -> String {
    let mut text = format!(
        "Deleted {} segments ({}) and {} orphans.",
        done.deleted_segments,
        size(done.deleted_bytes),
        done.orphans
    );
    if done.plain_files > 0 {
        let (n, bytes) = (done.plain_files, size(done.plain_bytes));
        let _ = write!(text, " {n} plain files ({bytes}) were not needed any more.");
    }
    if done.waiting_segments > 0 {
        let waiting = size(done.waiting_bytes);
        let n = done.waiting_segments;
        let _ = write!(
            text,
            " {n} segments ({waiting}) wait for the end of their grace."
        );
    }
    let _ = write!(text, "\n{}", space("Now the root has", &done.space));
    text
}

fn told_compact(done: &Compacted) -> String {
    if done.stopped {
        return "Stopped before all was copied.".into();
    }
    if done.segments == 0 {
        return "Nothing was emptied.".into();
    }
    let grace = Duration::from_secs(done.grace_seconds.ceil() as u64);
    format!(
        "Emptied {} segments: {} extents ({}) were copied, {} will be free when the emptied \
         segments are deleted, after {}.\n{}",
        done.segments,
        done.extents,
        size(done.bytes),
        size(done.gained),
        humantime::format_duration(grace),
        space("Until then the root has", &done.space)
    )
}
