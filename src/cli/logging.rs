//! Where log lines go.

use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging to a file, or to standard error (which systemd takes into the journal).
pub fn start(config: &Config, file: Option<&Path>) -> Result<()> {
    let filter = filter(&config.log_level)?;
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

/// A level, or levels of parts. A lone word that is no level would name a part, and silence all others.
fn filter(levels: &str) -> Result<EnvFilter> {
    let refused = |why: String| {
        let text = format!(
            "option log_level={levels}: {why}; use error, warn, info, debug or trace, or as in \
             info,stowfs=debug"
        );
        Error::new(ErrorKind::Usage, text)
    };
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let words = levels.split(',').map(str::trim);
    if let Some(word) = words
        .filter(|word| !word.contains(['=', '[']))
        .find(|word| !is_level(word))
    {
        return Err(refused(format!("{word:?} is no level")));
    }
    EnvFilter::try_new(levels).map_err(|e| refused(e.to_string()))
}

/// A log file, for appending. Names in a mount are private, so the log is.
pub fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options
        .open(path)
        .context(format!("log file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_misspelt_level_does_not_silence_everything() {
        for good in ["info", "WARN", "off", "info,stowfs=debug", "stowfs=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["silly", "", "info,debgu", "stowfs=loud"] {
            let error = filter(bad).err().map(|e| e.to_string());
            assert!(
                error.is_some_and(|e| e.contains("use error, warn")),
                "{bad}"
            );
        }
    }
}
