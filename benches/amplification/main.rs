//! How much space and how much writing the life of an engine's checkpoints costs. Replays traces and
//! a made-up job: against placement and cleaning policies in a light model, and against the real
//! filesystem and volume on the store in memory, in simulated time.
//!
//!     cargo bench --bench amplification -- --help

mod meter;
mod model;
mod real;
mod synthetic;
mod trace;

use serde_json::json;
use std::time::Duration;
use trace::Trace;

const HELP: &str = "\
cargo bench --bench amplification -- [OPTION]…
  --trace FILE     replay a recorded trace (CSV, or with gzip; benches/amplification/README.md has the columns);
                   may be given several times. [default: a made-up job]
  --hours N        length of the made-up job [default: 3]
  --seed N         its seed [default: 1]
  --targets LIST   values of compact_target [default: 1.2,1.3,1.4,1.5]
  --scale N        the real volume is run with all sizes divided by N [default: 16]
  --keep N         gc_keep of the real volume [default: 0.1]
  --grace SECONDS  gc_grace [default: 600]
  --every SECONDS  upkeep_every [default: 0.5]
  --segment BYTES  segments are not made smaller than this, before scaling [default: 4194304]
  --model-only, --real-only
  --over-time      print the real volume's figures over time, too
  --json FILE      write all figures there";

struct Args {
    traces: Vec<String>,
    job: synthetic::Job,
    targets: Vec<f64>,
    settings: real::Settings,
    segment: u64,
    model: bool,
    real: bool,
    over_time: bool,
    json: Option<String>,
}

