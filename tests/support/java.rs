//! Java programs of this folder, compiled when a test needs them.

use super::fetch;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The versions of Flink that tests know, newest first. 1.20 never calls fsync, 2.1 and later do.
pub const FLINK: [&str; 2] = ["2.3.0", "1.20.5"];

/// The folder with the jars of a Flink, among them RocksDB.
pub fn flink_jars(version: &str) -> Result<PathBuf, String> {
    fetch::jars("fetch-flink.sh", &[version], &format!("flink-{version}"))
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
