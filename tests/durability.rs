//! What a mount on a local store acknowledged is durable: after `kill -9` under load, before the
//! reply leaves, and when the disk is full. Long form: `STOWFS_TEST_ROUNDS=200 cargo test --test durability`.

mod support;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use support::load;
use support::mount::Mount;

#[test]
fn acknowledged_files_survive_kill_9_again_and_again() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().join("root").display());
    let mut mount = Mount::new(&url);
    load::kill_again_and_again(&mut mount, "kill -9, local", 10);
}

/// The bytes at the beginning of a FUSE request or reply, as strace shows them.
struct Header {
    words: Vec<u8>,
}

impl Header {
    fn parse(text: &str) -> Option<Header> {
        let start = text.find("\"\\x")? + 1;
        let end = start + text[start..].find('"')?;
        let hex = text[start..end].split("\\x").skip(1);
        let words: Vec<u8> = hex.filter_map(|h| u8::from_str_radix(h, 16).ok()).collect();
        (words.len() >= 16).then_some(Header { words })
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.words[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.words[at..at + 8].try_into().unwrap())
    }
}

/// What a line of strace says; entering and leaving a call are two events.
#[derive(Debug)]
enum Event {
    /// Bytes for an inode came out of /dev/fuse.
    Written(u64),
    /// A request for durability did: its number, and the inode.
    Asked(u64, u64),
    SyncBegins(u32),
    /// A segment was synced, with success.
    Synced(u32),
    Replied(u64, i32),
}

const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;

/// Lines are `PID call(…) = n`, `PID call(… <unfinished ...>` and `PID <... call resumed>… = n`.
fn events(trace: &str) -> Vec<Event> {
    let mut unfinished: HashMap<u32, String> = HashMap::new();
    let mut events = Vec::new();
    for line in trace.lines() {
        let Some((pid, call)) = line.split_once(' ') else {
            continue;
        };
        let (pid, call) = (pid.parse::<u32>().unwrap_or(0), call.trim_start());
        let resumed = call.starts_with("<... ");
        let begun = match resumed {
            true => unfinished.remove(&pid).unwrap_or_default(),
            false => call.to_string(),
        };
        let enters = !resumed;
        let leaves = !call.ends_with("<unfinished ...>");
        if !leaves {
            unfinished.insert(pid, begun.clone());
        }
        let fuse = begun.contains("</dev/fuse>");
        if begun.starts_with("fdatasync(") && begun.contains(".seg>") {
            if enters {
                events.push(Event::SyncBegins(pid));
            }
            if leaves && call.ends_with("= 0") {
                events.push(Event::Synced(pid));
            }
        } else if begun.starts_with("read") && fuse && leaves {
            let header = Header::parse(call).filter(|h| h.words.len() >= 24);
            match header.map(|h| (h.u32(4), h.u64(8), h.u64(16))) {
                Some((WRITE, _, ino)) => events.push(Event::Written(ino)),
                Some((FLUSH | FSYNC, unique, ino)) => events.push(Event::Asked(unique, ino)),
                _ => {}
            }
        } else if begun.starts_with("write")
            && fuse
            && enters
            && let Some(header) = Header::parse(call)
        {
            events.push(Event::Replied(header.u64(8), header.u32(4) as i32));
        }
    }
    events
}

/// `kill -9` leaves the page cache, so it cannot show a missing sync: the calls of the process
/// must. Without the `fdatasync` in the local store's writer, or with a reply before it, this fails.
#[test]
fn a_segment_is_synced_between_each_close_and_its_reply() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("file://{}", store.path().join("root").display());
    let mount = Mount::new(&url);
    let output = store.path().join("trace");
    let mut strace = Command::new("strace")
        .args(["-f", "-y", "-x", "-s", "24", "-e"])
        .arg("trace=read,readv,write,writev,fdatasync")
        .arg("-o")
        .arg(&output)
        .args(["-p", &mount.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !is_traced(mount.pid()) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "strace does not attach"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // All of it at once, so that replies of one commit and requests of the next mix.
    std::thread::scope(|scope| {
        for t in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                for n in 0..15 {
                    let mut file = fs::File::create(mount.at(&format!("{t}-{n}"))).unwrap();
                    file.write_all(&vec![t; 3000 * n + 1]).unwrap();
                    if n % 3 == 0 {
                        file.sync_all().unwrap();
                    }
                }
            });
        }
    });
    let pid = nix::unistd::Pid::from_raw(strace.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    strace.wait().unwrap();
    let trace = fs::read_to_string(&output).unwrap();
    let events = events(&trace);

    assert_synced_first(&events, &trace);
}

