//! Many programs at once, killed and interrupted: nothing hangs, nothing leaks, nothing panics.

mod support;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::posix::{TestMount, c_path, command, ok, run, scale, shell};

/// What a process of mixed work does in a folder until it is killed.
const MIXED: &str = r#"
mkdir -p "$1" && cd "$1" || exit 1
for ((n = 0; ; n++)); do
    head -c $((RANDOM % 20000)) /dev/zero >"f$((n % 20))"
    cat "f$((RANDOM % 20))" >/dev/null 2>&1
    mkdir -p "d$((n % 5))" && mv -f "f$((RANDOM % 20))" "d$((n % 5))/" 2>/dev/null
    ln -f "f$((n % 20))" link 2>/dev/null
    printf '%s\n' "$n" >>log
    rm -rf "d$((RANDOM % 5))"
    ls -lR . >/dev/null
    [ "$n" -lt "${2:-1000000}" ] || exit 0
done
"#;

fn mixed(mount: &TestMount, folder: &str, rounds: u32) -> Child {
    let mut bash = command("bash", &["-c", MIXED, "bash"]);
    bash.arg(mount.at(folder)).arg(rounds.to_string());
    bash.stdout(Stdio::null()).stderr(Stdio::null());
    bash.spawn().unwrap()
}

#[test]
fn processes_of_mixed_work_some_killed_in_mid_call() {
    let mount = TestMount::new();
    let begun = Instant::now();
    let limit = Duration::from_secs(scale(15, 240));
    let mut children: Vec<Child> = Vec::new();
    let mut killed = 0;
    while begun.elapsed() < limit {
        while children.len() < scale(16, 64) {
            children.push(mixed(&mount, &format!("{}", children.len()), u32::MAX));
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut victim = children.swap_remove(killed % children.len());
        victim.kill().unwrap();
        victim.wait().unwrap();
        killed += 1;
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    println!("{killed} processes killed");
    // What a shell had begun (an mv, an rm) outlives it for a moment: it took a name away after it was
    // found and before it was read.
    let names = || shell(&mount.path(), "find . -type f | sort");
    let mut before = names();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = names();
        if now == before {
            break;
        }
        before = now;
    }
    // It still serves, and every name can be read.
    shell(&mount.path(), "find . -type f -exec cat {} + >/dev/null");
    let mut all = mixed(&mount, "after", 20);
    assert!(all.wait().unwrap().success());
    mount.finish();
}

extern "C" fn count(_signal: i32) {}

/// Interrupted calls end early or go on; none of them loses or repeats bytes.
#[test]
fn signals_during_writes() {
    let mount = TestMount::new();
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(i32) as usize;
    ok(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) });
    let path = mount.at("f");
    let (send, receive) = std::sync::mpsc::channel();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            send.send(unsafe { libc::pthread_self() } as usize).unwrap();
            let mut file = File::create(path).unwrap();
            for n in 0..scale(150u32, 2000) {
                file.write_all(&n.to_le_bytes().repeat(50_000)).unwrap();
                if n % 10 == 0 {
                    while file
                        .sync_all()
                        .is_err_and(|e| e.raw_os_error() == Some(libc::EINTR))
                    {}
                }
            }
        }
    });
    let thread = receive.recv().unwrap() as libc::pthread_t;
    while !writer.is_finished() {
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        std::thread::sleep(Duration::from_micros(700));
    }
    writer.join().unwrap();
    let found = fs::read(&path).unwrap();
    let want: Vec<u8> = (0..scale(150u32, 2000))
        .flat_map(|n| n.to_le_bytes().repeat(50_000))
        .collect();
    assert!(found == want);
    mount.finish();
}

/// How many files this process may open, after asking for as many as it can have.
fn allow_many_files() -> usize {
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    ok(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) });
    limit.rlim_cur = limit.rlim_max;
    ok(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) });
    limit.rlim_max as usize
}

