//! A real Flink for tests: a JobManager and TaskManagers as separate JVMs from Maven jars, each of
//! which can be killed and restarted, and a job that fails if its state is not what it must be
//! (java/CountJob.java). The JVMs die with the test process, however it ends.

mod config;

use super::daemon::Daemon;
use super::{http, java, ports};
use config::Layout;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(200);

pub struct Flink {
    layout: Layout,
    jobmanager: Daemon,
    taskmanagers: Vec<Daemon>,
}

/// What a job's checkpoints came to so far.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    pub completed: u64,
    pub failed: u64,
    /// Number and directory of the newest one.
    pub newest: Option<(u64, PathBuf)>,
    /// The one from which the job was restored last.
    pub restored: Option<u64>,
    /// How long the completed ones took, in milliseconds: median and maximum.
    pub duration: (u64, u64),
}

impl Flink {
    /// Starts a cluster that puts its checkpoints below `checkpoints`. Blocks until all slots are
    /// there. Panics, with the place of the logs, if it cannot start.
    pub fn start(version: &str, checkpoints: &Path, taskmanagers: usize) -> Flink {
        let url = format!("file://{}", checkpoints.display());
        Flink::start_at(version, &url, None, taskmanagers)
    }

    /// The same for any URL. `hadoop`: the folders of its jars and its configuration.
    pub fn start_at(
        version: &str,
        checkpoints: &str,
        hadoop: Option<(PathBuf, PathBuf)>,
        taskmanagers: usize,
    ) -> Flink {
        let mut ports = ports::free(2).into_iter();
        let mut port = || ports.next().unwrap();
        let layout = Layout::create(version, checkpoints, hadoop, port(), port())
            .unwrap_or_else(|e| panic!("no Flink: {e}"));
        let jobmanager = layout.jobmanager().unwrap();
        let taskmanagers = (0..taskmanagers)
            .map(|i| layout.taskmanager(i).unwrap())
            .collect();
        let mut flink = Flink {
            layout,
            jobmanager,
            taskmanagers,
        };
        flink.wait_for_taskmanagers();
        flink
    }

    /// Submits the job, from a checkpoint or savepoint if one is given, and returns its id.
    pub fn submit(&self, from: Option<&Path>, parallelism: u32) -> String {
        let text = java::run(&mut self.layout.submit(from, parallelism))
            .unwrap_or_else(|e| self.give_up(&e));
        let id = text.split("submitted with JobID ").nth(1);
        let id = id.map(|rest| rest.chars().take(32).collect::<String>());
        id.unwrap_or_else(|| self.give_up(&text))
    }

    pub fn kill_taskmanager(&mut self, i: usize) {
        self.taskmanagers[i].kill();
    }

    /// Starts it again if it was killed, without waiting for it.
    pub fn restart_taskmanager(&mut self, i: usize) {
        self.taskmanagers[i].restart().unwrap();
    }

    pub fn wait_for_taskmanagers(&mut self) {
        let expected = self.taskmanagers.iter().filter(|t| t.should_run()).count() as u64;
        let mut seen = Value::Null;
        let begun = Instant::now();
        while seen["taskmanagers"].as_u64().is_none_or(|n| n < expected) {
            if begun.elapsed() > READY {
                self.give_up(&format!(
                    "not {expected} TaskManagers after {READY:?}: {seen}"
                ));
            }
            if let Some(name) = self.ended() {
                self.give_up(&format!("{name} ended by itself"));
            }
            std::thread::sleep(POLL);
            seen = http::get(self.layout.rest, "/overview").unwrap_or_default();
        }
    }

    pub fn checkpoints(&self, job: &str) -> Checkpoints {
        let json = self.get(&format!("/jobs/{job}/checkpoints"));
        let newest = &json["latest"]["completed"];
        let path = newest["external_path"].as_str().map(from_url);
        let duration = &json["summary"]["end_to_end_duration"];
        let millis = |name: &str| duration[name].as_f64().unwrap_or(0.0) as u64;
        Checkpoints {
            completed: json["counts"]["completed"].as_u64().unwrap_or(0),
            failed: json["counts"]["failed"].as_u64().unwrap_or(0),
            newest: newest["id"].as_u64().zip(path),
            restored: json["latest"]["restored"]["id"].as_u64(),
            duration: (millis("p50"), millis("max")),
        }
    }

    /// Waits until the job has completed `n` more checkpoints, and returns how it stands then.
    pub fn wait_for_checkpoints(&mut self, job: &str, n: u64) -> Checkpoints {
        let from = self.checkpoints(job).completed;
        self.wait_for(job, &format!("{n} more checkpoints"), |c| {
            c.completed >= from + n
        })
    }

