//! Everything at once on a real HDFS: writers, readers, renames and unlinks, compaction, garbage
//! collection, snapshots and scrub, while the mount, DataNodes and the NameNode are killed. At the
//! end every file is right, and the store holds nothing that it should not.
//!
//! `tests/soak.sh` runs it for an hour, or for as many seconds as its argument says.

mod support;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::load::{self, Writer};
use support::mount::{Mount, stowfs};

const DFS_ADMIN: &str = "org.apache.hadoop.hdfs.tools.DFSAdmin";
const WRITERS: u64 = 4;
/// Seconds of load unless `STOWFS_TEST_SOAK` says otherwise. With what comes before and after, some
/// three minutes more, it fits into the 900 s that test.sh gives each attempt.
const IN_SUITE: u64 = 300;
/// Names that a writer keeps from one round to the next.
const KEPT: usize = 40;

const TARGET: f64 = 1.3;
const KEEP: f64 = 0.3;
/// Log that the two snapshots need, and segments too small or too young to be worth copying.
const MARGIN: u64 = 96 << 20;

const OPTIONS: &[&str] = &[
    "--replication=2",
    "--block-size=1MiB",
    "--segment-size=8MiB",
    "--gc-grace=10s",
    "--gc-keep=0.3",
    "--delete-rate=1000",
    "--compact-target=1.3",
    "--compact-rate=0",
    "--snapshot-bytes=8MiB",
    "--upkeep-every=500ms",
    "--idle-seal=2s",
    "--scrub-every=1m",
    "--orphan-age=5s",
];

#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    KillMount,
    KillDataNode,
    FreezeDataNode,
    KillNameNode,
}

