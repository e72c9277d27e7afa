//! The mount's side of `stowfs gc` and `stowfs compact`.

use super::control::{Commands, Progress};
use crate::base::{Error, ErrorKind, Result};
use crate::upkeep::plan::Step;
use crate::volume::Volume;
use futures::FutureExt;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

pub fn add(commands: &mut Commands, volume: &Arc<Volume>) {
    let (collected, compacted) = (volume.clone(), volume.clone());
    commands.add_long("gc", move |request, progress| {
        gc(collected.clone(), request, progress).boxed()
    });
    commands.add_long("compact", move |request, progress| {
        compact(compacted.clone(), request, progress).boxed()
    });
}

async fn gc(volume: Arc<Volume>, request: Value, progress: Progress) -> Result<Value> {
    let (duty, now) = (volume.duty()?, request["now"] == true);
    if request["dry_run"] == true {
        return value(&duty.plan_gc(&*volume, now).await?);
    }
    let tell = |step: Step| progress.tell(&step);
    value(&duty.collect(&*volume, now, &tell).await?)
}

async fn compact(volume: Arc<Volume>, request: Value, progress: Progress) -> Result<Value> {
    let (duty, target) = (volume.duty()?, request["target"].as_f64());
    if request["dry_run"] == true {
        return value(&duty.plan_compaction(&*volume, target).await);
    }
    let tell = |step: Step| progress.tell(&step);
    value(&duty.compact_now(&*volume, target, &tell).await?)
}

fn value(what: &impl Serialize) -> Result<Value> {
    serde_json::to_value(what).map_err(|e| Error::new(ErrorKind::Other, e.to_string()))
}
