//! Whole mounts of the built program on a real HDFS: crashes, and two mounts that want one root.

mod support;

use nix::sys::signal::Signal;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use stowfs::store::connect::{ConnectOptions, connect};
use stowfs::store::hdfs::HdfsOptions;
use support::hdfs::Hdfs;
use support::mount::{Mount, stowfs};

/// One cluster for all tests; each has a root of its own.
fn cluster() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| Hdfs::builder().datanodes(2).replication(2).start())
}

/// The arguments of every mount here.
fn arguments() -> Vec<String> {
    let conf = cluster().conf_dir();
    let conf = conf.to_str().unwrap();
    ["--replication=2", "--op-timeout=30s", "--hadoop-conf", conf]
        .map(String::from)
        .to_vec()
}

fn mount_with(root: &str, more: &[&str]) -> Result<Mount, String> {
    let common = arguments();
    let all: Vec<&str> = common
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    Mount::try_with(&format!("{}/{root}", cluster().url()), &all)
}

fn mount(root: &str) -> Mount {
    mount_with(root, &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn content(name: &str) -> Vec<u8> {
    name.as_bytes().repeat(2000)
}

fn write_files(dir: &Path, prefix: &str, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
    for name in &names {
        fs::write(dir.join(name), content(name)).unwrap();
    }
    names
}

fn check_files(dir: &Path, names: &[String]) {
    for name in names {
        assert!(fs::read(dir.join(name)).unwrap() == content(name), "{name}");
    }
}

#[test]
fn closed_files_survive_kill_9() {
    let mut mount = mount("kill");
    let mut names = Vec::new();
    for round in 0..2 {
        names.extend(write_files(&mount.path(), &format!("round{round}"), 60));
        mount.kill9();
        mount.remount();
        check_files(&mount.path(), &names);
    }
    assert_eq!(mount.umount().code(), Some(0), "{}", mount.log());
    mount.remount();
    check_files(&mount.path(), &names);
}

/// Two run-dirs stand for two hosts: neither sees the other's locks.
#[test]
fn a_live_holder_on_another_host_keeps_its_root() {
    let first = mount("held");
    let names = write_files(&first.path(), "a", 10);
    let Err(told) = mount_with("held", &[]) else {
        panic!("two mounts of one root")
    };
    assert!(told.contains(&format!("pid {}", first.pid())), "{told}");
    check_files(&first.path(), &names);
    write_files(&first.path(), "b", 10);
}

#[test]
fn a_frozen_holder_is_taken_over_and_learns_it_when_thawed() {
    let mut old = mount("frozen");
    let before = write_files(&old.path(), "before", 20);
    // Leads into the mount even when it is detached.
    let inside = fs::File::open(old.path()).unwrap();
    let zombie = format!("/proc/self/fd/{}/zombie", inside.as_raw_fd());
    old.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    let new = mount_with("frozen", &["--takeover"]).unwrap_or_else(|e| panic!("{e}"));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    check_files(&new.path(), &before);
    let after = write_files(&new.path(), "after", 20);

    old.signal(Signal::SIGCONT);
    // Whatever it is asked from now on, it acknowledges nothing.
    let mut exit = None;
    while exit.is_none() {
        exit = old.try_wait(Duration::from_millis(1));
        let synced = fs::File::create(&zombie).and_then(|file| {
            file.write_all_at(b"x", 0)?;
            file.sync_all()
        });
        assert!(synced.is_err());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(exit.and_then(|e| e.code()), Some(69), "{}", old.log());
    // An engine that goes on must not write into the directory below: the mount stays, dead.
    let dead = fs::metadata(old.path()).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(nix::libc::ENOTCONN), "{dead}");
    check_files(&new.path(), &[before, after].concat());
    assert!(!new.at("zombie").exists());
}

/// Runs another command on a root of the cluster; its exit code and what it printed.
fn command(words: &[&str], root: &str) -> (Option<i32>, String) {
    let output = stowfs()
        .args(words)
        .arg(format!("{}/{root}", cluster().url()))
        .args(arguments())
        .output()
        .unwrap();
    let printed = [&output.stdout[..], &output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}

fn delete(root: &str, path: &str) {
    let options = ConnectOptions {
        hdfs: HdfsOptions {
            conf_dir: Some(cluster().conf_dir()),
            ..HdfsOptions::default()
        },
    };
    let url = format!("{}/{root}", cluster().url());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let deleted = runtime.block_on(async { connect(&url, &options).await?.delete(path).await });
    deleted.unwrap();
}

#[test]
fn fsck_of_a_crashed_and_a_damaged_root_and_a_rebuild() {
    let mut mount = mount("checked");
    let names = write_files(&mount.path(), "a", 30);
    fs::write(mount.at("long"), content("long").repeat(1500)).unwrap();
    mount.kill9();
    let (code, printed) = command(&["fsck"], "checked");
    assert_eq!(code, Some(0), "a crash is no damage: {printed}");
    mount.remount();
    check_files(&mount.path(), &names);
    assert_eq!(mount.umount().code(), Some(0));
    let (code, printed) = command(&["fsck"], "checked");
    assert!(code == Some(0) && printed.contains("clean"), "{printed}");
    let (code, printed) = command(&["segments"], "checked");
    assert!(code == Some(0) && printed.contains("log/1/0"), "{printed}");

    delete("checked", ".stowfs/log/1.fenced/0.seg");
    let (code, printed) = command(&["fsck"], "checked");
    assert!(code == Some(1) && printed.contains("problem"), "{printed}");
    assert!(
        mount.try_remount().is_err(),
        "acknowledged changes are missing"
    );
    let (code, printed) = command(&["fsck", "--rebuild"], "checked");
    assert!(code == Some(1) && printed.contains("rebuilt"), "{printed}");
    mount.remount();
    let found: Vec<String> = fs::read_dir(mount.at("lost+found"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let long = found
        .iter()
        .find(|n| n.ends_with("-long"))
        .expect("its lane is there");
    let saved = fs::read(mount.at(&format!("lost+found/{long}"))).unwrap();
    assert!(content("long").repeat(1500).starts_with(&saved) && saved.len() > 4 << 20);
    write_files(&mount.path(), "later", 3);
    assert_eq!(mount.umount().code(), Some(0));
}
