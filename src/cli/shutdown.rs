//! How a mount ends: by a signal, by umount(8), by being fenced, or by a bug.

use super::Exit;
use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fuse::{Mounted, in_handler};
use crate::volume::Volume;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Why a mount ends.
#[derive(Debug)]
pub enum End {
    Signal(&'static str),
    /// The kernel has ended the session.
    Unmounted,
    /// The volume can do nothing any more.
    Failed(Error),
    /// A thread that receives requests has died.
    ThreadPanicked,
}

/// What may ask a mount to end.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    panics: mpsc::UnboundedReceiver<()>,
}

impl Signals {
    pub fn listen() -> Result<Signals> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
            panics: watch_panics(),
        })
    }

    /// The next signal, or the death of a thread.
    pub async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.interrupt.recv() => End::Signal("SIGINT"),
            _ = self.terminate.recv() => End::Signal("SIGTERM"),
            _ = self.hangup.recv() => End::Signal("SIGHUP"),
            Some(()) = self.panics.recv() => End::ThreadPanicked,
        }
    }

    /// Waits for the end of a mount.
    pub async fn wait(&mut self, volume: &Volume, mounted: &mut Mounted) -> End {
        tokio::select! {
            error = volume.failed() => End::Failed(error),
            () = mounted.ended() => End::Unmounted,
            end = self.next() => end,
        }
    }
}

/// Logs every panic, and reports those that end a thread of fuser: the kernel's requests would
/// wait for it for ever. (A panic inside an operation is caught there.)
fn watch_panics() -> mpsc::UnboundedReceiver<()> {
    let (report, reports) = mpsc::unbounded_channel();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!("panic on thread {name}: {info}");
        if name.starts_with("fuser") && !in_handler() {
            // Nobody listens any more only when the process is ending.
            let _ = report.send(());
        }
    }));
    reports
}

/// Ends a mount in the way that its end asks for.
pub async fn finish(
    end: End,
    mounted: &Mounted,
    fs: &Fs,
    volume: &Volume,
    signals: &mut Signals,
) -> Result<Exit> {
    match &end {
        End::Signal(name) => tracing::info!("{name}: committing, sealing and unmounting"),
        End::Unmounted => tracing::info!("unmounted: committing and sealing"),
        End::ThreadPanicked => tracing::error!("a FUSE thread has died: ending the mount"),
        End::Failed(e) => tracing::error!("the mount ends: {e}"),
    }
    let closing = async {
        if matches!(end, End::Signal(_)) {
            // The bulk, while the mount is still there: its absence is then short.
            if let Err(e) = fs.sync_all().await {
                tracing::error!("committing: {e:?}");
            }
        }
        // A mount that fails stays where it is, dead: programs get errors. Without it they would
        // go on in the directory below, and what they write there would be hidden by the next mount.
        let wanted = matches!(end, End::Signal(_) | End::Unmounted);
        if let Some(Err(e)) = wanted.then(|| mounted.detach()) {
            tracing::error!("{e}");
        }
        match end {
            End::Failed(e) => Err(e),
            End::ThreadPanicked => {
                close(fs, volume).await?;
                Err(Error::new(
                    ErrorKind::Other,
                    "a FUSE thread has died; see the log",
                ))
            }
            End::Signal(_) | End::Unmounted => {
                let closed = close(fs, volume).await;
                mounted.drain().await;
                closed.map(|()| Exit::Ok)
            }
        }
    };
    tokio::select! {
        result = closing => result,
        End::Signal(name) = signals.next() => {
            let text = format!("{name} again: ended before everything was committed");
            Err(Error::new(ErrorKind::Other, text))
        }
    }
}

/// Commits everything and seals all segments. What was acknowledged is durable already; an error
/// here concerns the rest.
pub async fn close(fs: &Fs, volume: &Volume) -> Result<()> {
    let committed = fs.sync_all().await.map_err(|e| {
        let why = std::io::Error::from_raw_os_error(e.0);
        Error::new(
            ErrorKind::Other,
            format!("not everything was committed: {why}"),
        )
    });
    volume.shutdown().await.context("shutting down")?;
    committed
}
