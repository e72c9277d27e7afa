//! What an engine does to its checkpoint directory, over time: from a recorded trace or a generator.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

#[derive(Clone, Debug)]
pub enum What {
    Mkdir(String),
    Rmdir(String),
    Create(u64, String),
    /// The file is complete, with this size.
    Close(u64, u64),
    Rename(String, String),
    Unlink(u64, String),
}

#[derive(Clone, Debug)]
pub struct Event {
    /// Milliseconds since the start.
    pub at: u64,
    pub what: What,
}

pub struct Trace {
    pub name: String,
    pub events: Vec<Event>,
    /// The size below which segments are not scaled down, on this trace.
    pub smallest_segment: u64,
}

impl Trace {
    pub fn minutes(&self) -> u64 {
        self.events.last().map_or(0, |e| e.at.div_ceil(60_000))
    }

    /// All sizes divided by `by`, so that a long trace can be replayed with real bytes.
    pub fn scaled(&self, by: u64) -> Trace {
        let scale = |e: &Event| {
            let what = match &e.what {
                What::Close(file, size) => What::Close(*file, size.div_ceil(by)),
                other => other.clone(),
            };
            Event { at: e.at, what }
        };
        Trace {
            name: self.name.clone(),
            events: self.events.iter().map(scale).collect(),
            smallest_segment: self.smallest_segment / by,
        }
    }
}

/// Reads a trace: a CSV file with the columns `t_ms,op,file,path,arg`, perhaps with gzip.
/// Operations other than create, close, unlink, rename, mkdir and rmdir are left out.
pub fn read(path: &str, smallest_segment: u64) -> Result<Trace, String> {
    let bytes = match path.ends_with(".gz") {
        true => {
            let out = Command::new("gzip").args(["-dc", path]).output();
            let out = out.map_err(|e| format!("gzip: {e}"))?;
            if !out.status.success() {
                return Err(format!("{path}: {}", String::from_utf8_lossy(&out.stderr)));
            }
            out.stdout
        }
        false => std::fs::read(path).map_err(|e| format!("{path}: {e}"))?,
    };
    let text = String::from_utf8(bytes).map_err(|_| format!("{path}: not text"))?;
    let (mut events, mut paths) = (Vec::new(), HashMap::new());
    for (n, line) in text.lines().enumerate().skip(1) {
        let event = parse(line, &mut paths)
            .ok_or_else(|| format!("{path}: line {} is not an event", n + 1))?;
        events.extend(event);
    }
    let name = Path::new(path).file_name().unwrap_or_default();
    Ok(Trace {
        name: name.to_string_lossy().into_owned(),
        events,
        smallest_segment,
    })
}

/// None: not a line of a trace. Some(None): of no interest.
fn parse(line: &str, paths: &mut HashMap<u64, String>) -> Option<Option<Event>> {
    let mut columns = line.split(',');
    let mut next = || columns.next();
    let (at, op, file) = (next()?.parse().ok()?, next()?, next()?);
    let (path, arg) = (next()?.to_string(), next()?);
    let file: u64 = if file.is_empty() {
        0
    } else {
        file.parse().ok()?
    };
    let what = match op {
        "mkdir" => What::Mkdir(path),
        "rmdir" => What::Rmdir(path),
        "create" => {
            paths.insert(file, path.clone());
            What::Create(file, path)
        }
        "close" => What::Close(file, arg.parse().ok()?),
        "rename" => {
            paths.insert(file, arg.to_string());
            What::Rename(path, arg.to_string())
        }
        "unlink" => What::Unlink(file, paths.remove(&file)?),
        _ => return Some(None),
    };
    Some(Some(Event { at, what }))
}
