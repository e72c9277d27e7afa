//! Renames, and whole files that appear at once.

use super::namenode::Repeat;
use super::{HIDDEN, HdfsStore};
use crate::base::{Error, ErrorKind, Result};
use bytes::Bytes;
use hdfs_native::Client;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(200);

impl HdfsStore {
    /// Renames without replacing. The call is repeated freely: should an attempt that seemed lost
    /// have been carried out after all, the next one is refused, and the two paths tell.
    pub(super) async fn publish(&self, from: &str, to: &str) -> Result<()> {
        let rename = |client: Client| async move { client.rename(from, to, false).await };
        let doing = format!("renaming {from} to {to}");
        let deadline = self.namenode.deadline();
        let answer = self
            .namenode
            .call(&doing, Repeat::Freely, deadline, rename)
            .await;
        let Err(error) = answer.result else {
            return Ok(());
        };
        let may_be_echo =
            answer.echo && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
        if (may_be_echo || error.is_ambiguous()) && self.was_renamed(from, to).await? {
            return Ok(());
        }
        // A target below the source, which the NameNode refuses before it looks whether it exists.
        if error.is(ErrorKind::Invalid) && self.exists(to).await? {
            return Err(Error::new(ErrorKind::AlreadyExists, error.to_string()));
        }
        Err(error)
    }

    async fn was_renamed(&self, from: &str, to: &str) -> Result<bool> {
        Ok(!self.exists(from).await? && self.exists(to).await?)
    }

    async fn exists(&self, at: &str) -> Result<bool> {
        match self.status(at).await {
            Ok(_) => Ok(true),
            Err(e) if e.is(ErrorKind::NotFound) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// A file under another name, closed, then renamed: an open file cannot be read.
    pub(super) async fn put_at(&self, at: &str, content: Bytes) -> Result<()> {
        let staged = self.stage(at, content).await?;
        let Err(error) = self.publish(&staged, at).await else {
            return Ok(());
        };
        self.unstage(&staged).await;
        Err(error.context(format_args!("putting {at}")))
    }

    /// Writes the content under another name. A pipeline may be given a DataNode of which the
    /// NameNode does not know yet that it died, so it is tried again, each time with a new name.
    async fn stage(&self, at: &str, content: Bytes) -> Result<String> {
        let dir = at.rsplit_once('/').map_or("", |(dir, _)| dir);
        let deadline = self.namenode.deadline();
        let mut pause = FIRST_PAUSE;
        loop {
            let staged = format!("{dir}/{HIDDEN}{}", uuid::Uuid::new_v4());
            let Err(error) = self.write_staged(&staged, content.clone()).await else {
                return Ok(staged);
            };
            self.unstage(&staged).await;
            let error = error.context(format_args!("putting {at}"));
            if !error.is_ambiguous() || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::warn!("{error}; trying again");
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Harmless even if a rename of it is still on its way: nobody else knows this name.
    async fn unstage(&self, staged: &str) {
        match self.remove(staged).await {
            Ok(()) => {}
            Err(e) if e.is(ErrorKind::NotFound) => {}
            Err(e) => tracing::warn!("{staged} stays behind: {e}"),
        }
    }

    async fn write_staged(&self, staged: &str, content: Bytes) -> Result<()> {
        let written = async {
            let mut writer = self.create_at(staged).await?;
            writer.append(content).await?;
            writer.sync().await?;
            writer.close().await
        };
        written.await.map_err(|e| match e.kind() {
            ErrorKind::Unsupported if e.to_string().contains("erasure") => {
                let text = format!(
                    "{} is erasure-coded, and such files cannot be synced; give it replication: \
                     hdfs ec -setPolicy -replicate -path {} ({e})",
                    self.url, self.root
                );
                Error::new(ErrorKind::Unsupported, text)
            }
            _ => e,
        })
    }
}
