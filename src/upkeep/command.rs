//! Upkeep that somebody asks for: plans, and passes that do not wait for their time.

use super::Root;
use super::compact::{self, CompactOptions, Victim};
use super::deletion::condemned;
use super::duty::{Duty, victims};
use super::gc::{Gc, GcOptions};
use super::orphans::{self, Orphan};
use super::plain::Removed;
use super::plan::{
    Collected, Compacted, Line, OrphanLine, Plan, Space, Step, Tell, ratio, whole_seconds,
};
use crate::base::{Error, ErrorKind, Result, SegmentName};
use crate::segment;
use std::time::Duration;
use tokio::time::sleep;

const TICK: Duration = Duration::from_millis(200);

/// Live bytes that are moved between two looks at whether somebody still listens.
const CHUNK: u64 = 512 << 20;

impl Duty {
    /// With `now`, grace and keep budget count as over; what pins a segment never does.
    fn gc_options(&self, now: bool) -> GcOptions {
        match now {
            true => GcOptions {
                grace: Duration::ZERO,
                keep: 0.0,
            },
            false => self.options.gc.clone(),
        }
    }

    /// How many bytes that nothing refers to may wait for their grace; `live`: those that are live now.
    pub fn keep_bytes(&self, live: u64) -> u64 {
        match self.gc.try_lock() {
            Ok(gc) => gc.budget(live, &self.options.gc),
            // A pass is under way; what was live before is not known for this moment.
            Err(_) => Gc::default().budget(live, &self.options.gc),
        }
    }

    pub async fn plan_gc(&self, root: &dyn Root, now: bool) -> Result<Plan> {
        let options = self.gc_options(now);
        // Each lock for itself, or the background would wait meanwhile.
        let segments = self.gc.lock().await.plan(root, &options);
        let plain_files = self.plain.lock().await.plan(root, &options);
        Ok(Plan {
            segments,
            plain_files,
            orphans: self.orphan_lines(root).await?,
            space: space(root).await,
        })
    }

    async fn orphan_lines(&self, root: &dyn Root) -> Result<Vec<OrphanLine>> {
        let (found, now) = orphans::look(root).await?;
        let line = |o: Orphan| OrphanLine {
            action: match o.wait(now, self.options.orphan_age) {
                Duration::ZERO => "delete".into(),
                wait => format!("delete in {}", whole_seconds(wait)),
            },
            path: o.path,
            size: o.size,
            what: o.what.into(),
        };
        Ok(found.into_iter().map(line).collect())
    }

    /// Deletes everything that is due, and returns when it is deleted.
    pub async fn collect(&self, root: &dyn Root, now: bool, tell: Tell<'_>) -> Result<Collected> {
        let options = self.gc_options(now);
        let waiting = {
            let mut gc = self.gc.lock().await;
            gc.pass(root, &options).await?;
            gc.waiting()
        };
        let orphans = self.sweep(root).await?;
        let total = condemned(root);
        loop {
            let left = condemned(root).bytes;
            let step = Step {
                doing: "deleting".into(),
                done: total.bytes.saturating_sub(left),
                total: total.bytes,
            };
            // If nobody listens any more, the background goes on.
            if !tell(step) || self.deletion.one(root).await?.is_none() {
                break;
            }
        }
        let mut removed = Removed::default();
        loop {
            // In slices: the background takes its turns in between.
            let mut plain = self.plain.lock().await;
            let some = plain.pass(root, &options, &self.deletion).await?;
            drop(plain);
            removed.add(&some);
            let step = Step {
                doing: "deleting plain files".into(),
                done: removed.bytes,
                total: 0,
            };
            if !some.any() || !tell(step) {
                break;
            }
        }
        let left = condemned(root);
        // What was condemned in this pass waits no longer.
        Ok(Collected {
            deleted_segments: total.segments.saturating_sub(left.segments),
            deleted_bytes: total.bytes.saturating_sub(left.bytes),
            orphans,
            plain_files: removed.files,
            plain_bytes: removed.bytes,
            waiting_segments: waiting.segments,
            waiting_bytes: waiting.bytes,
            space: space(root).await,
        })
    }

