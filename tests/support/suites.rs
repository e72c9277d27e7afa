//! Suites that others wrote, on a mount: pjdfstest, fsx, fio.

use super::mount::Mount;
use super::posix::{command, output, run, scale, tool};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// All cases must pass. The users only have to exist, with groups of their own.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The helper of fuse3 takes a remount for the start of a server; `-i` leaves it out.
const MOUNT: &str = "#!/bin/sh\nPATH=${PATH#*:} exec mount -i \"$@\"\n";

/// The suite keeps a descriptor of one case open, so its read-only cases (which pass in no whole
/// run, on tmpfs neither) get a run of their own.
pub fn pjdfstest(mount: &Mount) {
    let folder = tempfile::tempdir().unwrap();
    let own_mount = folder.path().join("mount");
    std::fs::write(&own_mount, MOUNT).unwrap();
    std::fs::set_permissions(&own_mount, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", folder.path().display());

    for (remount, cases, at_least) in [("false", "", 380), ("true", "erofs", 13)] {
        let file = folder.path().join("pjdfstest.toml");
        std::fs::write(&file, PJDFSTEST.replace("REMOUNT", remount)).unwrap();
        let mut pjdfstest = command(tool("pjdfstest"), &["-c"]);
        pjdfstest.arg(&file).arg("-p").arg(mount.path());
        pjdfstest.arg("-s").arg(folder.path()).env("PATH", &path);
        if !cases.is_empty() {
            pjdfstest.arg(cases);
        }
        let output = output(&mut pjdfstest);
        let text = String::from_utf8_lossy(&output.stdout);
        let all = || format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}", all());
        let summary = text.lines().find(|l| l.starts_with("Summary:"));
        println!(
            "pjdfstest {cases}: {}",
            summary.unwrap_or_else(|| panic!("{}", all()))
        );
        let passed = text.lines().filter(|l| l.ends_with(" ok")).count();
        assert!(passed >= at_least, "{}", all());
    }
}

/// Every operation that it has. Of at least one byte: fsx takes the EINVAL of an empty allocation
/// for a filesystem without them.
pub const FSX: &str = "
flen = 262144
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

/// Runs fsx with a configuration and a seed.
pub fn fsx(mount: &Mount, configuration: &str, operations: u32, seed: u64) {
    println!("fsx: seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fsx.toml");
    std::fs::write(&file, configuration).unwrap();
    let mut fsx = command(tool("fsx"), &["-N", &operations.to_string()]);
    fsx.arg("-S").arg(seed.to_string());
    fsx.arg("-f").arg(&file).arg("-P").arg(folder.path());
    run(fsx.arg(mount.at("file")));
}

/// What fio does in one job.
fn fio(folder: &Path, engine: &str, pattern: &str, direct: bool, jobs: u32) -> Command {
    let size = scale("4m", "64m");
    let block = if pattern.starts_with("rand") {
        "4k"
    } else {
        "128k"
    };
    let name = format!("{engine}-{pattern}-{direct}-{jobs}");
    let mut fio = command(
        "fio",
        &["--verify=crc32c", "--verify_fatal=1", "--fsync=64"],
    );
    fio.arg(format!("--name={name}"))
        .arg(format!("--directory={}", folder.display()))
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--rw={pattern}"))
        .arg(format!("--direct={}", direct as u8))
        .arg(format!("--numjobs={jobs}"))
        .arg(format!("--size={size}"))
        .arg(format!("--bs={block}"))
        .args(["--iodepth=8", "--group_reporting", "--fallocate=none"])
        .args(["--do_verify=1", "--unlink=1", "--end_fsync=1"]);
    fio
}

/// Whether the kernel lets a program use io_uring.
fn has_io_uring() -> bool {
    // io_uring_setup with no parameters: EFAULT where it exists, ENOSYS or EPERM where not.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null::<u8>()) };
    let e = std::io::Error::last_os_error().raw_os_error();
    result >= 0 || e == Some(libc::EFAULT)
}

/// Writes and reads back with each of these engines that there is, and each of these patterns.
pub fn fio_verifies(mount: &Mount, engines: &[&str], patterns: &[&str]) {
    for engine in engines {
        if *engine == "io_uring" && !has_io_uring() {
            println!("SKIPPED: io_uring, which this kernel refuses");
            continue;
        }
        for pattern in patterns {
            for direct in [false, true] {
                if *engine == "mmap" && direct {
                    continue;
                }
                let jobs = if *pattern == "randwrite" { 3 } else { 1 };
                run(&mut fio(&mount.path(), engine, pattern, direct, jobs));
            }
        }
    }
}
