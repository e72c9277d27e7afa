//! Owners, modes, groups, extended attributes, ACLs, statfs.

mod support;

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use support::posix::{TestMount, c_path, errno, ok, output, run, shell};

/// A mount that other users can reach.
fn open_to_all(options: &str) -> TestMount {
    let mount = TestMount::with(&["-o", options]);
    let above = mount.path().parent().unwrap().to_path_buf();
    fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
    mount
}

/// Runs a line of shell as a user with these supplementary groups.
fn as_user(mount: &TestMount, user: &str, groups: &str, line: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", "nogroup"]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    output(command.args(["bash", "-c", line]).current_dir(mount.path()))
        .status
        .success()
}

#[test]
fn the_kernel_checks_modes_owners_and_groups() {
    let mount = open_to_all("allow_other,suid");
    let path = mount.path();
    shell(
        &path,
        "echo x >f && chmod 640 f && chgrp daemon f && chmod 755 .",
    );
    assert!(!as_user(&mount, "nobody", "", "cat f"));
    assert!(as_user(&mount, "nobody", "daemon", "cat f"));
    assert!(!as_user(&mount, "nobody", "daemon", "echo y >>f"));
    assert!(!as_user(&mount, "nobody", "daemon", "touch new"));
    shell(&path, "mkdir d && chown nobody d && chmod 700 d");
    assert!(as_user(
        &mount,
        "nobody",
        "",
        "umask 027; echo x >d/f && mkdir d/e"
    ));
    let owner = path.join("d").metadata().unwrap().uid();
    let made = path.join("d/f").metadata().unwrap();
    assert_eq!((made.uid(), made.mode() & 0o7777), (owner, 0o640));
    assert_eq!(path.join("d/e").metadata().unwrap().mode() & 0o7777, 0o750);
    assert!(!as_user(&mount, "daemon", "", "ls d"));
    assert!(!as_user(&mount, "nobody", "", "chown daemon d/f"));
    assert!(!as_user(&mount, "nobody", "", "chgrp daemon d/f"));
    assert!(as_user(&mount, "nobody", "daemon", "chgrp daemon d/f"));
    mount.finish();
}

#[test]
fn without_allow_other_nobody_else_enters() {
    let mount = open_to_all("suid");
    shell(&mount.path(), "echo x >f && chmod 666 f && chmod 777 .");
    let path = mount.at("f");
    let mut cat = Command::new("setpriv");
    cat.args([
        "--reuid",
        "nobody",
        "--regid",
        "nogroup",
        "--clear-groups",
        "cat",
    ]);
    let output = output(cat.arg(&path));
    assert!(!output.status.success());
    mount.finish();
}

#[test]
fn set_user_id_bits_go_with_writes_and_changes_of_owner() {
    let mount = open_to_all("allow_other,suid");
    let path = mount.at("f");
    let mode = || path.metadata().unwrap().mode() & 0o7777;
    let reset = || {
        fs::write(&path, "content").unwrap();
        chown(&path, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    };
    let by_others = [
        "echo x >>f",
        "echo x >f",
        "truncate -s 3 f",
        "truncate -s 3000 f",
        "fallocate -l 9000 f",
        "fallocate -p -o 0 -l 3 f",
        "python3 -c 'import os; f=os.open(\"f\",2); os.pwrite(f, b\"z\", 1)'",
    ];
    for line in by_others {
        reset();
        assert_eq!(mode(), 0o6777);
        assert!(as_user(&mount, "daemon", "", line), "{line}");
        assert_eq!(mode(), 0o777, "after {line}");
    }
    reset();
    chown(&path, Some(2), None).unwrap();
    assert_eq!(mode(), 0o777, "after chown by root");
    // Found by the differential test: the kernel passes this one without an owner.
    reset();
    chown(&path, None, None).unwrap();
    assert_eq!(mode(), 0o777, "after chown(-1, -1)");
    // Without execution by the group, set-group-id means mandatory locking, and stays.
    reset();
    fs::set_permissions(&path, Permissions::from_mode(0o2767)).unwrap();
    assert!(as_user(&mount, "daemon", "", "echo x >>f"));
    assert_eq!(mode(), 0o2767);
    reset();
    File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"x")
        .unwrap();
    assert_eq!(mode(), 0o6777, "root keeps them");
    mount.finish();
}

/// HANDLE_KILLPRIV_V2 makes this the server's work; the kernel no longer does it.
#[test]
fn file_capabilities_go_with_writes() {
    let mount = open_to_all("allow_other,suid");
    let path = mount.at("f");
    // cap_net_raw=ep, version 2.
    let value: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for line in [
        "echo x >>f",
        "truncate -s 1 f",
        "chown daemon f",
        "python3 -c 'import os; os.chown(\"f\", -1, -1)'",
        "fallocate -l 90000 f",
    ] {
        fs::write(&path, "content").unwrap();
        set(&path, "security.capability", &value, 0).unwrap();
        assert_eq!(get(&path, "security.capability").unwrap(), value);
        shell(&mount.path(), line);
        let e = errno(get(&path, "security.capability"));
        assert_eq!(e, libc::ENODATA, "after {line}");
    }
    mount.finish();
}

fn check(result: isize) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

fn set(path: &Path, name: &str, value: &[u8], flags: i32) -> std::io::Result<usize> {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    let (at, len) = (value.as_ptr().cast(), value.len());
    check(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), at, len, flags) } as isize)
}

fn get(path: &Path, name: &str) -> std::io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    let mut value = vec![0u8; 1 << 16];
    let (at, room) = (value.as_mut_ptr().cast(), value.len());
    let len = check(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), at, room) })?;
    value.truncate(len);
    Ok(value)
}

