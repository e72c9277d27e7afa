//! `stowfs deleted` and `stowfs undelete` on a real mount.

mod support;

use serde_json::Value;
use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};
use support::mount::{Mount, stowfs};

fn run(mount: &Mount, command: &str, arguments: &[&str]) -> Output {
    let mut command = {
        let mut all = stowfs();
        all.arg(command).arg(mount.path());
        all
    };
    command
        .args(arguments)
        .arg("--run-dir")
        .arg(mount.run_dir());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn list(mount: &Mount, arguments: &[&str]) -> Vec<Value> {
    let output = run(mount, "deleted", &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["deleted"].as_array().unwrap().clone()
}

/// The kernel forgets an inode a moment after its unlink, but both states are listed alike.
#[test]
fn a_deleted_checkpoint_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().join("root").display());
    let mut mount = Mount::with(&url, &["--gc-keep=100"]);
    let content = |n: usize| n.to_le_bytes().repeat(n * 13 % 900 + 1);
    fs::create_dir_all(mount.at("job/chk-7/op")).unwrap();
    for n in 0..1000 {
        fs::write(mount.at(&format!("job/chk-7/op/{n}")), content(n)).unwrap();
    }
    fs::write(mount.at("job/chk-7/_metadata"), "m").unwrap();
    fs::remove_dir_all(mount.at("job/chk-7")).unwrap();

    let lines = list(&mount, &[]);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(
        (&lines[0]["path"], &lines[0]["files"]),
        (&"job/chk-7".into(), &1001.into())
    );
    let below = mount.at("job/chk-7/op");
    assert_eq!(list(&mount, &[below.to_str().unwrap()]).len(), 1001);
    assert_eq!(list(&mount, &["job/chk-7/op/12"]).len(), 1);
    let table = text(&run(&mount, "deleted", &[]));
    assert!(
        table.contains("/job/chk-7") && table.contains("directory"),
        "{table}"
    );

    // An unlink alone is durable only a moment later.
    let parent = fs::File::open(mount.at("job")).unwrap();
    parent.sync_all().unwrap();
    drop(parent);
    mount.kill9();
    mount.remount();
    let output = run(&mount, "undelete", &["job/chk-7", "--to", "job/rescued"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("1001 files, 2 directories"),
        "{}",
        text(&output)
    );
    for n in 0..1000 {
        let found = fs::read(mount.at(&format!("job/rescued/op/{n}"))).unwrap();
        assert!(found == content(n), "file {n}");
    }
    // A second time, where it was.
    let begun = Instant::now();
    let output = run(&mount, "undelete", &["/job/chk-7"]);
    assert!(output.status.success(), "{}", text(&output));
    println!("1,001 files in {:?}", begun.elapsed());
    assert_eq!(
        fs::read_dir(mount.at("job/chk-7/op")).unwrap().count(),
        1000
    );
    assert!(begun.elapsed() < Duration::from_secs(10));

    let output = run(&mount, "undelete", &["job/chk-7"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("/job/chk-7 exists"),
        "{}",
        text(&output)
    );
    // A name must not look like a line of the list, or steer the terminal.
    fs::write(mount.at("two\nlines\x1b[2J"), "x").unwrap();
    fs::remove_file(mount.at("two\nlines\x1b[2J")).unwrap();
    let table = text(&run(&mount, "deleted", &[]));
    assert!(table.contains(r"/two\nlines\u{1b}[2J"), "{table}");
    assert_eq!(mount.umount().code(), Some(0));
    mount.remount();
    assert_eq!(
        fs::read(mount.at("job/chk-7/op/999")).unwrap(),
        content(999)
    );
}
