//! What the program says when something is wrong with what it was told, or with what is around it:
//! the words, and the exit code.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::mount::{LocalStore, Mount, stowfs};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    said(&stowfs().args(arguments).output().unwrap())
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

/// The mount ended as one that was taken over: the only sign was that the directory of the log was
/// not at its path any more.
#[test]
fn a_store_that_was_moved_away_is_no_takeover() {
    for writes in [false, true] {
        let store = LocalStore::new();
        let mut mount = Mount::new(&store.url());
        fs::write(mount.at("before"), "before").unwrap();
        let (root, away) = (store.0.path().join("root"), store.0.path().join("away"));
        fs::rename(&root, &away).unwrap();
        if writes {
            // Whatever the program is told, it is an error and soon.
            let begun = Instant::now();
            let synced = fs::File::create(mount.at("after")).and_then(|file| file.sync_all());
            assert!(synced.is_err() && begun.elapsed() < Duration::from_secs(30));
        }
        assert_eq!(mount.wait().code(), Some(1), "{}", mount.log());
        let log = mount.log();
        assert!(log.contains("has no .stowfs/owner/1 any more"), "{log}");
        assert!(!log.contains("taken over"), "{log}");
        fs::rename(&away, &root).unwrap();
        mount.remount();
        assert_eq!(fs::read(mount.at("before")).unwrap(), b"before");
        assert_eq!(mount.umount().code(), Some(0));
    }
}

/// A misspelt URL or option of a command other than `mount` exited with 1, as if the store had failed.
#[test]
fn wrong_usage_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let store = format!("file://{here}/root");
    let cases: &[(&[&str], &str)] = &[
        (&["mount", "/a/b", here], "did you mean file:///a/b"),
        (&["mount", "s3://bucket/a", here], "\"s3\" is not supported"),
        (
            &["mount", "s3://bucket/a", here, "--daemon"],
            "not supported",
        ),
        (
            &["mount", &store, here, "--log-level=loud"],
            "use error, warn",
        ),
        (&["segments", "s3://bucket/a"], "not supported"),
        (
            &["segments", &store, "--cache-size=much"],
            "cache_size=much",
        ),
        (&["adopt", "hdfs://nn:port/a"], "not a port number"),
        (&["adopt", &store, "--gc-grace=soon"], "gc_grace=soon"),
        (&["export", &store, "/", "ftp://a/b"], "not supported"),
        (
            &["export", &store, "/", "file:///"],
            "names no new directory",
        ),
        (
            &["export", &store, "/", "file:///x/y", "--config=/no/such"],
            "/no/such",
        ),
        (&["fsck", "s3://bucket/a"], "not supported"),
        (&["compact", here, "--target=0.5"], "must be 1 or more"),
        (&["scrub", here, "--rate=much"], "not a size"),
    ];
    for (arguments, why) in cases {
        let (code, text) = run(arguments);
        assert!(
            code == Some(2) && text.contains(why),
            "{arguments:?}: {code:?}, {text}"
        );
    }
    // The store is named right, and is not there.
    let (code, text) = run(&["segments", &store]);
    assert_eq!(code, Some(1), "{text}");
}

/// "No such file or directory" sent people looking for the store.
#[test]
fn a_url_in_place_of_a_mountpoint_is_named_as_such() {
    let store = LocalStore::new();
    let mount = Mount::new(&store.url());
    let (url, run_dir) = (store.url(), mount.run_dir());
    let mounted = format!("it is mounted on {}", mount.path().display());
    let commands: &[&[&str]] = &[
        &["gc"],
        &["compact"],
        &["deleted"],
        &["undelete"],
        &["scrub"],
        &["status"],
        &["umount"],
    ];
    for command in commands {
        let mut all = [command, &[&url[..]][..]].concat();
        if command[0] == "undelete" {
            all.push("a");
        }
        all.extend(["--run-dir", run_dir.to_str().unwrap()]);
        let (code, text) = run(&all);
        let words = text.contains("needs a mountpoint, not a store URL") && text.contains(&mounted);
        assert!(code == Some(2) && words, "{all:?}: {code:?}, {text}");
    }
    for command in ["gc", "stat"] {
        let (code, text) = run(&[command, "hdfs://nn:8020/elsewhere"]);
        let words = text.contains("needs a mountpoint, not a store URL");
        assert!(
            code == Some(2) && words && !text.contains("mounted on"),
            "{text}"
        );
    }
}

