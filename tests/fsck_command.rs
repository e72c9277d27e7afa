//! `stowfs fsck` and `stowfs segments`, the built program on a local store.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use stowfs::base::Ino;
use stowfs::store::Store;
use stowfs::store::connect::{ConnectOptions, connect};
use tempfile::TempDir;

#[path = "support/filled.rs"]
#[allow(dead_code)]
mod filled;

use filled::{body, put};

struct Root {
    dir: TempDir,
}

impl Root {
    fn new() -> Root {
        let root = Root {
            dir: tempfile::tempdir().unwrap(),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let connected = connect(&root.url(), &ConnectOptions::default()).await;
            let store: Arc<dyn Store> = connected.unwrap();
            let volume = filled::open(&store).await.unwrap();
            for i in 0..40 {
                put(&volume, Ino::ROOT, &format!("f{i}"), body(i)).await;
            }
            volume.shutdown().await.unwrap();
        });
        root
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_stowfs"))
            .args(arguments)
            .arg(self.url())
            .arg("--run-dir")
            .arg(self.dir.path().join("run"))
            .env_remove("STOWFS_SEED")
            .env_remove("STOWFS_SEEDS")
            .output()
            .unwrap()
    }

    fn log(&self, n: u32) -> PathBuf {
        self.path().join(format!(".stowfs/log/1/{n}.seg"))
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn damage(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    use std::os::unix::fs::PermissionsExt;
    let mut bytes = std::fs::read(path).unwrap();
    how(&mut bytes);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_clean_root() {
    let root = Root::new();
    let output = root.run(&["fsck"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text.contains("41 inodes") && text.ends_with("clean\n"),
        "{text}"
    );
    let report = json(&root.run(&["fsck", "--json"]));
    assert_eq!(report["extents"], 40);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);

    let segments = json(&root.run(&["segments", "--json"]));
    let live: u64 = (0..40).map(|i| body(i).len() as u64).sum();
    assert_eq!(
        (&segments["live_bytes"], &segments["files"]),
        (&live.into(), &40.into())
    );
    let table = root.run(&["segments"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("AMPLIFICATION"));
}

#[test]
fn problems_are_named_and_a_rebuild_saves_the_rest() {
    let root = Root::new();
    damage(&root.log(0), |bytes| bytes[..128].fill(0));
    let output = root.run(&["fsck"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("problem: .stowfs/log/1/0.seg at offset 0"),
        "{text}"
    );

    let output = root.run(&["fsck", "--rebuild"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("40 files"), "{text}");
    assert_eq!(output.status.code(), Some(0), "nothing was lost: {text}");
    let report = json(&root.run(&["fsck", "--json"]));
    assert_eq!(
        report["problems"].as_array().unwrap().len(),
        0,
        "{report:#}"
    );
    assert_eq!(report["extents"], 40);
}

#[test]
fn what_cannot_be_checked() {
    let root = Root::new();
    std::fs::remove_dir_all(root.path()).unwrap();
    for arguments in [&["fsck"][..], &["fsck", "--rebuild"]] {
        let output = root.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("no stowfs root"), "{text}");
    }
    assert_eq!(root.run(&["segments"]).status.code(), Some(1));
}
