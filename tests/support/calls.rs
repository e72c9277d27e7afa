//! Random system calls, made twice: below a folder of a local disk and below one of the mount. Each
//! must have the same result or error number, and change the same times, in both.

use super::posix::c_path;
use super::trees::{list, shown, tree};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ffi::CString;
use std::io::Error;
use std::path::{Path, PathBuf};

/// A result that can be compared: a number, or bytes, or an error number.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Outcome {
    Value(i64),
    Bytes(Vec<u8>),
    Text(String),
    Errno(i32),
}

fn value(result: impl Into<i64>) -> Outcome {
    match result.into() {
        -1 => Outcome::Errno(Error::last_os_error().raw_os_error().unwrap_or(0)),
        v => Outcome::Value(v),
    }
}

/// Only whether it worked.
fn done(result: impl Into<i64>) -> Outcome {
    match value(result) {
        Outcome::Value(_) => Outcome::Value(0),
        failed => failed,
    }
}

#[derive(Debug, Clone)]
enum Call {
    Mkdir(usize, u32),
    Mknod(usize, u32),
    Symlink(usize, usize),
    Link(usize, usize, i32),
    Unlink(usize),
    Rmdir(usize),
    Rename(usize, usize, u32),
    Open(usize, i32, u32),
    Close(usize),
    Chmod(usize, u32),
    Chown(usize, u32, u32),
    Truncate(usize, i64),
    SetTimes(usize, i64, i64),
    SetXattr(usize, u8, usize, i32),
    GetXattr(usize, u8),
    RemoveXattr(usize, u8),
    List(usize),
    Stat(usize),
    Readlink(usize),
    Access(usize, i32),
    Read(usize, usize),
    Pread(usize, usize, i64),
    Write(usize, usize, u8),
    Pwrite(usize, usize, i64, u8),
    Seek(usize, i64, i32),
    Ftruncate(usize, i64),
    Fallocate(usize, i32, i64, i64),
    Fsync(usize),
    Fstat(usize),
    Copy(usize, usize, i64, i64, usize),
}

const SLOTS: usize = 8;
const FAR: i64 = 200_000;

/// Paths to work on, few enough to meet again and again.
fn paths() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from(".")];
    for a in ["a", "b", "c"] {
        all.push(a.into());
        for b in ["d", "e", "f"] {
            all.push(Path::new(a).join(b));
            for c in ["g", "h"] {
                all.push(Path::new(a).join(b).join(c));
            }
        }
    }
    all
}

pub struct Twins {
    roots: [PathBuf; 2],
    paths: Vec<PathBuf>,
    files: [[Option<i32>; SLOTS]; 2],
    random: StdRng,
    privileged: bool,
    history: Vec<String>,
    /// Calls that worked, of how many.
    pub worked: (u32, u32),
}

impl Twins {
    pub fn new(seed: u64, local: PathBuf, mounted: PathBuf, privileged: bool) -> Twins {
        Twins {
            roots: [local, mounted],
            paths: paths(),
            files: [[None; SLOTS]; 2],
            random: StdRng::seed_from_u64(seed),
            privileged,
            history: Vec::new(),
            worked: (0, 0),
        }
    }

