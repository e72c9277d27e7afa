//! The same random calls on the mount and on the local disk: same results, same trees.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::calls::Twins;
use support::posix::{TestMount, run, scale, seeds};
use tempfile::TempDir;

struct Sides {
    mount: TestMount,
    disk: TempDir,
}

impl Sides {
    fn new() -> Sides {
        let mount = TestMount::with(&["-o", "allow_other,suid"]);
        let disk = tempfile::tempdir().unwrap();
        for path in [disk.path(), mount.path().parent().unwrap()] {
            shared(path, 0o755);
        }
        Sides { mount, disk }
    }

    /// A folder on both sides, so deep that no symbolic link, wherever it moves, leads out of its
    /// own side.
    fn folder(&self, name: &str, owner: u32) -> [PathBuf; 2] {
        [self.disk.path(), &self.mount.path()].map(|side| {
            let mut path = side.join(name);
            for _ in 0..8 {
                fs::create_dir(&path).unwrap();
                shared(&path, 0o755);
                std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
                path.push("deep");
            }
            path.pop();
            path
        })
    }
}

fn shared(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn one_process() {
    let mut sides = Sides::new();
    for seed in seeds(scale(3, 40)) {
        println!("differential: STOWFS_TEST_SEED={seed} replays this");
        let [disk, mounted] = sides.folder(&format!("{seed}"), 0);
        let mut twins = Twins::new(seed, disk, mounted, true);
        for _ in 0..5000 {
            twins.step();
        }
        let (worked, all) = twins.worked;
        println!("{worked} of {all} calls worked");
        assert!(worked * 10 > all);
        twins.compare();
        twins.close_all();
        twins.compare();
        sides.mount.cycle();
        twins.compare();
    }
    sides.mount.finish();
}

/// Half of them as a user whom permissions concern.
#[test]
fn several_processes() {
    let sides = Sides::new();
    let seeds = seeds(scale(4, 16));
    let children: Vec<_> = seeds
        .iter()
        .enumerate()
        .map(|(n, seed)| {
            let user = if n % 2 == 0 { 0 } else { 65534 };
            let [disk, mounted] = sides.folder(&format!("{n}"), user);
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "worker", "--ignored", "--nocapture"]);
            child.env("STOWFS_TEST_WORKER_SEED", seed.to_string());
            child.env("STOWFS_TEST_WORKER_USER", user.to_string());
            child.env(
                "STOWFS_TEST_WORKER_ROOTS",
                format!("{}:{}", disk.display(), mounted.display()),
            );
            std::thread::spawn(move || run(&mut child))
        })
        .collect();
    for child in children {
        child.join().unwrap();
    }
    sides.mount.finish();
}

/// One process of `several_processes`.
#[test]
#[ignore = "is run by several_processes"]
fn worker() {
    let variable = |name: &str| std::env::var(format!("STOWFS_TEST_WORKER_{name}"));
    let Ok(seed) = variable("SEED") else { return };
    println!("differential: seed {seed}, user {:?}", variable("USER"));
    let roots = variable("ROOTS").unwrap();
    let (disk, mounted) = roots.split_once(':').unwrap();
    let privileged = variable("USER").unwrap() == "0";
    if !privileged {
        let id = 65534;
        // The system call, not glibc's function: this thread alone changes its user.
        unsafe {
            assert_eq!(
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()),
                0
            );
            assert_eq!(libc::syscall(libc::SYS_setresgid, id, id, id), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, id, id, id), 0);
        }
    }
    let seed = seed.parse().unwrap();
    let mut twins = Twins::new(seed, disk.into(), mounted.into(), privileged);
    for _ in 0..scale(4000, 40_000) {
        twins.step();
    }
    if privileged {
        twins.compare();
    }
}
