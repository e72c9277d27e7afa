//! What several descriptors, mappings and processes see of one file.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::mapping::Map;
use support::posix::{TestMount, c_path, command, errno, ok, output, run, scale};

fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options
}

/// Memory for O_DIRECT.
#[repr(align(4096))]
struct Page([u8; 4096]);

#[test]
fn a_direct_writer_and_cached_readers_agree() {
    let mount = TestMount::new();
    let path = mount.at("f");
    fs::write(&path, [0; 16384]).unwrap();
    let cached = File::open(&path).unwrap();
    let mut mapped = Map::of(&options().open(&path).unwrap(), 16384);
    let direct = options().custom_flags(libc::O_DIRECT).open(&path).unwrap();
    for n in 1..200u8 {
        let offset = (n % 4) as u64 * 4096;
        let page = Page([n; 4096]);
        direct.write_all_at(&page.0, offset).unwrap();
        let mut found = [0; 4096];
        cached.read_exact_at(&mut found, offset).unwrap();
        assert!(found == page.0, "cached read after direct write {n}");
        let at = offset as usize;
        assert!(mapped.bytes()[at..at + 4096] == page.0, "mapping {n}");

        let cached_writer = options().open(&path).unwrap();
        cached_writer.write_all_at(&[!n; 100], offset + 50).unwrap();
        let mut page = Page([0; 4096]);
        direct.read_exact_at(&mut page.0, offset).unwrap();
        assert!(page.0[50..150] == [!n; 100], "direct read {n}");

        mapped.bytes()[at + 1000] = 77;
        direct.read_exact_at(&mut page.0, offset).unwrap();
        assert_eq!(page.0[1000], 77, "direct read after a store to memory {n}");
    }
    mount.finish();
}

/// No FLUSH follows what the kernel writes back after the close.
#[test]
fn a_mapping_written_after_close_is_kept() {
    let mut mount = TestMount::new();
    for (name, wait) in [("released", false), ("aged", true)] {
        let file = options().open(mount.at(name)).unwrap();
        file.set_len(10_000).unwrap();
        let mut map = Map::of(&file, 10_000);
        drop(file);
        map.bytes().fill(b'm');
        if wait {
            map.sync();
            std::mem::forget(map);
        }
        assert!(fs::read(mount.at(name)).unwrap() == [b'm'; 10_000]);
    }
    mount.crash_after(Duration::from_secs(3));
    for name in ["released", "aged"] {
        assert!(
            fs::read(mount.at(name)).unwrap() == [b'm'; 10_000],
            "{name}"
        );
    }
    mount.finish();
}

trait CrashAfter {
    fn crash_after(&mut self, pause: Duration);
}

impl CrashAfter for TestMount {
    fn crash_after(&mut self, pause: Duration) {
        std::thread::sleep(pause);
        self.crash();
    }
}

#[test]
fn appends_of_several_processes_lose_nothing() {
    let mount = TestMount::new();
    let path = mount.at("log");
    let (writers, lines) = (6, scale(200, 3000));
    let script = "for ((n = 0; n < $3; n++)); do echo \"$2 $n line\" >>\"$1\"; done";
    let children: Vec<Child> = (0..writers)
        .map(|w| {
            let mut bash = command("bash", &["-c", script, "bash"]);
            bash.arg(&path).arg(w.to_string()).arg(lines.to_string());
            bash.spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let text = fs::read_to_string(&path).unwrap();
    for w in 0..writers {
        let mine: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with(&format!("{w} ")))
            .collect();
        let want: Vec<String> = (0..lines).map(|n| format!("{w} {n} line")).collect();
        assert!(mine == want, "writer {w}");
    }
    mount.finish();
}

#[test]
fn truncating_under_readers() {
    let mount = TestMount::new();
    let path = mount.at("f");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let mut reader = File::open(&path).unwrap();
    reader.seek(SeekFrom::Start(50_000)).unwrap();
    let writer = options().open(&path).unwrap();
    writer.set_len(60_000).unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 10_000);
    writer.set_len(10).unwrap();
    assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
    writer.set_len(70_000).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 70_000);
    let mut found = vec![1; 70_000];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..10] == [b'a'; 10] && found[10..].iter().all(|b| *b == 0));
    mount.finish();
}

