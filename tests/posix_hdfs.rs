//! The suites of POSIX in a reduced form on a real HDFS.

mod support;

use std::sync::OnceLock;
use support::calls::Twins;
use support::hdfs::Hdfs;
use support::mount::Mount;
use support::posix::{TestMount, scale, seeds};
use support::programs::{git, sqlite};
use support::suites::{FSX, fio_verifies, fsx, pjdfstest};

/// One cluster for all tests; each has a root of its own.
fn cluster() -> &'static Hdfs {
    static CLUSTER: OnceLock<Hdfs> = OnceLock::new();
    CLUSTER.get_or_init(|| Hdfs::builder().datanodes(2).replication(2).start())
}

fn mount(root: &str) -> TestMount {
    let conf = cluster().conf_dir();
    let arguments = [
        "--replication=2",
        "-o",
        "allow_other,suid,dev",
        "--hadoop-conf",
    ];
    let all = [&arguments[..], &[conf.to_str().unwrap()]].concat();
    TestMount::of(Mount::with(&format!("{}/{root}", cluster().url()), &all))
}

#[test]
fn pjdfstest_has_no_failure() {
    let mount = mount("pjdfstest");
    pjdfstest(&mount);
    mount.finish();
}

#[test]
fn fsx_with_every_operation() {
    let mount = mount("fsx");
    for seed in seeds(1) {
        fsx(&mount, FSX, scale(1_000, 100_000), seed);
    }
    mount.finish();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let mount = mount("fio");
    fio_verifies(&mount, &["psync", "libaio", "mmap"], &["randwrite"]);
    mount.finish();
}

#[test]
fn random_calls_do_as_on_the_local_disk() {
    let mut mount = mount("differential");
    let disk = tempfile::tempdir().unwrap();
    for seed in seeds(1) {
        println!("differential: STOWFS_TEST_SEED={seed} replays this");
        // Deep, so that no symbolic link leads out.
        let sides = [disk.path().join("1/2/3/4/5/6/7"), mount.at("1/2/3/4/5/6/7")];
        sides
            .iter()
            .for_each(|s| std::fs::create_dir_all(s).unwrap());
        let [local, mounted] = sides;
        let mut twins = Twins::new(seed, local, mounted, true);
        (0..scale(2000, 50_000)).for_each(|_| twins.step());
        twins.compare();
        twins.close_all();
        mount.cycle();
        twins.compare();
    }
    mount.finish();
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite(mount("sqlite"), "wal");
}

#[test]
fn git_clones_commits_collects_and_checks() {
    git(mount("git"));
}
