//! Files: sparse and long ones, holes, allocation, times, inode numbers, clones, many small writes.

mod support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::posix::{TestMount, c_path, errno, ok, scale, shell};

const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;

fn create(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.truncate(true).open(path).unwrap()
}

fn seek(file: &File, offset: i64, whence: i32) -> std::io::Result<i64> {
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => Err(std::io::Error::last_os_error()),
        at => Ok(at),
    }
}

fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> std::io::Result<()> {
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn blocks(path: &Path) -> u64 {
    path.metadata().unwrap().blocks()
}

#[test]
fn sparse_files_of_20_gib() {
    const GIB: u64 = 1 << 30;
    let mut mount = TestMount::new();
    let path = mount.at("sparse");
    let file = create(&path);
    file.set_len(20 * GIB).unwrap();
    assert_eq!(blocks(&path), 0);
    for n in [0, 7, 19] {
        file.write_all_at(&[n as u8 + 1; 8192], n * GIB + 4096)
            .unwrap();
    }
    drop(file);
    mount.cycle();
    let file = File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20 * GIB);
    assert_eq!(blocks(&path), 3 * 16);
    assert_eq!(shell(&mount.path(), "du -k sparse | cut -f1"), "24\n");
    for n in [0, 7, 19] {
        let start = n * GIB + 4096;
        let after = if n == 0 { 0 } else { start as i64 - 100_000 };
        assert_eq!(seek(&file, after, libc::SEEK_DATA).unwrap(), start as i64);
        let hole = seek(&file, start as i64 + 5, libc::SEEK_HOLE).unwrap();
        assert_eq!(hole, start as i64 + 8192);
        let mut found = [9; 8194];
        file.read_exact_at(&mut found, start - 1).unwrap();
        assert!(found[0] == 0 && found[8193] == 0);
        assert!(found[1..8193] == [n as u8 + 1; 8192]);
    }
    let last = 19 * GIB as i64 + 4096 + 8192;
    assert_eq!(errno(seek(&file, last, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(seek(&file, last, libc::SEEK_HOLE).unwrap(), last);
    assert_eq!(
        errno(seek(&file, 20 * GIB as i64, libc::SEEK_HOLE)),
        libc::ENXIO
    );
    mount.finish();
}

#[test]
fn fallocate_in_all_modes() {
    let mount = TestMount::new();
    let path = mount.at("f");
    let file = create(&path);
    fallocate(&file, 0, 0, 100_000).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 100_000);
    fallocate(&file, KEEP, 0, 200_000).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 100_000);
    file.write_all_at(&[1; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    let full = blocks(&path);
    assert_eq!(full, 100_000u64.div_ceil(512));
    fallocate(&file, PUNCH | KEEP, 4096, 40_960).unwrap();
    assert_eq!(blocks(&path), (100_000u64 - 40_960).div_ceil(512));
    fallocate(&file, ZERO, 90_000, 20_000).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 110_000);
    fallocate(&file, ZERO | KEEP, 100_000, 30_000).unwrap();
    fallocate(&file, PUNCH | KEEP, 200_000, 30_000).unwrap();
    let found = fs::read(&path).unwrap();
    let want = |n: usize| u8::from(n < 4096 || (45_056..90_000).contains(&n));
    assert_eq!(found.len(), 110_000);
    assert!(found.iter().enumerate().all(|(n, b)| *b == want(n)));
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        assert_eq!(errno(fallocate(&file, mode, 0, 4096)), libc::EOPNOTSUPP);
    }
    assert_eq!(errno(fallocate(&file, PUNCH, 0, 1)), libc::EOPNOTSUPP);
    assert_eq!(errno(fallocate(&file, 0, 0, 0)), libc::EINVAL);
    assert_eq!(errno(fallocate(&file, 0, i64::MAX, 5)), libc::EFBIG);
    // Nothing is reserved, but what cannot fit is refused.
    assert_eq!(errno(fallocate(&file, 0, 0, 1 << 60)), libc::ENOSPC);
    let reader = File::open(&path).unwrap();
    assert_eq!(errno(fallocate(&reader, 0, 0, 10)), libc::EBADF);
    mount.finish();
}

fn times(path: &Path) -> (i128, i128, i128) {
    let m = path.metadata().unwrap();
    let join = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
    (
        join(m.atime(), m.atime_nsec()),
        join(m.mtime(), m.mtime_nsec()),
        join(m.ctime(), m.ctime_nsec()),
    )
}

#[test]
fn times_keep_nanoseconds_and_never_go_back() {
    let mut mount = TestMount::new();
    let path = mount.at("f");
    let file = create(&path);
    let exact = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let set = FileTimes::new().set_accessed(exact).set_modified(exact);
    file.write_all_at(b"written before the times are set", 0)
        .unwrap();
    file.set_times(set).unwrap();
    drop(file);
    let want = 1_234_567_890_123_456_789;
    assert_eq!((times(&path).0, times(&path).1), (want, want));
    mount.cycle();
    assert_eq!(
        (times(&path).0, times(&path).1),
        (want, want),
        "after a remount"
    );

    let file = File::options().write(true).open(&path).unwrap();
    let mut last = times(&path);
    for n in 0..300 {
        match n % 4 {
            0 => file.write_all_at(b"x", n).unwrap(),
            1 => file.set_len(n).unwrap(),
            2 => file.sync_all().unwrap(),
            _ => {
                fs::hard_link(&path, mount.at("g")).unwrap();
                fs::remove_file(mount.at("g")).unwrap();
            }
        }
        let now = times(&path);
        assert!(
            now.1 >= last.1 && now.2 >= last.2,
            "{n}: {last:?} to {now:?}"
        );
        last = now;
    }
    let before = times(&path);
    drop(file);
    fs::read(&path).unwrap();
    assert_eq!(
        times(&path),
        before,
        "close, and reading changes no time of access"
    );
    mount.cycle();
    assert_eq!(times(&path), before, "remount");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as i128;
    assert!((now - before.2).abs() < 60_000_000_000);
    mount.finish();
}

#[test]
fn inode_numbers_are_never_used_again() {
    let mut mount = TestMount::new();
    let mut seen = HashSet::new();
    for round in 0..3 {
        for n in 0..300 {
            // The last unlink of a round may be undone by the crash, so each has names of its own.
            let path = mount.at(&format!("{round}-{n}"));
            let file = create(&path);
            let ino = file.metadata().unwrap().ino();
            let span = (seen.iter().min().copied(), seen.iter().max().copied());
            assert!(
                seen.insert(ino),
                "{ino} again, in round {round}, file {n}; seen {span:?}"
            );
            drop(file);
            fs::remove_file(&path).unwrap();
        }
        match round {
            0 => mount.cycle(),
            _ => mount.crash(),
        }
    }
    mount.finish();
}

fn usage_of_store(mount: &TestMount) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/io", mount.pid())).unwrap();
    let line = stat
        .lines()
        .find(|l| l.starts_with("write_bytes:"))
        .unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Neither reads nor writes the bytes.
#[test]
fn copies_are_clones() {
    let mut mount = TestMount::new();
    let bytes: Vec<u8> = (0..40u32 << 20).map(|n| (n >> 12) as u8).collect();
    fs::write(mount.at("from"), &bytes).unwrap();
    let before = usage_of_store(&mount);
    let from = File::open(mount.at("from")).unwrap();
    let to = create(&mount.at("to"));
    let (mut a, mut b) = (0, 0);
    let (fd_from, fd_to) = (from.as_raw_fd(), to.as_raw_fd());
    while b < bytes.len() as i64 {
        let left = bytes.len() - b as usize;
        let n = ok(unsafe { libc::copy_file_range(fd_from, &mut a, fd_to, &mut b, left, 0) });
        assert!(n > 0);
    }
    drop(to);
    let written = usage_of_store(&mount) - before;
    assert!(
        written < 1 << 20,
        "{written} bytes were written for a clone"
    );
    let shared = places(&mount.at("from"));
    assert!(!shared.is_empty());
    assert_eq!(places(&mount.at("to")), shared);
    // A change of one does not show in the other.
    let file = File::options().write(true).open(mount.at("to")).unwrap();
    file.write_all_at(b"changed", 12_345).unwrap();
    drop(file);
    mount.cycle();
    assert!(fs::read(mount.at("from")).unwrap() == bytes);
    let mut changed = bytes;
    changed[12_345..12_352].copy_from_slice(b"changed");
    assert!(fs::read(mount.at("to")).unwrap() == changed);

    // FUSE passes no FICLONE to its servers: programs fall back to the above.
    let to = create(&mount.at("ficlone"));
    let from = File::open(mount.at("from")).unwrap();
    let cloned = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE as _, from.as_raw_fd()) };
    assert_eq!(cloned, -1);
    assert_eq!(
        errno::<()>(Err(std::io::Error::last_os_error())),
        libc::EOPNOTSUPP
    );
    mount.finish();
}

