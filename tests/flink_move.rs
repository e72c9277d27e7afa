//! A job that kept its checkpoints on HDFS as plain files moves to a mount over the same directory,
//! without copying: restored through the mount, it goes on with packed checkpoints, and the plain files go
//! when they are removed through the mount.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};
use support::flink::Flink;
use support::hdfs::Hdfs;
use support::java::FLINK;
use support::mount::Mount;
use support::{fetch, packing};

fn hadoop(hdfs: &Hdfs) -> Option<(std::path::PathBuf, std::path::PathBuf)> {
    let jars = fetch::jars("fetch-jars.sh", &["hadoop"], "hadoop").unwrap();
    Some((jars, hdfs.conf_dir()))
}

/// `hdfs://host:port/root/ck/…` as it is in a mount of `/root`.
fn in_mount(mount: &Mount, path: &Path) -> std::path::PathBuf {
    let (_, below) = path.to_str().unwrap().split_once("/root/").unwrap();
    mount.at(below)
}

fn moves(version: &str) {
    let hdfs = Hdfs::builder().datanodes(1).replication(1).start();
    let root = format!("{}/root", hdfs.url());
    let begun = Instant::now();
    let tell = |what: &str| eprintln!("{:>4} s  {what}", begun.elapsed().as_secs());

    let mut flink = Flink::start_at(version, &format!("{root}/ck"), hadoop(&hdfs), 2);
    let job = flink.submit(None, 2);
    flink.wait_for_checkpoints(&job, 3);
    flink.cancel(&job);
    let (id, retained) = flink.checkpoints(&job).newest.unwrap();
    drop(flink);
    tell(&format!("plain checkpoint {id} is {}", retained.display()));
    let (plain, _) = packing::on_hdfs(&hdfs, "/root");

    let conf = hdfs.conf_dir();
    let arguments = [
        "--replication=1",
        "--gc-grace=1s",
        "--delete-rate=1000",
        "--hadoop-conf",
        conf.to_str().unwrap(),
    ];
    let mount = Mount::with(&root, &arguments);
    let old = in_mount(&mount, &retained);
    let metadata = std::fs::read(old.join("_metadata")).unwrap();
    let absolute = metadata.windows(7).any(|w| w == b"hdfs://");
    assert!(
        absolute,
        "the checkpoint names its shared files by absolute paths"
    );
    tell("mounted over the same directory");

    std::fs::create_dir(mount.at("packed")).unwrap();
    let packed = format!("file://{}", mount.at("packed").display());
    let mut flink = Flink::start_at(version, &packed, hadoop(&hdfs), 2);
    let job = flink.submit(Some(&old), 2);
    flink.wait_for_restore(&job, id);
    flink.wait_for_checkpoints(&job, 3);
    tell("restored through the mount, and going on");
    flink.cancel(&job);
    let (id, new) = flink.checkpoints(&job).newest.unwrap();
    let metadata = std::fs::read(new.join("_metadata")).unwrap();
    let absolute = metadata.windows(7).any(|w| w == b"hdfs://");
    assert!(!absolute, "the new checkpoints need nothing old");

    // The old ones are removed through the mount: their plain files go.
    std::fs::remove_dir_all(mount.at("ck")).unwrap();
    let shell = "org.apache.hadoop.fs.FsShell";
    let limit = Instant::now() + Duration::from_secs(60);
    while hdfs.admin(shell, &["-test", "-d", "/root/ck"]).is_ok() {
        assert!(
            Instant::now() < limit,
            "plain files are left; {}",
            mount.log()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    tell("the plain files are gone");
    let job = flink.submit(Some(&new), 1);
    flink.wait_for_restore(&job, id);
    flink.wait_for_checkpoints(&job, 1);
    flink.cancel(&job);
    let (now, _) = packing::on_hdfs(&hdfs, "/root");
    tell(&format!(
        "{plain} plain files before, {now} files on HDFS now"
    ));
}

#[test]
fn a_job_moves_from_plain_hdfs_to_a_mount_over_it() {
    moves(FLINK[0]);
}

#[test]
#[ignore = "long: the other version"]
fn a_job_of_the_older_flink_moves() {
    moves(FLINK[1]);
}
