//! A real HDFS for tests: NameNodes, DataNodes and JournalNodes as separate JVMs, each of which can
//! be killed, frozen and restarted.
//!
//! Everything listens on 127.0.0.1 on ports found free at start, and lives in one directory below
//! the target directory, which goes away with the cluster; after a failed test the logs stay and
//! their place is printed. The JVMs die with the test process, however it ends.
//!
//! A start takes 10 to 30 s, so the tests of one binary may share a cluster: keep it in a
//! `OnceLock`.

mod config;
mod jmx;

pub use jmx::{Namespace, RpcCounts};

use super::daemon::Daemon;
use super::fetch;
use config::Layout;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);

pub struct Builder {
    datanodes: usize,
    replication: u32,
    block_size: u64,
    ha: bool,
    properties: BTreeMap<String, String>,
}

impl Builder {
    pub fn datanodes(mut self, n: usize) -> Builder {
        self.datanodes = n;
        self
    }

    pub fn replication(mut self, n: u32) -> Builder {
        self.replication = n;
        self
    }

    pub fn block_size(mut self, bytes: u64) -> Builder {
        self.block_size = bytes;
        self
    }

    /// Two NameNodes (0 active, 1 standby) over one JournalNode, as nameservice `ns1`.
    pub fn ha(mut self, ha: bool) -> Builder {
        self.ha = ha;
        self
    }

    /// A further property of hdfs-site.xml.
    pub fn property(mut self, key: &str, value: &str) -> Builder {
        self.properties.insert(key.into(), value.into());
        self
    }

    /// Blocks until the cluster serves. Panics, with the place of the logs, if it cannot start.
    pub fn start(self) -> Hdfs {
        let mut last = String::new();
        // A port that was free may be taken by the time its daemon binds it.
        for _ in 0..3 {
            match Hdfs::try_start(&self) {
                Ok(hdfs) => return hdfs,
                Err(e) => last = e,
            }
        }
        panic!("no HDFS: {last}");
    }
}

pub struct Hdfs {
    layout: Layout,
    daemons: Mutex<Daemons>,
}

#[derive(Default)]
struct Daemons {
    journal: Option<Daemon>,
    namenodes: Vec<Daemon>,
    datanodes: Vec<Daemon>,
}

impl Hdfs {
    pub fn builder() -> Builder {
        Builder {
            datanodes: 1,
            replication: 1,
            block_size: 1 << 20,
            ha: false,
            properties: BTreeMap::new(),
        }
    }

    /// The root of the filesystem as a URL without a trailing slash.
    pub fn url(&self) -> String {
        self.layout.default_fs()
    }

    /// A folder usable as HADOOP_CONF_DIR.
    pub fn conf_dir(&self) -> PathBuf {
        self.layout.dir.join("conf")
    }

    pub fn logs(&self) -> PathBuf {
        self.layout.dir.join("logs")
    }

    pub fn datanodes(&self) -> usize {
        self.layout.datanodes.len()
    }

    pub fn kill_datanode(&self, i: usize) {
        self.daemons.lock().unwrap().datanodes[i].kill();
    }

    pub fn freeze_datanode(&self, i: usize) {
        self.daemons.lock().unwrap().datanodes[i].freeze();
    }

    pub fn thaw_datanode(&self, i: usize) {
        self.daemons.lock().unwrap().datanodes[i].thaw();
    }

    /// A DataNode that has a replica under construction in its `rbw` folder.
    pub fn a_datanode_that_is_written_to(&self) -> usize {
        let written = |i: &usize| self.layout.has_open_replica(*i);
        (0..self.datanodes())
            .find(written)
            .expect("some DataNode is written to")
    }

    /// Starts it again if it was killed; waits until its NameNode counts all that should be alive.
    pub fn restart_datanode(&self, i: usize) {
        self.daemons.lock().unwrap().datanodes[i].restart().unwrap();
        self.wait_ready();
    }

    pub fn kill_namenode(&self, i: usize) {
        self.daemons.lock().unwrap().namenodes[i].kill();
    }

    pub fn freeze_namenode(&self, i: usize) {
        self.daemons.lock().unwrap().namenodes[i].freeze();
    }

    pub fn thaw_namenode(&self, i: usize) {
        self.daemons.lock().unwrap().namenodes[i].thaw();
    }

    /// Starts it again if it was killed, without waiting for it. With HA it starts as standby.
    pub fn restart_namenode(&self, i: usize) {
        self.daemons.lock().unwrap().namenodes[i].restart().unwrap();
    }

