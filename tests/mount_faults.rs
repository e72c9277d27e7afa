//! A mount that is written to while daemons of its HDFS die, freeze and come back. Each operation
//! ends in time, with success or an error; what was acknowledged stays; service resumes by itself.

mod support;

use std::fs;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::hdfs::Hdfs;
use support::mount::Mount;

const OP_TIMEOUT: Duration = Duration::from_secs(20);
/// A program that waits for a processor is late without any fault of the mount.
const SLACK: Duration = Duration::from_secs(5);

/// Writes files until it is told to stop, and keeps which were acknowledged.
struct Load {
    dir: PathBuf,
    stop: AtomicBool,
    acknowledged: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
    slowest: Mutex<Duration>,
}

fn content(name: &str) -> Vec<u8> {
    name.as_bytes().repeat(3000)
}

/// Success means that create, write and close have all succeeded.
fn write_and_close(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let file = fs::File::create(path)?;
    file.write_all_at(content, 0)?;
    nix::unistd::close(file.into_raw_fd())?;
    Ok(())
}

impl Load {
    fn new(dir: PathBuf) -> Load {
        Load {
            dir,
            stop: AtomicBool::new(false),
            acknowledged: Mutex::default(),
            errors: Mutex::default(),
            slowest: Mutex::default(),
        }
    }

    fn run(&self, writer: usize) {
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let name = format!("{writer}-{n}");
            let begun = Instant::now();
            let result = write_and_close(&self.dir.join(&name), &content(&name));
            let took = begun.elapsed();
            let mut slowest = self.slowest.lock().unwrap();
            *slowest = took.max(*slowest);
            match result {
                Ok(()) => self.acknowledged.lock().unwrap().push(name),
                Err(e) => self
                    .errors
                    .lock()
                    .unwrap()
                    .push(format!("{name} after {took:?}: {e}")),
            }
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until files are acknowledged again.
    fn resumes(&self, after: &str) {
        let (begun, before) = (Instant::now(), self.count());
        while self.count() < before + 20 {
            let waited = begun.elapsed();
            assert!(
                waited < 3 * OP_TIMEOUT,
                "no service {waited:?} after: {after}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{after}: 20 more files within {:?}", begun.elapsed());
    }

    fn check(&self) {
        for name in self.acknowledged.lock().unwrap().iter() {
            assert!(
                fs::read(self.dir.join(name)).unwrap() == content(name),
                "{name}"
            );
        }
    }
}

/// Sets `stop` also when the test panics, or its writers would never end.
struct StopAtEnd<'a>(&'a Load);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_mount_under_load_outlives_faults_of_hdfs() {
    let hdfs = Hdfs::builder().datanodes(3).replication(2).start();
    let conf = hdfs.conf_dir();
    let timeout = format!("--op-timeout={}s", OP_TIMEOUT.as_secs());
    let arguments = [
        "--replication=2",
        &timeout,
        "--hadoop-conf",
        conf.to_str().unwrap(),
    ];
    let mut mount = Mount::with(&format!("{}/faults", hdfs.url()), &arguments);
    let load = Load::new(mount.path());
    std::thread::scope(|scope| {
        let stop = StopAtEnd(&load);
        for writer in 0..3 {
            let load = &load;
            scope.spawn(move || load.run(writer));
        }
        load.resumes("the beginning");

        let victim = hdfs.a_datanode_that_is_written_to();
        hdfs.kill_datanode(victim);
        load.resumes("a killed DataNode");
        hdfs.restart_datanode(victim);

        let victim = hdfs.a_datanode_that_is_written_to();
        hdfs.freeze_datanode(victim);
        load.resumes("a frozen DataNode");
        hdfs.thaw_datanode(victim);
        load.resumes("a thawed DataNode");

        hdfs.freeze_namenode(0);
        std::thread::sleep(Duration::from_secs(4));
        hdfs.thaw_namenode(0);
        load.resumes("a NameNode frozen for 4 s");

        hdfs.kill_namenode(0);
        hdfs.restart_namenode(0);
        load.resumes("a NameNode that was restarted");
        drop(stop);
    });
    let slowest = *load.slowest.lock().unwrap();
    let errors = load.errors.lock().unwrap().clone();
    eprintln!(
        "{} files, slowest {slowest:?}, errors: {errors:?}",
        load.count()
    );
    // create, write and close each have their limit; only close waits for the store here.
    assert!(
        slowest < OP_TIMEOUT + SLACK,
        "an operation took {slowest:?}"
    );
    hdfs.mend();
    load.check();
    mount.kill9();
    mount.remount();
    load.check();
    assert_eq!(mount.umount().code(), Some(0), "{}", mount.log());
}