    /// Waits until the job was restored from checkpoint `at_least` or a later one.
    pub fn wait_for_restore(&mut self, job: &str, at_least: u64) -> Checkpoints {
        self.wait_for(job, &format!("restored from {at_least}"), |c| {
            c.restored.is_some_and(|id| id >= at_least)
        })
    }

    fn wait_for(
        &mut self,
        job: &str,
        what: &str,
        reached: impl Fn(&Checkpoints) -> bool,
    ) -> Checkpoints {
        let begun = Instant::now();
        loop {
            let now = self.checkpoints(job);
            if reached(&now) {
                return now;
            }
            self.check(job);
            if begun.elapsed() > READY {
                self.give_up(&format!("not {what} after {READY:?}: {now:?}"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Takes a savepoint below a directory, and returns its own.
    pub fn savepoint(&self, job: &str, target: &Path) -> PathBuf {
        let body = json!({"target-directory": target, "cancel-job": false});
        let path = format!("/jobs/{job}/savepoints");
        let answer = http::post(self.layout.rest, &path, &body);
        let answer = answer.unwrap_or_else(|e| self.give_up(&e));
        let request = answer["request-id"].as_str().unwrap_or_default();
        let begun = Instant::now();
        loop {
            let state = self.get(&format!("{path}/{request}"));
            if let Some(location) = state["operation"]["location"].as_str() {
                return from_url(location);
            }
            if state["status"]["id"] != "IN_PROGRESS" || begun.elapsed() > READY {
                self.give_up(&format!("no savepoint: {state}"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Cancels the job and waits; its newest checkpoints stay.
    pub fn cancel(&self, job: &str) {
        let path = format!("/jobs/{job}?mode=cancel");
        http::patch(self.layout.rest, &path).unwrap_or_else(|e| self.give_up(&e));
        let begun = Instant::now();
        while self.state(job) != "CANCELED" {
            if begun.elapsed() > READY {
                self.give_up(&format!("the job is {}", self.state(job)));
            }
            std::thread::sleep(POLL);
        }
    }

    pub fn state(&self, job: &str) -> String {
        let json = self.get(&format!("/jobs/{job}"));
        json["state"].as_str().unwrap_or_default().to_string()
    }

    /// Panics if the job has ended, if its state was ever wrong, or if a JVM is gone.
    pub fn check(&mut self, job: &str) {
        if let Some(name) = self.ended() {
            self.give_up(&format!("{name} ended by itself"));
        }
        let wrong = self.log_lines("STATE MISMATCH");
        let state = self.state(job);
        if !wrong.is_empty() || ["FAILED", "CANCELED", "FINISHED"].contains(&&*state) {
            self.give_up(&format!("the job is {state}: {}", wrong.join("\n")));
        }
    }

    /// The lines of all logs that contain a text.
    pub fn log_lines(&self, text: &str) -> Vec<String> {
        let logs = std::fs::read_dir(self.layout.logs()).unwrap().flatten();
        let mut lines = vec![];
        for log in logs {
            let all = std::fs::read(log.path()).unwrap_or_default();
            let all = String::from_utf8_lossy(&all);
            lines.extend(all.lines().filter(|l| l.contains(text)).map(str::to_string));
        }
        lines
    }

    fn get(&self, path: &str) -> Value {
        let mut last = String::new();
        // The JobManager may be busy, or the processors may.
        for _ in 0..10 {
            match http::get(self.layout.rest, path) {
                Ok(json) => return json,
                Err(e) => last = e,
            }
            std::thread::sleep(POLL);
        }
        self.give_up(&last)
    }

    fn ended(&mut self) -> Option<String> {
        let mut all = std::iter::once(&mut self.jobmanager).chain(&mut self.taskmanagers);
        all.find_map(|d| d.ended_by_itself().then(|| d.name().to_string()))
    }

    fn give_up(&self, why: &str) -> ! {
        self.layout.scratch.keep_logs();
        panic!("{why}; the logs are in {}", self.layout.logs().display());
    }
}

impl Drop for Flink {
    fn drop(&mut self) {
        // Before the folder that they write into goes away.
        self.taskmanagers.clear();
        self.jobmanager.kill();
    }
}

/// `file:/a/b` and `file:///a/b` alike; another URL stays as it is.
fn from_url(url: &str) -> PathBuf {
    if !url.starts_with("file:") {
        return PathBuf::from(url);
    }
    let path = url.trim_start_matches("file:").trim_start_matches('/');
    PathBuf::from(format!("/{path}"))
}
