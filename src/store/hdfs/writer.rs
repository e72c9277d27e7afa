//! A file that is being written.

use super::error::{Outcome, outcome, timed_out};
use crate::base::{Error, ErrorKind, Result};
use crate::store::Writer;
use async_trait::async_trait;
use bytes::Bytes;
use hdfs_native::file::FileWriter;
use hdfs_native::{HdfsError, Result as HdfsResult};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How much is handed to hdfs-native at once: each such step must end within the time-out.
const STEP: usize = 4 << 20;

const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct HdfsWriter {
    /// Where the file was created, for messages.
    at: String,
    block_size: u64,
    step_timeout: Duration,
    written: u64,
    synced: u64,
    file: State,
}

/// The file leaves `Open` for the time of every operation, so that one which fails, is given up or
/// is dropped half-way leaves a writer that is lost: hdfs-native can do nothing after that, and
/// calling it again could acknowledge bytes that are nowhere.
enum State {
    Open(Box<FileWriter>),
    Closed,
    Lost(String),
}

impl HdfsWriter {
    pub fn new(at: String, file: FileWriter, block_size: u64, step_timeout: Duration) -> Self {
        HdfsWriter {
            at,
            block_size,
            step_timeout,
            written: 0,
            synced: 0,
            file: State::Open(Box::new(file)),
        }
    }

    fn take(&mut self) -> Result<Box<FileWriter>> {
        let lost = State::Lost("its last operation was not finished".into());
        match std::mem::replace(&mut self.file, lost) {
            State::Open(file) => Ok(file),
            State::Closed => {
                self.file = State::Closed;
                Err(Error::new(
                    ErrorKind::Invalid,
                    format!("{} is closed", self.at),
                ))
            }
            State::Lost(why) => {
                let text = format!("the writer of {} is broken: {why}", self.at);
                self.file = State::Lost(why);
                Err(Error::new(ErrorKind::Other, text))
            }
        }
    }

    fn lose(&mut self, doing: &str, error: HdfsError) -> Error {
        let error = Error::from(error);
        self.file = State::Lost(error.to_string());
        error.context(format_args!("{doing} {}", self.at))
    }

    /// Hands over bytes that lie in one block.
    async fn append_to_block(&mut self, bytes: Bytes) -> Result<()> {
        let mut file = self.take()?;
        let len = bytes.len() as u64;
        match in_time(self.step_timeout, file.write_bytes(bytes)).await {
            Ok(_) => self.file = State::Open(file),
            Err(e) => return Err(self.lose("writing to", e)),
        }
        self.written += len;
        // The next write would end this block without syncing it to the disks of the DataNodes,
        // where no later sync could reach it.
        if self.written.is_multiple_of(self.block_size) {
            self.sync().await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Writer for HdfsWriter {
    async fn append(&mut self, mut bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            let file = self.take()?;
            self.file = State::Open(file);
        }
        while !bytes.is_empty() {
            let left = self.block_size - self.written % self.block_size;
            let len = bytes.len().min(STEP).min(left as usize);
            self.append_to_block(bytes.split_to(len)).await?;
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<()> {
        let mut file = self.take()?;
        match hsync(&mut file, self.step_timeout).await {
            Ok(()) => {
                self.file = State::Open(file);
                self.synced = self.written;
                Ok(())
            }
            Err(e) => Err(self.lose("syncing", e)),
        }
    }

    async fn close(&mut self) -> Result<()> {
        if matches!(self.file, State::Closed) {
            return Ok(());
        }
        if self.synced < self.written {
            self.sync().await?;
        }
        let mut file = self.take()?;
        match in_time(self.step_timeout, file.close()).await {
            Ok(()) => {
                self.file = State::Closed;
                Ok(())
            }
            Err(e) => Err(self.lose("closing", e)),
        }
    }
}

/// Syncs, and syncs again while only the NameNode fails to answer (a failover, a restart). That is
/// harmless: if the pipeline was lost as well, hdfs-native refuses every later sync.
async fn hsync(file: &mut FileWriter, limit: Duration) -> HdfsResult<()> {
    let deadline = Instant::now() + limit;
    let mut first: Option<HdfsError> = None;
    loop {
        let error = match timeout_at(deadline, file.hsync()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => e,
            Err(_) => return Err(first.unwrap_or_else(|| timed_out(limit))),
        };
        if outcome(&error) == Outcome::Refused || Instant::now() + RETRY_PAUSE >= deadline {
            return Err(first.unwrap_or(error));
        }
        tracing::warn!("{}; syncing again", first.get_or_insert(error));
        sleep(RETRY_PAUSE).await;
    }
}

async fn in_time<T>(limit: Duration, step: impl Future<Output = HdfsResult<T>>) -> HdfsResult<T> {
    timeout(limit, step)
        .await
        .unwrap_or_else(|_| Err(timed_out(limit)))
}
