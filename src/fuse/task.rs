//! How a request becomes a reply without ever blocking the thread that received it.
//!
//! The operation is polled once on the receiving thread: whatever needs only memory is done then,
//! and the reply leaves from there. What has to wait goes on by the [`Executor`]. A panic becomes EIO,
//! and so does an operation that takes longer than `op_timeout`.

use super::executor::Executor;
use crate::fs::{Errno, Fs};
use futures::FutureExt;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// What is being done to which inode, for log lines.
#[derive(Clone, Copy)]
pub struct Op {
    pub name: &'static str,
    pub ino: u64,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of inode {}", self.name, self.ino)
    }
}

/// A result that gives the kernel something which it hands back later (a lookup count, a handle).
/// When the kernel was told EIO because the operation was late, it is handed back here instead.
pub trait Granted: Send + 'static {
    fn hand_back(self, fs: Arc<Fs>) -> impl Future<Output = ()> + Send;
}

/// Results that leave nothing behind.
macro_rules! nothing_granted {
    ($($t:ty),* $(,)?) => {
        $(impl Granted for $t {
            async fn hand_back(self, _fs: Arc<Fs>) {}
        })*
    };
}
pub(super) use nothing_granted;

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs an operation, whose panic is caught.
pub fn in_handler() -> bool {
    IN_HANDLER.get()
}

type Pinned<T> = Pin<Box<dyn Future<Output = Result<T, Errno>> + Send>>;

/// Runs operations of one filesystem.
pub struct Runner {
    fs: Arc<Fs>,
    executor: Executor,
    limit: Duration,
    waiting: Waiting,
}

/// Counts the operations that have to wait: one clone each.
#[derive(Clone, Default)]
pub struct Waiting(Arc<()>);

impl Waiting {
    /// Waits until no operation is left but those that do not end. The runner and the caller have
    /// a clone too.
    pub async fn drain(&self, limit: Duration) {
        let ended = async {
            while Arc::strong_count(&self.0) > 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(limit, ended).await.is_err() {
            let left = Arc::strong_count(&self.0).saturating_sub(2);
            tracing::warn!("{left} operations have not ended; their callers get an error");
        }
    }
}

impl Runner {
    pub fn new(fs: Arc<Fs>, handle: Handle, limit: Duration) -> Runner {
        Runner {
            fs,
            executor: Executor::new(handle),
            limit,
            waiting: Waiting::default(),
        }
    }

    pub fn waiting(&self) -> Waiting {
        self.waiting.clone()
    }

    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Starts `begin` and calls `reply` exactly once, here or from a task.
    pub fn run<T, F, R>(&self, op: Op, begin: impl FnOnce(Arc<Fs>) -> F, reply: R)
    where
        T: Granted,
        F: Future<Output = Result<T, Errno>> + Send + 'static,
        R: FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    {
        let _runtime = self.executor.enter();
        let future: Pinned<T> = Box::pin(begin(self.fs.clone()));
        // The waker does nothing: a future that is not ready is polled again by the executor.
        match poll_once(future) {
            Ok(Ok(result)) => answer(op, reply, result),
            Ok(Err(waiting)) => {
                let (fs, limit, counted) = (self.fs.clone(), self.limit, self.waiting());
                self.executor.start(async move {
                    finish(op, waiting, reply, limit, fs).await;
                    drop(counted);
                });
            }
            Err(panic) => {
                log_panic(op, &*panic);
                reply(Err(fuser::Errno::EIO));
            }
        }
    }

    /// Runs something short that gives no reply.
    pub fn quietly(&self, op: Op, work: impl FnOnce(&Fs)) {
        let _runtime = self.executor.enter();
        if let Err(panic) = guarded(|| work(&self.fs)) {
            log_panic(op, &*panic);
        }
    }
}

/// The result, the future if it has to wait, or what it panicked with.
#[allow(clippy::type_complexity)]
fn poll_once<T>(
    mut future: Pinned<T>,
) -> Result<Result<Result<T, Errno>, Pinned<T>>, Box<dyn Any + Send>> {
    guarded(move || {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(future),
        }
    })
}

pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    IN_HANDLER.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IN_HANDLER.set(false);
    result
}

/// Waits for an operation as long as the kernel may; a late one is never cut off, because what it
/// has begun (a commit, an allocation of names) must end one way or the other.
async fn finish<T, R>(op: Op, waiting: Pinned<T>, reply: R, limit: Duration, fs: Arc<Fs>)
where
    T: Granted,
    R: FnOnce(Result<T, fuser::Errno>) + Send + 'static,
{
    let begun = Instant::now();
    let mut ending = std::pin::pin!(AssertUnwindSafe(waiting).catch_unwind());
    match tokio::time::timeout(limit, &mut ending).await {
        Ok(Ok(result)) => answer(op, reply, result),
        Ok(Err(panic)) => {
            log_panic(op, &*panic);
            reply(Err(fuser::Errno::EIO));
        }
        Err(_) => {
            let limit = humantime::format_duration(limit);
            tracing::error!(
                "{op} has not ended within op_timeout={limit}: the caller gets EIO, the operation \
                 goes on; earlier lines name the store call that is slow"
            );
            reply(Err(fuser::Errno::EIO));
            match ending.await {
                Ok(result) => {
                    let how = if result.is_ok() {
                        "succeeded"
                    } else {
                        "failed"
                    };
                    tracing::warn!("{op} {how} after {:.1} s", begun.elapsed().as_secs_f64());
                    if let Ok(granted) = result {
                        granted.hand_back(fs).await;
                    }
                }
                Err(panic) => log_panic(op, &*panic),
            }
        }
    }
}

