//! What may be on a store in memory once upkeep had time for everything: live bytes, the log that
//! start-up needs, and a few files that every root has. Anything else is a leak.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::StreamId;
use stowfs::format::SegmentState;
use stowfs::segment;
use stowfs::store::memory::MemoryCluster;
use stowfs::volume::Volume;
use tokio::time::sleep;

/// Files that lived for seconds when all was well count as left behind after this.
const SHORT_LIVED: Duration = Duration::from_secs(120);

/// Waits for as long as upkeep may take, in simulated time, then names every leak.
pub async fn leaks(cluster: &MemoryCluster, volume: &Arc<Volume>) -> Vec<String> {
    let config = volume.config();
    let age = config.orphan_age.max(SHORT_LIVED);
    // Twice: a directory is empty only after its last segment went.
    sleep((age + config.orphan_age / 4) * 2 + config.idle_seal + config.gc_grace).await;
    sleep(config.upkeep_every * 4).await;
    let mut leaks = garbage(volume);
    leaks.extend(strays(cluster, volume));
    leaks
}

/// Segments that nothing needs.
fn garbage(volume: &Volume) -> Vec<String> {
    volume.read(|index| {
        let needless = index.segments().filter(|s| {
            let log = s.row.stream == StreamId::LOG && s.row.end > index.log_needed();
            s.live.extents == 0 && s.row.state != SegmentState::Open && !log
        });
        needless.map(|s| format!("garbage: {s:?}")).collect()
    })
}

/// Files and directories that nobody knows.
fn strays(cluster: &MemoryCluster, volume: &Volume) -> Vec<String> {
    let epoch = volume.epoch();
    let known: BTreeSet<String> = volume.read(|index| {
        let names = index.segments().map(|s| segment::path(&s.row.name, epoch));
        names.collect()
    });
    let tree = cluster.tree();
    let stray = |path: &&String| {
        let Some(name) = path.strip_prefix(".stowfs/") else {
            return false;
        };
        let parts: Vec<&str> = name.split('/').collect();
        match parts[..] {
            ["" | "FORMAT"] | [_, ""] => false,
            ["owner", owner] => owner != epoch.to_string() && !owner.ends_with(".released"),
            ["snapshot", file] => !file.ends_with(".idx"),
            ["log" | "data", dir, ""] => {
                let own = dir == epoch.to_string();
                !own && !known.iter().any(|k| k.starts_with(&path[..]))
            }
            _ => !known.contains(&path[..]),
        }
    };
    let mut found: Vec<String> = tree.iter().filter(stray).cloned().collect();
    let ending = |end: &str| tree.iter().filter(|p| p.ends_with(end)).count();
    if ending(".released") > 1 || ending(".idx") > 2 {
        found.push(format!("too many ends or snapshots: {tree:?}"));
    }
    found
}
