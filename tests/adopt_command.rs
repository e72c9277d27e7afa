//! `stowfs adopt` and `stowfs export`: the built program on local stores, mounted and not.

mod support;

use nix::fcntl::AT_FDCWD;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant, SystemTime};
use support::mount::{Mount, stowfs};
use support::trees;

const LONG_AGO: Duration = Duration::from_secs(1_000_000_000);

/// A directory with checkpoints of a job, written long ago.
struct Plain {
    dir: tempfile::TempDir,
}

impl Plain {
    fn new() -> Plain {
        let plain = Plain {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir_all(plain.at("job/shared")).unwrap();
        std::fs::create_dir_all(plain.at("job/chk-1")).unwrap();
        for i in 0..5 {
            plain.put(&format!("job/shared/{i}"), &content(i));
        }
        plain.put("job/chk-1/_metadata", b"metadata");
        plain.put("job/chk-1/empty", b"");
        plain
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn url(&self) -> String {
        format!("file://{}", self.root().display())
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        std::fs::write(self.at(path), bytes).unwrap();
        age(&self.at(path));
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = stowfs();
        command.args(arguments);
        command.arg("--run-dir").arg(self.dir.path().join("run"));
        command.output().unwrap()
    }

    fn mount(&self, arguments: &[&str]) -> Mount {
        Mount::with(&self.url(), arguments)
    }
}

fn content(i: u8) -> Vec<u8> {
    (0..100_000 + usize::from(i)).map(|k| k as u8 ^ i).collect()
}

fn age(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + LONG_AGO;
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(output)))
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_dry_run_lists_and_touches_nothing() {
    let plain = Plain::new();
    let before = trees::tree(&plain.root());
    let output = plain.run(&["adopt", "--dry-run", &plain.url()]);
    assert!(output.status.success(), "{}", said(&output));
    for path in [
        "/job/shared/4\n",
        "/job/chk-1/_metadata\n",
        "/job/chk-1/empty\n",
    ] {
        assert!(said(&output).contains(path), "{}", said(&output));
    }
    assert!(said(&output).contains("7 plain files"), "{}", said(&output));
    assert_eq!(trees::tree(&plain.root()), before);
}

#[test]
fn a_directory_is_taken_in_as_it_is_and_the_rest_by_the_first_mount() {
    let plain = Plain::new();
    let file = plain.at("job/shared/3");
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    if is_root {
        chown(&file, Some(1234), Some(2345)).unwrap();
    }
    let output = plain.run(&["adopt", &plain.url(), "/job/shared/"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("5 plain files"), "{}", said(&output));
    let output = plain.run(&["adopt", "--dry-run", "--json", &plain.url()]);
    let report = json(&output);
    assert_eq!((&report["files"], &report["known"]), (&2.into(), &5.into()));
    let mut mount = plain.mount(&[]);
    for i in 0..5 {
        let read = std::fs::read(mount.at(&format!("job/shared/{i}"))).unwrap();
        assert!(read == content(i), "file {i}");
    }
    assert_eq!(
        std::fs::read(mount.at("job/chk-1/_metadata")).unwrap(),
        b"metadata"
    );
    let (own, seen) = (
        file.metadata().unwrap(),
        mount.at("job/shared/3").metadata().unwrap(),
    );
    assert_eq!(seen.mode(), own.mode());
    assert_eq!((seen.uid(), seen.gid()), (own.uid(), own.gid()));
    assert_eq!(seen.modified().unwrap(), own.modified().unwrap());
    assert_eq!(seen.mtime(), LONG_AGO.as_secs() as i64);
    assert_eq!(mount.umount().code(), Some(0));
}

#[test]
fn a_file_that_is_being_written_is_named_and_left_out() {
    let plain = Plain::new();
    drop(plain.mount(&[]));
    plain.put("job/new", b"new");
    let mut options = OpenOptions::new();
    let mut writer = options
        .create(true)
        .append(true)
        .open(plain.at("job/open"))
        .unwrap();
    writer.write_all(b"half").unwrap();
    let output = plain.run(&["adopt", &plain.url()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("/job/open: it is open for writing"),
        "{}",
        said(&output)
    );
    let one = "1 plain files (3 B) and 0 directories adopted";
    assert!(said(&output).contains(one), "{}", said(&output));
    drop(writer);
    let output = plain.run(&["adopt", "--json", &plain.url()]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(json(&output)["files"], 1);
}

/// `adopt link` took in what lies outside the root, and removing it from the mount deleted that.
#[test]
fn nothing_outside_the_root_is_taken_in() {
    let plain = Plain::new();
    let outside = plain.dir.path().join("outside");
    std::fs::create_dir_all(outside.join("d")).unwrap();
    std::fs::write(outside.join("d/precious"), "precious").unwrap();
    age(&outside.join("d/precious"));
    symlink(&outside, plain.at("job/link")).unwrap();
    symlink(outside.join("d/precious"), plain.at("job/file")).unwrap();
    nix::unistd::mkfifo(&plain.at("job/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [
        "job/link",
        "job/link/d",
        "job/link/d/precious",
        "job/file",
        "job/fifo",
    ] {
        let begun = Instant::now();
        let output = plain.run(&["adopt", &plain.url(), path]);
        assert!(
            !output.status.success() && said(&output).contains("left out"),
            "{output:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(10), "{path}");
    }
    let output = plain.run(&[
        "export",
        &plain.url(),
        "../outside",
        "file:///nowhere/at/all",
    ]);
    assert!(!output.status.success(), "{output:?}");
    let typo = format!("{}x", plain.url());
    let output = plain.run(&["adopt", &typo]);
    assert!(!output.status.success(), "{output:?}");
    assert!(!plain.dir.path().join("rootx").exists());
    assert!(outside.join("d/precious").exists());
}

#[test]
fn a_live_mount_is_asked_and_packs() {
    let plain = Plain::new();
    let fast = [
        "--gc-grace=1s",
        "--delete-rate=1000",
        "--upkeep-every=200ms",
    ];
    let mut mount = plain.mount(&fast);
    let run_dir = mount.run_dir();
    let run = |arguments: &[&str]| {
        let mut command = stowfs();
        command.args(arguments).arg("--run-dir").arg(&run_dir);
        command.output().unwrap()
    };
    plain.put("job/late", b"late");
    let output = run(&["adopt", &plain.url()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("asking that mount"),
        "{}",
        said(&output)
    );
    assert_eq!(std::fs::read(mount.at("job/late")).unwrap(), b"late");
    // From a host that does not see the mount.
    let output = plain.run(&["adopt", &plain.url()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("stowfs adopt MOUNTPOINT"),
        "{}",
        said(&output)
    );

    let inside = mount.at("job");
    let (mountpoint, inside) = (mount.path(), inside.to_str().unwrap());
    let output = run(&["adopt", mountpoint.to_str().unwrap(), inside, "--pack"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("500.0 kB packed") || said(&output).contains(" packed"));
    wait_for("the plain files go", || !plain.at("job/shared/4").exists());
    wait_for("the plain files go", || !plain.at("job/late").exists());
    for i in 0..5 {
        let read = std::fs::read(mount.at(&format!("job/shared/{i}"))).unwrap();
        assert!(read == content(i), "file {i}");
    }
    // The empty file has nothing to pack; it goes with its name.
    assert!(plain.at("job/chk-1/empty").exists());
    std::fs::remove_dir_all(mount.at("job")).unwrap();
    wait_for("the directories go", || !plain.at("job").exists());
    assert_eq!(mount.umount().code(), Some(0));
}

#[test]
fn a_plain_file_that_was_changed_or_deleted_is_an_error_of_its_own() {
    let plain = Plain::new();
    let mount = plain.mount(&[]);
    std::fs::remove_file(plain.at("job/shared/0")).unwrap();
    plain.put("job/shared/1", b"other");
    let error = |path: &str| std::fs::read(mount.at(path)).unwrap_err().raw_os_error();
    assert_eq!(error("job/shared/0"), Some(libc::ENOENT));
    assert_eq!(error("job/shared/1"), Some(libc::EIO));
    assert!(std::fs::read(mount.at("job/shared/2")).unwrap() == content(2));
    let log = mount.log();
    for what in [
        "/job/shared/0, a plain file from before stowfs, was deleted",
        "/job/shared/1, a plain file from before stowfs, was changed",
    ] {
        assert!(log.contains(what), "{log}");
    }
    // Written anew, they are whole again.
    std::fs::write(mount.at("job/shared/0"), b"again").unwrap();
    assert_eq!(std::fs::read(mount.at("job/shared/0")).unwrap(), b"again");
}

/// A tree with everything that a tree can have.
fn fill(at: &Path) {
    std::fs::create_dir_all(at.join("d/e")).unwrap();
    std::fs::create_dir(at.join("d/nothing")).unwrap();
    for i in 0..20 {
        std::fs::write(at.join(format!("d/e/{i}")), vec![i; 1000 * usize::from(i)]).unwrap();
    }
    std::fs::write(at.join("d/long"), content(7).repeat(100)).unwrap();
    std::fs::hard_link(at.join("d/long"), at.join("d/e/same")).unwrap();
    symlink("../long", at.join("d/e/link")).unwrap();
    let time = TimeSpec::new(LONG_AGO.as_secs() as i64, 5);
    let flag = UtimensatFlags::NoFollowSymlink;
    utimensat(AT_FDCWD, &at.join("d/e/link"), &time, &time, flag).unwrap();
    let no_text = OsStr::from_bytes(b"d/e/no\xfftext");
    std::fs::write(at.join(no_text), "any bytes").unwrap();
    let mut sparse = File::create(at.join("d/sparse")).unwrap();
    sparse.seek(SeekFrom::Start(50 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
    sparse.set_len(100 << 20).unwrap();
    std::fs::set_permissions(at.join("d/e/3"), Permissions::from_mode(0o4711)).unwrap();
    for path in ["d/e/3", "d/e", "d"] {
        age(&at.join(path));
    }
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/root", dir.path().display());
    let mut mount = Mount::new(&url);
    fill(&mount.path());
    let tree = trees::tree(&mount.at("d"));
    let run = |source: &str, path: &str, to: &str| {
        let mut command = stowfs();
        command.args(["export", source, path, to, "--run-dir"]);
        command.arg(dir.path().join("run")).output().unwrap()
    };
    let to = |name: &str| format!("file://{}/out/{name}", dir.path().display());
    let check = |name: &str| {
        let out = dir.path().join("out").join(name);
        assert_eq!(trees::tree(&out), tree, "{name}");
        let sparse = out.join("sparse").metadata().unwrap();
        assert!(sparse.blocks() * 512 < 1 << 20, "holes are holes");
        for path in ["", "e", "e/3", "e/link"] {
            let time = out.join(path).symlink_metadata().unwrap().mtime();
            assert_eq!(time, LONG_AGO.as_secs() as i64, "{name}/{path}");
        }
        let ino = |path: &str| out.join(path).metadata().unwrap().ino();
        assert_eq!(ino("long"), ino("e/same"));
    };
    let mountpoint = mount.path();
    let output = run(mountpoint.to_str().unwrap(), "/d", &to("live"));
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("23 files"), "{}", said(&output));
    check("live");
    // A root that is mounted elsewhere is not read behind its owner's back.
    let output = run(&url, "d", &to("behind"));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("is mounted already"),
        "{}",
        said(&output)
    );

    mount.kill9();
    let output = run(&url, "d", &to("crashed"));
    assert!(output.status.success(), "{}", said(&output));
    check("crashed");
    let before = trees::tree(&dir.path().join("root"));
    let output = run(&url, "d", &to("released"));
    assert!(output.status.success(), "{}", said(&output));
    check("released");
    assert_eq!(
        trees::tree(&dir.path().join("root")),
        before,
        "it was only read"
    );

    let output = run(&url, "d", &to("released"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("exists already"),
        "{}",
        said(&output)
    );
    let output = run(&url, "d/e/7", &to("one-file"));
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        std::fs::read(dir.path().join("out/one-file")).unwrap(),
        vec![7; 7000]
    );
    let output = run(&url, "d/none", &to("nothing"));
    assert!(
        said(&output).contains("there is no /d/none"),
        "{}",
        said(&output)
    );
}

#[test]
fn an_export_that_fails_says_what_it_left() {
    let plain = Plain::new();
    drop(plain.mount(&[]));
    // The last of them cannot be read any more.
    std::fs::remove_file(plain.at("job/shared/4")).unwrap();
    let out = plain.dir.path().join("out");
    let output = plain.run(&[
        "export",
        &plain.url(),
        "/",
        &format!("file://{}", out.display()),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains("/job/shared/4"), "{text}");
    assert!(
        text.contains("out.part-") && text.contains("not whole: delete it"),
        "{text}"
    );
    assert!(!out.exists(), "the name is for what is whole");
    assert!(text.contains("--partial leaves out"), "{text}");

    // One bad file made the export of all others useless.
    let url = format!("file://{}", out.display());
    let output = plain.run(&["export", "--partial", &plain.url(), "/", &url]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("LEFT OUT: /job/shared/4: "), "{text}");
    assert!(text.contains("6 files"), "{text}");
    assert!(!out.join("job/shared/4").exists());
    assert!(std::fs::read(out.join("job/shared/3")).unwrap() == content(3));
}

/// A destination that stowfs would take for its own, and one that somebody gives up.
#[test]
fn an_export_stays_out_of_stowfs_own_files_and_tells_when_it_is_interrupted() {
    let plain = Plain::new();
    std::fs::create_dir(plain.at("many")).unwrap();
    for n in 0..5000 {
        plain.put(&format!("many/{n}"), b"small");
    }
    drop(plain.mount(&[]));
    let link = plain.dir.path().join("link");
    symlink(plain.at(".stowfs"), &link).unwrap();
    for own in ["root/.stowfs/data/out", "link/out", "link/new/out"] {
        let url = format!("file://{}", plain.dir.path().join(own).display());
        let output = plain.run(&["export", &plain.url(), "/job", &url]);
        assert_eq!(output.status.code(), Some(1), "{own}");
        let text = said(&output);
        assert!(text.contains("stowfs has its own files"), "{text}");
    }

    let part = || {
        let all = plain.dir.path().read_dir().unwrap().map(|e| e.unwrap());
        let mut names = all.map(|e| e.file_name().into_string().unwrap());
        names.find(|name| name.starts_with("out.part-"))
    };
    let mut command = stowfs();
    command.args(["export", &plain.url(), "/"]);
    command.arg(format!("file://{}/out", plain.dir.path().display()));
    command.arg("--run-dir").arg(plain.dir.path().join("run"));
    command.stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while part().is_none() && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let left = format!("{} is not whole: delete it", part().unwrap());
    assert!(
        text.contains("interrupted by SIGTERM") && text.contains(&left),
        "{text}"
    );
    assert!(!plain.dir.path().join("out").exists());
}
