//! Repeats calls that can be repeated while the store cannot be reached.

use super::Store;
use super::decorate::{Around, Call, Decorated};
use crate::base::{Error, Random};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

struct Retry {
    /// No try begins later than this after the first.
    budget: Duration,
    random: Mutex<Random>,
}

/// The same store, on which idempotent calls (those that read, mkdir and recover) ride out that
/// the store is unavailable or slow. All others fail at once: their callers must look first
/// whether they were carried out.
pub fn with_retries(inner: Arc<dyn Store>, budget: Duration, random: Random) -> Arc<dyn Store> {
    Arc::new(Decorated::new(
        inner,
        Arc::new(Retry {
            budget,
            random: Mutex::new(random),
        }),
    ))
}

impl Around for Retry {
    fn again(&self, call: Call<'_>, e: &Error, tries: u32, spent: Duration) -> Option<Duration> {
        let longest = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(tries - 1));
        // Half of it by chance, so that clients do not come back together.
        let pause = self.random.lock().duration(&(longest / 2..=longest));
        let retry = call.op.is_idempotent() && e.is_ambiguous() && spent + pause < self.budget;
        if retry {
            info!("{call} failed, trying again in {pause:?}: {e}");
        }
        retry.then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use crate::store::decorate::Op;
    use crate::store::faulty::{Fault, Faults, Rule};
    use crate::store::memory::MemoryCluster;

    fn store(budget: Duration) -> (Arc<Faults>, Arc<dyn Store>) {
        let faults = Faults::new(1);
        let store = faults.wrap(MemoryCluster::new(1).host("a"));
        (faults, with_retries(store, budget, Random::new(1)))
    }

    #[tokio::test(start_paused = true)]
    async fn reading_calls_ride_out_an_outage() {
        let (faults, store) = store(Duration::from_secs(10));
        store.put("f", "abc".into()).await.unwrap();
        let reader = store.open("f").await.unwrap();
        for op in [Op::Stat, Op::Read, Op::Mkdir] {
            faults.add(
                Rule::new(Fault::Refuse(ErrorKind::Unavailable))
                    .op(op)
                    .times(5),
            );
        }
        assert_eq!(store.stat("f").await.unwrap().len, 3);
        assert_eq!(reader.read_at(0, 3).await.unwrap(), "abc");
        store.mkdir("d").await.unwrap();
        assert_eq!(faults.injected(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_its_budget_and_at_once_where_a_repetition_helps_nobody() {
        let (faults, store) = store(Duration::from_secs(10));
        let start = tokio::time::Instant::now();
        assert!(store.stat("no").await.unwrap_err().is(ErrorKind::NotFound));
        assert!(start.elapsed() < Duration::from_millis(20));

        faults.add(Rule::new(Fault::Refuse(ErrorKind::Unavailable)));
        assert!(
            store
                .rename("a", "b")
                .await
                .unwrap_err()
                .is(ErrorKind::Unavailable)
        );
        assert_eq!(faults.injected(), 1, "not idempotent: not repeated");
        assert!(
            store
                .stat("f")
                .await
                .unwrap_err()
                .is(ErrorKind::Unavailable)
        );
        let took = start.elapsed();
        assert!(
            took > Duration::from_secs(7) && took < Duration::from_secs(11),
            "{took:?}"
        );
    }
}