    /// HA: makes the other NameNode active, in good order. Returns the new active one.
    pub fn failover(&self) -> usize {
        let from = self.active().expect("a failover needs an active NameNode");
        let to = 1 - from;
        let (from, to_name) = (format!("nn{}", from + 1), format!("nn{}", to + 1));
        self.admin(
            config::HA_ADMIN,
            &["-ns", config::NAMESERVICE, "-failover", &from, &to_name],
        )
        .expect("failover");
        to
    }

    /// HA: makes a NameNode active after the other one was killed or frozen.
    pub fn force_active(&self, i: usize) {
        let name = format!("nn{}", i + 1);
        let other = format!("nn{}", 2 - i);
        let args = [
            "-ns",
            config::NAMESERVICE,
            "-failover",
            "--forcefence",
            "--forceactive",
            &other,
            &name,
        ];
        self.admin(config::HA_ADMIN, &args)
            .expect("forced failover");
    }

    /// Which NameNode is active, if any answers so.
    pub fn active(&self) -> Option<usize> {
        (0..self.layout.namenodes.len()).find(|&i| {
            jmx::namenode_state(self.layout.namenodes[i].http).is_ok_and(|s| s == "active")
        })
    }

    /// How many DataNodes the active NameNode takes for alive (it notices a death late).
    pub fn live_datanodes(&self) -> usize {
        self.active()
            .and_then(|i| jmx::fs_state(self.layout.namenodes[i].http).ok())
            .map_or(0, |s| s.live_datanodes)
    }

    /// The calls of clients to the NameNodes since they started. DataNodes use another port and
    /// are not in it. Takes 2 s, because the counters lag.
    pub fn rpc_counts(&self) -> RpcCounts {
        std::thread::sleep(Duration::from_millis(2200));
        let mut sum = RpcCounts::default();
        for nn in &self.layout.namenodes {
            if let Ok(counts) = jmx::rpc_counts(nn.http, nn.rpc) {
                sum.add(&counts);
            }
        }
        sum
    }

    /// Block replicas that the DataNodes have removed since they started, all together.
    pub fn blocks_removed(&self) -> u64 {
        let datanodes = self.layout.datanodes.iter();
        let removed = datanodes.filter_map(|[_, http, _]| jmx::blocks_removed(*http).ok());
        removed.sum()
    }

    /// All calls to the NameNodes since they started, also those of DataNodes, heartbeats apart. The
    /// counters lag up to a second.
    pub fn all_calls(&self) -> RpcCounts {
        let mut sum = RpcCounts::default();
        for nn in &self.layout.namenodes {
            for port in [nn.rpc, nn.service_rpc] {
                if let Ok(counts) = jmx::rpc_counts(nn.http, port) {
                    sum.add(&counts);
                }
            }
        }
        sum.0.remove("SendHeartbeat");
        sum
    }

    /// What the active NameNode holds.
    pub fn namespace(&self) -> Namespace {
        let active = self.active().expect("an active NameNode");
        jmx::namespace(self.layout.namenodes[active].http).expect("the NameNode's JMX")
    }

    /// Undoes whatever a test did: starts what was killed, thaws what was frozen, and waits.
    pub fn mend(&self) {
        for daemon in self.daemons.lock().unwrap().all() {
            daemon.restart().unwrap();
            daemon.thaw();
        }
        if self.layout.namenodes.len() > 1 {
            for nn in &self.layout.namenodes {
                wait_port(nn.service_rpc).unwrap();
            }
            if self.active().is_none() {
                self.force_active(0);
            }
        }
        self.wait_ready();
    }

    /// Waits until a NameNode is active, out of safe mode, and has all DataNodes that should run.
    pub fn wait_ready(&self) {
        if let Err(e) = self.try_wait_ready() {
            self.layout.keep_logs();
            panic!(
                "HDFS does not become ready: {e}; logs in {}",
                self.logs().display()
            );
        }
    }

    /// Runs a Hadoop command line tool by its class, e.g. to set a quota.
    pub fn admin(&self, class: &str, args: &[&str]) -> Result<String, String> {
        let out = self
            .layout
            .java("admin", 128, class)
            .args(args)
            .output()
            .map_err(|e| format!("{class}: {e}"))?;
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        if out.status.success() {
            Ok(text)
        } else {
            Err(format!("{class} {args:?}: {text}"))
        }
    }

    fn try_start(builder: &Builder) -> Result<Hdfs, String> {
        let jars = fetch::jars("fetch-jars.sh", &["hadoop"], "hadoop")?;
        let layout = Layout::create(builder, jars)?;
        let hdfs = Hdfs {
            layout,
            daemons: Mutex::default(),
        };
        let started = hdfs
            .start_daemons(builder)
            .and_then(|()| hdfs.try_wait_ready());
        if let Err(e) = started {
            hdfs.layout.keep_logs();
            return Err(format!("{e}; logs in {}", hdfs.logs().display()));
        }
        Ok(hdfs)
    }

