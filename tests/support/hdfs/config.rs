//! Where a cluster lives and how it is configured.

use super::Builder;
use crate::support::daemon::Daemon;
use crate::support::ports;
use crate::support::scratch::Scratch;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

pub const NAMENODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
pub const DATANODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";
pub const JOURNALNODE: &str = "org.apache.hadoop.hdfs.qjournal.server.JournalNode";
pub const HA_ADMIN: &str = "org.apache.hadoop.hdfs.tools.DFSHAAdmin";
pub const NAMESERVICE: &str = "ns1";

#[derive(Clone)]
pub struct NamenodePorts {
    /// For clients only.
    pub rpc: u16,
    /// For DataNodes and admin tools.
    pub service_rpc: u16,
    pub http: u16,
}

#[derive(Clone)]
pub struct Layout {
    pub dir: PathBuf,
    jars: PathBuf,
    ha: bool,
    pub namenodes: Vec<NamenodePorts>,
    pub datanodes: Vec<[u16; 3]>,
    pub journal_rpc: u16,
    journal_http: u16,
    scratch: Arc<Scratch>,
}

impl Layout {
    pub fn create(builder: &Builder, jars: PathBuf) -> Result<Layout, String> {
        let namenodes = if builder.ha { 2 } else { 1 };
        let mut ports = ports::free(2 + 3 * namenodes + 3 * builder.datanodes).into_iter();
        let mut port = || ports.next().unwrap();
        let scratch = Scratch::new("hdfs").map_err(|e| e.to_string())?;
        let layout = Layout {
            dir: scratch.path().to_path_buf(),
            jars,
            ha: builder.ha,
            journal_rpc: port(),
            journal_http: port(),
            namenodes: (0..namenodes)
                .map(|_| NamenodePorts {
                    rpc: port(),
                    service_rpc: port(),
                    http: port(),
                })
                .collect(),
            datanodes: (0..builder.datanodes)
                .map(|_| [port(), port(), port()])
                .collect(),
            scratch: Arc::new(scratch),
        };
        layout.write(builder).map_err(|e| e.to_string())?;
        Ok(layout)
    }

    pub fn default_fs(&self) -> String {
        match self.ha {
            true => format!("hdfs://{NAMESERVICE}"),
            false => format!("hdfs://127.0.0.1:{}", self.namenodes[0].rpc),
        }
    }

    pub fn name_dir(&self, i: usize) -> PathBuf {
        self.dir.join(format!("name-{i}"))
    }

    /// A `java` command up to and including the class.
    pub fn java(&self, name: &str, heap_mib: u32, class: &str) -> Command {
        let mut class_path = OsString::new();
        for part in [
            self.dir.join("conf"),
            self.dir.join("classes"),
            self.jars.join("*"),
        ] {
            class_path.push(part);
            class_path.push(":");
        }
        let mut c = Command::new("java");
        c.current_dir(&self.dir)
            .env_remove("HADOOP_CONF_DIR")
            .env_remove("HADOOP_USER_NAME")
            .arg("-cp")
            .arg(class_path)
            .arg(format!("-Xmx{heap_mib}m"))
            .args([
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xshare:auto",
            ])
            .arg("-Djava.net.preferIPv4Stack=true")
            .arg(format!("-Dhadoop.home.dir={}", self.dir.display()))
            .arg(format!(
                "-Dhadoop.log.dir={}",
                self.dir.join("logs").display()
            ))
            .arg(format!("-Dhadoop.id.str={name}"))
            .arg(class);
        c
    }

    pub fn namenode_args(&self, i: usize, more: &[&str]) -> Vec<String> {
        let mut args = vec![];
        if self.ha {
            args.extend(["-D".to_string(), format!("dfs.ha.namenode.id=nn{}", i + 1)]);
        }
        args.extend([
            "-D".into(),
            format!("dfs.namenode.name.dir={}", self.name_dir(i).display()),
        ]);
        args.extend(more.iter().map(|s| s.to_string()));
        args
    }

    pub fn datanode_args(&self, i: usize) -> Vec<String> {
        let data = self.dir.join(format!("data-{i}"));
        let keys = [
            "dfs.datanode.address",
            "dfs.datanode.http.address",
            "dfs.datanode.ipc.address",
        ];
        let mut args = vec![
            "-D".to_string(),
            format!("dfs.datanode.data.dir={}", data.display()),
        ];
        for (key, port) in keys.iter().zip(self.datanodes[i]) {
            args.extend(["-D".to_string(), format!("{key}=127.0.0.1:{port}")]);
        }
        args
    }

    pub fn has_open_replica(&self, datanode: usize) -> bool {
        fn rbw(dir: &Path) -> bool {
            std::fs::read_dir(dir)
                .into_iter()
                .flatten()
                .flatten()
                .any(|entry| {
                    let path = entry.path();
                    match entry.file_name() == "rbw" {
                        true => std::fs::read_dir(&path).is_ok_and(|mut d| d.next().is_some()),
                        false => path.is_dir() && rbw(&path),
                    }
                })
        }
        rbw(&self.dir.join(format!("data-{datanode}")))
    }

