//! Bounds every call in time, and names the slow ones in the log.

use super::Store;
use super::decorate::{Around, Call, Decorated, Op};
use crate::base::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::warn;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Of every call but `recover`.
    pub call: Duration,
    /// Of `recover`, which waits for DataNodes.
    pub recover: Duration,
    /// From here on a call is worth a line in the log.
    pub slow: Duration,
}

/// The same store, whose calls end in time. A call that is given up was perhaps carried out, or
/// will be; its writer cannot be used again.
pub fn with_time_out(inner: Arc<dyn Store>, limits: Limits) -> Arc<dyn Store> {
    Arc::new(Decorated::new(inner, Arc::new(limits)))
}

impl Around for Limits {
    async fn once<'a, T: Send + 'a>(
        &'a self,
        call: Call<'a>,
        run: impl Future<Output = Result<T>> + Send + 'a,
    ) -> Result<T> {
        let limit = if call.op == Op::Recover {
            self.recover
        } else {
            self.call
        };
        let start = Instant::now();
        let result = timeout(limit, run).await.unwrap_or_else(|_| {
            let text = format!("{call}: no answer from the store within {limit:?}");
            Err(Error::new(ErrorKind::TimedOut, text))
        });
        let took = start.elapsed();
        if took >= self.slow {
            let ended = match &result {
                Ok(_) => "succeeded".to_string(),
                Err(e) => format!("failed: {e}"),
            };
            warn!(
                path = call.path,
                ms = took.as_millis() as u64,
                "slow store call {call} {ended}"
            );
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryCluster;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends_and_breaks_its_writer() {
        let cluster = MemoryCluster::new(1);
        let host = cluster.host("a");
        let second = Duration::from_secs(1);
        let limits = Limits {
            call: second,
            recover: 20 * second,
            slow: second / 2,
        };
        let store = with_time_out(host.clone(), limits);
        let mut writer = store.create("f").await.unwrap();
        writer.append("abc".into()).await.unwrap();

        host.freeze();
        let start = Instant::now();
        let e = writer.sync().await.unwrap_err();
        assert!(
            e.is(ErrorKind::TimedOut) && e.to_string().contains("sync f"),
            "{e:?}"
        );
        assert_eq!(start.elapsed(), second);
        assert!(store.stat("f").await.unwrap_err().is(ErrorKind::TimedOut));

        host.thaw();
        assert!(writer.sync().await.unwrap_err().is(ErrorKind::Invalid));
        store.recover("f").await.unwrap(); // takes longer than a call may
        assert_eq!(
            store.stat("f").await.unwrap().len,
            3,
            "the late sync was carried out"
        );
    }
}