#[test]
fn unlinked_and_replaced_files_live_until_closed() {
    let mount = TestMount::new();
    let (a, b) = (mount.at("a"), mount.at("b"));
    fs::write(&a, "old").unwrap();
    let old = options().open(&a).unwrap();
    fs::write(&b, "new").unwrap();
    fs::rename(&b, &a).unwrap();
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_to_string(&a).unwrap(), "new");
    let mut text = String::new();
    (&old).read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");

    fs::remove_file(&a).unwrap();
    old.write_all_at(&vec![7; 5 << 20], 3).unwrap();
    old.sync_all().unwrap();
    old.set_len(6 << 20).unwrap();
    let mut found = vec![0; 6 << 20];
    old.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..3] == *b"old" && found[3..(5 << 20) + 3].iter().all(|b| *b == 7));
    old.set_permissions(fs::Permissions::from_mode(0o600))
        .unwrap();
    assert_eq!(old.metadata().unwrap().mode() & 0o777, 0o600);
    // It cannot get a name again.
    let link = format!("/proc/self/fd/{}", old.as_raw_fd());
    let target = c_path(&mount.at("again"));
    let from = c_path(Path::new(&link));
    let cwd = libc::AT_FDCWD;
    let follow = libc::AT_SYMLINK_FOLLOW;
    let linked = unsafe { libc::linkat(cwd, from.as_ptr(), cwd, target.as_ptr(), follow) };
    assert_eq!(linked, -1);
    assert_eq!(
        errno::<()>(Err(std::io::Error::last_os_error())),
        libc::ENOENT
    );
    mount.finish();
}