struct Soak {
    hdfs: Hdfs,
    mount: Mount,
    rng: StdRng,
    writers: Vec<Writer>,
    events: Vec<Event>,
    reads: AtomicU64,
    /// Reads that failed while something was broken.
    failed_reads: AtomicU64,
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let builder = Hdfs::builder().datanodes(3).replication(2);
        let hdfs = builder.start();
        let conf = hdfs.conf_dir();
        let conf = ["--hadoop-conf", conf.to_str().unwrap()];
        let mount = Mount::with(&Soak::url(&hdfs), &[OPTIONS, &conf].concat());
        let writers = load::writers(&mount.path(), WRITERS, seed);
        Soak {
            hdfs,
            mount,
            rng: StdRng::seed_from_u64(seed),
            writers,
            events: Vec::new(),
            reads: AtomicU64::new(0),
            failed_reads: AtomicU64::new(0),
        }
    }

    fn url(hdfs: &Hdfs) -> String {
        format!("{}/soak", hdfs.url())
    }

    /// Each event once, in any order, then again.
    fn event(&mut self) -> Event {
        if self.events.is_empty() {
            self.events = vec![
                Event::Nothing,
                Event::KillMount,
                Event::KillMount,
                Event::KillDataNode,
                Event::FreezeDataNode,
                Event::KillNameNode,
            ];
            self.events.shuffle(&mut self.rng);
        }
        self.events.pop().unwrap()
    }

    fn round(&mut self) -> Event {
        let event = self.event();
        let life = Duration::from_millis(self.rng.random_range(2000..8000));
        let victim = self.rng.random_range(0..self.hdfs.datanodes());
        let stop = AtomicBool::new(false);
        let (hdfs, mount) = (&self.hdfs, &mut self.mount);
        let root = mount.path();
        std::thread::scope(|scope| {
            for n in 0..2 {
                let (root, stop) = (&root, &stop);
                let (reads, failed) = (&self.reads, &self.failed_reads);
                scope.spawn(move || read_anything(root, n, stop, reads, failed));
            }
            load::run(&mut self.writers, &stop, || {
                std::thread::sleep(life);
                match event {
                    Event::Nothing => {}
                    Event::KillMount => mount.kill9(),
                    Event::KillDataNode => {
                        hdfs.kill_datanode(victim);
                        std::thread::sleep(Duration::from_secs(3));
                        hdfs.restart_datanode(victim);
                    }
                    Event::FreezeDataNode => {
                        hdfs.freeze_datanode(victim);
                        std::thread::sleep(Duration::from_secs(4));
                        hdfs.thaw_datanode(victim);
                    }
                    Event::KillNameNode => {
                        hdfs.kill_namenode(0);
                        std::thread::sleep(Duration::from_secs(1));
                        hdfs.restart_namenode(0);
                        hdfs.mend();
                    }
                }
                if !matches!(event, Event::KillMount) {
                    std::thread::sleep(Duration::from_secs(2));
                }
            });
        });
        let killed = matches!(event, Event::KillMount);
        if killed {
            self.mount.remount();
        }
        load::verify(&mut self.writers, killed);
        for writer in &mut self.writers {
            writer.prune(KEPT);
        }
        event
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = stowfs();
        command.arg(name).arg(self.mount.path()).args(arguments);
        command.arg("--run-dir").arg(self.mount.run_dir());
        command.output().unwrap()
    }

    fn json(&self, name: &str) -> Value {
        let output = self.command(name, &["--json"]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Everything below `.stowfs`: path and length.
    fn on_the_store(&self) -> Vec<(String, u64)> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = hdfs_native::ClientBuilder::new()
            .with_url(self.hdfs.url())
            .with_config_dir(self.hdfs.conf_dir().to_str().unwrap())
            .build()
            .unwrap();
        let all = runtime.block_on(client.list_status("/soak/.stowfs", true));
        let files = all.unwrap().into_iter().filter(|f| !f.isdir);
        files.map(|f| (f.path, f.length as u64)).collect()
    }

    /// Waits until no more is there than the options allow.
    fn wait_for_space(&self) {
        let begun = Instant::now();
        loop {
            let segments = self.json("segments");
            let live = segments["live_bytes"].as_u64().unwrap();
            let files = self.on_the_store();
            let size: u64 = files.iter().map(|(_, len)| len).sum();
            let most = ((TARGET + KEEP) * live as f64) as u64 + MARGIN;
            println!(
                "{:?} after the end: {} MiB on the store, {} MiB live, {} MiB allowed",
                begun.elapsed(),
                size >> 20,
                live >> 20,
                most >> 20
            );
            if size <= most && begun.elapsed() > Duration::from_secs(15) {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(90),
                "{segments:#}\n{}",
                self.mount.log()
            );
            std::thread::sleep(Duration::from_secs(5));
        }
    }

    /// The wrong directory is deleted, and brought back.
    fn undo(&mut self) {
        fs::remove_dir_all(self.mount.at("writer-0")).unwrap();
        let output = self.command("undelete", &["writer-0"]);
        assert!(output.status.success(), "{}", text(&output));
        println!("{}", text(&output).trim());
        load::verify(&mut self.writers, false);
    }

    fn nothing_is_left_open(&self) {
        let open = self.hdfs.admin(DFS_ADMIN, &["-listOpenFiles"]).unwrap();
        assert!(!open.contains("/soak/"), "open files:\n{open}");
        let strange: Vec<String> = self
            .on_the_store()
            .into_iter()
            .map(|(path, _)| path)
            .filter(|path| !is_known(path))
            .collect();
        assert!(strange.is_empty(), "left on the store: {strange:#?}");
    }
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// FORMAT.md names all files that belong there.
fn is_known(path: &str) -> bool {
    let Some((_, inside)) = path.split_once("/.stowfs/") else {
        return false;
    };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    match inside.split('/').collect::<Vec<_>>()[..] {
        ["FORMAT"] => true,
        ["owner", name] => number(name.trim_end_matches(".released")),
        ["log" | "data", _, name] => number(name.trim_end_matches(".seg")),
        ["snapshot", name] => number(name.trim_end_matches(".idx")),
        _ => false,
    }
}

/// Reads files that others write, rename and remove; their writers compare the contents.
fn read_anything(root: &Path, n: u64, stop: &AtomicBool, reads: &AtomicU64, failed: &AtomicU64) {
    let mut rng = StdRng::seed_from_u64(n);
    while !stop.load(Ordering::Relaxed) {
        let dir = root.join(format!("writer-{}", rng.random_range(0..WRITERS)));
        let names = fs::read_dir(&dir).map(|all| all.flatten().collect::<Vec<_>>());
        let one = names
            .ok()
            .and_then(|all| Some(all.choose(&mut rng)?.path()));
        match one.map(fs::read) {
            Some(Ok(_)) => reads.fetch_add(1, Ordering::Relaxed),
            Some(Err(e)) if e.kind() == std::io::ErrorKind::NotFound => 0,
            Some(Err(_)) => failed.fetch_add(1, Ordering::Relaxed),
            None => 0,
        };
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn everything_at_once() {
    let seconds = load::number("STOWFS_TEST_SOAK").unwrap_or(IN_SUITE);
    let mut soak = Soak::new(load::seed("soak"));
    let begun = Instant::now();
    let mut round = 0;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let event = soak.round();
        round += 1;
        let acknowledged: usize = soak.writers.iter().map(|w| w.acknowledged.len()).sum();
        println!(
            "{:?}, round {round}: {event:?}; {acknowledged} acknowledgements, {} reads ({} failed)",
            begun.elapsed(),
            soak.reads.load(Ordering::Relaxed),
            soak.failed_reads.load(Ordering::Relaxed)
        );
    }
    soak.hdfs.mend();
    soak.wait_for_space();
    let scrub = soak.command("scrub", &["--rate=0"]);
    assert!(scrub.status.success(), "{}", text(&scrub));
    println!("{}", text(&scrub).trim());
    soak.undo();
    let gc = soak.command("gc", &[]);
    assert!(gc.status.success(), "{}", text(&gc));
    println!("{}", text(&gc).trim());
    assert_eq!(soak.mount.umount().code(), Some(0), "{}", soak.mount.log());
    soak.nothing_is_left_open();

    let conf = soak.hdfs.conf_dir();
    let mut fsck = stowfs();
    fsck.arg("fsck").arg(Soak::url(&soak.hdfs));
    fsck.arg("--hadoop-conf").arg(conf);
    let fsck = fsck.output().unwrap();
    assert_eq!(fsck.status.code(), Some(0), "{}", text(&fsck));
    soak.mount.remount();
    load::verify(&mut soak.writers, true);
    assert_eq!(soak.mount.umount().code(), Some(0), "{}", soak.mount.log());
}
