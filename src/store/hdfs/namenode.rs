//! Calls to the NameNode: each ends in time, and is asked again where that is harmless.

use super::HdfsOptions;
use super::conf::{HadoopConf, has_port};
use super::error::{Outcome, outcome, timed_out};
use crate::base::error::Context;
use crate::base::{Error, Result};
use hdfs_native::{Client, ClientBuilder, HdfsError};
use parking_lot::Mutex;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Namenode {
    /// `hdfs://authority`
    url: String,
    nameservice: Option<Nameservice>,
    pub options: HdfsOptions,
    current: Mutex<Current>,
}

struct Nameservice {
    name: String,
    namenodes: Vec<String>,
}

/// Leases belong to a client, so there is one for all files. It is replaced when it does not
/// answer: hdfs-native waits for ever for a NameNode that is frozen or cut off, and asks no other.
/// Writers keep the client that they began with.
struct Current {
    client: Client,
    generation: usize,
}

/// Whether a call may be repeated though it may have been carried out already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Freely,
    OnlyIfNotDone,
}

/// The end of a call.
pub(super) struct Answer<T> {
    pub result: Result<T>,
    /// An earlier attempt may have been carried out, so a refusal may be its echo.
    pub echo: bool,
}

impl Namenode {
    pub fn new(authority: &str, conf: &HadoopConf, options: HdfsOptions) -> Result<Namenode> {
        let nameservice = (!has_port(authority)).then(|| Nameservice {
            name: authority.to_string(),
            namenodes: conf.namenodes(authority),
        });
        let url = format!("hdfs://{authority}");
        let client = build(&url, nameservice.as_ref(), &options, 0)?;
        let current = Mutex::new(Current {
            client,
            generation: 0,
        });
        Ok(Namenode {
            url,
            nameservice,
            options,
            current,
        })
    }

