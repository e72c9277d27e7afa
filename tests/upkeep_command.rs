//! `stowfs gc` and `stowfs compact`, the built program on a live mount of a local store.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::mount::{Mount, stowfs};
use tempfile::TempDir;

/// Files go to lanes, and nothing happens by itself.
const QUIET: &[&str] = &[
    "--small-file=64KiB",
    "--gc-grace=1h",
    "--gc-keep=100",
    "--compact-target=1000",
    "--idle-seal=500ms",
    "--delete-rate=1000",
];
const FILES: usize = 48;
const LONG: usize = 512 << 10;

struct Root {
    store: TempDir,
    mount: Mount,
}

impl Root {
    /// A root of which one file in seven is left.
    fn churned(further: &[&str]) -> Root {
        let store = tempfile::tempdir().unwrap();
        let url = format!("file://{}", store.path().join("root").display());
        let mount = Mount::with(&url, &[QUIET, further].concat());
        for i in 0..FILES {
            std::fs::write(mount.at(&format!("f{i}")), body(i)).unwrap();
        }
        for i in (0..FILES).filter(|i| i % 7 != 0) {
            std::fs::remove_file(mount.at(&format!("f{i}"))).unwrap();
        }
        Root { store, mount }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        command(&self.mount, arguments)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn check_files(&self) {
        for i in (0..FILES).step_by(7) {
            let found = std::fs::read(self.mount.at(&format!("f{i}"))).unwrap();
            assert!(found == body(i), "f{i}");
        }
    }

    fn bytes_on_store(&self) -> u64 {
        fn sum(dir: &Path) -> u64 {
            let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
            let size = |e: std::fs::DirEntry| match e.metadata() {
                Ok(m) if m.is_dir() => sum(&e.path()),
                Ok(m) => m.len(),
                Err(_) => 0, // deleted meanwhile
            };
            entries.map(size).sum()
        }
        sum(self.store.path())
    }
}

fn command(mount: &Mount, arguments: &[&str]) -> Command {
    let mut command = stowfs();
    command.args(&arguments[..1]).arg(mount.path());
    command.args(&arguments[1..]);
    command.arg("--run-dir").arg(mount.run_dir());
    command
}

fn body(i: usize) -> Vec<u8> {
    (0..LONG)
        .map(|k| (i * 31 + k * 7 + k / 251) as u8)
        .collect()
}

fn length(value: &Value) -> usize {
    value.as_array().unwrap().len()
}

fn failure(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn a_plan_is_shown_then_done_and_the_gain_is_told() {
    let root = Root::churned(&[]);
    // The last segments are sealed when they are idle.
    std::thread::sleep(Duration::from_secs(2));
    let before = root.bytes_on_store();
    let plan = root.json(&["compact", "--dry-run", "--target=1.1"]);
    let victims = length(&plan["plan"]["segments"]);
    assert!(victims >= 2, "{plan:#}");
    assert_eq!(root.json(&["compact", "--dry-run", "--target=1.1"]), plan);

    let output = root.run(&["compact", "--target=1.1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("AMPLIFICATION"), "{text}");
    assert!(
        text.contains(&format!("Emptied {victims} segments")),
        "{text}"
    );
    assert!(text.contains("after 1h"), "{text}");
    assert!(output.stderr.is_empty(), "no bar without a terminal");
    root.check_files();

    let plan = root.json(&["gc", "--dry-run"]);
    let waits = |line: &&Value| line["action"].as_str().unwrap().starts_with("delete in ");
    let lines = plan["plan"]["segments"].as_array().unwrap();
    assert!(lines.iter().filter(waits).count() >= victims, "{plan:#}");
    let done = root.json(&["gc"]);
    assert_eq!(done["done"]["deleted_segments"], 0, "{done:#}");
    assert!(done["done"]["waiting_segments"].as_u64().unwrap() as usize >= victims);
    assert!(root.bytes_on_store() >= before, "grace is kept");

    let done = root.json(&["gc", "--now"]);
    assert!(done["done"]["deleted_segments"].as_u64().unwrap() as usize >= victims);
    let after = root.bytes_on_store();
    assert!(after < before / 2, "{before} bytes before, {after} after");
    root.check_files();
}

#[test]
fn errors_say_what_to_do() {
    let plain = tempfile::tempdir().unwrap();
    for name in ["gc", "compact", "status"] {
        let mut command = stowfs();
        let output = command.arg(name).arg(plain.path()).output().unwrap();
        let (code, text) = failure(&output);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("not a stowfs mount"), "{text}");
    }
    for name in ["deleted", "scrub"] {
        let mut command = stowfs();
        let output = command.arg(name).arg(plain.path()).output().unwrap();
        let (code, text) = failure(&output);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("`stowfs mount STORE-URL /"), "{text}");
    }
    let at = plain.path().display();
    for (target, hint) in [
        (format!("{at}"), "`stowfs mount STORE-URL DIR`".to_string()),
        (format!("{at}/none/x"), "hdfs://host:port/dir".to_string()),
        (format!("{at}/root"), format!("that is file://{at}/root")),
    ] {
        for name in ["segments", "adopt"] {
            let output = stowfs().args([name, &target]).output().unwrap();
            let (code, text) = failure(&output);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains("is neither a running stowfs mount"), "{text}");
            assert!(text.contains(&hint), "{text}");
        }
        std::fs::create_dir_all(plain.path().join("root/.stowfs")).unwrap();
    }
    let output = stowfs().args(["scrub", "/", "--rate", "nonsense"]).output();
    let (code, text) = failure(&output.unwrap());
    assert_eq!(code, Some(2));
    assert!(text.contains("--rate") && text.contains("16MiB"), "{text}");

    let mut root = Root::churned(&[]);
    // The variable that the mount itself would take.
    let mut asking = stowfs();
    asking.arg("status").arg(root.mount.path());
    asking.env("STOWFS_RUN_DIR", root.mount.run_dir());
    let output = asking.output().unwrap();
    assert!(output.status.success(), "{}", failure(&output).1);
    let (code, text) = failure(&root.run(&["compact", "--target=0.5"]));
    assert!(code == Some(2) && text.contains("1 or more"), "{text}");

    let mut wrong = stowfs();
    let output = wrong.arg("gc").arg(root.mount.path()).output().unwrap();
    let (_, text) = failure(&output);
    assert!(text.contains("--run-dir"), "{text}");

    let url = format!("file://{}", root.store.path().join("root").display());
    let other = Mount::with(&url, &["--takeover"]);
    // Within 3 s the first knows, and its process ends.
    let (code, text) = failure(&root.run(&["gc"]));
    match code {
        Some(0) => {}
        Some(69) => assert!(text.contains("taken over"), "{text}"),
        _ => assert!(text.contains("dead"), "{text}"),
    }
    root.mount.wait();
    let (code, text) = failure(&root.run(&["gc"]));
    assert_eq!(code, Some(1));
    assert!(text.contains("dead") && text.contains("fenced"), "{text}");
    drop(other);

    let read_only = Mount::with(&url, &["-o", "ro"]);
    let (code, text) = failure(&command(&read_only, &["gc"]).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(text.contains("read-only"), "{text}");
}

#[test]
fn interrupting_a_command_does_the_mount_no_harm() {
    let root = Root::churned(&["--compact-rate=1MiB"]);
    std::thread::sleep(Duration::from_secs(2));
    let mut compacting = root.command(&["compact", "--target=1.1"]);
    compacting.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = compacting.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "it is slow");
    // A second one waited for the first without a word.
    let (code, text) = failure(&root.run(&["compact", "--target=1.1"]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is at work on this mount already"), "{text}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    child.wait().unwrap();

    std::fs::write(root.mount.at("new"), body(1)).unwrap();
    root.check_files();
    // What it began goes on to its end, and is done once.
    let begun = Instant::now();
    while length(&root.json(&["compact", "--dry-run", "--target=1.1"])["plan"]["segments"]) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(200));
    }
    let done = root.json(&["gc", "--now"]);
    assert!(
        done["done"]["deleted_segments"].as_u64().unwrap() >= 2,
        "{done:#}"
    );
    root.check_files();
}

/// What is being written counted as its live bytes, and 20 MB on the store were called 1 MB.
#[test]
fn the_space_of_segments_that_are_being_written_counts() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().join("root").display());
    let mount = Mount::with(&url, &["--upkeep-every=1h", "--idle-seal=1h"]);
    for i in 0..20 {
        std::fs::write(mount.at("again"), vec![i; 100_000]).unwrap();
    }
    let root = Root { store, mount };
    let plan = root.json(&["gc", "--dry-run"]);
    let size = plan["plan"]["space"]["size"].as_u64();
    assert!(size.is_some_and(|size| size > 2_000_000), "{plan:#}");
}