#[test]
fn tens_of_thousands_of_open_files() {
    let mount = TestMount::new();
    let count = scale(10_000, 40_000).min(allow_many_files() - 1000) / 2 * 2;
    for n in 0..count {
        let path = mount.at(&format!("{n}"));
        ok(unsafe { libc::mknod(c_path(&path).as_ptr(), libc::S_IFREG | 0o644, 0) });
    }
    let before = Process::of(&mount);
    let mut open = Vec::new();
    for n in 0..count {
        let path = mount.at(&format!("{n}"));
        open.push(File::options().read(true).append(true).open(path).unwrap());
    }
    for (n, file) in open.iter_mut().enumerate().step_by(100) {
        write!(file, "{n}").unwrap();
    }
    // A process may not have as many as are wanted, so others have them open as well.
    let mut others: Vec<Child> = (0..2).map(|_| opens_all(&mount, count)).collect();
    let during = Process::of(&mount);
    // The kernel tells of a close when it comes to it: what was closed just before may still count.
    let handles = || mount.status()["memory"]["handles"].as_u64().unwrap();
    let (begun, all) = (Instant::now(), 3 * count as u64);
    while handles() > all && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(handles(), all);
    assert!(during.files < before.files + 50, "{before:?} {during:?}");
    println!(
        "{} KiB for {all} open files",
        during.memory.saturating_sub(before.memory)
    );
    for (n, file) in open.iter().enumerate() {
        if n % 2 == 0 {
            fs::remove_file(mount.at(&format!("{n}"))).unwrap();
            assert_eq!(nlink(file), 0);
        }
    }
    drop(open);
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    assert_eq!(Idle::of(&mount).counts[1..4], [0; 3]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), count / 2);
    mount.finish();
}

