//! Directories: large ones, listing under change, renames, names and paths, special files.

mod support;

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use support::posix::{TestMount, c_path, errno, ok, run, scale, shell};

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    names
}

fn rename2(from: &Path, to: &Path, flags: u32) -> std::io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    let cwd = libc::AT_FDCWD;
    match unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn a_hundred_thousand_entries() {
    let mut mount = TestMount::new();
    let dir = mount.at("big");
    fs::create_dir(&dir).unwrap();
    let count = scale(20_000, 100_000);
    for n in 0..count {
        match n % 4 {
            0 => fs::create_dir(dir.join(format!("entry-{n}"))).unwrap(),
            1 => symlink("x", dir.join(format!("entry-{n}"))).unwrap(),
            _ => shell_free_mknod(&dir.join(format!("entry-{n}"))),
        }
    }
    let check = |mount: &TestMount| {
        let dir = mount.at("big");
        let found = names(&dir);
        assert_eq!(found.len(), count);
        let distinct: std::collections::HashSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), count);
        assert_eq!(
            dir.metadata().unwrap().nlink(),
            2 + count.div_ceil(4) as u64
        );
    };
    check(&mount);
    mount.cycle();
    check(&mount);
    fs::remove_dir_all(mount.at("big")).unwrap();
    assert_eq!(mount.path().metadata().unwrap().nlink(), 2);
    mount.finish();
}

/// A regular file without an open and a close, which would wait for the store.
fn shell_free_mknod(path: &Path) {
    ok(unsafe { libc::mknod(c_path(path).as_ptr(), libc::S_IFREG | 0o644, 0) });
}

