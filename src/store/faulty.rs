//! Faults on demand, for tests: by a script of rules, by chance from a seed, or both.

use super::decorate::{Around, Call, Decorated, Op};
use super::{Store, StorePath};
use crate::base::{Error, ErrorKind, Random, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not carried out, and reported as failed.
    Refuse(ErrorKind),
    /// Carried out, yet reported as failed.
    FailAfter(ErrorKind),
    /// Carried out after a while.
    Delay(Duration),
    /// Neither carried out nor answered.
    Hang,
    /// Carried out, never answered.
    HangAfter,
    /// One bit of what is read is wrong (reads).
    FlipBit,
    /// The file seems to be this many bytes shorter (open, stat, list).
    Shorten(u64),
}

impl Fault {
    fn applies_to(self, op: Op) -> bool {
        match self {
            Fault::FlipBit => op == Op::Read,
            Fault::Shorten(_) => matches!(op, Op::Open | Op::Stat | Op::List),
            _ => true,
        }
    }

    fn changes_data(self) -> bool {
        matches!(self, Fault::FlipBit | Fault::Shorten(_))
    }
}

/// When to inject which fault: at all calls that match, unless limited.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    ops: Vec<Op>,
    path: String,
    skip: u64,
    times: u64,
    until: Option<Instant>,
}

impl Rule {
    pub fn new(fault: Fault) -> Rule {
        let (ops, path) = (Vec::new(), String::new());
        Rule {
            fault,
            ops,
            path,
            skip: 0,
            times: u64::MAX,
            until: None,
        }
    }

    /// Nothing that takes room succeeds.
    pub fn store_full() -> Rule {
        let ops = [
            Op::Create,
            Op::Append,
            Op::Sync,
            Op::Close,
            Op::Mkdir,
            Op::Put,
        ]
        .to_vec();
        Rule {
            ops,
            ..Rule::new(Fault::Refuse(ErrorKind::NoSpace))
        }
    }

    /// Only these calls; may be given several times.
    pub fn op(mut self, op: Op) -> Rule {
        self.ops.push(op);
        self
    }

    /// Only paths that contain this.
    pub fn path(self, part: &str) -> Rule {
        Rule {
            path: part.to_string(),
            ..self
        }
    }

    /// Not the first `n` calls that match.
    pub fn skip(self, n: u64) -> Rule {
        Rule { skip: n, ..self }
    }

    /// Only so many times.
    pub fn times(self, n: u64) -> Rule {
        Rule { times: n, ..self }
    }

    /// Only for a while from now on.
    pub fn lasting(self, time: Duration) -> Rule {
        Rule {
            until: Some(Instant::now() + time),
            ..self
        }
    }

    fn strikes(&mut self, call: Call<'_>) -> bool {
        let matches = self.fault.applies_to(call.op)
            && (self.ops.is_empty() || self.ops.contains(&call.op))
            && call.path.contains(&self.path)
            && self.until.is_none_or(|until| Instant::now() < until);
        if !matches || self.times == 0 {
            return false;
        }
        let strikes = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        if strikes {
            self.times = self.times.saturating_sub(1);
        }
        strikes
    }
}

/// Faults by chance: each once in so many calls on average, 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub refuse: u64,
    pub fail_after: u64,
    pub delay: u64,
    pub longest_delay: Duration,
    /// Needs a time-out around the faulty store.
    pub hang: u64,
}

struct State {
    random: Random,
    rates: Rates,
    rules: Vec<Rule>,
    injected: u64,
}

/// The faults of any number of stores, to be changed while these are in use.
pub struct Faults {
    state: Mutex<State>,
}

impl Faults {
    pub fn new(seed: u64) -> Arc<Faults> {
        let random = Random::new(seed);
        let state = State {
            random,
            rates: Rates::default(),
            rules: Vec::new(),
            injected: 0,
        };
        Arc::new(Faults {
            state: Mutex::new(state),
        })
    }

