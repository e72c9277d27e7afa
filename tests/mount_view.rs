//! What a mount shows of itself and of its files: options, attributes, extents.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::mount::{LocalStore, Mount, stowfs};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn stat_shows_where_the_bytes_are() {
    let store = LocalStore::new();
    let mount = Mount::new(&store.url());
    fs::write(mount.at("f"), vec![7; 10_000]).unwrap();
    let output = stowfs()
        .arg("stat")
        .arg("--json")
        .arg(mount.at("f"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&stat["size"], &stat["inode"]),
        (
            &10_000.into(),
            &mount.at("f").metadata().unwrap().ino().into()
        )
    );
    let extents = stat["extents"].as_array().unwrap();
    let bytes: u64 = extents.iter().map(|e| e["length"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 10_000, "{stat}");
    let segment = extents[0]["segment"].as_str().unwrap();
    assert!(segment.starts_with("log/"), "{segment}");
    let output = stowfs().arg("stat").arg(mount.at("f")).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains(segment));
}

#[test]
fn mount_options_reach_the_kernel() {
    let store = LocalStore::new();
    let words = "noexec,uid=1234,gid=2345,umask=027,_netdev,x-foo=bar,attr_timeout=0";
    let mut mount = Mount::with(&store.url(), &["-o", words]);
    fs::write(mount.at("f"), "").unwrap();
    let meta = mount.at("f").metadata().unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (1234, 2345, 0o750)
    );
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = mount.path().canonicalize().unwrap();
    let line = table
        .lines()
        .find(|l| l.contains(path.to_str().unwrap()))
        .unwrap();
    for word in [
        "nosuid",
        "nodev",
        "noexec",
        "default_permissions",
        &store.url(),
    ] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    mount.umount();

    let read_only = Mount::with(&store.url(), &["-o", "ro"]);
    assert!(read_only.at("f").exists());
    let e = fs::write(read_only.at("g"), "").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn times_before_1970_keep_their_fractions() {
    let store = LocalStore::new();
    let mount = Mount::new(&store.url());
    fs::write(mount.at("f"), "").unwrap();
    for (seconds, nanos) in [(-1, 500_000_000), (-2, 0), (-100, 1), (1, 999_999_999)] {
        let time = libc::timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        };
        let time = nix::sys::time::TimeSpec::from(time);
        let flags = nix::sys::stat::UtimensatFlags::FollowSymlink;
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, &mount.at("f"), &time, &time, flags)
            .unwrap();
        let meta = mount.at("f").metadata().unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (seconds, nanos));
    }
}

/// fuser's own decoding panics on this time in a debug build, which once ended a loop thread and
/// hung the caller: the build of fuser has no overflow checks, and a dead thread ends the mount.
#[test]
fn extreme_times_neither_hang_nor_kill_the_mount() {
    let store = LocalStore::new();
    let mount = Mount::new(&store.url());
    fs::write(mount.at("f"), "").unwrap();
    for seconds in [i64::MIN, i64::MIN + 1, i64::MAX] {
        let time = nix::sys::time::TimeSpec::new(seconds, 999_999_999);
        let flags = nix::sys::stat::UtimensatFlags::FollowSymlink;
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, &mount.at("f"), &time, &time, flags)
            .unwrap();
        mount.at("f").metadata().unwrap();
    }
}

#[test]
fn operations_on_many_threads_do_not_starve_each_other() {
    let store = LocalStore::new();
    let mount = Mount::with(&store.url(), &["--threads=2"]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for t in 0..32 {
            let mount = &mount;
            scope.spawn(move || {
                for n in 0..10 {
                    let path = mount.at(&format!("{t}-{n}"));
                    fs::write(&path, vec![t as u8; 5000]).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), vec![t as u8; 5000]);
                }
            });
        }
    });
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 320);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// What mount(8) runs for `mount -t stowfs` and for lines of fstab.
#[test]
fn the_mount_helper_passes_options_on() {
    let store = LocalStore::new();
    let mount = Mount::unmounted(&store.url(), &[]);
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts/mount.stowfs");
    let programs = Path::new(env!("CARGO_BIN_EXE_stowfs")).parent().unwrap();
    let words = format!("rw,noexec,_netdev,run_dir={}", mount.run_dir().display());
    let run = |more: &[&str]| {
        let mut command = Command::new(&helper);
        command
            .arg(store.url())
            .arg(mount.path())
            .args(["-n", "-o", &words])
            .args(more);
        command.env("PATH", programs).output().unwrap()
    };
    let faked = run(&["-f"]);
    assert!(
        faked.status.success() && !mount.is_in_mount_table(),
        "{}",
        stderr(&faked)
    );
    let refused = run(&["-o", "no_such_word"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("no_such_word"),
        "{}",
        stderr(&refused)
    );
    let mounted = run(&[]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    fs::write(mount.at("f"), "x").unwrap();
    assert!(mount.umount_command(&[]).status.success());
}

/// With HANDLE_KILLPRIV_V2 the kernel leaves clearing these bits to the filesystem.
#[test]
fn writes_by_others_clear_the_set_user_id_bits_at_once() {
    if !nix::unistd::Uid::effective().is_root() {
        return eprintln!("only root can write as another user");
    }
    let store = LocalStore::new();
    let mount = Mount::with(&store.url(), &["-o", "suid,allow_other"]);
    fs::set_permissions(mount.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = mount.at("f");
    let mode_after = |uid: u32, script: &str| {
        let _ = fs::remove_file(&file);
        fs::write(&file, "hello").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("F", &file);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        assert!(command.status().unwrap().success(), "{script}");
        file.metadata().unwrap().mode() & 0o7777
    };
    for script in [
        "echo x >> $F",
        "truncate -s 1 $F",
        ": > $F",
        "fallocate -p -o 0 -l 2 $F",
    ] {
        assert_eq!(mode_after(1000, script), 0o777, "{script}");
        assert_eq!(mode_after(0, script), 0o6777, "{script} by root");
    }
    assert_eq!(mode_after(0, "chown 5:5 $F"), 0o777);
}