    /// When a call that begins now must have ended.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.options.op_timeout
    }

    pub async fn call<T, F>(
        &self,
        doing: &str,
        repeat: Repeat,
        deadline: Instant,
        f: impl Fn(Client) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        self.call_within(self.options.rpc_timeout, doing, repeat, deadline, f)
            .await
    }

    /// `attempt` bounds each try, `deadline` all of them.
    pub async fn call_within<T, F>(
        &self,
        attempt: Duration,
        doing: &str,
        repeat: Repeat,
        deadline: Instant,
        f: impl Fn(Client) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut echo = false;
        loop {
            let error = match self.attempt(attempt, deadline, &f).await {
                Ok(value) => {
                    return Answer {
                        result: Ok(value),
                        echo,
                    };
                }
                Err(e) => e,
            };
            let again = match outcome(&error) {
                Outcome::NotDone => true,
                Outcome::Unknown => repeat == Repeat::Freely,
                Outcome::Refused => false,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !again || left < 2 * FIRST_PAUSE {
                let result = Err(error).context(doing).context(&self.url);
                return Answer { result, echo };
            }
            echo |= outcome(&error) == Outcome::Unknown;
            if pause == FIRST_PAUSE {
                tracing::warn!("{doing}: {}; asking again", Error::from(error));
            }
            sleep(pause.min(left / 2)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    async fn attempt<T, F>(
        &self,
        limit: Duration,
        deadline: Instant,
        f: impl Fn(Client) -> F,
    ) -> hdfs_native::Result<T>
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        let (client, generation) = {
            let current = self.current.lock();
            (current.client.clone(), current.generation)
        };
        let limit = limit.min(deadline.saturating_duration_since(Instant::now()));
        let result = match timeout(limit, f(client)).await {
            Ok(result) => result,
            Err(_) => Err(timed_out(limit)),
        };
        if let Err(HdfsError::IOError(e)) = &result
            && e.kind() == std::io::ErrorKind::TimedOut
        {
            self.replace_client(generation);
        }
        result
    }

    fn replace_client(&self, unanswered: usize) {
        let mut current = self.current.lock();
        if current.generation != unanswered {
            return;
        }
        let generation = unanswered + 1;
        match build(
            &self.url,
            self.nameservice.as_ref(),
            &self.options,
            generation,
        ) {
            Ok(client) => *current = Current { client, generation },
            // It could be built before, so the configuration was changed: go on with the old one.
            Err(e) => tracing::warn!("{}: no new connection: {e}", self.url),
        }
    }
}

/// Each generation asks another NameNode of the nameservice first.
fn build(
    url: &str,
    nameservice: Option<&Nameservice>,
    options: &HdfsOptions,
    generation: usize,
) -> Result<Client> {
    const REPLACE: &str = "dfs.client.block.write.replace-datanode-on-failure";
    let namenodes = nameservice.map_or(0, |ns| ns.namenodes.len());
    let mut config = vec![
        // A pipeline that cannot be kept whole is an error, never silently a shorter one.
        (format!("{REPLACE}.enable"), "true".to_string()),
        (format!("{REPLACE}.policy"), "ALWAYS".into()),
        (format!("{REPLACE}.best-effort"), "false".into()),
        (
            "dfs.client.socket-timeout".into(),
            options.socket_timeout.as_millis().to_string(),
        ),
        // hdfs-native tries each NameNode; how often and how long is decided here.
        (
            "dfs.client.failover.max.attempts".into(),
            namenodes.to_string(),
        ),
        ("dfs.client.failover.sleep.base.millis".into(), "50".into()),
        ("dfs.client.failover.sleep.max.millis".into(), "200".into()),
    ];
    if let Some(ns) = nameservice
        && !ns.namenodes.is_empty()
    {
        let mut order = ns.namenodes.clone();
        order.rotate_left(generation % ns.namenodes.len());
        config.push((format!("dfs.ha.namenodes.{}", ns.name), order.join(",")));
    }
    let mut builder = ClientBuilder::new().with_url(url).with_config(config);
    if let Some(dir) = &options.conf_dir {
        builder = builder.with_config_dir(dir.to_string_lossy());
    }
    if let Some(user) = &options.user {
        builder = builder.with_user(user);
    }
    builder.build().context(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn namenode() -> Namenode {
        Namenode::new("nobody:1", &HadoopConf::default(), HdfsOptions::default()).unwrap()
    }

    fn io(kind: io::ErrorKind) -> HdfsError {
        HdfsError::IOError(kind.into())
    }

    fn java(class: &str) -> HdfsError {
        HdfsError::RPCError(class.into(), String::new())
    }

    /// Calls with what the NameNode answers to the first, the second… attempt; returns how many
    /// attempts there were.
    async fn call(
        repeat: Repeat,
        answers: impl Fn(usize) -> hdfs_native::Result<()>,
    ) -> (Answer<()>, usize) {
        let (namenode, attempts) = (namenode(), AtomicUsize::new(0));
        let f = |_| {
            let answer = answers(attempts.fetch_add(1, Ordering::Relaxed));
            async move { answer }
        };
        let answer = namenode.call("test", repeat, namenode.deadline(), f).await;
        (answer, attempts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_done_is_asked_again_whatever_it_is() {
        for repeat in [Repeat::Freely, Repeat::OnlyIfNotDone] {
            let standby = |n| match n {
                0 => Err(java("org.apache.hadoop.ipc.StandbyException")),
                1 => Err(io(io::ErrorKind::ConnectionRefused)),
                _ => Ok(()),
            };
            let (answer, attempts) = call(repeat, standby).await;
            assert!(answer.result.is_ok() && !answer.echo);
            assert_eq!(attempts, 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_done_is_asked_again_only_if_that_is_harmless() {
        let lost = |n| match n {
            0 => Err(io(io::ErrorKind::ConnectionAborted)),
            _ => Err(HdfsError::AlreadyExists(String::new())),
        };
        let (answer, attempts) = call(Repeat::OnlyIfNotDone, lost).await;
        assert!(answer.result.unwrap_err().is_ambiguous());
        assert_eq!(attempts, 1);

        let (answer, attempts) = call(Repeat::Freely, lost).await;
        assert!(answer.result.unwrap_err().is(ErrorKind::AlreadyExists));
        assert!(answer.echo, "the first attempt may be the reason");
        assert_eq!(attempts, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_time_with_the_reason() {
        let start = Instant::now();
        let (answer, _) = call(Repeat::Freely, |_| Err(io(io::ErrorKind::HostUnreachable))).await;
        let error = answer.result.unwrap_err();
        assert!(error.to_string().contains("hdfs://nobody:1"), "{error}");
        assert!(start.elapsed() <= HdfsOptions::default().op_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_answer_is_replaced() {
        let (namenode, attempts) = (namenode(), AtomicUsize::new(0));
        let f = |_| {
            let silent = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if silent {
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
        };
        let answer = namenode
            .call("test", Repeat::Freely, namenode.deadline(), f)
            .await;
        answer.result.unwrap();
        assert!(answer.echo);
        assert_eq!(namenode.current.lock().generation, 1);
    }
}
