//! Positioned reads on a thread that may block.

use super::blocking;
use crate::base::{Context, Error, ErrorKind, Result};
use crate::store::{Reader, check_range};
use async_trait::async_trait;
use bytes::Bytes;
use std::fs::File;
use std::os::unix::fs::FileExt;
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
        let read = move || {
            let mut buffer = vec![0; len];
            match file.read_exact_at(&mut buffer, offset) {
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    let text = "the file is shorter than when it was opened";
                    Err(Error::new(ErrorKind::Corrupt, text))
                }
                read => read.map(|()| Bytes::from(buffer)).context("reading"),
            }
        };
        blocking(read).await.context(name)
    }
}
