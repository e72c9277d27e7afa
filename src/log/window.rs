//! A part of a file in memory that moves forward.

use crate::base::Result;
use crate::base::error::Context;
use crate::store::Reader;
use std::sync::Arc;

/// Bytes fetched at a time.
pub const CHUNK: usize = 8 << 20;

pub struct Window {
    reader: Arc<dyn Reader>,
    path: String,
    /// Nothing from this offset on is read.
    limit: u64,
    chunk: usize,
    /// Offset in the file of the first byte at hand.
    at: u64,
    bytes: Vec<u8>,
    /// How many of `bytes` were consumed. They are dropped when more is read: dropping them at once
    /// would move the rest for every small frame.
    used: usize,
}

impl Window {
    pub fn new(reader: Arc<dyn Reader>, path: &str, from: u64, limit: u64) -> Window {
        Window::with_chunk(reader, path, from, limit, CHUNK)
    }

    /// One that fetches so many bytes at a time.
    pub fn with_chunk(
        reader: Arc<dyn Reader>,
        path: &str,
        from: u64,
        limit: u64,
        chunk: usize,
    ) -> Window {
        Window {
            reader,
            path: path.to_string(),
            limit,
            chunk,
            at: from,
            bytes: Vec::new(),
            used: 0,
        }
    }

    /// Offset in the file of the first byte of `bytes()`.
    pub fn offset(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Reads until at least `need` bytes are here. False if the file ends before.
    pub async fn fill(&mut self, need: usize) -> Result<bool> {
        while self.bytes().len() < need {
            let from = self.at + self.bytes().len() as u64;
            let len = (self.chunk as u64).min(self.limit.saturating_sub(from)) as usize;
            if len == 0 {
                return Ok(false);
            }
            let more = self
                .reader
                .read_at(from, len)
                .await
                .context(format_args!("reading {} at {from}", self.path))?;
            self.bytes.drain(..self.used);
            self.used = 0;
            self.bytes.extend_from_slice(&more);
        }
        Ok(true)
    }

    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.bytes().len());
        self.used += n;
        self.at += n as u64;
    }
}
