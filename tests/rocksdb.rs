//! RocksDB itself on a mount, and the calls that Flink makes for RocksDB's checkpoints: on a local
//! store and on a real HDFS, with `kill -9` of the mount in between.

mod support;

use rand::Rng;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::java::{self, Program};
use support::mount::Mount;
use support::packing;

const LIMIT: Duration = Duration::from_secs(120);

/// How often a mount is killed in one test.
const KILLS: usize = 3;

fn program(class: &str) -> Program {
    let jars = java::flink_jars(java::FLINK[0]).unwrap_or_else(|e| panic!("{e}"));
    Program::new(class, &jars)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A root on the local disk.
fn local() -> (tempfile::TempDir, Mount) {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::new(&format!("file://{}", text(dir.path())));
    (dir, mount)
}

/// One cluster for all tests; each has a root of its own.
fn cluster() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| Hdfs::builder().datanodes(2).replication(2).start())
}

fn on_hdfs(root: &str) -> Mount {
    let conf = cluster().conf_dir();
    let url = format!("{}/{root}", cluster().url());
    Mount::with(&url, &["--replication=2", "--hadoop-conf", text(&conf)])
}

/// Writes, flushes, compactions, checkpoints by hard links, and what was written is there after
/// each, with one way of reading and writing files.
fn exercise(mount: &mut Mount, mode: &str) {
    let dir = mount.at(mode);
    std::fs::create_dir(&dir).unwrap();
    let rocks = program("RocksStore");
    let begun = Instant::now();
    rocks.run(&["exercise", text(&dir), mode], LIMIT);
    eprintln!("RocksDB, {mode}: {:?}", begun.elapsed());
    assert_eq!(mount.umount().code(), Some(0), "{}", mount.log());
    mount.remount();
    rocks.run(&["reopen", text(&dir), mode], LIMIT);
}

/// A database is written with a sync for each batch while its mount is killed again and again.
fn write_and_kill(mount: &mut Mount) {
    let rocks = program("RocksStore");
    let dir = mount.at("rocks");
    std::fs::create_dir(&dir).unwrap();
    let mut known = 0;
    for _ in 0..KILLS {
        let mut writing = rocks.start(&["write", text(&dir), &known.to_string()]);
        let some = rand::rng().random_range(1_000..12_000);
        writing.wait_until("acknowledged", known + some, LIMIT);
        mount.kill9();
        writing.wait(LIMIT);
        let acknowledged = writing.last("acknowledged").unwrap();
        let checkpoint = writing.last("checkpoint").unwrap_or(-1);
        mount.remount();
        let (acknowledged, checkpoint) = (acknowledged.to_string(), checkpoint.to_string());
        let told = rocks.run(&["verify", text(&dir), &acknowledged, &checkpoint], LIMIT);
        eprintln!("acknowledged {acknowledged}, {}", told.trim());
        // The next batch follows what is there, which may be more than was acknowledged.
        known = told.trim().rsplit(' ').next().unwrap().parse().unwrap();
    }
}

/// Incremental checkpoints as Flink writes them, without fsync (as its older versions) or with it.
/// Returns how many files were written.
fn churn_and_kill(mount: &mut Mount) -> u64 {
    let churn = program("Churn");
    let dir = mount.at("checkpoints");
    let mut completed = -1;
    for kill in 0..KILLS {
        let seed: i64 = rand::rng().random();
        let fsync = (kill % 2 == 1).to_string();
        let args = ["run", text(&dir), &seed.to_string(), "100000", &fsync];
        let mut running = churn.start(&args);
        let some = rand::rng().random_range(5..15);
        running.wait_until("completed", completed + some, LIMIT);
        mount.kill9();
        running.wait(LIMIT);
        completed = running.last("completed").unwrap();
        mount.remount();
        let told = churn.run(&["restore", text(&dir), &completed.to_string()], LIMIT);
        eprintln!("completed {completed}, {}", told.trim());
    }
    let args = ["run", text(&dir), "1", "10", "true"];
    let told = churn.run(&args, LIMIT);
    completed += 10;
    churn.run(&["restore", text(&dir), &completed.to_string()], LIMIT);
    assert!(told.contains("files 130"), "{told}");
    // 13 files for each checkpoint.
    13 * completed as u64
}

#[test]
fn rocksdb_runs_on_a_local_store() {
    let (dir, mut mount) = local();
    for mode in ["plain", "direct", "mmap"] {
        exercise(&mut mount, mode);
    }
    let there = packing::files_below(&mount.path());
    let on_store = packing::files_below(dir.path());
    packing::check("RocksDB, local store", there, on_store);
}

#[test]
fn rocksdb_keeps_what_it_synced_on_a_local_store() {
    let (_dir, mut mount) = local();
    write_and_kill(&mut mount);
}

#[test]
fn checkpoints_survive_on_a_local_store() {
    let (dir, mut mount) = local();
    let written = churn_and_kill(&mut mount);
    let on_store = packing::files_below(dir.path());
    packing::check("checkpoints, local store", written, on_store);
}

#[test]
fn rocksdb_runs_on_hdfs() {
    let mut mount = on_hdfs("exercise");
    exercise(&mut mount, "plain");
    let there = packing::files_below(&mount.path());
    let (on_store, _) = packing::on_hdfs(cluster(), "/exercise");
    packing::check("RocksDB, HDFS", there, on_store);
}

#[test]
fn rocksdb_keeps_what_it_synced_on_hdfs() {
    write_and_kill(&mut on_hdfs("synced"));
}

#[test]
fn checkpoints_survive_on_hdfs() {
    let mut mount = on_hdfs("checkpoints");
    let written = churn_and_kill(&mut mount);
    let (on_store, _) = packing::on_hdfs(cluster(), "/checkpoints");
    packing::check("checkpoints, HDFS", written, on_store);
}
