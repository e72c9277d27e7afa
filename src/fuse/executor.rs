//! Runs operations that have to wait.
//!
//! They are polled first by the thread that received them, which is awake already. What they wait for
//! mostly ends for many at once (a sync that eight closes shared), so those that were woken go into one
//! queue, which few tasks of the runtime empty: eight replies then cost one switch of threads, not eight.

use super::task::{Op, guarded, log_panic};
use async_task::Runnable;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::{EnterGuard, Handle};
use tokio::task::coop::unconstrained;

/// Operations in the queue for each task that empties it: polling one can take a while (a long read).
const PER_TASK: usize = 4;
/// Operations that are polled before other tasks of the runtime get a turn.
const BEFORE_OTHERS: usize = 16;

pub struct Executor(Arc<Ready>);

struct Ready {
    handle: Handle,
    most_tasks: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    woken: VecDeque<Runnable>,
    /// Tasks that empty the queue. None ends before it has seen the queue empty.
    tasks: usize,
}

impl Executor {
    pub fn new(handle: Handle) -> Executor {
        let most_tasks = handle.metrics().num_workers();
        Executor(Arc::new(Ready {
            handle,
            most_tasks,
            queue: Mutex::default(),
        }))
    }

    /// The calling thread is in the context of the runtime until this is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.0.handle.enter()
    }

    /// Polls once, here, in the context of the runtime.
    pub fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        let ready = self.0.clone();
        let (runnable, task) = async_task::spawn(future, move |woken| ready.push(woken));
        task.detach();
        poll(runnable);
    }
}

/// What panics here is lost, but neither the thread nor the queue is.
fn poll(runnable: Runnable) {
    if let Err(panic) = guarded(|| runnable.run()) {
        log_panic(LOST, &*panic);
    }
}

const LOST: Op = Op {
    name: "the end of an operation",
    ino: 0,
};

impl Ready {
    fn push(self: &Arc<Ready>, woken: Runnable) {
        let mut queue = self.queue.lock();
        queue.woken.push_back(woken);
        let wanted = queue.woken.len().div_ceil(PER_TASK).min(self.most_tasks);
        if queue.tasks >= wanted {
            return;
        }
        queue.tasks += 1;
        drop(queue);
        let ready = self.clone();
        // Without a budget: an operation that used up this task's would wake itself, for ever.
        self.handle
            .spawn(unconstrained(async move { ready.empty().await }));
    }

    async fn empty(&self) {
        let mut polled = 0;
        while let Some(woken) = self.next() {
            poll(woken);
            polled += 1;
            if polled % BEFORE_OTHERS == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn next(&self) -> Option<Runnable> {
        let mut queue = self.queue.lock();
        let next = queue.woken.pop_front();
        if next.is_none() {
            queue.tasks -= 1;
        }
        next
    }
}