#[test]
fn what_stays_is_listed_exactly_once_while_others_come_and_go() {
    let mount = TestMount::new();
    let dir = mount.at("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..3000 {
        shell_free_mknod(&dir.join(format!("stable-{n}")));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..2 {
            let (dir, stop) = (&dir, &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = dir.join(format!("passing-{t}-{}", n % 500));
                    shell_free_mknod(&path);
                    if n % 3 == 0 {
                        let other = dir.join(format!("renamed-{t}-{}", n % 500));
                        fs::rename(&path, &other).unwrap();
                        fs::remove_file(&other).unwrap();
                    } else {
                        fs::remove_file(&path).unwrap();
                    }
                    n += 1;
                }
            });
        }
        for _ in 0..scale(15, 200) {
            let mut seen: HashMap<OsString, u32> = HashMap::new();
            for name in names(&dir) {
                *seen.entry(name).or_default() += 1;
            }
            let stable = |name: &OsString| name.as_bytes().starts_with(b"stable-");
            let found = seen.keys().filter(|n| stable(n)).count();
            let twice: Vec<_> = seen.iter().filter(|(n, c)| stable(n) && **c > 1).collect();
            if found != 3000 || !twice.is_empty() {
                stop.store(true, Ordering::Relaxed);
                panic!("{found} of 3000 found; more than once: {twice:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    mount.finish();
}

struct Listing(*mut libc::DIR);

impl Listing {
    fn of(path: &Path) -> Listing {
        let dir = unsafe { libc::opendir(c_path(path).as_ptr()) };
        assert!(!dir.is_null());
        Listing(dir)
    }

    fn next(&self) -> Option<(OsString, u64)> {
        let entry = unsafe { libc::readdir(self.0).as_ref()? };
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) };
        Some((OsStr::from_bytes(name.to_bytes()).into(), entry.d_ino))
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn telldir_seekdir_and_rewinddir() {
    let mount = TestMount::new();
    for n in 0..500 {
        shell_free_mknod(&mount.at(&format!("{n}")));
    }
    let listing = Listing::of(&mount.path());
    let mut order = Vec::new();
    loop {
        let place = unsafe { libc::telldir(listing.0) };
        assert!(place >= 0);
        match listing.next() {
            Some((name, ino)) => order.push((place, name, ino)),
            None => break,
        }
    }
    assert_eq!(order.len(), 502);
    for (place, name, ino) in order.iter().rev().step_by(7) {
        unsafe { libc::seekdir(listing.0, *place) };
        assert_eq!(listing.next().unwrap(), (name.clone(), *ino));
    }
    shell_free_mknod(&mount.at("new"));
    unsafe { libc::rewinddir(listing.0) };
    let again: Vec<_> = std::iter::from_fn(|| listing.next()).collect();
    assert_eq!(again.len(), 503);
    for (name, ino) in again {
        let want = match name.as_bytes() {
            b".." => continue,
            b"." => mount.path().metadata().unwrap().ino(),
            _ => mount.path().join(&name).symlink_metadata().unwrap().ino(),
        };
        assert_eq!(ino, want, "{name:?}");
    }
    mount.finish();
}

#[test]
fn directories_move_with_open_files_below() {
    let mount = TestMount::new();
    fs::create_dir_all(mount.at("a/b/c")).unwrap();
    fs::create_dir(mount.at("z")).unwrap();
    let mut file = File::create(mount.at("a/b/c/f")).unwrap();
    file.write_all(b"one ").unwrap();
    fs::rename(mount.at("a/b"), mount.at("z/moved")).unwrap();
    file.write_all(b"two").unwrap();
    drop(file);
    assert_eq!(
        fs::read_to_string(mount.at("z/moved/c/f")).unwrap(),
        "one two"
    );
    assert_eq!(mount.at("a").metadata().unwrap().nlink(), 2);
    assert_eq!(mount.at("z").metadata().unwrap().nlink(), 3);
    let up = fs::canonicalize(mount.at("z/moved/..")).unwrap();
    assert_eq!(up, fs::canonicalize(mount.at("z")).unwrap());

    let into_itself = rename2(&mount.at("z"), &mount.at("z/moved/c/z"), 0);
    assert_eq!(errno(into_itself), libc::EINVAL);
    let onto_full = rename2(&mount.at("a"), &mount.at("z"), 0);
    assert_eq!(errno(onto_full), libc::ENOTEMPTY);
    fs::write(mount.at("file"), "").unwrap();
    assert_eq!(
        errno(rename2(&mount.at("a"), &mount.at("file"), 0)),
        libc::ENOTDIR
    );
    assert_eq!(
        errno(rename2(&mount.at("file"), &mount.at("a"), 0)),
        libc::EISDIR
    );
    let taken = rename2(
        &mount.at("file"),
        &mount.at("z/moved/c/f"),
        libc::RENAME_NOREPLACE,
    );
    assert_eq!(errno(taken), libc::EEXIST);
    rename2(
        &mount.at("file"),
        &mount.at("z/moved"),
        libc::RENAME_EXCHANGE,
    )
    .unwrap();
    assert!(mount.at("file/c/f").is_file() && mount.at("z/moved").is_file());
    let cycle = rename2(
        &mount.at("file"),
        &mount.at("file/c/f"),
        libc::RENAME_EXCHANGE,
    );
    assert_eq!(errno(cycle), libc::EINVAL);
    assert_eq!(mount.at("z").metadata().unwrap().nlink(), 2);
    // The directory that a process is in may go.
    let gone = Listing::of(&mount.at("a"));
    fs::remove_dir(mount.at("a")).unwrap();
    while let Some((name, _)) = gone.next() {
        assert!(matches!(name.as_bytes(), b"." | b".."));
    }
    mount.finish();
}

#[test]
fn any_name_and_any_length() {
    let mut mount = TestMount::new();
    let mut all = Vec::new();
    for byte in 1..=255u8 {
        if byte != b'/' {
            all.push(OsString::from(OsStr::from_bytes(&[b'n', byte, byte])));
        }
    }
    all.push(OsString::from("l".repeat(255)));
    all.push(OsString::from("ü".repeat(127)));
    for name in &all {
        fs::create_dir(mount.path().join(name)).unwrap();
    }
    all.sort();
    assert!(names(&mount.path()) == all);
    mount.cycle();
    assert!(names(&mount.path()) == all);
    let long = mount.at(&"l".repeat(256));
    assert_eq!(errno(fs::create_dir(&long)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&long)), libc::ENAMETOOLONG);
    assert_eq!(errno(symlink("", mount.at("empty"))), libc::ENOENT);
    let target = "t".repeat(4095);
    symlink(&target, mount.at("link")).unwrap();
    assert_eq!(
        fs::read_link(mount.at("link")).unwrap(),
        PathBuf::from(&target)
    );
    let meta = mount.at("link").symlink_metadata().unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o7777), (4095, 0o777));
    mount.finish();
}

