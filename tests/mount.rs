//! Whole mounts of the built program on a local store: its commands, its exit codes, its lives.

mod support;

use nix::sys::signal::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::mount::{LocalStore, Mount, stowfs};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn files_and_directories_are_there_after_remount() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    assert!(
        mount
            .ready_line()
            .starts_with(&format!("stowfs: {} mounted on", store.url()))
    );
    fs::create_dir_all(mount.at("a/b")).unwrap();
    for n in 0..200u32 {
        fs::write(mount.at(&format!("a/b/{n}")), n.to_le_bytes().repeat(1000)).unwrap();
    }
    symlink("b/7", mount.at("a/link")).unwrap();
    fs::hard_link(mount.at("a/b/8"), mount.at("a/hard")).unwrap();
    fs::rename(mount.at("a/b/9"), mount.at("renamed")).unwrap();
    fs::remove_file(mount.at("a/b/10")).unwrap();
    fs::set_permissions(mount.at("renamed"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(mount.umount().code(), Some(0));
    assert!(!mount.is_in_mount_table());

    mount.remount();
    for n in (0..200u32).filter(|n| ![9, 10].contains(n)) {
        let found = fs::read(mount.at(&format!("a/b/{n}"))).unwrap();
        assert!(found == n.to_le_bytes().repeat(1000), "file {n}");
    }
    assert_eq!(fs::read_dir(mount.at("a/b")).unwrap().count(), 198);
    assert_eq!(fs::read_link(mount.at("a/link")).unwrap(), Path::new("b/7"));
    assert_eq!(
        fs::read(mount.at("renamed")).unwrap(),
        9u32.to_le_bytes().repeat(1000)
    );
    assert_eq!(
        mount.at("renamed").metadata().unwrap().mode() & 0o777,
        0o640
    );
    assert_eq!(mount.at("a/hard").metadata().unwrap().nlink(), 2);
    assert_eq!(mount.terminate().code(), Some(0));
}

#[test]
fn closed_files_survive_kill_9_and_the_dead_mountpoint_is_cleaned() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    for round in 0..3 {
        for n in 0..50 {
            let content = format!("{round}-{n} ").repeat(500);
            fs::write(mount.at(&format!("{round}-{n}")), content).unwrap();
        }
        let synced = fs::File::create(mount.at(&format!("{round}-synced"))).unwrap();
        synced.write_all_at(b"synced", 3).unwrap();
        synced.sync_all().unwrap();
        mount.kill9();
        assert!(mount.is_in_mount_table(), "a crash leaves the mountpoint");
        let e = fs::read_dir(mount.path()).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ENOTCONN));
        mount.remount();
        for (round, n) in (0..=round).flat_map(|r| (0..50).map(move |n| (r, n))) {
            let found = fs::read_to_string(mount.at(&format!("{round}-{n}"))).unwrap();
            assert!(found == format!("{round}-{n} ").repeat(500), "{round}-{n}");
        }
        assert_eq!(
            fs::read(mount.at(&format!("{round}-synced"))).unwrap(),
            b"\0\0\0synced"
        );
    }
    assert_eq!(mount.umount().code(), Some(0));
}

/// Flink retried while the dead mount was replaced, made its directories anew in the plain directory
/// below, and completed a checkpoint there, which the new mount then hid.
#[test]
fn a_program_that_retries_never_writes_below_the_mount() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    let (dir, stop) = (mount.path(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut written = vec![];
        for n in 0u32.. {
            let path = dir.join(format!("{}/{n}", n % 7));
            let _ = fs::create_dir_all(path.parent().unwrap());
            let synced = fs::File::create_new(&path).and_then(|file| {
                file.write_all_at(&n.to_le_bytes(), 0)?;
                file.sync_all()
            });
            if synced.is_ok() {
                written.push((path, n));
            }
            if stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        written
    });
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(200));
        mount.kill9();
        mount.remount();
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    for (path, n) in &written {
        assert_eq!(fs::read(path).unwrap(), n.to_le_bytes(), "{path:?}");
    }
    assert_eq!(mount.umount().code(), Some(0));
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    assert!(written.len() > 10, "{}", written.len());
}

#[test]
fn each_signal_and_umount_end_with_0() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    for (n, signal) in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .iter()
        .enumerate()
    {
        fs::write(mount.at(&format!("{n}")), signal.as_str()).unwrap();
        mount.signal(*signal);
        assert_eq!(mount.wait().code(), Some(0), "{signal}: {}", mount.log());
        assert!(!mount.is_in_mount_table());
        mount.remount();
        assert_eq!(
            fs::read_to_string(mount.at(&format!("{n}"))).unwrap(),
            signal.as_str()
        );
    }
    let umount = Command::new("umount").arg(mount.path()).output().unwrap();
    assert!(umount.status.success(), "{}", stderr(&umount));
    assert_eq!(mount.wait().code(), Some(0));
}

#[test]
fn sigterm_with_open_files_commits_what_was_written() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    let mut open = fs::File::create(mount.at("open")).unwrap();
    open.write_all(b"written, never closed").unwrap();
    assert_eq!(mount.terminate().code(), Some(0));
    mount.remount();
    assert_eq!(
        fs::read(mount.at("open")).unwrap(),
        b"written, never closed"
    );
}