    fn compact_options(&self, target: Option<f64>) -> CompactOptions {
        let mut options = self.options.compact.clone();
        options.target = target.unwrap_or(options.target);
        options
    }

    pub async fn plan_compaction(&self, root: &dyn Root, target: Option<f64>) -> Plan {
        let victims = victims(root, &self.compact_options(target));
        let line = |v: &Victim| Line {
            segment: v.name.to_string(),
            size: v.size,
            live_bytes: v.live,
            amplification: ratio(v.size, v.live),
            action: v.why.action().into(),
        };
        Plan {
            segments: victims.iter().map(line).collect(),
            orphans: Vec::new(),
            plain_files: Vec::new(),
            space: space(root).await,
        }
    }

    /// Empties segments until the amplification is down at the target.
    pub async fn compact_now(
        &self,
        root: &dyn Root,
        target: Option<f64>,
        tell: Tell<'_>,
    ) -> Result<Compacted> {
        let options = self.compact_options(target);
        // The background has its turns between, and they are short; another command may take hours.
        let Ok(_only) = self.commanded.try_lock() else {
            let text = "a `stowfs compact` is at work on this mount already; wait for its end, or \
                        interrupt it (that does no harm), and try again";
            return Err(Error::new(ErrorKind::Other, text));
        };
        let _turn = self.compaction.lock().await;
        let victims = victims(root, &options);
        let names: Vec<SegmentName> = victims.iter().map(|v| v.name).collect();
        let (total, size) = (
            victims.iter().map(|v| v.live).sum(),
            victims.iter().map(|v| v.size).sum::<u64>(),
        );
        let progress = || {
            tell(Step {
                doing: "copying".into(),
                done: u64::saturating_sub(total, live_in(root, &names)),
                total,
            })
        };
        let mut done = Compacted {
            grace_seconds: self.options.gc.grace.as_secs_f64(),
            ..Compacted::default()
        };
        for chunk in chunks(&victims) {
            if !progress() {
                done.stopped = true;
                break;
            }
            let mut work = std::pin::pin!(compact::execute(root, chunk, &options));
            let copied = loop {
                tokio::select! {
                    biased;
                    copied = &mut work => break copied?,
                    () = sleep(TICK) => progress(),
                };
            };
            done.extents += copied.extents;
            done.bytes += copied.bytes;
        }
        progress();
        done.segments = names
            .iter()
            .filter(|name| live_in(root, &[**name]) == 0)
            .count() as u64;
        let left: u64 = victims
            .iter()
            .filter(|v| live_in(root, &[v.name]) > 0)
            .map(|v| v.size)
            .sum();
        done.gained = size.saturating_sub(left).saturating_sub(done.bytes);
        done.space = space(root).await;
        Ok(done)
    }
}

/// Consecutive victims with not much more than `CHUNK` live bytes together.
fn chunks(victims: &[Victim]) -> impl Iterator<Item = &[Victim]> {
    let mut sum = 0;
    victims.chunk_by(move |a, _| {
        sum += a.live;
        let more = sum < CHUNK;
        sum = if more { sum } else { 0 };
        more
    })
}

fn live_in(root: &dyn Root, names: &[SegmentName]) -> u64 {
    let mut live = 0;
    root.view(&mut |index| {
        let found = names.iter().filter_map(|name| index.segment(name));
        live = found.map(|s| s.live.bytes).sum();
    });
    live
}

/// Asks the store for the sizes of the few segments that are being written.
async fn space(root: &dyn Root) -> Space {
    let (mut size, mut live_bytes) = (0, 0);
    let mut open = Vec::new();
    root.view(&mut |index| {
        for s in index.segments() {
            size += s.row.size;
            live_bytes += s.live.bytes;
            if s.row.size == 0 {
                open.push((s.row.name, s.live.bytes));
            }
        }
    });
    for (name, live) in open {
        let path = segment::path(&name, root.epoch());
        let on_store = root.store().stat(&path).await.map_or(0, |info| info.len);
        size += on_store.max(live);
    }
    Space {
        size,
        live_bytes,
        amplification: ratio(size, live_bytes),
    }
}