/// Replies; a panic while doing so drops the reply object, which sends EIO.
fn answer<T, R>(op: Op, reply: R, result: Result<T, Errno>)
where
    R: FnOnce(Result<T, fuser::Errno>),
{
    let result = result.map_err(|e| fuser::Errno::from_i32(e.0));
    if let Err(panic) = guarded(|| reply(result)) {
        log_panic(op, &*panic);
    }
}

pub(super) fn log_panic(op: Op, panic: &(dyn Any + Send)) {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)");
    tracing::error!("{op} panicked: {text}; the caller gets EIO. This is a bug in stowfs");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Config;
    use crate::fs::FsOptions;
    use crate::store::Store;
    use crate::store::memory::MemoryCluster;
    use crate::volume::{OpenOptions, Volume};
    use std::sync::mpsc;

    const OP: Op = Op {
        name: "test",
        ino: 1,
    };
    const SOON: Duration = Duration::from_secs(20);

    /// Tells when it was handed back.
    struct Handle(mpsc::Sender<&'static str>);

    impl Granted for Handle {
        async fn hand_back(self, _fs: Arc<Fs>) {
            self.0.send("handed back").unwrap();
        }
    }

    fn runner(runtime: &tokio::runtime::Runtime, limit: Duration) -> Runner {
        let options = OpenOptions::new(Config::default());
        let fs = runtime.block_on(async {
            let store: Arc<dyn Store> = MemoryCluster::new(1).host("a");
            let volume = Volume::open(store, options).await.unwrap();
            Fs::new(volume, FsOptions::default())
        });
        Runner::new(fs, runtime.handle().clone(), limit)
    }

    /// What was replied, and whether the thread that asked did it.
    type Replies = mpsc::Receiver<(Result<(), i32>, bool)>;

    fn replies() -> (
        impl FnOnce(Result<(), fuser::Errno>) + Send + 'static,
        Replies,
    ) {
        let (send, receive) = mpsc::channel();
        let asker = std::thread::current().id();
        let reply = move |result: Result<(), fuser::Errno>| {
            let here = std::thread::current().id() == asker;
            send.send((result.map_err(|e| e.code()), here)).unwrap();
        };
        (reply, receive)
    }

    #[test]
    fn what_is_ready_is_answered_at_once_and_the_rest_from_a_task() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let runner = runner(&runtime, SOON);
        let (reply, answer) = replies();
        runner.run(OP, |_| async { Err(Errno::ENOENT) }, reply);
        assert_eq!(answer.try_recv().unwrap(), (Err(libc::ENOENT), true));

        let (reply, answer) = replies();
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let waits = |_| async { wait.await.map_err(|_| Errno::EIO) };
        runner.run(OP, waits, reply);
        assert!(
            answer.try_recv().is_err(),
            "the thread is free while the operation waits"
        );
        go.send(()).unwrap();
        assert_eq!(answer.recv_timeout(SOON).unwrap(), (Ok(()), false));
        runtime.block_on(runner.waiting().drain(SOON));
    }

    #[test]
    fn a_panic_is_eio_and_the_next_operation_works() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let runner = runner(&runtime, SOON);
        let (reply, answer) = replies();
        runner.run(OP, |_| async { panic!("at once") }, reply);
        assert_eq!(answer.try_recv().unwrap(), (Err(libc::EIO), true));
        assert!(!in_handler());

        let (reply, answer) = replies();
        let late = |_| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            panic!("later")
        };
        runner.run(OP, late, reply);
        assert_eq!(answer.recv_timeout(SOON).unwrap(), (Err(libc::EIO), false));

        let (reply, answer) = replies();
        runner.run(OP, |_| async { Ok(()) }, reply);
        assert_eq!(answer.try_recv().unwrap(), (Ok(()), true));
    }

    #[test]
    fn a_late_operation_is_eio_yet_ends_and_its_handle_is_handed_back() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let runner = runner(&runtime, Duration::from_millis(30));
        let (events, seen) = mpsc::channel();
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let (granted, replied) = (events.clone(), events);
        let late = |_| async move {
            wait.await.map_err(|_| Errno::EIO)?;
            Ok(Handle(granted))
        };
        runner.run(OP, late, move |result: Result<Handle, fuser::Errno>| {
            let eio = result.is_err_and(|e| e.code() == libc::EIO);
            replied
                .send(if eio { "EIO" } else { "something else" })
                .unwrap();
        });
        assert_eq!(seen.recv_timeout(SOON).unwrap(), "EIO");
        go.send(()).unwrap();
        assert_eq!(seen.recv_timeout(SOON).unwrap(), "handed back");
    }
}