    fn start_daemons(&self, builder: &Builder) -> Result<(), String> {
        let mut daemons = self.daemons.lock().unwrap();
        let l = &self.layout;
        if builder.ha {
            daemons.journal = Some(l.daemon("journalnode", 128, config::JOURNALNODE, &[])?);
            wait_port(l.journal_rpc)?;
        }
        let format = l.namenode_args(0, &["-format", "-force", "-nonInteractive"]);
        run_to_end(
            l.java("format", 256, config::NAMENODE).args(format),
            &self.logs(),
        )?;
        for i in 0..l.namenodes.len() {
            if i > 0 {
                // What -bootstrapStandby does, without the wait for the first NameNode.
                config::copy_dir(&l.name_dir(0), &l.name_dir(i)).map_err(|e| e.to_string())?;
            }
            let name = format!("namenode-{i}");
            let args = l.namenode_args(i, &[]);
            daemons
                .namenodes
                .push(l.daemon(&name, 512, config::NAMENODE, &args)?);
        }
        for i in 0..l.datanodes.len() {
            let name = format!("datanode-{i}");
            let args = l.datanode_args(i);
            daemons
                .datanodes
                .push(l.daemon(&name, 192, config::DATANODE, &args)?);
        }
        drop(daemons);
        if builder.ha {
            for nn in &l.namenodes {
                wait_port(nn.service_rpc)?;
            }
            let args = ["-ns", config::NAMESERVICE, "-transitionToActive", "nn1"];
            self.admin(config::HA_ADMIN, &args)?;
        }
        Ok(())
    }

    fn try_wait_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + READY;
        loop {
            if let Some(name) = self.daemons.lock().unwrap().dead() {
                return Err(format!("{name} ended by itself"));
            }
            match self.readiness() {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    /// What is not ready yet. The NameNode takes a DataNode for alive that was killed just now, so
    /// the DataNodes are asked as well.
    fn readiness(&self) -> Result<(), String> {
        let (expected, namenodes) = {
            let d = self.daemons.lock().unwrap();
            let running = |daemons: &[Daemon]| -> Vec<usize> {
                (0..daemons.len())
                    .filter(|&i| daemons[i].should_run())
                    .collect()
            };
            let ports = running(&d.namenodes).into_iter();
            let ports: Vec<u16> = ports
                .map(|i| self.layout.namenodes[i].service_rpc)
                .collect();
            (running(&d.datanodes), ports)
        };
        for &i in &expected {
            let [_, http, _] = self.layout.datanodes[i];
            if !jmx::datanode_serves(http, &namenodes)? {
                return Err(format!("DataNode {i} does not serve yet"));
            }
        }
        let active = self.active().ok_or("no NameNode is active")?;
        let state = jmx::fs_state(self.layout.namenodes[active].http)?;
        if !state.operational || state.live_datanodes < expected.len() {
            return Err(format!("{state:?}, expected DataNodes {expected:?}"));
        }
        let with_room = jmx::datanodes_with_room(self.layout.namenodes[active].http)?;
        if with_room < expected.len() {
            return Err(format!("only {with_room} DataNodes told of their disks"));
        }
        Ok(())
    }
}

impl Daemons {
    fn all(&mut self) -> impl Iterator<Item = &mut Daemon> {
        self.journal
            .iter_mut()
            .chain(&mut self.namenodes)
            .chain(&mut self.datanodes)
    }

    /// One that ended though nobody killed it.
    fn dead(&mut self) -> Option<String> {
        self.all()
            .find_map(|d| d.ended_by_itself().then(|| d.name().to_string()))
    }
}

impl Drop for Hdfs {
    fn drop(&mut self) {
        for daemon in self.daemons.get_mut().unwrap().all() {
            daemon.kill();
        }
    }
}

fn run_to_end(command: &mut Command, logs: &Path) -> Result<(), String> {
    let out = command.output().map_err(|e| e.to_string())?;
    let log = logs.join("format.log");
    let text = [out.stdout, out.stderr].concat();
    std::fs::write(&log, text).map_err(|e| e.to_string())?;
    if out.status.success() {
        Ok(())
    } else {
        Err(format!("failed, see {}", log.display()))
    }
}

fn wait_port(port: u16) -> Result<(), String> {
    let deadline = Instant::now() + READY;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            return Err(format!("nothing listens on port {port}"));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
