//! The peers on HDFS: the Java client in a JVM of its own, and hdfs-native in this process.

use crate::support::fetch;
use crate::support::hdfs::Hdfs;
use crate::support::java::Program;
use crate::work::{Files, Took};
use bytes::Bytes;
use futures::future::join_all;
use hdfs_native::file::FileWriter;
use hdfs_native::{Client, ClientBuilder, WriteOptions};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(600);

/// Files as plain HDFS files through Hadoop's own client.
pub struct Java(Program);

impl Java {
    pub fn new() -> Java {
        let jars = fetch::jars("fetch-jars.sh", &["hadoop"], "hadoop").expect("Hadoop's jars");
        Java(Program::new("PlainFiles", &jars))
    }

    /// Each writer writes `warm` files first that are not timed (but counted by the NameNode).
    pub fn write(&self, hdfs: &Hdfs, dir: &str, files: &Files, warm: usize) -> Took {
        let sizes: Vec<String> = files.sizes.iter().map(usize::to_string).collect();
        let every = files.every.map_or(0, |e| e.as_millis());
        let text = self.0.run(
            &[
                &hdfs.url(),
                dir,
                "write",
                &files.writers.to_string(),
                &files.each.to_string(),
                &warm.to_string(),
                &sizes.join(","),
                &files.piece.to_string(),
                &files.fsync.to_string(),
                &every.to_string(),
            ],
            LIMIT,
        );
        let numbers = |word: &str| -> Vec<Duration> {
            let values = text.lines().filter_map(|l| l.strip_prefix(word));
            let micros = values.filter_map(|v| v.trim().parse().ok());
            micros.map(Duration::from_micros).collect()
        };
        let all = numbers("all ").pop().expect("the time of all");
        Took {
            each: numbers("one "),
            all,
        }
    }

    /// Deletes the files one by one.
    pub fn delete(&self, hdfs: &Hdfs, dir: &str, files: &Files) {
        let (writers, each) = (files.writers.to_string(), files.each.to_string());
        self.0
            .run(&[&hdfs.url(), dir, "delete", &writers, &each], LIMIT);
    }
}

/// hdfs-native without anything around it.
pub struct Native {
    pub runtime: Runtime,
    pub client: Client,
}

impl Native {
    pub fn new(hdfs: &Hdfs) -> Native {
        let runtime = Runtime::new().expect("a runtime");
        let entered = runtime.enter();
        let client = ClientBuilder::new()
            .with_url(hdfs.url())
            .with_config_dir(hdfs.conf_dir().to_string_lossy())
            .build()
            .expect("a client");
        drop(entered);
        Native { runtime, client }
    }

    pub fn write(&self, dir: &str, files: &Files) -> Took {
        let writer = |w| async move {
            let mut took = Vec::new();
            for i in 0..files.each {
                let begun = Instant::now();
                let path = format!("{dir}/{}", Files::name(w, i));
                assert!(self.client.get_file_info(&path).await.is_err(), "{path}");
                let writer = self.create(&path).await;
                let syncs = files.fsync.then_some(usize::MAX);
                fill(writer, files.size(w, i), files.piece, syncs).await;
                took.push(begun.elapsed());
            }
            took
        };
        let begun = Instant::now();
        let each = self
            .runtime
            .block_on(join_all((0..files.writers).map(writer)));
        Took {
            each: each.concat(),
            all: begun.elapsed(),
        }
    }

    /// Writes to one open file, and syncs it each time.
    pub fn syncs(&self, path: &str, bytes: usize, times: usize) -> Took {
        self.runtime.block_on(async {
            let mut writer = self.create(path).await;
            let (data, begun) = (Bytes::from(vec![7; bytes]), Instant::now());
            let mut each = Vec::new();
            for _ in 0..times {
                let begun = Instant::now();
                writer.write_bytes(data.clone()).await.expect("write");
                writer.hsync().await.expect("hsync");
                each.push(begun.elapsed());
            }
            let all = begun.elapsed();
            writer.close().await.expect("close");
            Took { each, all }
        })
    }

    pub async fn create(&self, path: &str) -> FileWriter {
        let options = WriteOptions::default().create_parent(true);
        self.client.create(path, options).await.expect("create")
    }
}

/// Writes all of a file, and closes it. It is synced after each so many bytes and at its end, if at all.
pub async fn fill(mut writer: FileWriter, size: usize, piece: usize, sync_every: Option<usize>) {
    let data = Bytes::from(vec![7; piece]);
    let (mut left, mut unsynced) = (size, 0);
    while left > 0 {
        let part = data.slice(..left.min(piece));
        left -= part.len();
        unsynced += part.len();
        writer.write_bytes(part).await.expect("write");
        if sync_every.is_some_and(|every| unsynced >= every || left == 0) {
            writer.hsync().await.expect("hsync");
            unsynced = 0;
        }
    }
    writer.close().await.expect("close");
}
