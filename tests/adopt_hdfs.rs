//! Plain files of a real HDFS: a file that is under construction, packing, and the way back out.

mod support;

use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stowfs::store::hdfs::HdfsOptions;
use stowfs::store::{ConnectOptions, Store, connect};
use support::hdfs::Hdfs;
use support::mount::{Mount, stowfs};

fn content(i: u8) -> Vec<u8> {
    (0..50_000 + usize::from(i)).map(|k| k as u8 ^ i).collect()
}

struct Cluster {
    hdfs: Hdfs,
    runtime: tokio::runtime::Runtime,
    store: Arc<dyn Store>,
}

impl Cluster {
    fn new() -> Cluster {
        let hdfs = Hdfs::builder().datanodes(1).replication(1).start();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let options = ConnectOptions {
            hdfs: HdfsOptions {
                replication: Some(1),
                conf_dir: Some(hdfs.conf_dir()),
                ..HdfsOptions::default()
            },
        };
        let url = format!("{}/data", hdfs.url());
        let store = runtime.block_on(connect(&url, &options)).unwrap();
        Cluster {
            hdfs,
            runtime,
            store,
        }
    }

    fn is_there(&self, path: &str) -> bool {
        self.runtime.block_on(self.store.stat(path)).is_ok()
    }

    fn url(&self, path: &str) -> String {
        format!("{}/data/{path}", self.hdfs.url())
    }
}

#[test]
fn plain_files_come_in_are_packed_and_go_out_again() {
    let c = Cluster::new();
    let mut writer = c.runtime.block_on(async {
        c.store.mkdir("root/old").await.unwrap();
        for i in 0..5 {
            let path = format!("root/old/{i}");
            c.store.put(&path, content(i).into()).await.unwrap();
        }
        let mut writer = c.store.create("root/old/open").await.unwrap();
        writer.append("half".into()).await.unwrap();
        writer.sync().await.unwrap();
        writer
    });
    let conf = c.hdfs.conf_dir();
    let arguments = [
        "--replication=1",
        "--gc-grace=1s",
        "--delete-rate=1000",
        "--hadoop-conf",
        conf.to_str().unwrap(),
    ];
    let mut mount = Mount::with(&c.url("root"), &arguments);
    let run_dir = mount.run_dir();
    let run = |arguments: &[&str]| {
        let mut command = stowfs();
        command.args(arguments).arg("--run-dir").arg(&run_dir);
        command.arg("--hadoop-conf").arg(&conf);
        let output = command.arg("--replication=1").output().unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (output.status.code(), text)
    };
    assert!(!mount.at("old/open").exists(), "it is under construction");
    assert!(
        mount
            .log()
            .contains("/old/open is not readable through the mount")
    );
    let mountpoint = mount.path();
    let mountpoint = mountpoint.to_str().unwrap();
    let (code, text) = run(&["adopt", mountpoint]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("/old/open: it is open for writing"), "{text}");
    c.runtime.block_on(writer.close()).unwrap();
    let (code, text) = run(&["adopt", mountpoint, "--pack"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(std::fs::read(mount.at("old/open")).unwrap(), b"half");
    let limit = Instant::now() + Duration::from_secs(60);
    while (0..5).any(|i| c.is_there(&format!("root/old/{i}"))) {
        assert!(
            Instant::now() < limit,
            "plain files are left: {}",
            mount.log()
        );
        std::thread::sleep(Duration::from_millis(200));
    }

    std::os::unix::fs::symlink("0", mount.at("old/link")).unwrap();
    assert_eq!(mount.umount().code(), Some(0));
    let (code, text) = run(&["export", &c.url("root"), "old", &c.url("out"), "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let json = &text[..text.rfind('}').unwrap() + 1];
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["files"], 6);
    assert!(text.contains("symbolic links are left out"), "{text}");
    c.runtime.block_on(async {
        for i in 0..5 {
            let reader = c.store.open(&format!("out/{i}")).await.unwrap();
            let bytes = reader.read_at(0, reader.len() as usize).await.unwrap();
            assert!(bytes == content(i), "file {i}");
        }
        let names = c.store.list("out").await.unwrap();
        assert_eq!(names.len(), 6, "{names:?}");
    });
    let (code, text) = run(&["export", &c.url("root"), "old", &c.url("out")]);
    assert_eq!(code, Some(1));
    assert!(text.contains("exists already"), "{text}");
}
