//! stowfs beside its peers, on the same machine in one run: rounds take turns, and the table has
//! medians, their ratios, the goals, and the load of the machine.
//!
//!     cargo bench --bench compare                 # all parts
//!     cargo bench --bench compare -- namenode     # some of them; an unknown name lists all
//!
//! `STOWFS_TEST_ROUNDS=n` (3) and `STOWFS_TEST_SCALE=x` (1) make it longer or shorter. Writes
//! `target/bench/compare.json` and `compare.svg`.

#[path = "../../tests/support/mod.rs"]
mod support;

mod empty;
mod hdfs;
mod local;
mod metadata;
mod options;
mod peers;
mod report;
mod streams;
mod work;

use report::Report;
use std::path::Path;

/// How much is done.
pub struct Extent {
    pub rounds: usize,
    scale: f64,
}

impl Extent {
    pub fn scaled(&self, usual: usize) -> usize {
        ((usual as f64 * self.scale) as usize).max(1)
    }
}

type Part = fn(&Extent, &mut Report);

const PARTS: &[(&str, Part)] = &[
    ("namenode", hdfs::namenode),
    ("latency", hdfs::latency),
    ("frozen", hdfs::frozen),
    ("local", local::durable),
    ("fuse", local::fuse),
    ("stream", streams::stream),
    ("read", streams::read),
    ("metadata", metadata::operations),
    ("index", metadata::index),
    ("options", options::compare),
];

fn number<T: std::str::FromStr>(name: &str, usual: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return usual;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{name}={text}: not a number"))
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` and the like run without this argument.
    if !given.iter().any(|a| a == "--bench") {
        return;
    }
    let named: Vec<&str> = given
        .iter()
        .map(String::as_str)
        .filter(|a| *a != "--bench")
        .collect();
    for name in &named {
        if !PARTS.iter().any(|(part, _)| part == name) {
            let all: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
            eprintln!("no part is called {name}; there are: {}", all.join(" "));
            std::process::exit(2);
        }
    }
    let extent = Extent {
        rounds: number("STOWFS_TEST_ROUNDS", 3),
        scale: number("STOWFS_TEST_SCALE", 1.0),
    };
    let mut report = Report::default();
    let mut failed = Vec::new();
    for (name, part) in PARTS {
        if !named.is_empty() && !named.contains(name) {
            continue;
        }
        println!("{name}");
        // What other parts find is not lost with one.
        let ran = std::panic::AssertUnwindSafe(|| part(&extent, &mut report));
        if std::panic::catch_unwind(ran).is_err() {
            failed.push(*name);
        }
    }
    println!("\n{}", report.table());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../bench");
    for path in report.write(&dir).expect("the report") {
        println!("wrote {}", path.canonicalize().unwrap_or(path).display());
    }
    if !failed.is_empty() {
        eprintln!("failed: {}", failed.join(" "));
        std::process::exit(1);
    }
}