/// A process that has opened the files of these numbers, and waits to be killed.
fn opens_all(mount: &TestMount, count: usize) -> Child {
    let python = "
import os, resource, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
all = [os.open(f'{sys.argv[1]}/{n}', os.O_RDONLY) for n in range(int(sys.argv[2]))]
print('x', flush=True)
time.sleep(600)
";
    let mut child = command("python3", &["-c", python]);
    child
        .arg(mount.path())
        .arg(count.to_string())
        .stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn nlink(file: &File) -> u64 {
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    ok(unsafe { libc::fstat(file.as_raw_fd(), &mut s) });
    s.st_nlink
}

/// What the process of the mount holds.
#[derive(Debug, Clone, Copy)]
struct Process {
    files: usize,
    threads: usize,
    /// KiB
    memory: u64,
}

impl Process {
    fn of(mount: &TestMount) -> Process {
        let proc = Path::new("/proc").join(mount.pid().to_string());
        let status = fs::read_to_string(proc.join("status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        Process {
            files: fs::read_dir(proc.join("fd")).unwrap().count(),
            threads: fs::read_dir(proc.join("task")).unwrap().count(),
            memory: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
        }
    }
}

const COUNTS: [&str; 5] = [
    "known_inodes",
    "nodes",
    "dirty_inodes",
    "handles",
    "store_readers",
];

/// What a mount holds when nobody uses it.
#[derive(Debug)]
struct Idle {
    process: Process,
    /// Bytes that are allocated: caches, and what was forgotten.
    heap: i64,
    counts: [i64; 5],
    /// Descriptors of files that are deleted.
    deleted: Vec<String>,
}

impl Idle {
    fn of(mount: &TestMount) -> Idle {
        // What was closed and removed last is let go of a moment later.
        let mut heap = i64::MAX;
        for round in 0.. {
            std::thread::sleep(Duration::from_millis(300));
            let memory = &mount.status()["memory"];
            let number = |name: &str| memory[name].as_i64().unwrap();
            // Now and then a snapshot or a table that grows takes more for a while.
            heap = heap.min(number("heap_used"));
            let idle = Idle {
                process: Process::of(mount),
                heap,
                counts: COUNTS.map(number),
                deleted: deleted_but_open(mount),
            };
            let quiet = idle.counts[..4] == [0; 4] && idle.deleted.is_empty();
            if round >= 5 && quiet || round > 60 {
                return idle;
            }
        }
        unreachable!()
    }
}

fn deleted_but_open(mount: &TestMount) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap();
    let targets = all.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let text = targets.map(|t| t.display().to_string());
    text.filter(|t| t.ends_with(" (deleted)")).collect()
}

/// Names of all files of a local store.
fn files_of_store(mount: &TestMount) -> HashSet<String> {
    let Some(store) = mount.store() else {
        return HashSet::new();
    };
    shell(&store, "find . -type f")
        .lines()
        .map(String::from)
        .collect()
}

/// The caches are small and full before the first measurement, so that whatever grows is a leak. (The
/// resident size says little: the C library keeps what threads once needed, and caches fill.) Each
/// kind is told by itself: an inode that the kernel forgot, a handle that was closed, a reader or a
/// writer of a segment that was deleted, and whatever else is on the heap.
#[test]
fn nothing_leaks() {
    let mount = TestMount::with(&[
        "--cache-size=1MiB",
        "--undo-memory=64KiB",
        "--write-buffer=16MiB",
        "--smallest-segment=1MiB",
        "--gc-grace=1s",
    ]);
    let round = |n: u32| {
        let mut all: Vec<Child> = (0..4)
            .map(|c| mixed(&mount, &format!("w{c}"), 25))
            .collect();
        all.iter_mut()
            .for_each(|c| assert!(c.wait().unwrap().success()));
        for c in 0..4 {
            fs::remove_dir_all(mount.at(&format!("w{c}"))).unwrap();
        }
        for f in 0..200 {
            let path = mount.at(&format!("{f}"));
            let file = File::create(&path).unwrap();
            fs::remove_file(&path).unwrap();
            (&file).write_all(&n.to_le_bytes()).unwrap();
        }
    };
    (0..scale(4, 12)).for_each(round);
    let (before, files) = (Idle::of(&mount), files_of_store(&mount));
    (0..scale(4, 48)).for_each(round);
    let after = Idle::of(&mount);
    println!("{before:#?}, {after:#?}");
    let mut leaks = Vec::new();
    let mut check = |sound: bool, what: &str| {
        if !sound {
            leaks.push(what.to_string());
        }
    };
    check(after.counts[0] == 0, "inodes that the kernel has forgotten");
    check(after.counts[1] == 0, "nodes of inodes that nobody uses");
    check(after.counts[2] == 0, "files that are not committed");
    check(after.counts[3] == 0, "handles");
    check(
        after.counts[4] <= before.counts[4] + 8,
        "readers of the store",
    );
    check(after.deleted.is_empty(), "descriptors of deleted files");
    let fewer = |a: usize, b: usize| a <= b + 8;
    check(
        fewer(after.process.files, before.process.files),
        "descriptors",
    );
    check(
        fewer(after.process.threads, before.process.threads),
        "threads",
    );
    check(after.heap <= before.heap + (2 << 20), "heap");
    check(after.process.memory < 128 << 10, "resident memory");
    assert!(
        leaks.is_empty(),
        "leaks: {leaks:?}; before {before:#?}, after {after:#?}"
    );
    // Segments were deleted meanwhile, or the above would prove nothing of them.
    assert!(mount.store().is_none() || !files.is_subset(&files_of_store(&mount)));
    // Nothing is left of what was made and removed.
    let status = mount.status();
    assert_eq!(status["inodes"], 1, "{status}");
    mount.finish();
}

/// A program that is killed while it waits for the store leaves no lock and no handle behind.
#[test]
fn killed_writers_release_what_they_held() {
    let mount = TestMount::new();
    let python = "
import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(f, fcntl.LOCK_EX)
print('x', flush=True)
while True:
    os.pwrite(f, b'y' * 100000, 0)
    os.fsync(f)
";
    for n in 0..scale(10, 100) {
        let mut child = Command::new("python3");
        child
            .args(["-c", python])
            .arg(mount.at("f"))
            .stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(n * 3 % 40));
        child.kill().unwrap();
        child.wait().unwrap();
        run(command("timeout", &["20", "flock", "-x"])
            .arg(mount.at("f"))
            .arg("true"));
    }
    fs::remove_file(mount.at("f")).unwrap();
    mount.finish();
}