    fn choose(&mut self) -> Call {
        let r = &mut self.random;
        let n = self.paths.len();
        let (p, q, f) = (
            r.random_range(0..n),
            r.random_range(0..n),
            r.random_range(0..SLOTS),
        );
        let len = match r.random_range(0..3) {
            0 => r.random_range(0..10),
            1 => r.random_range(0..5000),
            _ => r.random_range(0..50_000),
        };
        let at = r.random_range(0..FAR);
        let mode = match r.random_bool(0.7) {
            true => 0o755 | r.random_range(0..8),
            false => r.random_range(0..0o10000),
        };
        match r.random_range(0..37) {
            0 | 1 | 34 | 35 => Call::Mkdir(p, mode),
            2 => Call::Mknod(
                p,
                [libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK, 0][len % 4] | mode,
            ),
            3 => Call::Symlink(p, q),
            4 => Call::Link(p, q, [0, libc::AT_SYMLINK_FOLLOW][len % 2]),
            5 => Call::Unlink(p),
            6 => Call::Rmdir(p),
            7 | 8 => {
                let flags = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, 3];
                Call::Rename(p, q, flags[len % 6])
            }
            9..12 | 36 => {
                let access = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR];
                let mut flags = access[len % 4];
                for more in [libc::O_CREAT, libc::O_CREAT, libc::O_EXCL, libc::O_TRUNC] {
                    flags |= if r.random_bool(0.4) { more } else { 0 };
                }
                for more in [libc::O_APPEND, libc::O_NOFOLLOW, libc::O_DIRECTORY] {
                    flags |= if r.random_bool(0.1) { more } else { 0 };
                }
                Call::Open(p, flags, mode)
            }
            12 => Call::Close(f),
            13 => Call::Chmod(p, mode),
            14 => {
                let id = |n| [u32::MAX, 0, 1, 65534][n % 4];
                Call::Chown(p, id(len), id(at as usize))
            }
            15 => Call::Truncate(p, at - 1),
            16 => Call::SetTimes(p, at, len as i64),
            17 => Call::SetXattr(p, (len % 4) as u8, len % 300, (at % 3) as i32),
            18 => Call::GetXattr(p, (len % 4) as u8),
            19 => Call::RemoveXattr(p, (len % 4) as u8),
            20 => Call::List(p),
            21 => Call::Stat(p),
            22 => Call::Readlink(p),
            23 => Call::Access(p, (len % 8) as i32),
            24 => Call::Read(f, len),
            25 => Call::Pread(f, len, at),
            26 | 27 => Call::Write(f, len, at as u8),
            28 => Call::Pwrite(f, len, at, p as u8),
            29 => Call::Seek(f, at - 5, (len % 3) as i32),
            30 => Call::Ftruncate(f, at),
            31 => {
                let (keep, punch) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
                let zero = libc::FALLOC_FL_ZERO_RANGE;
                let mode = [0, punch | keep, zero, zero | keep][len % 4];
                Call::Fallocate(f, mode, at, len as i64)
            }
            32 => match len % 2 {
                0 => Call::Fsync(f),
                _ => Call::Fstat(f),
            },
            _ => Call::Copy(f, q % SLOTS, at, r.random_range(0..FAR), len),
        }
    }

    /// Makes one call on both sides and compares.
    pub fn step(&mut self) {
        let call = self.choose();
        if !self.privileged && matches!(call, Call::Chown(..)) && self.random.random_bool(0.8) {
            return;
        }
        let touched = self.touched(&call);
        let before = [0, 1].map(|side| self.times(side, &touched));
        let outcomes = [0, 1].map(|side| self.make(side, &call));
        let after = [0, 1].map(|side| self.times(side, &touched));
        let text = format!("{call:?} = {}", brief(&outcomes[1]));
        self.history.push(text);
        self.worked.0 += !matches!(outcomes[1], Outcome::Errno(_)) as u32;
        self.worked.1 += 1;
        let changed = [0, 1].map(|s| changes(&before[s], &after[s]));
        if outcomes[0] != outcomes[1] || changed[0] != changed[1] {
            let names: Vec<_> = touched.iter().map(|p| &self.paths[*p]).collect();
            let last = self.history.len().saturating_sub(60);
            panic!(
                "{call:?}\non the disk: {:?}, on the mount: {:?}\ntimes changed of {names:?} \
                 (modified, changed): on the disk {:?}, on the mount {:?}\nbefore: {:#?}",
                brief(&outcomes[0]),
                brief(&outcomes[1]),
                changed[0],
                changed[1],
                &self.history[last..]
            );
        }
    }

    /// The paths whose times the call may change, with their parents.
    fn touched(&self, call: &Call) -> Vec<usize> {
        let mut all = match *call {
            Call::Mkdir(p, _) | Call::Mknod(p, _) | Call::Symlink(p, _) => vec![p],
            Call::Link(p, q, _) | Call::Rename(p, q, _) => vec![p, q],
            Call::Unlink(p) | Call::Rmdir(p) | Call::Open(p, ..) | Call::Chmod(p, _) => vec![p],
            Call::Chown(p, ..) | Call::Truncate(p, _) | Call::SetTimes(p, ..) => vec![p],
            // Not SetXattr: ext4 keeps the time when the value is the same.
            Call::RemoveXattr(p, _) => vec![p],
            _ => vec![],
        };
        for p in all.clone() {
            let parent = match self.paths[p].parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            all.extend(self.paths.iter().position(|p| p == parent));
        }
        all
    }

    fn times(&self, side: usize, touched: &[usize]) -> Vec<Option<[i64; 5]>> {
        touched
            .iter()
            .map(|p| {
                let mut s: libc::stat = unsafe { std::mem::zeroed() };
                let path = c_path(&self.roots[side].join(&self.paths[*p]));
                let found = unsafe { libc::lstat(path.as_ptr(), &mut s) } == 0;
                let times = [s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec];
                found.then_some([s.st_ino as i64, times[0], times[1], times[2], times[3]])
            })
            .collect()
    }

    fn make(&mut self, side: usize, call: &Call) -> Outcome {
        let at = |p: usize| c_path(&self.roots[side].join(&self.paths[p]));
        let fd = |f: usize| self.files[side][f].unwrap_or(-1);
        let attribute = |n: u8| CString::new(format!("user.{n}")).unwrap();
        let cwd = libc::AT_FDCWD;
        unsafe {
            match *call {
                Call::Mkdir(p, mode) => done(libc::mkdir(at(p).as_ptr(), mode & 0o7777)),
                Call::Mknod(p, mode) => done(libc::mknod(at(p).as_ptr(), mode, 0)),
                Call::Symlink(p, q) => {
                    // Relative, so that it leads to the same place on both sides.
                    let up = "../".repeat(self.paths[p].components().count() - 1);
                    let target = Path::new(&up).join(&self.paths[q]);
                    done(libc::symlink(c_path(&target).as_ptr(), at(p).as_ptr()))
                }
                Call::Link(p, q, flags) => done(libc::linkat(
                    cwd,
                    at(p).as_ptr(),
                    cwd,
                    at(q).as_ptr(),
                    flags,
                )),
                Call::Unlink(p) => done(libc::unlink(at(p).as_ptr())),
                Call::Rmdir(p) => done(libc::rmdir(at(p).as_ptr())),
                Call::Rename(p, q, flags) => done(libc::renameat2(
                    cwd,
                    at(p).as_ptr(),
                    cwd,
                    at(q).as_ptr(),
                    flags,
                )),
                Call::Open(p, flags, mode) => {
                    let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
                    let opened = libc::open(at(p).as_ptr(), flags, mode & 0o777);
                    let outcome = done(opened);
                    if opened >= 0 {
                        self.keep(side, opened);
                    }
                    outcome
                }
                Call::Close(f) => match self.files[side][f].take() {
                    Some(fd) => done(libc::close(fd)),
                    None => Outcome::Value(0),
                },
                Call::Chmod(p, mode) => done(libc::chmod(at(p).as_ptr(), mode)),
                Call::Chown(p, uid, gid) => done(libc::lchown(at(p).as_ptr(), uid, gid)),
                Call::Truncate(p, len) => done(libc::truncate(at(p).as_ptr(), len)),
                Call::SetTimes(p, a, m) => {
                    let time = |t: i64| libc::timespec {
                        tv_sec: t,
                        tv_nsec: match t % 5 {
                            0 => libc::UTIME_NOW,
                            1 => libc::UTIME_OMIT,
                            _ => t,
                        },
                    };
                    let times = [time(a), time(m)];
                    let flags = libc::AT_SYMLINK_NOFOLLOW;
                    done(libc::utimensat(cwd, at(p).as_ptr(), times.as_ptr(), flags))
                }
                Call::SetXattr(p, n, len, flags) => {
                    let (name, bytes) = (attribute(n), vec![n; len]);
                    let value = bytes.as_ptr().cast();
                    done(libc::lsetxattr(
                        at(p).as_ptr(),
                        name.as_ptr(),
                        value,
                        len,
                        flags,
                    ))
                }
                Call::GetXattr(p, n) => {
                    let (name, mut bytes) = (attribute(n), vec![0u8; 400]);
                    let room = bytes.as_mut_ptr().cast();
                    let len = libc::lgetxattr(at(p).as_ptr(), name.as_ptr(), room, 400);
                    outcome_of(len, bytes)
                }
                Call::RemoveXattr(p, n) => {
                    done(libc::lremovexattr(at(p).as_ptr(), attribute(n).as_ptr()))
                }
                Call::List(p) => match list(&self.roots[side].join(&self.paths[p])) {
                    Ok(names) => Outcome::Text(format!("{names:?}")),
                    Err(e) => Outcome::Errno(e.raw_os_error().unwrap_or(0)),
                },
                Call::Stat(p) => {
                    let mut s = std::mem::zeroed();
                    match done(libc::lstat(at(p).as_ptr(), &mut s)) {
                        Outcome::Value(_) => Outcome::Text(shown(&s)),
                        failed => failed,
                    }
                }
                Call::Readlink(p) => {
                    let mut bytes = vec![0u8; 400];
                    let room = bytes.as_mut_ptr().cast();
                    let len = libc::readlink(at(p).as_ptr(), room, 400);
                    outcome_of(len, bytes)
                }
                Call::Access(p, mode) => done(libc::access(at(p).as_ptr(), mode)),
                Call::Read(f, len) => {
                    let mut bytes = vec![0u8; len];
                    let n = libc::read(fd(f), bytes.as_mut_ptr().cast(), len);
                    outcome_of(n, bytes)
                }
                Call::Pread(f, len, at) => {
                    let mut bytes = vec![0u8; len];
                    let n = libc::pread(fd(f), bytes.as_mut_ptr().cast(), len, at);
                    outcome_of(n, bytes)
                }
                Call::Write(f, len, tag) => {
                    let bytes = vec![tag; len];
                    value(libc::write(fd(f), bytes.as_ptr().cast(), len) as i64)
                }
                Call::Pwrite(f, len, at, tag) => {
                    let bytes = vec![tag; len];
                    value(libc::pwrite(fd(f), bytes.as_ptr().cast(), len, at) as i64)
                }
                Call::Seek(f, at, whence) => {
                    // The disk's directories have positions of their own.
                    match is_file(fd(f)) {
                        true => value(libc::lseek(fd(f), at, whence)),
                        false => Outcome::Value(0),
                    }
                }
                Call::Ftruncate(f, len) => done(libc::ftruncate(fd(f), len)),
                Call::Fallocate(f, mode, at, len) => done(libc::fallocate(fd(f), mode, at, len)),
                Call::Fsync(f) => done(libc::fsync(fd(f))),
                Call::Fstat(f) => {
                    let mut s = std::mem::zeroed();
                    match done(libc::fstat(fd(f), &mut s)) {
                        Outcome::Value(_) => Outcome::Text(shown(&s)),
                        failed => failed,
                    }
                }
                Call::Copy(f, g, mut from, mut to, len) => {
                    let n = libc::copy_file_range(fd(f), &mut from, fd(g), &mut to, len, 0);
                    value(n as i64)
                }
            }
        }
    }

    /// Puts a descriptor into the next free place, the same on both sides.
    fn keep(&mut self, side: usize, fd: i32) {
        let free = self.files[side].iter().position(Option::is_none);
        let place = free.unwrap_or(0);
        if let Some(old) = self.files[side][place].replace(fd) {
            unsafe { libc::close(old) };
        }
    }

    pub fn close_all(&mut self) {
        for fd in self.files.iter_mut().flatten().filter_map(Option::take) {
            unsafe { libc::close(fd) };
        }
    }

    /// Both trees hold the same, as root sees it.
    pub fn compare(&self) {
        let [a, b] = [0, 1].map(|side| tree(&self.roots[side]));
        for (left, right) in a.iter().zip(&b) {
            assert_eq!(left, right);
        }
        assert_eq!(a.len(), b.len());
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.close_all();
    }
}

fn outcome_of(len: isize, mut bytes: Vec<u8>) -> Outcome {
    match usize::try_from(len) {
        Ok(len) => {
            bytes.truncate(len);
            Outcome::Bytes(bytes)
        }
        Err(_) => value(-1),
    }
}

fn brief(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Bytes(b) => format!("{} bytes {:?}…", b.len(), &b[..b.len().min(8)]),
        other => format!("{other:?}"),
    }
}

fn is_file(fd: i32) -> bool {
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    unsafe { libc::fstat(fd, &mut s) == 0 && s.st_mode & libc::S_IFMT == libc::S_IFREG }
}

/// For each path: did its times of modification and change change?
fn changes(before: &[Option<[i64; 5]>], after: &[Option<[i64; 5]>]) -> Vec<Option<(bool, bool)>> {
    let both = before.iter().zip(after);
    both.map(|pair| match pair {
        (Some(b), Some(a)) if a[0] == b[0] => Some((a[1..3] != b[1..3], a[3..5] != b[3..5])),
        _ => None,
    })
    .collect()
}