    /// Leaves the logs when the cluster goes away.
    pub fn keep_logs(&self) {
        self.scratch.keep_logs();
    }

    pub fn daemon(
        &self,
        name: &str,
        heap_mib: u32,
        class: &str,
        args: &[String],
    ) -> Result<Daemon, String> {
        let log = self.dir.join("logs").join(format!("{name}.log"));
        let (layout, owned, class) = (self.clone(), name.to_string(), class.to_string());
        let args = args.to_vec();
        Daemon::start(name, log, move || {
            let mut c = layout.java(&owned, heap_mib, &class);
            c.args(&args);
            c
        })
    }

    fn write(&self, builder: &Builder) -> io::Result<()> {
        for sub in ["conf", "logs", "tmp"] {
            std::fs::create_dir_all(self.dir.join(sub))?;
        }
        // The jar of HDFS lacks these, and the HTTP servers do not start without them.
        for app in ["hdfs", "datanode", "journal", "secondary", "static"] {
            std::fs::create_dir_all(self.dir.join("classes/webapps").join(app))?;
        }
        let conf = self.dir.join("conf");
        let core = BTreeMap::from([
            ("fs.defaultFS".to_string(), self.default_fs()),
            (
                "hadoop.tmp.dir".into(),
                self.dir.join("tmp").display().to_string(),
            ),
            ("ipc.client.connect.max.retries".into(), "3".into()),
        ]);
        std::fs::write(conf.join("core-site.xml"), xml(&core))?;
        std::fs::write(conf.join("hdfs-site.xml"), xml(&self.hdfs_site(builder)))?;
        std::fs::write(conf.join("log4j.properties"), LOG4J)?;
        // Otherwise the counters lag 10 s.
        std::fs::write(conf.join("hadoop-metrics2.properties"), "*.period=1\n")
    }

    fn hdfs_site(&self, builder: &Builder) -> BTreeMap<String, String> {
        let mut site: BTreeMap<String, String> = FIXED
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        let mut set = |key: String, value: String| site.insert(key, value);
        set("dfs.replication".into(), builder.replication.to_string());
        set("dfs.blocksize".into(), builder.block_size.to_string());
        set(
            "dfs.namenode.safemode.min.datanodes".into(),
            builder.datanodes.to_string(),
        );
        for (i, nn) in self.namenodes.iter().enumerate() {
            let suffix = if self.ha {
                format!(".{NAMESERVICE}.nn{}", i + 1)
            } else {
                String::new()
            };
            set(format!("dfs.namenode.rpc-address{suffix}"), local(nn.rpc));
            set(
                format!("dfs.namenode.servicerpc-address{suffix}"),
                local(nn.service_rpc),
            );
            set(format!("dfs.namenode.http-address{suffix}"), local(nn.http));
        }
        if self.ha {
            set("dfs.nameservices".into(), NAMESERVICE.into());
            set(format!("dfs.ha.namenodes.{NAMESERVICE}"), "nn1,nn2".into());
            set(
                format!("dfs.client.failover.proxy.provider.{NAMESERVICE}"),
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider".into(),
            );
            set("dfs.ha.fencing.methods".into(), "shell(/bin/true)".into());
            set(
                "dfs.namenode.shared.edits.dir".into(),
                format!("qjournal://{}/{NAMESERVICE}", local(self.journal_rpc)),
            );
            set(
                "dfs.journalnode.rpc-address".into(),
                local(self.journal_rpc),
            );
            set(
                "dfs.journalnode.http-address".into(),
                local(self.journal_http),
            );
            set(
                "dfs.journalnode.edits.dir".into(),
                self.dir.join("journal").display().to_string(),
            );
            set("dfs.ha.tail-edits.period".into(), "1".into());
        }
        site.extend(builder.properties.clone());
        site
    }
}

const FIXED: &[(&str, &str)] = &[
    ("dfs.heartbeat.interval", "1"),
    // A dead DataNode is noticed after 2 of these and 10 heartbeats.
    ("dfs.namenode.heartbeat.recheck-interval", "1000"),
    ("dfs.namenode.safemode.extension", "0"),
    ("dfs.namenode.fs-limits.min-block-size", "4096"),
    (
        "dfs.namenode.datanode.registration.ip-hostname-check",
        "false",
    ),
    ("dfs.block.scanner.volume.bytes.per.second", "0"),
    ("dfs.namenode.redundancy.interval.seconds", "1"),
    ("dfs.namenode.handler.count", "10"),
    ("dfs.namenode.service.handler.count", "10"),
    ("dfs.datanode.directoryscan.interval", "-1"),
    ("dfs.namenode.edits.noeditlogchannelflush", "true"),
];

const LOG4J: &str = "\
log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
";

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn xml(properties: &BTreeMap<String, String>) -> String {
    let mut s = String::from("<?xml version=\"1.0\"?>\n<configuration>\n");
    for (k, v) in properties {
        s += &format!("<property><name>{k}</name><value>{v}</value></property>\n");
    }
    s + "</configuration>\n"
}

pub fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