fn assert_synced_first(events: &[Event], trace: &str) {
    // Inodes with bytes of which nobody was told that they are durable.
    let mut written: HashSet<u64> = HashSet::new();
    let mut asked: HashMap<u64, (usize, u64)> = HashMap::new();
    // When it was first asked for an inode's bytes as they are: the sync for that request covers a
    // second one too (a process that is just being started closes its copies of all descriptors).
    let mut first_asked: HashMap<u64, usize> = HashMap::new();
    let mut syncing: HashMap<u32, usize> = HashMap::new();
    // When the last sync that has ended began.
    let mut synced = None;
    let mut acknowledged = 0;
    for (now, event) in events.iter().enumerate() {
        match *event {
            Event::Written(ino) => {
                written.insert(ino);
                first_asked.remove(&ino);
            }
            Event::Asked(unique, ino) if written.contains(&ino) => {
                let first = *first_asked.entry(ino).or_insert(now);
                asked.insert(unique, (first, ino));
            }
            Event::Asked(..) => {}
            Event::SyncBegins(pid) => drop(syncing.insert(pid, now)),
            Event::Synced(pid) => synced = synced.max(syncing.remove(&pid)),
            Event::Replied(unique, error) => {
                let Some((asked, ino)) = asked.remove(&unique) else {
                    continue;
                };
                assert_eq!(error, 0);
                assert!(
                    synced > Some(asked),
                    "event {now}: {event:?} without a sync\n{trace}"
                );
                written.remove(&ino);
                acknowledged += 1;
            }
        }
    }
    println!("{acknowledged} acknowledgements, each after a sync");
    assert!(acknowledged >= 60, "{acknowledged} of 60 files");
}

fn is_traced(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.into_iter().all(|task| {
        fs::read_to_string(task.path().join("status")).is_ok_and(|s| !s.contains("TracerPid:\t0\n"))
    })
}

/// A small disk.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(dir: &Path, mib: u32) -> Tmpfs {
        let at = dir.join("disk");
        fs::create_dir(&at).unwrap();
        let options = format!("size={mib}m");
        mount(
            Some("tmpfs"),
            &at,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
        Tmpfs(at)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Programs get ENOSPC, nothing that was acknowledged is lost, and writing goes on by itself when
/// there is room.
#[test]
fn a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can make a small disk");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Tmpfs::new(dir.path(), 64);
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let url = format!("file://{}", disk.0.join("root").display());
    let mut mount = Mount::with(&url, &["--op-timeout=10s", "--segment-size=64MiB"]);
    let seed = load::seed("full disk");
    let mut writers = load::writers(&mount.path(), 2, seed);
    let full = |writers: &[load::Writer]| {
        let errors = writers.iter().flat_map(|w| &w.errors);
        errors
            .filter(|(_, e, _)| e.to_string().contains("os error 28"))
            .count()
    };
    // Writers are looked at only between runs.
    let begun = Instant::now();
    while full(&writers) < 2 {
        load::run(&mut writers, &AtomicBool::new(false), || {
            std::thread::sleep(Duration::from_millis(300));
        });
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the disk does not fill"
        );
    }
    for (what, e, took) in writers.iter().flat_map(|w| &w.errors) {
        assert!(e.to_string().contains("os error 28"), "{what}: {e}");
        assert!(*took < Duration::from_secs(12), "{what}: {took:?}");
    }
    load::verify(&mut writers, false);

    fs::remove_file(&ballast).unwrap();
    let begun = Instant::now();
    while fs::write(mount.at("room"), "again").is_err() {
        assert!(begun.elapsed() < Duration::from_secs(15), "{}", mount.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("writing goes on {:?} after there was room", begun.elapsed());
    load::verify(&mut writers, false);
    mount.kill9();
    mount.remount();
    load::verify(&mut writers, true);
    assert_eq!(fs::read(mount.at("room")).unwrap(), b"again");
}
