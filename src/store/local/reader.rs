//! Positioned reads on a thread that may block.

use super::blocking;
use crate::base::{Context, Error, ErrorKind, Result};
use crate::store::{Reader, check_range};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct LocalReader {
    file: Arc<File>,
    path: PathBuf,
    len: u64,
}

impl LocalReader {
    pub fn open(path: &Path) -> Result<LocalReader> {
        let file = File::open(path)?;
        let info = file.metadata()?;
        if !info.is_file() {
            return Err(Error::new(ErrorKind::Invalid, "not a plain file"));
        }
        Ok(LocalReader {
            file: Arc::new(file),
            path: path.to_path_buf(),
            len: info.len(),
        })
    }
}

#[async_trait]
impl Reader for LocalReader {
    fn len(&self) -> u64 {
        self.len
    }

    async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let name = self.path.display().to_string();
        check_range(&name, self.len, offset, len)?;
        let file = self.file.clone();
        blocking(move || read_exact(&file, offset, len))
            .await
            .context(name)
    }
}

fn read_exact(file: &File, offset: u64, len: usize) -> Result<Bytes> {
    let mut buffer = Vec::with_capacity(len);
    while buffer.len() < len {
        let at = offset + buffer.len() as u64;
        match pread(file, spare_capacity(&mut buffer), at) {
            Ok(0) => {
                let text = "the file is shorter than when it was opened";
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(std::io::Error::from(e)).context("reading"),
        }
    }
    buffer.truncate(len);
    Ok(buffer.into())
}