/// Deeper than a path can say: by steps from the working directory of a shell.
#[test]
fn deep_directories() {
    let mut mount = TestMount::new();
    let name = "d".repeat(200);
    let go = |work: &str| {
        format!("for ((n = 0; n < 60; n++)); do {work} cd -P {name} 2>/dev/null || exit 1; done")
    };
    let made = shell(
        &mount.path(),
        &format!(
            "{}; echo deep >file; cat file",
            go(&format!("mkdir {name};"))
        ),
    );
    assert_eq!(made, "deep\n");
    mount.cycle();
    assert_eq!(
        shell(&mount.path(), &format!("{}; cat file", go(""))),
        "deep\n"
    );
    let mut path = mount.path();
    while path.as_os_str().len() + 201 < 4095 {
        path.push(&name);
    }
    assert!(path.metadata().unwrap().is_dir());
    path.push(&name);
    assert_eq!(errno(path.metadata()), libc::ENAMETOOLONG);
    run(std::process::Command::new("rm")
        .arg("-rf")
        .arg(mount.at(&name)));
    assert!(!mount.at(&name).exists());
    mount.finish();
}

#[test]
fn symlink_loops_and_special_files() {
    let mut mount = TestMount::with(&["-o", "dev"]);
    symlink("b", mount.at("a")).unwrap();
    symlink("a", mount.at("b")).unwrap();
    assert_eq!(errno(fs::metadata(mount.at("a"))), libc::ELOOP);
    assert_eq!(errno(File::open(mount.at("a/x"))), libc::ELOOP);

    let fifo = mount.at("fifo");
    ok(unsafe { libc::mkfifo(c_path(&fifo).as_ptr(), 0o640) });
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || fs::read_to_string(fifo).unwrap())
    };
    fs::write(&fifo, "through a fifo").unwrap();
    assert_eq!(reader.join().unwrap(), "through a fifo");

    let path = mount.at("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "hello");
    assert_eq!(errno(File::open(&path)), libc::ENXIO);

    let device = mount.at("null");
    let number = libc::makedev(1, 3);
    ok(unsafe { libc::mknod(c_path(&device).as_ptr(), libc::S_IFCHR | 0o666, number) });
    fs::write(&device, "into nothing").unwrap();
    assert_eq!(fs::read(&device).unwrap(), b"");
    drop(listener);
    mount.cycle();
    assert!(mount.at("fifo").metadata().unwrap().file_type().is_fifo());
    assert!(
        mount
            .at("socket")
            .metadata()
            .unwrap()
            .file_type()
            .is_socket()
    );
    let meta = mount.at("null").metadata().unwrap();
    assert!(meta.file_type().is_char_device() && meta.rdev() == number);
    mount.finish();
}

#[test]
fn sticky_and_setgid_directories() {
    let mount = TestMount::with(&["-o", "allow_other,suid"]);
    let path = mount.path();
    // The folder above the mountpoint is for its owner only.
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    shell(
        &path,
        "mkdir shared && chgrp daemon shared && chmod 2777 shared && mkdir shared/d",
    );
    shell(&path, "touch shared/f");
    let group = path.join("shared").metadata().unwrap().gid();
    let inner = path.join("shared/d").metadata().unwrap();
    assert_eq!((inner.gid(), inner.mode() & 0o2000), (group, 0o2000));
    let file = path.join("shared/f").metadata().unwrap();
    assert_eq!((file.gid(), file.mode() & 0o2000), (group, 0));

    let as_user = |user: &str, line: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", user, "--regid", "nogroup", "--clear-groups"]);
        let status = command
            .args(["bash", "-c", line])
            .current_dir(&path)
            .output();
        status.unwrap().status.success()
    };
    shell(&path, "mkdir -m 1777 sticky && mkdir -m 777 free");
    assert!(as_user("nobody", "touch sticky/mine free/mine"));
    assert!(!as_user("daemon", "rm -f sticky/mine"));
    assert!(!as_user("daemon", "mv sticky/mine sticky/yours"));
    assert!(as_user("daemon", "rm -f free/mine"));
    assert!(as_user("nobody", "rm -f sticky/mine"));
    mount.finish();
}