    pub fn wrap(self: &Arc<Faults>, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Decorated::new(inner, self.clone()))
    }

    /// The first rule that matches strikes; chance comes after the rules.
    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// From now on nothing fails.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.rates = Rates::default();
    }

    pub fn injected(&self) -> u64 {
        self.state.lock().injected
    }
}

impl State {
    fn next(&mut self, call: Call<'_>, changes_data: bool) -> Option<Fault> {
        let of_kind = |rule: &&mut Rule| rule.fault.changes_data() == changes_data;
        let mut rules = self.rules.iter_mut().filter(of_kind);
        let mut fault = rules.find_map(|rule| rule.strikes(call).then_some(rule.fault));
        if fault.is_none() && !changes_data {
            fault = self.chance();
        }
        self.injected += u64::from(fault.is_some());
        fault
    }

    fn chance(&mut self) -> Option<Fault> {
        let (rates, random) = (self.rates, &mut self.random);
        let kind = [ErrorKind::Unavailable, ErrorKind::TimedOut][random.below(2) as usize];
        let mut hit = |rate, fault| random.one_in(rate).then_some(fault);
        hit(rates.refuse, Fault::Refuse(kind))
            .or_else(|| hit(rates.fail_after, Fault::FailAfter(kind)))
            .or_else(|| hit(2 * rates.hang, Fault::Hang))
            .or_else(|| hit(2 * rates.hang, Fault::HangAfter))
            .or_else(|| hit(rates.delay, Fault::Delay(Duration::ZERO)))
            .map(|fault| match fault {
                Fault::Delay(_) => {
                    Fault::Delay(random.duration(&(Duration::ZERO..=rates.longest_delay)))
                }
                other => other,
            })
    }
}