fn remove(path: &Path, name: &str) -> std::io::Result<usize> {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    check(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) } as isize)
}

#[test]
fn extended_attributes() {
    let mut mount = open_to_all("allow_other");
    let (file, dir, link) = (mount.at("f"), mount.at("d"), mount.at("l"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("f", &link).unwrap();
    let long = vec![7u8; 1 << 16];
    for path in [&file, &dir] {
        set(path, "user.a", b"1", 0).unwrap();
        set(path, "user.empty", b"", 0).unwrap();
        set(path, "user.long", &long, 0).unwrap();
        set(path, "trusted.t", b"\0\xff", 0).unwrap();
        set(path, "security.s", b"label", 0).unwrap();
        assert_eq!(
            errno(set(path, "user.a", b"2", libc::XATTR_CREATE)),
            libc::EEXIST
        );
        assert_eq!(
            errno(set(path, "user.b", b"2", libc::XATTR_REPLACE)),
            libc::ENODATA
        );
        set(path, "user.a", b"2", libc::XATTR_REPLACE).unwrap();
        assert_eq!(errno(remove(path, "user.b")), libc::ENODATA);
        assert_eq!(errno(get(path, "user.b")), libc::ENODATA);
        let too_long = vec![0u8; (1 << 16) + 1];
        assert_eq!(errno(set(path, "user.x", &too_long, 0)), libc::E2BIG);
        let name = format!("user.{}", "n".repeat(250));
        set(path, &name, b"v", 0).unwrap();
        assert_eq!(errno(set(path, &format!("{name}n"), b"v", 0)), libc::ERANGE);
        remove(path, &name).unwrap();
        for name in ["system.foo", "other.foo", "foo"] {
            assert_eq!(errno(set(path, name, b"", 0)), libc::EOPNOTSUPP, "{name}");
            assert_eq!(errno(get(path, name)), libc::EOPNOTSUPP, "{name}");
        }
        assert_eq!(errno(set(path, "user.", b"", 0)), libc::EINVAL);
    }
    // The kernel: no user attributes on a symbolic link.
    assert_eq!(errno(set(&link, "user.a", b"1", 0)), libc::EPERM);
    set(&link, "trusted.t", b"1", 0).unwrap();
    mount.cycle();
    assert!(get(&mount.at("f"), "user.long").unwrap() == long);
    assert_eq!(get(&mount.at("d"), "trusted.t").unwrap(), b"\0\xff");
    assert_eq!(get(&mount.at("f"), "user.empty").unwrap(), b"");
    let list = shell(
        &mount.path(),
        "getfattr -d -m - f | grep -c =; getfattr -d f | grep -c user",
    );
    assert_eq!(list, "5\n3\n");
    // A small buffer, and asking for the length.
    let (path, name) = (c_path(&mount.at("f")), c"user.a");
    let none = std::ptr::null_mut();
    ok(unsafe { libc::getxattr(path.as_ptr(), c"user.long".as_ptr(), none, 0) } - 65536);
    let mut byte = [0u8; 1];
    let at = byte.as_mut_ptr().cast();
    assert_eq!(
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), at, 1) },
        1
    );
    let short = check(unsafe { libc::getxattr(path.as_ptr(), c"user.long".as_ptr(), at, 1) });
    assert_eq!(errno(short), libc::ERANGE);
    let short = check(unsafe { libc::listxattr(path.as_ptr(), byte.as_mut_ptr().cast(), 1) });
    assert_eq!(errno(short), libc::ERANGE);
    assert!(!as_user(&mount, "nobody", "", "setfattr -n user.z -v 1 f"));
    mount.finish();
}

/// No ACLs, and every tool is told so.
#[test]
fn acls_are_refused_clearly() {
    let mount = TestMount::new();
    fs::write(mount.at("f"), "").unwrap();
    let mut setfacl = Command::new("setfacl");
    let refused = output(setfacl.args(["-m", "u:nobody:rw"]).arg(mount.at("f")));
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("not supported"), "{text}");
    run(Command::new("getfacl").arg("-c").arg(mount.at("f")));
    run(Command::new("cp")
        .arg("-a")
        .arg(mount.at("f"))
        .arg(mount.at("g")));
    mount.finish();
}

#[test]
fn statfs_says_what_tools_expect() {
    let mount = TestMount::new();
    let mut s: libc::statvfs = unsafe { std::mem::zeroed() };
    ok(unsafe { libc::statvfs(c_path(&mount.path()).as_ptr(), &mut s) });
    assert!(s.f_frsize >= 512 && s.f_bsize >= 512 && s.f_namemax == 255);
    assert!(s.f_blocks > 0 && s.f_bavail > 0 && s.f_bavail <= s.f_bfree);
    assert!(s.f_bfree <= s.f_blocks && s.f_ffree > 0 && s.f_ffree <= s.f_files);
    let df = shell(&mount.path(), "df -P . | tail -1; df -i . | tail -1");
    assert_eq!(df.lines().count(), 2, "{df}");
    mount.finish();
}

#[test]
fn squashed_owners() {
    let mount = open_to_all("allow_other,uid=65534,gid=65534,umask=077");
    shell(&mount.path(), "echo x >f; mkdir d");
    let meta = mount.at("f").metadata().unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (65534, 65534, 0o700)
    );
    assert!(as_user(
        &mount,
        "nobody",
        "",
        "cat f && echo y >d/g && chmod 777 f"
    ));
    assert!(!as_user(&mount, "daemon", "", "cat f"));
    assert_eq!(errno(chown(mount.at("f"), Some(2), None)), libc::EPERM);
    chown(mount.at("f"), Some(65534), None).unwrap();
    mount.finish();
}
