//! The suites of others on a real HDFS, in a reduced form. Our own tests run there as well, each suite
//! by itself: `STOWFS_TEST_STORE=hdfs cargo test --test posix_files`.

mod support;

use support::calls::Twins;
use support::posix::{TestMount, scale, seeds};
use support::suites::{fio_verifies, pjdfstest};

fn mount() -> TestMount {
    TestMount::on_hdfs(&["-o", "allow_other,suid,dev"])
}

#[test]
fn pjdfstest_has_no_failure() {
    let mount = mount();
    pjdfstest(&mount);
    mount.finish();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let mount = mount();
    let engines = ["psync", "libaio", "mmap", "io_uring"];
    fio_verifies(&mount, &engines, &["write", "randwrite"]);
    mount.finish();
}

#[test]
fn random_calls_do_as_on_the_local_disk() {
    let mut mount = mount();
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