impl Around for Faults {
    async fn once<'a, T: Send + 'a>(
        &'a self,
        call: Call<'a>,
        run: impl Future<Output = Result<T>> + Send + 'a,
    ) -> Result<T> {
        let injected = |kind| Err(Error::new(kind, format!("{call}: an injected fault")));
        let fault = self.state.lock().next(call, false);
        match fault {
            None | Some(Fault::FlipBit | Fault::Shorten(_)) => run.await,
            Some(Fault::Refuse(kind)) => injected(kind),
            Some(Fault::FailAfter(kind)) => {
                run.await?;
                injected(kind)
            }
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                run.await
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::HangAfter) => {
                let _ = run.await;
                std::future::pending().await
            }
        }
    }

    fn bytes_read(&self, path: &StorePath, bytes: Bytes) -> Bytes {
        let mut state = self.state.lock();
        let fault = state.next(Call { op: Op::Read, path }, true);
        if fault.is_none() || bytes.is_empty() {
            return bytes;
        }
        let mut flipped = bytes.to_vec();
        let bit = state.random.below(8 * flipped.len() as u64);
        flipped[bit as usize / 8] ^= 1 << (bit % 8);
        flipped.into()
    }

    fn file_len(&self, call: Call<'_>, len: u64) -> u64 {
        match self.state.lock().next(call, true) {
            Some(Fault::Shorten(by)) => len.saturating_sub(by),
            _ => len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryCluster;

    fn store() -> (Arc<Faults>, Arc<dyn Store>, Arc<dyn Store>) {
        let faults = Faults::new(1);
        let sound = MemoryCluster::new(1).host("a");
        (faults.clone(), faults.wrap(sound.clone()), sound)
    }

    #[tokio::test(start_paused = true)]
    async fn refused_calls_are_not_carried_out_and_failed_ones_are() {
        let (faults, store, sound) = store();
        faults.add(
            Rule::new(Fault::Refuse(ErrorKind::Denied))
                .op(Op::Put)
                .path("a"),
        );
        faults.add(
            Rule::new(Fault::FailAfter(ErrorKind::TimedOut))
                .op(Op::Put)
                .skip(1)
                .times(1),
        );
        assert!(
            store
                .put("a", "1".into())
                .await
                .unwrap_err()
                .is(ErrorKind::Denied)
        );
        store.put("b", "2".into()).await.unwrap();
        assert!(
            store
                .put("c", "3".into())
                .await
                .unwrap_err()
                .is(ErrorKind::TimedOut)
        );
        store.put("d", "4".into()).await.unwrap();
        let names = sound
            .list("")
            .await
            .unwrap()
            .into_iter()
            .map(|info| info.name);
        assert_eq!(names.collect::<String>(), "bcd");
        assert_eq!(faults.injected(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_injected_error_breaks_a_writer() {
        let (faults, store, sound) = store();
        faults.add(
            Rule::new(Fault::FailAfter(ErrorKind::Unavailable))
                .op(Op::Sync)
                .skip(1),
        );
        let mut writer = store.create("f").await.unwrap();
        writer.append("ab".into()).await.unwrap();
        writer.sync().await.unwrap();
        writer.append("cd".into()).await.unwrap();
        assert!(writer.sync().await.unwrap_err().is(ErrorKind::Unavailable));
        faults.clear();
        assert!(writer.sync().await.unwrap_err().is(ErrorKind::Invalid));
        sound.recover("f").await.unwrap();
        assert_eq!(sound.stat("f").await.unwrap().len, 4, "it had been synced");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_has_room_again_later() {
        let (faults, store, _) = store();
        faults.add(Rule::store_full().lasting(Duration::from_secs(60)));
        assert!(
            store
                .put("f", "1".into())
                .await
                .unwrap_err()
                .is(ErrorKind::NoSpace)
        );
        assert!(store.list("").await.unwrap().is_empty());
        tokio::time::sleep(Duration::from_secs(61)).await;
        store.put("f", "1".into()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn damage_shows_in_what_is_read() {
        let (faults, store, _) = store();
        store.put("f", vec![0; 1000].into()).await.unwrap();
        faults.add(Rule::new(Fault::FlipBit).times(1));
        let reader = store.open("f").await.unwrap();
        let ones = |bytes: Bytes| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
        assert_eq!(ones(reader.read_at(0, 1000).await.unwrap()), 1);
        assert_eq!(ones(reader.read_at(0, 1000).await.unwrap()), 0);

        faults.add(Rule::new(Fault::Shorten(300)));
        assert_eq!(store.open("f").await.unwrap().len(), 700);
        assert_eq!(store.stat("f").await.unwrap().len, 700);
        assert_eq!(store.list("").await.unwrap()[0].len, 700);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_calls_differ_in_whether_they_were_carried_out() {
        let (faults, store, sound) = store();
        faults.add(Rule::new(Fault::Hang).path("before"));
        faults.add(Rule::new(Fault::HangAfter).path("after"));
        for path in ["before", "after"] {
            let call = store.put(path, "1".into());
            assert!(
                tokio::time::timeout(Duration::from_secs(99), call)
                    .await
                    .is_err()
            );
        }
        assert!(sound.stat("before").await.is_err());
        assert!(sound.stat("after").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn chance_replays_from_its_seed() {
        async fn run(seed: u64) -> (u64, Vec<bool>) {
            let faults = Faults::new(seed);
            let store = faults.wrap(MemoryCluster::new(1).host("a"));
            let longest_delay = Duration::from_secs(1);
            let rates = Rates {
                refuse: 5,
                fail_after: 5,
                delay: 3,
                longest_delay,
                hang: 0,
            };
            faults.set_rates(rates);
            let mut ok = Vec::new();
            for i in 0..100 {
                ok.push(store.put(&format!("f{i}"), "1".into()).await.is_ok());
            }
            (faults.injected(), ok)
        }
        let (injected, ok) = run(3).await;
        assert_eq!((injected, ok.clone()), run(3).await);
        assert_ne!(ok, run(4).await.1);
        assert!(injected > 30 && ok.contains(&true));
    }
}
