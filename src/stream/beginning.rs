//! Beginning a segment.
//!
//! A store may place it on a replica that hangs, and do so again and again until it takes that
//! replica for dead. Where this can be (`hedge_after` is set), further segments are begun beside
//! one that does not get on, and the first that can sync its header is taken. The others stay empty.

use super::Shared;
use super::claims::Claim;
use super::segment_writer::SegmentWriter;
use super::task::{close_lost, overdue};
use crate::base::{Error, ErrorKind, Pos, Result, SegmentName, StreamId};
use crate::format::SegmentState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// Segments that are begun beside each other before the pace slackens, and at most.
const BRISK: usize = 8;
const AT_ONCE: usize = 16;
/// The pace after that is so many times slower.
const SLACK: u32 = 4;

/// For so long after an attempt that got stuck, a replica is taken to hang.
const HANGS_FOR: Duration = Duration::from_secs(30);

type Attempts = JoinSet<Result<SegmentWriter>>;

pub(super) struct Beginning {
    shared: Arc<Shared>,
    predecessor: Option<SegmentName>,
    /// Number of the next log segment of this epoch.
    next_log_segment: u32,
    /// How long it takes lately.
    usual: Duration,
    /// When the first attempt last lost to another one.
    stuck: Option<Instant>,
}

impl Beginning {
    pub(super) fn new(shared: Arc<Shared>) -> Beginning {
        Beginning {
            shared,
            predecessor: None,
            next_log_segment: 0,
            usual: Duration::ZERO,
            stuck: None,
        }
    }

    /// Whether a new segment may well be placed on a replica that hangs. One that is known to work
    /// is worth keeping then, whatever its size.
    pub(super) fn is_a_gamble(&self) -> bool {
        self.stuck.is_some_and(|when| when.elapsed() < HANGS_FOR)
    }

    /// A new segment whose first frame will have position `base`.
    pub(super) async fn begin(&mut self, base: Pos) -> Result<SegmentWriter> {
        let segment = match self.shared.options.hedge_after {
            Some(hedge) => self.first_of_several(base, hedge).await?,
            None => self.only(base).await?,
        };
        self.predecessor = Some(segment.name);
        Ok(segment)
    }

    async fn only(&mut self, base: Pos) -> Result<SegmentWriter> {
        let (claim, limit) = (self.next_name(), self.shared.options.sync_timeout);
        let name = claim.name;
        let begin = async {
            let mut segment =
                SegmentWriter::create(&self.shared, claim, base, self.predecessor).await?;
            segment.write_header(&self.shared).await?;
            Ok(segment)
        };
        match timeout(limit, begin).await {
            Ok(begun) => begun,
            Err(_) => Err(overdue("creating segment", &name.to_string(), limit)),
        }
    }

    async fn first_of_several(&mut self, base: Pos, hedge: Duration) -> Result<SegmentWriter> {
        let limit = self.shared.options.sync_timeout;
        let started = Instant::now();
        let deadline = started + limit;
        // If every replica is slow, more segments make it worse.
        let patience = (hedge / 4).max(self.usual * 4);
        let mut attempts = Attempts::new();
        let (first, mut created) = self.attempt(base, &mut attempts);
        let (mut begun_so_far, mut next) = (1, started + patience);
        let begun = loop {
            match timeout_at(deadline.min(next), attempts.join_next()).await {
                Ok(Some(Ok(Err(e)))) if e.is_ambiguous() && !attempts.is_empty() => {}
                Ok(Some(Ok(begun))) => break begun,
                Ok(Some(Err(e))) => break Err(Error::new(ErrorKind::Other, format!("task: {e}"))),
                Err(_) if Instant::now() >= deadline => {
                    let id = self.shared.identity.stream;
                    break Err(overdue("beginning a segment of", &format!("{id}"), limit));
                }
                Ok(None) | Err(_) => {}
            }
            if Instant::now() < next {
                continue;
            }
            let slack = if begun_so_far < BRISK { 1 } else { SLACK };
            next = Instant::now() + patience * slack;
            // One that still waits for its file waits for the store as a whole; so would others.
            if attempts.len() < AT_ONCE && created.load(Ordering::Relaxed) {
                (_, created) = self.attempt(base, &mut attempts);
                begun_so_far += 1;
            }
        };
        if begun.as_ref().is_ok_and(|segment| segment.name == first) {
            // If another one was faster, a replica hangs. To learn patience from that would make
            // each segment that is begun while it hangs take longer than the last.
            self.usual = (self.usual * 3 + started.elapsed()) / 4;
        } else {
            self.stuck = Some(Instant::now());
        }
        tokio::spawn(discard(self.shared.clone(), attempts));
        begun
    }

    /// Begins one more. The flag says when its file exists.
    fn attempt(&mut self, base: Pos, attempts: &mut Attempts) -> (SegmentName, Arc<AtomicBool>) {
        let created = Arc::new(AtomicBool::new(false));
        let (shared, claim, told) = (self.shared.clone(), self.next_name(), created.clone());
        let name = claim.name;
        attempts.spawn(begin_synced(shared, claim, base, self.predecessor, told));
        (name, created)
    }

    /// Each attempt gets a new number: a failed one may have left a file.
    fn next_name(&mut self) -> Claim {
        let id = &self.shared.identity;
        let name = if id.stream == StreamId::LOG {
            let n = self.next_log_segment;
            self.next_log_segment += 1;
            SegmentName::Log { epoch: id.epoch, n }
        } else {
            let next = &self.shared.counters.next_lane_segment;
            let n = next.fetch_add(1, Ordering::Relaxed);
            let session = id.session;
            SegmentName::Lane { session, n }
        };
        self.shared.counters.claims.take(name)
    }
}

/// A segment whose header is synced, which shows that its replicas take bytes. Cleans up behind
/// itself when that fails.
async fn begin_synced(
    shared: Arc<Shared>,
    claim: Claim,
    base: Pos,
    predecessor: Option<SegmentName>,
    created: Arc<AtomicBool>,
) -> Result<SegmentWriter> {
    let segment = SegmentWriter::create(&shared, claim, base, predecessor).await;
    created.store(true, Ordering::Relaxed);
    let mut segment = segment?;
    let mut synced = segment.write_header(&shared).await;
    if synced.is_ok() {
        synced = segment.sync_header().await;
    }
    if let Err(e) = synced {
        close_unused(&shared, segment);
        return Err(e);
    }
    Ok(segment)
}

/// Segments that were begun in vain.
async fn discard(shared: Arc<Shared>, mut attempts: Attempts) {
    while let Some(ended) = attempts.join_next().await {
        if let Ok(Ok(segment)) = ended {
            close_unused(&shared, segment);
        }
    }
}

fn close_unused(shared: &Arc<Shared>, segment: SegmentWriter) {
    let row = segment.row(shared, SegmentState::Sealed, segment.base, 0);
    let (shared, path, claim) = (shared.clone(), segment.path, segment.claim);
    tokio::spawn(async move {
        close_lost(shared, row, path).await;
        drop(claim);
    });
}