#[test]
fn a_hundred_thousand_small_appends() {
    let mut mount = TestMount::new();
    let count = scale(20_000, 100_000);
    let mut file = create(&mount.at("log"));
    let mut want = String::new();
    let begun = Instant::now();
    for n in 0..count {
        let line = format!("{n}\n");
        file.write_all(line.as_bytes()).unwrap();
        if n % 100 == 0 {
            file.sync_data().unwrap();
        }
        want.push_str(&line);
    }
    drop(file);
    println!("{count} appends in {:?}", begun.elapsed());
    assert!(extents(&mount.at("log")).len() < 100);
    mount.cycle();
    assert!(fs::read_to_string(mount.at("log")).unwrap() == want);
    mount.finish();
}

/// Where the bytes of a file are: segment and offset of each extent, and the file offset.
fn places(path: &Path) -> Vec<(u64, u64, String)> {
    let all = extents(path).into_iter();
    all.map(|e| {
        let segment = format!("{}+{}", e["segment"], e["segment_offset"]);
        (
            e["offset"].as_u64().unwrap(),
            e["length"].as_u64().unwrap(),
            segment,
        )
    })
    .collect()
}

fn extents(path: &Path) -> Vec<serde_json::Value> {
    let mut value = vec![0u8; 1 << 16];
    let name = c"user.stowfs.extents".as_ptr();
    let len = ok(unsafe {
        libc::getxattr(
            c_path(path).as_ptr(),
            name,
            value.as_mut_ptr().cast(),
            value.len(),
        )
    });
    serde_json::from_slice(&value[..len as usize]).unwrap()
}

