//! Many programs at once, killed and interrupted: nothing hangs, nothing leaks, nothing panics.

mod support;

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
    let during = Process::of(&mount);
    assert!(during.files < before.files + 50, "{before:?} {during:?}");
    println!(
        "{} KiB for {count} open files",
        during.memory.saturating_sub(before.memory)
    );
    for (n, file) in open.iter().enumerate() {
        if n % 2 == 0 {
            fs::remove_file(mount.at(&format!("{n}"))).unwrap();
            assert_eq!(nlink(file), 0);
        }
    }
    drop(open);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), count / 2);
    mount.finish();
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

#[test]
fn nothing_leaks() {
    let mount = TestMount::with(&["--cache-size=16MiB", "--write-buffer=16MiB"]);
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
    (0..2).for_each(round);
    let before = Process::of(&mount);
    (2..scale(6, 60)).for_each(round);
    std::thread::sleep(Duration::from_secs(1));
    let after = Process::of(&mount);
    println!("{before:?}, {after:?}");
    assert!(after.files <= before.files + 8, "{before:?} {after:?}");
    assert!(after.threads <= before.threads + 16, "{before:?} {after:?}");
    assert!(
        after.memory < before.memory + 48 * 1024,
        "{before:?} {after:?}"
    );
    // Nothing is left of what was made and removed.
    let status = mount.status();
    assert_eq!(status["inodes"], 1, "{status}");
    mount.finish();
}

trait Status {
    fn status(&self) -> serde_json::Value;
}

impl Status for TestMount {
    fn status(&self) -> serde_json::Value {
        let mut status = support::mount::stowfs();
        status.arg("status").arg(self.path());
        let text = run(status.arg("--run-dir").arg(self.run_dir()));
        serde_json::from_str(&text).unwrap()
    }
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