fn args() -> Result<Args, String> {
    let mut args = Args {
        traces: Vec::new(),
        job: synthetic::Job::default(),
        targets: vec![1.2, 1.3, 1.4, 1.5],
        settings: real::Settings {
            target: 0.0,
            keep: 0.1,
            grace: Duration::from_secs(600),
            every: Duration::from_millis(500),
            scale: 16,
        },
        segment: 4 << 20,
        model: true,
        real: true,
        over_time: false,
        json: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().ok_or(format!("{name} needs a value"));
        match &name[..] {
            "--trace" => args.traces.push(value()?),
            "--hours" => args.job.hours = number(&value()?)?,
            "--seed" => args.job.seed = number(&value()?)? as u64,
            "--targets" => {
                let list = value()?;
                args.targets = list.split(',').map(number).collect::<Result<_, _>>()?;
            }
            "--scale" => args.settings.scale = number(&value()?)?.max(1.0) as u64,
            "--keep" => args.settings.keep = number(&value()?)?,
            "--grace" => args.settings.grace = Duration::from_secs_f64(number(&value()?)?),
            "--every" => args.settings.every = Duration::from_secs_f64(number(&value()?)?),
            "--segment" => args.segment = number(&value()?)? as u64,
            "--model-only" => args.real = false,
            "--real-only" => args.model = false,
            "--over-time" => args.over_time = true,
            "--json" => args.json = Some(value()?),
            // Cargo's own.
            "--bench" => {}
            "--help" => {
                println!("{HELP}");
                std::process::exit(0);
            }
            other => return Err(format!("unknown option {other}\n{HELP}")),
        }
    }
    Ok(args)
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn main() {
    let done = args().and_then(|args| run(&args));
    if let Err(e) = done {
        eprintln!("{e}");
        std::process::exit(2);
    }
}

fn run(args: &Args) -> Result<(), String> {
    let mut traces = Vec::new();
    for path in &args.traces {
        traces.push(trace::read(path, args.segment)?);
    }
    if traces.is_empty() {
        traces.push(synthetic::generate(&args.job, args.segment));
    }
    let mut all = Vec::new();
    for trace in &traces {
        println!("{} ({} min)", trace.name, trace.minutes());
        println!(
            "space (time average of segment bytes / live bytes) @ write (bytes written / bytes of the user)\n"
        );
        print!("{:36}", "compact_target");
        args.targets.iter().for_each(|t| print!("{t:>14}"));
        println!();
        let mut figures = Vec::new();
        if args.model {
            models(trace, args, &mut figures);
        }
        if args.real {
            real(trace, args, &mut figures);
        }
        println!();
        all.push(json!({ "trace": trace.name, "minutes": trace.minutes(), "figures": figures }));
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// A file is placed by its expected life from this size on, as in the filesystem.
const WORTHWHILE: u64 = 256 << 10;

fn models(trace: &Trace, args: &Args, figures: &mut Vec<serde_json::Value>) {
    for (policy, name) in model::POLICIES {
        print!("{:36}", format!("model: {name}"));
        for target in &args.targets {
            let o = model::run(trace, *policy, *target, WORTHWHILE);
            print!("{:>14}", format!("{:.2}@{:.2}", o.space, o.write));
            figures.push(json!({
                "kind": "model", "policy": name, "target": target, "space": o.space, "write": o.write,
            }));
        }
        println!();
    }
}

/// Averages over the samples after the first minute.
struct Averages {
    space: f64,
    dead: f64,
    log: f64,
    grace: f64,
    worst: f64,
    segments: f64,
    sealed_at: f64,
}

fn averages(samples: &[real::Sample]) -> Averages {
    let warm: Vec<&real::Sample> = samples
        .iter()
        .filter(|s| s.at > 60_000 && s.live > 0)
        .collect();
    let mean = |f: &dyn Fn(&real::Sample) -> f64| {
        warm.iter().map(|s| f(s)).sum::<f64>() / warm.len().max(1) as f64
    };
    let live = |s: &real::Sample| s.live as f64;
    Averages {
        space: mean(&real::Sample::space),
        dead: mean(&|s| s.dead as f64 / live(s)),
        log: mean(&|s| s.log as f64 / live(s)),
        grace: mean(&real::Sample::grace_share),
        worst: warm.iter().map(|s| s.space()).fold(0.0, f64::max),
        segments: mean(&|s| s.segments as f64),
        sealed_at: mean(&|s| s.sealed_at as f64),
    }
}

fn real(trace: &Trace, args: &Args, figures: &mut Vec<serde_json::Value>) {
    let scaled = trace.scaled(args.settings.scale);
    let mut lines = Vec::new();
    print!("{:36}", "stowfs itself");
    for target in &args.targets {
        let settings = real::Settings {
            target: *target,
            ..args.settings.clone()
        };
        let r = real::replay(&scaled, &settings);
        let a = averages(&r.samples);
        let write = (r.user + r.copied) as f64 / r.user.max(1) as f64;
        let all = r.counts.appended as f64 / r.user.max(1) as f64;
        print!("{:>14}", format!("{:.2}@{write:.2}", a.space));
        let per_file = |n: u64| n as f64 / r.files.max(1) as f64;
        lines.push(format!(
            "  target {target}: dead {:.2}, of the log {:.2}, and in grace {:.2} more; at most {:.2}; {:.0} segments, sealed at {:.1} MiB; \
             with records and snapshots ({:.1} %) write {all:.2}; {:.2} calls to the store and {:.3} files on it per file",
            a.dead, a.log, a.grace, a.worst, a.segments,
            a.sealed_at * args.settings.scale as f64 / 1048576.0,
            100.0 * r.counts.snapshots as f64 / r.counts.appended.max(1) as f64,
            per_file(r.counts.calls), per_file(r.counts.created),
        ));
        let over_time: Vec<_> = r
            .samples
            .iter()
            .step_by(30)
            .map(|s| json!([s.at / 1000, s.live, s.dead, s.log, s.grace, s.segments]))
            .collect();
        figures.push(json!({
            "kind": "real", "target": target, "scale": args.settings.scale, "space": a.space,
            "dead": a.dead, "log": a.log, "grace": a.grace, "worst": a.worst, "write": write,
            "write_all": all, "snapshots": r.counts.snapshots, "segments": a.segments,
            "calls_per_file": per_file(r.counts.calls), "files_per_file": per_file(r.counts.created),
            "columns": ["seconds", "live", "dead", "log", "grace", "segments"], "over_time": over_time,
        }));
        if args.over_time {
            lines.extend(r.samples.iter().step_by(60).map(|s| {
                format!(
                    "    {:>6} s: live {:>7} KiB, space {:.2}, in grace {:.2} more, {} segments",
                    s.at / 1000,
                    s.live >> 10,
                    s.space(),
                    s.grace_share(),
                    s.segments
                )
            }));
        }
    }
    println!();
    lines.iter().for_each(|l| println!("{l}"));
}