#[test]
fn random_overwrites_with_fsync() {
    let mut mount = TestMount::new();
    let mut random = StdRng::seed_from_u64(11);
    let size = scale(16usize << 20, 128 << 20);
    let mut want: Vec<u8> = (0..size).map(|n| (n >> 16) as u8).collect();
    fs::write(mount.at("f"), &want).unwrap();
    let file = File::options().write(true).open(mount.at("f")).unwrap();
    let begun = Instant::now();
    let count = scale(500, 5000);
    for n in 0..count {
        let at = random.random_range(0..size / 4096) * 4096;
        let block = [n as u8; 4096];
        file.write_all_at(&block, at as u64).unwrap();
        file.sync_all().unwrap();
        want[at..at + 4096].copy_from_slice(&block);
    }
    println!("{count} overwrites with fsync in {:?}", begun.elapsed());
    mount.crash();
    assert!(fs::read(mount.at("f")).unwrap() == want);
    assert_eq!(blocks(&mount.at("f")), size as u64 / 512);
    mount.finish();
}

#[test]
fn errors_of_reads_writes_and_offsets() {
    let mount = TestMount::new();
    let path = mount.at("f");
    let file = create(&path);
    let far = libc::off_t::MAX as u64;
    assert_eq!(errno(file.write_at(b"xx", far)), libc::EINVAL);
    let most = file.write_at(b"xx", far - 2);
    assert!(matches!(most, Ok(2)) || errno(most) == libc::EFBIG);
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), -1) }, -1);
    assert_eq!(
        errno::<()>(Err(std::io::Error::last_os_error())),
        libc::EINVAL
    );
    let reader = File::open(&path).unwrap();
    assert_eq!(errno(reader.write_at(b"x", 0)), libc::EBADF);
    assert_eq!(errno(reader.set_len(0)), libc::EINVAL);
    let writer = File::options().write(true).open(&path).unwrap();
    assert_eq!(errno(writer.read_at(&mut [0; 4], 0)), libc::EBADF);
    let dir = File::open(mount.path()).unwrap();
    assert_eq!(errno(dir.read_at(&mut [0; 4], 0)), libc::EISDIR);
    assert_eq!(
        errno(File::options().write(true).open(mount.path())),
        libc::EISDIR
    );
    assert_eq!(errno(File::open(path.join("below"))), libc::ENOTDIR);
    assert_eq!(file.write_at(b"", 1000).unwrap(), 0);
    mount.finish();
}

#[test]
fn temporary_files_without_a_name() {
    use std::os::unix::fs::OpenOptionsExt;
    let mount = TestMount::new();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    // fuser does not know TMPFILE: programs fall back to a name that they remove.
    assert_eq!(errno(options.open(mount.path())), libc::EOPNOTSUPP);
    mount.finish();
}

/// SEMANTICS.md has the reasons.
#[test]
fn what_fuse_has_not_is_refused_clearly() {
    let mount = TestMount::new();
    let path = mount.at("f");
    let file = create(&path);
    const GET_FLAGS: u64 = 0x8008_6601;
    const GET_PROJECT: u64 = 0x801c_581f;
    for request in [GET_FLAGS, GET_PROJECT] {
        let mut answer = [0u8; 64];
        let made = unsafe { libc::ioctl(file.as_raw_fd(), request as _, answer.as_mut_ptr()) };
        let e = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((made, e), (-1, Some(libc::ENOTTY)), "{request:x}");
    }
    let (from, to) = (c_path(&path), c_path(&mount.at("g")));
    let cwd = libc::AT_FDCWD;
    let whiteout = libc::RENAME_WHITEOUT;
    let moved = unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), whiteout) };
    let e = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((moved, e), (-1, Some(libc::EINVAL)));
    let born = path.metadata().unwrap().created();
    assert_eq!(born.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    mount.finish();
}