/// It waited for a minute, and said nothing (with `--daemon`) or something only in the log.
#[test]
fn a_mount_that_waits_for_the_last_one_says_so() {
    let store = LocalStore::new();
    let mut mount = Mount::with(&store.url(), &["--op-timeout=3s"]);
    let open = fs::File::create(mount.at("open")).unwrap();
    assert!(mount.umount_command(&["-l"]).status.success());
    let mut waiting = (mount.command().arg("--daemon"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let told = waiting.stderr.take().unwrap().read_to_string(&mut text);
    assert_eq!(waiting.wait().unwrap().code(), Some(1), "{told:?}");
    let pid = mount.pid();
    let first = format!("(pid {pid}) has not ended");
    assert!(
        text.contains(&first) && text.contains("for at most 3s"),
        "{text}"
    );
    assert!(text.contains("close the files"), "{text}");
    drop(open);
    assert_eq!(mount.wait().code(), Some(0));
}

/// The mount began, and no command could reach it.
#[test]
fn a_run_dir_that_is_too_long_is_refused() {
    let store = LocalStore::new();
    let mount = Mount::unmounted(&store.url(), &[]);
    let long = mount.dir().join("x".repeat(90));
    let mut command = stowfs();
    command.arg("mount").arg(store.url()).arg(mount.path());
    let (code, text) = said(&command.arg("--run-dir").arg(&long).output().unwrap());
    let socket = long.join("0123456789abcdef.sock");
    let length = format!("has {} bytes", socket.as_os_str().len());
    let named = [&length[..], "takes 107", "--run-dir"];
    assert!(
        code == Some(2) && named.iter().all(|n| text.contains(n)),
        "{code:?}: {text}"
    );
    assert!(!mount.is_in_mount_table());
}

fn make_fifo(at: &Path) {
    nix::unistd::mkfifo(at, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
}

/// They were left out without a word.
#[test]
fn what_adoption_leaves_out_is_named_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("d")).unwrap();
    fs::write(root.join("d/file"), "file").unwrap();
    fs::write(root.join("d").join(OsStr::from_bytes(b"bad\xff\n")), "x").unwrap();
    std::os::unix::fs::symlink("file", root.join("d/link")).unwrap();
    make_fifo(&root.join("d/fifo"));
    let url = format!("file://{}", root.display());
    let output = stowfs()
        .args(["adopt", &url, "--dry-run"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        r"left out: /d/bad\xff\n: its name is not UTF-8",
        "left out: /d/fifo: a fifo, socket or device",
        "left out: /d/link: a symbolic link",
        "3 were LEFT OUT",
        "1 plain files (4 B)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The first mount takes in by itself; its log names them.
    let mount = Mount::new(&url);
    assert!(
        mount.log().contains("/d/link is not readable"),
        "{}",
        mount.log()
    );
    assert_eq!(fs::read(mount.at("d/file")).unwrap(), b"file");
}

/// A fifo alone ended in a failed rename; attributes were counted only where no mount was asked; and
/// directories above the destination were closed to all but their owner.
#[test]
fn an_export_from_a_mount_says_what_it_cannot_keep() {
    let store = LocalStore::new();
    let mount = Mount::new(&store.url());
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/file"), "file").unwrap();
    let mut set = Command::new("setfattr");
    set.args(["-n", "user.a", "-v", "1"])
        .arg(mount.at("d/file"));
    assert!(set.status().unwrap().success());
    make_fifo(&mount.at("d/fifo"));
    let export = |path: &str, dest: &Path| {
        let mut command = stowfs();
        command.arg("export").arg(mount.path()).arg(path);
        command.arg(format!("file://{}", dest.display()));
        command
            .arg("--run-dir")
            .arg(mount.run_dir())
            .output()
            .unwrap()
    };
    let alone = store.0.path().join("new/alone");
    let (code, text) = said(&export("d/fifo", &alone));
    let named = text.contains("/d/fifo is not exported: it is a fifo");
    assert!(code == Some(1) && named, "{code:?}: {text}");
    assert!(!store.0.path().join("new").exists());

    let dest = store.0.path().join("new/above/out");
    let output = export("d", &dest);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("extended attributes are not exported: 1"),
        "{text}"
    );
    assert!(
        text.contains("fifos, sockets and devices are left out: 1"),
        "{text}"
    );
    let usual = store.0.path().join("usual");
    fs::create_dir(&usual).unwrap();
    let mode = |at: &Path| at.metadata().unwrap().mode();
    for made in ["new", "new/above"] {
        assert_eq!(mode(&store.0.path().join(made)), mode(&usual), "{made}");
    }
    assert_eq!(fs::read(dest.join("file")).unwrap(), b"file");
}
