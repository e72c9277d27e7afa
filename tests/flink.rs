//! A real Flink keeps its checkpoints on a mount, unmodified: it completes them, recovers from them,
//! and goes on when the mount itself is killed. Its job fails if its state is ever wrong.
//!
//! In the normal run the newer version is on a local store and the older one, which never calls
//! fsync, on a real HDFS; the other two pairs are `cargo test --test flink -- --ignored`.

mod support;

use rand::Rng;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::flink::{Checkpoints, Flink};
use support::hdfs::Hdfs;
use support::java::FLINK;
use support::mount::Mount;
use support::packing;

/// What happens to one job on one mount.
struct Story {
    mount: Mount,
    flink: Flink,
    begun: Instant,
    /// Checkpoints and savepoints that were completed.
    completed: u64,
}

impl Story {
    fn new(version: &str, mount: Mount) -> Story {
        let checkpoints = mount.at("ck");
        std::fs::create_dir(&checkpoints).unwrap();
        let begun = Instant::now();
        let flink = Flink::start(version, &checkpoints, 2);
        let story = Story {
            mount,
            flink,
            begun,
            completed: 0,
        };
        story.tell("Flink is up", None);
        story
    }

    fn tell(&self, what: &str, checkpoints: Option<&Checkpoints>) {
        let seconds = self.begun.elapsed().as_secs();
        let more = checkpoints.map(|c| format!("{c:?}")).unwrap_or_default();
        eprintln!("{seconds:>4} s  {what}  {more}");
    }

    fn complete(&mut self, job: &str, n: u64) -> Checkpoints {
        let c = self.flink.wait_for_checkpoints(job, n);
        self.tell("more checkpoints", Some(&c));
        c
    }

    fn cancel(&mut self, job: &str) -> Checkpoints {
        self.flink.cancel(job);
        let last = self.flink.checkpoints(job);
        self.completed += last.completed;
        last
    }

    /// A worker dies; the job recovers from a checkpoint that is at least as new as the last one
    /// known before.
    fn kill_a_taskmanager(&mut self, job: &str) {
        let before = self.flink.checkpoints(job).newest.unwrap().0;
        self.flink.kill_taskmanager(0);
        self.flink.restart_taskmanager(0);
        let after = self.flink.wait_for_restore(job, before);
        self.tell("recovered from the death of a TaskManager", Some(&after));
        self.complete(job, 2);
    }

    /// The job goes on while the mount is away, and completes checkpoints when it is back.
    fn kill_the_mount(&mut self, job: &str) {
        let before = self.flink.checkpoints(job);
        self.mount.kill9();
        self.mount.remount();
        self.tell("the mount was killed and is back", Some(&before));
        self.complete(job, 2);
        let after = self.flink.checkpoints(job);
        assert_eq!(before.restored, after.restored, "it had no need to recover");
    }

    fn kill_both(&mut self, job: &str) {
        let before = self.flink.checkpoints(job).newest.unwrap().0;
        self.mount.kill9();
        self.flink.kill_taskmanager(1);
        self.mount.remount();
        self.flink.restart_taskmanager(1);
        let after = self.flink.wait_for_restore(job, before);
        self.tell("recovered from the death of both", Some(&after));
        self.complete(job, 2);
    }

    fn run(mut self) -> (Mount, u64) {
        let job = self.flink.submit(None, 2);
        self.tell("submitted", None);
        self.complete(&job, 3);
        self.kill_a_taskmanager(&job);
        self.kill_the_mount(&job);
        self.kill_both(&job);

        let savepoint = self.flink.savepoint(&job, &self.mount.at("savepoints"));
        self.completed += 1;
        let (id, retained) = self.cancel(&job).newest.unwrap();
        self.tell("savepoint taken, job cancelled", None);

        // From the retained checkpoint, right after a crash of the mount.
        self.mount.kill9();
        self.mount.remount();
        let job = self.flink.submit(Some(&retained), 2);
        self.flink.wait_for_restore(&job, id);
        self.complete(&job, 2);
        self.cancel(&job);

        // A savepoint may be moved, and its state is dealt out anew among fewer tasks.
        let moved = self.mount.at("moved");
        std::fs::rename(&savepoint, &moved).unwrap();
        let job = self.flink.submit(Some(&moved), 1);
        self.complete(&job, 2);
        self.cancel(&job);
        self.tell("cancelled", None);
        (self.mount, self.completed)
    }
}

/// One Flink is enough for the machine, and tests are run side by side.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the mount at any moment of a checkpoint, again and again, and each third time a worker too.
fn ten_deaths(version: &str, mount: Mount) -> (Mount, u64) {
    let mut story = Story::new(version, mount);
    let job = story.flink.submit(None, 2);
    story.complete(&job, 2);
    for death in 0..10 {
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(500..4000)));
        match death % 3 {
            2 => story.kill_both(&job),
            _ => story.kill_the_mount(&job),
        }
    }
    let (id, retained) = story.cancel(&job).newest.unwrap();
    let job = story.flink.submit(Some(&retained), 1);
    story.flink.wait_for_restore(&job, id);
    story.complete(&job, 2);
    story.cancel(&job);
    (story.mount, story.completed)
}

fn story(version: &str, mount: Mount) -> (Mount, u64) {
    let (mut mount, completed) = Story::new(version, mount).run();
    let files = packing::files_below(&mount.path());
    // A Flink that is gone has no file open.
    assert_eq!(mount.umount().code(), Some(0), "{}", mount.log());
    mount.remount();
    assert_eq!(packing::files_below(&mount.path()), files);
    eprintln!("Flink {version}: {completed} checkpoints completed");
    (mount, files)
}

fn on_a_local_store(version: &str) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let (_mount, files) = story(version, Mount::new(&url));
    let on_store = packing::files_below(dir.path());
    packing::check("Flink, local store", files, on_store);
}

fn on_hdfs(version: &str) {
    let _turn = turn();
    let hdfs = Hdfs::builder().datanodes(2).replication(2).start();
    let conf = hdfs.conf_dir();
    let arguments = ["--replication=2", "--hadoop-conf", conf.to_str().unwrap()];
    let before = hdfs.rpc_counts();
    let mount = Mount::with(&format!("{}/root", hdfs.url()), &arguments);
    let (_mount, files) = story(version, mount);
    let calls = hdfs.rpc_counts().since(&before);
    eprintln!("calls to the NameNode: {} in all, {calls:?}", calls.total());
    let (on_store, _) = packing::on_hdfs(&hdfs, "/root");
    packing::check("Flink, HDFS", files, on_store);
}

#[test]
fn the_newest_flink_on_a_local_store() {
    on_a_local_store(FLINK[0]);
}

#[test]
fn a_flink_that_never_syncs_on_hdfs() {
    on_hdfs(FLINK[1]);
}

#[test]
#[ignore = "long"]
fn a_mount_that_dies_ten_times_on_a_local_store() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::new(&format!("file://{}", dir.path().display()));
    let (mount, completed) = ten_deaths(FLINK[0], mount);
    let files = packing::files_below(&mount.path());
    let on_store = packing::files_below(dir.path());
    // Each life of a mount begins segments of its own.
    eprintln!("{completed} checkpoints completed; {files} files, {on_store} on the store");
}

#[test]
#[ignore = "long: the other pairs of a version and a store"]
fn a_flink_that_never_syncs_on_a_local_store() {
    on_a_local_store(FLINK[1]);
}

#[test]
#[ignore = "long: the other pairs of a version and a store"]
fn the_newest_flink_on_hdfs() {
    on_hdfs(FLINK[0]);
}
