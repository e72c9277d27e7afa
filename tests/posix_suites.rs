//! Suites that others wrote, on a mount of a local store.

mod support;

use support::posix::TestMount;
use support::suites::{fio_verifies, pjdfstest};

#[test]
fn pjdfstest_has_no_failure() {
    let mount = TestMount::with(&["-o", "allow_other,suid,dev"]);
    pjdfstest(&mount);
    mount.finish();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let mount = TestMount::new();
    let engines = ["psync", "libaio", "mmap", "io_uring"];
    fio_verifies(&mount, &engines, &["write", "randwrite", "randrw"]);
    mount.finish();
}
