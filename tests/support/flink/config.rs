//! Where a Flink lives, how it is configured, and the commands that start its parts.

use crate::support::daemon::Daemon;
use crate::support::java;
use crate::support::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const JOBMANAGER: &str = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint";
const TASKMANAGER: &str = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner";
const CLIENT: &str = "org.apache.flink.client.cli.CliFrontend";

/// Keys of the job's state, and numbers per second: each checkpoint rewrites about half of it.
const KEYS: &str = "20000";
const RATE: &str = "6000";

#[derive(Clone)]
pub struct Layout {
    pub scratch: Arc<Scratch>,
    jars: PathBuf,
    /// The folders of Hadoop's jars and configuration, if it is on the class path.
    hadoop: Option<(PathBuf, PathBuf)>,
    pub rest: u16,
}

impl Layout {
    pub fn create(
        version: &str,
        checkpoints: &str,
        hadoop: Option<(PathBuf, PathBuf)>,
        rest: u16,
        rpc: u16,
    ) -> Result<Layout, String> {
        let text = |e: std::io::Error| e.to_string();
        let jars = java::flink_jars(version)?;
        let scratch = Scratch::new("flink").map_err(text)?;
        let layout = Layout {
            scratch: Arc::new(scratch),
            jars,
            hadoop,
            rest,
        };
        let dir = layout.scratch.path();
        for sub in ["conf", "classes", "tmp"] {
            std::fs::create_dir_all(dir.join(sub)).map_err(text)?;
        }
        java::compile("CountJob", &layout.jars, &dir.join("classes"))?;
        java::pack(&dir.join("classes"), &dir.join("job.jar"))?;
        let conf = dir.join("conf");
        std::fs::write(conf.join("config.yaml"), layout.yaml(checkpoints, rpc)).map_err(text)?;
        std::fs::write(conf.join("log4j2.properties"), LOG4J).map_err(text)?;
        Ok(layout)
    }

    pub fn logs(&self) -> PathBuf {
        self.scratch.logs()
    }

    pub fn jobmanager(&self) -> Result<Daemon, String> {
        let layout = self.clone();
        Daemon::start(
            "jobmanager",
            self.logs().join("jobmanager.log"),
            move || layout.java(192, JOBMANAGER),
        )
    }

    pub fn taskmanager(&self, i: usize) -> Result<Daemon, String> {
        let layout = self.clone();
        let name = format!("taskmanager-{i}");
        let log = self.logs().join(format!("{name}.log"));
        Daemon::start(&name, log, move || layout.java(256, TASKMANAGER))
    }

    /// The client that submits the job.
    pub fn submit(&self, from: Option<&Path>, parallelism: u32) -> Command {
        let mut c = self.command(128, CLIENT);
        c.arg("run").arg("-d");
        if let Some(path) = from {
            c.arg("-s").arg(path).args(["-claimMode", "NO_CLAIM"]);
        }
        c.args(["-c", "CountJob"])
            .arg(self.scratch.path().join("job.jar"))
            .args([KEYS, RATE, &parallelism.to_string()]);
        c
    }

    fn java(&self, heap_mib: u32, class: &str) -> Command {
        let mut c = self.command(heap_mib, class);
        c.arg("--configDir").arg(self.scratch.path().join("conf"));
        c
    }

    fn command(&self, heap_mib: u32, class: &str) -> Command {
        let dir = self.scratch.path();
        let log4j = format!(
            "-Dlog4j.configurationFile={}",
            dir.join("conf/log4j2.properties").display()
        );
        let mut options: Vec<String> = OPENED
            .iter()
            .map(|p| format!("--add-opens=java.base/{p}=ALL-UNNAMED"))
            .collect();
        options.extend([
            "--add-exports=java.base/sun.net.util=ALL-UNNAMED".to_string(),
            "-XX:MaxDirectMemorySize=160m".to_string(),
            log4j,
        ]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut class_path = vec![self.jars.join("*")];
        if let Some((jars, conf)) = &self.hadoop {
            class_path.extend([conf.clone(), jars.join("*")]);
        }
        let mut c = java::java(&class_path, heap_mib, &options, class);
        c.current_dir(dir).env("FLINK_CONF_DIR", dir.join("conf"));
        if let Some((_, conf)) = &self.hadoop {
            c.env("HADOOP_CONF_DIR", conf);
        }
        c
    }

    fn yaml(&self, checkpoints: &str, rpc: u16) -> String {
        let dir = self.scratch.path().display();
        let rest = self.rest;
        format!(
            "\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: 127.0.0.1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest}
io.tmp.dirs: {dir}/tmp
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
execution.checkpointing.dir: {checkpoints}
execution.checkpointing.savepoint-dir: {checkpoints}/savepoints
state.backend.rocksdb.localdir: {dir}/tmp
{FIXED}"
        )
    }
}

/// The memory options are those that the start scripts would compute.
const FIXED: &str = "\
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1
taskmanager.memory.task.heap.size: 128m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.framework.heap.size: 64m
taskmanager.memory.framework.off-heap.size: 64m
taskmanager.memory.managed.size: 48m
taskmanager.memory.network.min: 32m
taskmanager.memory.network.max: 32m
taskmanager.memory.jvm-metaspace.size: 96m
taskmanager.memory.jvm-overhead.min: 64m
taskmanager.memory.jvm-overhead.max: 64m
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 1000
restart-strategy.fixed-delay.delay: 1s
heartbeat.interval: 2s
heartbeat.timeout: 20s
state.backend.type: rocksdb
state.backend.rocksdb.writebuffer.size: 64kb
state.backend.rocksdb.writebuffer.count: 3
state.backend.rocksdb.compaction.level.target-file-size-base: 64kb
state.backend.rocksdb.compaction.level.max-size-level-base: 256kb
execution.checkpointing.interval: 1500ms
execution.checkpointing.min-pause: 500ms
execution.checkpointing.timeout: 60s
execution.checkpointing.incremental: true
execution.checkpointing.num-retained: 3
execution.checkpointing.externalized-checkpoint-retention: RETAIN_ON_CANCELLATION
execution.checkpointing.data-inline-threshold: 1kb
execution.checkpointing.tolerable-failed-checkpoints: 1000
";

const OPENED: [&str; 12] = [
    "java.lang",
    "java.net",
    "java.io",
    "java.nio",
    "sun.nio.ch",
    "java.lang.reflect",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
];

const LOG4J: &str = "\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%throwable
";
