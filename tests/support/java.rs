//! Java programs of this folder, compiled when a test needs them.

use super::daemon::Daemon;
use super::fetch;
use super::scratch::Scratch;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The versions of Flink that tests know, newest first. 1.20 never calls fsync, 2.1 and later do.
pub const FLINK: [&str; 2] = ["2.3.0", "1.20.5"];

/// The folder with the jars of a Flink, among them RocksDB.
pub fn flink_jars(version: &str) -> Result<PathBuf, String> {
    fetch::jars(
        "fetch-jars.sh",
        &["flink", version],
        &format!("flink-{version}"),
    )
}

/// Compiles `java/<name>.java` against all jars of a folder.
pub fn compile(name: &str, jars: &Path, classes: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/support/java")
        .join(name)
        .with_extension("java");
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(classes).arg("-cp").arg(jars.join("*"));
    run(javac.arg(source)).map(drop)
}

/// Packs all classes of a folder.
pub fn pack(classes: &Path, jar: &Path) -> Result<(), String> {
    run(Command::new("jar")
        .arg("cf")
        .arg(jar)
        .arg("-C")
        .arg(classes)
        .arg("."))
    .map(drop)
}

/// A `java` command up to and including the class. JVMs that live for seconds start fastest so.
pub fn java(class_path: &[PathBuf], heap_mib: u32, options: &[&str], class: &str) -> Command {
    let mut joined = OsString::new();
    for part in class_path {
        joined.push(part);
        joined.push(":");
    }
    let mut c = Command::new("java");
    c.env_remove("HADOOP_CONF_DIR")
        .arg("-cp")
        .arg(joined)
        .arg(format!("-Xmx{heap_mib}m"))
        .args([
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Djava.net.preferIPv4Stack=true",
        ])
        .args(options)
        .arg(class);
    c
}

/// Runs a command to its end and returns what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{program}: {e}"))?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    match out.status.success() {
        true => Ok(text),
        false => Err(format!("{program} ({}): {text}", out.status)),
    }
}

/// A program of one class, compiled; its class files go away with it.
pub struct Program {
    class: String,
    class_path: Vec<PathBuf>,
    scratch: Scratch,
    runs: AtomicU32,
}

impl Program {
    /// Panics with what the compiler says if it cannot be compiled.
    pub fn new(class: &str, jars: &Path) -> Program {
        let scratch = Scratch::new("java").unwrap();
        let classes = scratch.path().join("classes");
        std::fs::create_dir(&classes).unwrap();
        compile(class, jars, &classes).unwrap_or_else(|e| panic!("{e}"));
        Program {
            class: class.to_string(),
            class_path: vec![classes, jars.join("*")],
            scratch,
            runs: AtomicU32::new(0),
        }
    }

    /// Starts it; what it prints is in the returned log.
    pub fn start(&self, args: &[&str]) -> Running {
        let n = self.runs.fetch_add(1, Ordering::Relaxed);
        let log = self.scratch.logs().join(format!("{}-{n}.log", self.class));
        let (class, class_path) = (self.class.clone(), self.class_path.clone());
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        let name = format!("{class} {}", args.join(" "));
        let command = move || {
            let mut c = java(&class_path, 160, &[], &class);
            c.args(&args);
            c
        };
        let daemon = Daemon::start(&name, log.clone(), command).unwrap();
        Running { daemon, log }
    }

    /// Runs it to its end, which must be a success in time, and returns what it printed.
    pub fn run(&self, args: &[&str], limit: Duration) -> String {
        let mut running = self.start(args);
        let status = running.daemon.wait(limit);
        let text = running.text();
        match status {
            Some(status) if status.success() => text,
            Some(status) => panic!("{} ended with {status}:\n{text}", running.daemon.name()),
            None => panic!(
                "{} has not ended after {limit:?}:\n{text}",
                running.daemon.name()
            ),
        }
    }
}

/// A program under way; killed when it is dropped.
pub struct Running {
    daemon: Daemon,
    log: PathBuf,
}

impl Running {
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The number in the last line that begins with a word, of the lines that are whole.
    pub fn last(&self, word: &str) -> Option<i64> {
        let text = self.text();
        let whole = &text[..text.rfind('\n')?];
        let mut numbers = whole
            .lines()
            .filter_map(|l| l.strip_prefix(word)?.trim().parse().ok());
        numbers.next_back()
    }

    /// Waits until the last number after a word is at least `n`.
    pub fn wait_until(&mut self, word: &str, n: i64, limit: Duration) {
        let begun = Instant::now();
        while self.last(word).is_none_or(|last| last < n) {
            if self.daemon.ended_by_itself() || begun.elapsed() > limit {
                panic!("no {word} {n}:\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its end, whatever it is.
    pub fn wait(&mut self, limit: Duration) {
        if self.daemon.wait(limit).is_none() {
            panic!(
                "{} has not ended after {limit:?}:\n{}",
                self.daemon.name(),
                self.text()
            );
        }
    }
}
