//! Whole mounts of the built program on a real HDFS: crashes, and two mounts that want one root.

mod support;

use nix::sys::signal::Signal;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::mount::Mount;

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
    while old.is_in_mount_table() {
        let synced = fs::File::create(&zombie).and_then(|file| {
            file.write_all_at(b"x", 0)?;
            file.sync_all()
        });
        assert!(synced.is_err());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(old.wait().code(), Some(69), "{}", old.log());
    check_files(&new.path(), &[before, after].concat());
    assert!(!new.at("zombie").exists());
}
