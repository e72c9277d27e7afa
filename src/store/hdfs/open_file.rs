//! Whether a file is being written by somebody.

use super::HdfsStore;
use super::namenode::Repeat;
use crate::base::{Error, ErrorKind, Result};
use hdfs_native::{Client, WriteOptions};

impl HdfsStore {
    /// hdfs-native cannot ask. But the NameNode refuses to create a file that exists with another
    /// reason if a writer holds its lease.
    pub(super) async fn is_under_construction(&self, at: &str) -> Result<bool> {
        self.status(at).await?;
        let how = WriteOptions::default()
            .overwrite(false)
            .create_parent(false);
        let how = &how;
        let create = |client: Client| async move { client.create(at, how).await };
        let (doing, deadline) = (
            format!("asking whether {at} is open"),
            self.namenode.deadline(),
        );
        let answer = self
            .namenode
            .call(&doing, Repeat::OnlyIfNotDone, deadline, create)
            .await;
        match answer.result {
            Err(e) if e.is(ErrorKind::AlreadyExists) => {
                Ok(e.to_string().replace(at, "").contains("lease"))
            }
            // Who may not write there cannot tell.
            Err(e) if e.is(ErrorKind::Denied) => Ok(false),
            Err(e) => Err(e),
            Ok(mut made) => {
                // It vanished since it was looked up, and what is there now is this call's own.
                made.close().await.map_err(Error::from)?;
                self.remove(at).await?;
                Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{doing}: it was deleted just now"),
                ))
            }
        }
    }
}
