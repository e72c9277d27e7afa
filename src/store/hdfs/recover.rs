//! Closing the file of a writer that is gone, or that must be stopped.

use super::namenode::{Namenode, Repeat};
use crate::base::{Error, ErrorKind, Result};
use hdfs_native::{Client, HdfsError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Asking again starts the recovery anew on NameNodes before Hadoop 3, so the pauses grow beyond
/// the time it takes there (a few heartbeats of 3 s).
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A pause so long says that it takes longer than usual.
const LONG: Duration = Duration::from_secs(2);

const IN_PROGRESS: &str = ".RecoveryInProgressException";

pub(super) async fn recover(namenode: &Namenode, at: &str) -> Result<()> {
    let limit = namenode.options.recover_timeout;
    let deadline = Instant::now() + limit;
    let doing = format!("recovering {at}");
    let mut pause = FIRST_PAUSE;
    let mut told = false;
    loop {
        let ask = |client: Client| async move {
            match client.recover_lease(at).await {
                // Its last block is complete but not reported yet.
                Err(HdfsError::AlreadyExists(_)) => Ok(false),
                Err(HdfsError::RPCError(class, _)) if class.ends_with(IN_PROGRESS) => Ok(false),
                result => result,
            }
        };
        if namenode
            .call(&doing, Repeat::Freely, deadline, ask)
            .await
            .result?
        {
            return Ok(());
        }
        if Instant::now() + pause >= deadline {
            let text = format!(
                "{doing}: the file is still not closed after {limit:?}; the DataNodes that hold \
                 its last block may be down"
            );
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        // A start-up waits for this, so it must not look like a hang.
        if pause > LONG && !std::mem::replace(&mut told, true) {
            tracing::warn!(
                "{doing}: HDFS has not closed the file of a writer that is gone; waiting up to {limit:?}"
            );
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}