#[test]
fn hard_links_share_count_and_change_time() {
    let mount = TestMount::new();
    let names: Vec<_> = (0..20).map(|n| mount.at(&format!("n{n}"))).collect();
    fs::write(&names[0], "x").unwrap();
    let mut before = names[0].metadata().unwrap();
    for (n, name) in names.iter().enumerate().skip(1) {
        std::thread::sleep(Duration::from_millis(2));
        fs::hard_link(&names[0], name).unwrap();
        let first = names[0].metadata().unwrap();
        assert_eq!(first.nlink(), n as u64 + 1);
        assert!((first.ctime(), first.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        before = first;
    }
    for (n, name) in names.iter().enumerate().skip(1) {
        std::thread::sleep(Duration::from_millis(2));
        fs::remove_file(name).unwrap();
        let first = names[0].metadata().unwrap();
        assert_eq!(first.nlink(), 20 - n as u64);
        assert!((first.ctime(), first.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        assert_eq!(first.ino(), before.ino());
        before = first;
    }
    mount.finish();
}

#[test]
fn locks_between_processes() {
    let mount = TestMount::new();
    let path = mount.at("lock");
    let holder = options().open(&path).unwrap();
    ok(unsafe { libc::flock(holder.as_raw_fd(), libc::LOCK_EX) });
    let mut try_lock = command("flock", &["-n"]);
    try_lock.arg(&path).arg("true");
    assert_eq!(output(&mut try_lock).status.code(), Some(1));
    ok(unsafe { libc::flock(holder.as_raw_fd(), libc::LOCK_UN) });
    run(&mut try_lock);

    // Record locks of another process, then of another description in this one.
    let python = "
import fcntl, sys, time
f = open(sys.argv[1], 'r+b')
fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)
print('locked', flush=True)
time.sleep(60)
";
    let mut other = Command::new("python3")
        .args(["-c", python])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    other
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    for command in [libc::F_SETLK, libc::F_OFD_SETLK] {
        assert_eq!(lock(&holder, command, 0, 5), None);
        let refused = lock(&holder, command, 0, 6);
        assert!(
            matches!(refused, Some(libc::EAGAIN | libc::EACCES)),
            "{refused:?}"
        );
        // A lock of a process and one of a description conflict even within one process.
        assert_eq!(unlock(&holder, command), None);
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(lock(&holder, libc::F_OFD_SETLK, 0, 6), None);
    let second = options().open(&path).unwrap();
    assert_eq!(lock(&second, libc::F_OFD_SETLK, 2, 1), Some(libc::EAGAIN));
    drop(holder);
    assert_eq!(lock(&second, libc::F_OFD_SETLK, 2, 1), None);
    mount.finish();
}

fn lock(file: &File, command: i32, start: i64, len: i64) -> Option<i32> {
    set_lock(file, command, libc::F_WRLCK, start, len)
}

fn unlock(file: &File, command: i32) -> Option<i32> {
    set_lock(file, command, libc::F_UNLCK, 0, 0)
}

fn set_lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> Option<i32> {
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = start;
    lock.l_len = len;
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) } {
        0 => None,
        _ => std::io::Error::last_os_error().raw_os_error(),
    }
}

#[test]
fn programs_run_from_the_mount_and_cannot_be_written_meanwhile() {
    let mount = TestMount::new();
    let program = mount.at("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut child = command(&program, &["60"]).spawn().unwrap();
    let refused = errno(options().open(&program));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(refused, libc::ETXTBSY);
    let writer = options().open(&program).unwrap();
    let started = command(&program, &["0"]).spawn();
    assert_eq!(errno(started.map(drop)), libc::ETXTBSY);
    drop(writer);
    run(&mut command(&program, &["0"]));
    mount.finish();
}

#[test]
fn sendfile_and_splice() {
    let mount = TestMount::new();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    fs::write(mount.at("from"), &bytes).unwrap();
    let from = File::open(mount.at("from")).unwrap();
    let to = File::create(mount.at("sent")).unwrap();
    let (mut sent, mut offset) = (0, 0);
    while sent < bytes.len() {
        let left = bytes.len() - sent;
        sent += ok(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), &mut offset, left) })
            as usize;
    }
    assert!(fs::read(mount.at("sent")).unwrap() == bytes);

    let mut ends = [0; 2];
    ok(unsafe { libc::pipe(ends.as_mut_ptr()) });
    let [reads, writes] = ends.map(|fd| unsafe { File::from_raw_fd(fd) });
    let to = File::create(mount.at("spliced")).unwrap();
    let null = std::ptr::null_mut();
    loop {
        let (from, pipe) = (from.as_raw_fd(), writes.as_raw_fd());
        let mut n = ok(unsafe { libc::splice(from, null, pipe, null, 60_000, 0) });
        if n == 0 {
            break;
        }
        while n > 0 {
            let (pipe, to) = (reads.as_raw_fd(), to.as_raw_fd());
            n -= ok(unsafe { libc::splice(pipe, null, to, null, n as usize, 0) });
        }
    }
    drop(to);
    assert!(fs::read(mount.at("spliced")).unwrap() == bytes);
    mount.finish();
}

/// Each write is durable when it returns, without a close.
#[test]
fn synchronous_writes_and_synced_directories_survive_a_crash() {
    let mut mount = TestMount::new();
    let mut open = Vec::new();
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let mut file = options().custom_flags(flag).open(mount.at(name)).unwrap();
        for n in 0..10 {
            writeln!(file, "{n}").unwrap();
        }
        open.push(file);
    }
    for n in 0..50 {
        fs::create_dir(mount.at(&format!("d{n}"))).unwrap();
    }
    fs::rename(mount.at("d1"), mount.at("renamed")).unwrap();
    fs::remove_dir(mount.at("d2")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    mount.crash();
    for name in ["sync", "dsync"] {
        let text = fs::read_to_string(mount.at(name)).unwrap();
        assert_eq!(text, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    }
    assert!(mount.at("renamed").is_dir() && !mount.at("d1").exists());
    assert!(!mount.at("d2").exists() && mount.at("d49").is_dir());
    mount.finish();
}
