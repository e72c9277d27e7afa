//! Where log lines go.

use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// Starts logging to a file, or to standard error (which systemd takes into the journal).
pub fn start(config: &Config, file: Option<&Path>) -> Result<()> {
    let filter = EnvFilter::try_new(&config.log_level).map_err(|e| {
        let text = format!("option log_level={}: {e}", config.log_level);
        Error::new(ErrorKind::Invalid, text)
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false);
    let started = match file {
        Some(path) => builder.with_ansi(false).with_writer(open(path)?).try_init(),
        None => {
            let ansi = std::io::stderr().is_terminal();
            builder
                .with_ansi(ansi)
                .with_writer(std::io::stderr)
                .try_init()
        }
    };
    started.map_err(|e| Error::new(ErrorKind::Other, format!("cannot start logging: {e}")))
}

/// A log file, for appending. Names in a mount are private, so the log is.
pub fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options
        .open(path)
        .context(format!("log file {}", path.display()))
}