#[test]
fn umount_of_a_busy_mount_is_refused_and_lazy_works() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    let mut open = fs::File::create(mount.at("open")).unwrap();
    let output = mount.umount_command(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("busy"), "{}", stderr(&output));
    assert!(mount.umount_command(&["-l"]).status.success());
    assert!(!mount.is_in_mount_table());
    open.write_all(b"late").unwrap();
    drop(open);
    assert_eq!(mount.wait().code(), Some(0));
    let output = mount.umount_command(&[]);
    assert!(
        stderr(&output).contains("not mounted"),
        "{}",
        stderr(&output)
    );
    mount.remount();
    assert_eq!(fs::read(mount.at("open")).unwrap(), b"late");
}

#[test]
fn a_second_mount_is_refused_and_names_the_holder() {
    let store = LocalStore::new();
    let first = Mount::new(&store.url());
    let run_dir = first.run_dir();
    // Elsewhere, but with the same run-dir: what one user's mounts on a host share.
    let arguments = ["--run-dir", run_dir.to_str().unwrap()];
    let elsewhere = Mount::unmounted(&store.url(), &[]);
    let output = stowfs()
        .arg("mount")
        .arg(store.url())
        .arg(elsewhere.path())
        .args(arguments)
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains(&format!("pid {}", first.pid())), "{text}");
    // On the same mountpoint.
    let output = first.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&first.pid().to_string()),
        "{}",
        stderr(&output)
    );
    fs::write(first.at("still"), "alive").unwrap();
}

#[test]
fn a_daemon_returns_when_ready_and_ends_by_umount() {
    let store = LocalStore::new();
    let mount = Mount::unmounted(&store.url(), &[]);
    // With relative paths, which mean something else once the daemon has left the directory.
    let mut daemon = stowfs();
    daemon
        .current_dir(mount.dir())
        .args(["mount", &store.url(), "mnt", "--daemon"]);
    daemon.args(["--run-dir", "run", "--log-file", "daemon.log"]);
    let output = daemon.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(
        line.contains("mounted on") && line.ends_with("ms)\n"),
        "{line}"
    );
    fs::write(mount.at("file"), "x").unwrap();

    let mut status = stowfs();
    status
        .arg("status")
        .arg(mount.path())
        .arg("--run-dir")
        .arg(mount.run_dir());
    let status = status.output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["url"], store.url());
    assert!(Path::new(&format!("/proc/{}", status["pid"])).exists());

    let output = mount.umount_command(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let log = fs::read_to_string(mount.dir().join("daemon.log")).unwrap();
    assert!(
        log.contains("mounted on") && log.contains("sealing"),
        "{log}"
    );
    // umount has waited for the end: no lock is held, and the socket is gone.
    assert!(!mount.is_in_mount_table());
    let left = fs::read_dir(mount.run_dir())
        .unwrap()
        .map(|e| e.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|n| n.to_str().unwrap().ends_with(".sock"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_daemon_that_fails_says_why_and_has_the_exit_code() {
    let mount = Mount::unmounted("file:///proc/no/such/root", &["--daemon"]);
    let output = mount.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/proc/no/such/root"),
        "{}",
        stderr(&output)
    );
    assert!(output.stdout.is_empty());
    let mut bad = Mount::unmounted("file:///x", &["--daemon", "--cache-size=much"]).command();
    let output = bad.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("cache_size=much"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_mount_inside_its_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("mnt");
    fs::create_dir(&inside).unwrap();
    let output = stowfs()
        .args(["mount", &format!("file://{}", dir.path().display())])
        .arg(&inside)
        .arg("--run-dir")
        .arg(dir.path().join("run"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("inside the store"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn remounting_right_after_umount_waits_for_the_old_process() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    for n in 0..5 {
        fs::write(mount.at(&format!("{n}")), "x").unwrap();
        let umount = Command::new("umount").arg(mount.path()).status().unwrap();
        assert!(umount.success());
        // The old process is still sealing.
        let daemon = mount
            .command()
            .arg("--daemon")
            .stdout(Stdio::null())
            .output()
            .unwrap();
        assert!(daemon.status.success(), "{}", stderr(&daemon));
        assert_eq!(mount.wait().code(), Some(0));
        assert!(mount.at(&format!("{n}")).exists());
        assert!(mount.umount_command(&[]).status.success());
        mount.remount();
    }
}

#[test]
fn segments_of_a_running_mount_and_fsck_after_a_crash() {
    let store = LocalStore::new();
    let mut mount = Mount::new(&store.url());
    for n in 0..100u8 {
        fs::write(mount.at(&n.to_string()), vec![n; 5000]).unwrap();
    }
    fs::write(mount.at("long"), vec![7; 12 << 20]).unwrap();
    let run_dir = mount.run_dir();
    let ask = |arguments: &[&str], target: &Path| {
        let run_dir = ["--run-dir", run_dir.to_str().unwrap()];
        let output = stowfs()
            .args(arguments)
            .args(run_dir)
            .arg(target)
            .output()
            .unwrap();
        let found: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code(), found)
    };
    let (code, live) = ask(&["segments", "--json"], &mount.path());
    let bytes = 100 * 5000 + (12 << 20);
    assert_eq!(code, Some(0));
    assert_eq!(
        (&live["live_bytes"], &live["files"]),
        (&bytes.into(), &101.into())
    );
    assert!(live["amplification"].as_f64().unwrap() < 1.1, "{live:#}");

    mount.kill9();
    let url = store.url();
    let (code, report) = ask(&["fsck", "--json"], Path::new(&url));
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["bytes"], bytes);
    let (_, offline) = ask(&["segments", "--json"], Path::new(&url));
    assert_eq!(offline["live_bytes"], bytes);
    mount.remount();
    assert_eq!(fs::read(mount.at("long")).unwrap(), vec![7; 12 << 20]);
}
