//! What plain files are below the root, and which of them somebody is still writing.

use crate::base::error::Context;
use crate::base::{Error, ErrorKind, Result, Timestamp};
use crate::segment::META_DIR;
use crate::store::{FileInfo, LeftOut, Store, path};
use futures::future::{join_all, try_join_all};
use std::time::Duration;

/// Calls to the store at the same time.
const AT_ONCE: usize = 16;
/// A file that was changed so recently is looked at twice,
const RECENT: Duration = Duration::from_secs(60);
/// with this pause between, and must not have been changed for as long.
const QUIET: Duration = Duration::from_secs(3);
/// A file that was not changed for so long is taken for finished without asking whether it is open.
const OLD: Duration = Duration::from_secs(24 * 3600);
/// While a file is being written, HDFS shows whole blocks of it, often none.
const WHOLE_BLOCKS: u64 = 1 << 20;

/// A plain file or directory below the root.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    pub path: String,
    pub info: FileInfo,
}

/// A file, and why it is not taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refused {
    pub path: String,
    pub why: String,
}

pub struct Look {
    /// A directory comes before what is in it.
    pub found: Vec<Plain>,
    pub unfinished: Vec<Refused>,
}

/// Looks at everything at and below a path.
pub async fn look(store: &dyn Store, at: &str) -> Result<Look> {
    let (mut found, closed) = walk(store, at).await?;
    let mut unfinished = unfinished(store, &found).await?;
    unfinished.extend(closed);
    let bad: std::collections::HashSet<&str> = unfinished.iter().map(|r| &r.path[..]).collect();
    found.retain(|plain| !bad.contains(&plain.path[..]));
    Ok(Look { found, unfinished })
}

/// What is there, and what cannot be taken in whoever writes it: directories that may not be listed,
/// and what is no plain file.
async fn walk(store: &dyn Store, at: &str) -> Result<(Vec<Plain>, Vec<Refused>)> {
    path::check(at)?;
    if at.split('/').next() == Some(META_DIR) {
        let text = format!("/{at} is stowfs's own");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let (mut found, mut closed) = (Vec::new(), Vec::new());
    let ends = at.match_indices('/').map(|(end, _)| end);
    for end in ends.chain((!at.is_empty()).then_some(at.len())) {
        found.push(listed(store, &at[..end]).await?);
    }
    if found.last().is_some_and(|plain| !plain.info.is_dir) {
        return Ok((found, closed));
    }
    let mut level = vec![at.to_string()];
    while !level.is_empty() {
        let mut listings = Vec::new();
        for some in level.chunks(AT_ONCE) {
            let jobs = some.iter().map(|dir| list(store, dir));
            for (dir, (entries, strange)) in some.iter().zip(try_join_all(jobs).await?) {
                closed.extend(strange);
                listings.push((dir.clone(), entries));
            }
        }
        level = Vec::new();
        for (dir, entries) in listings {
            let Some(entries) = entries else {
                let why = "it cannot be listed: permission denied".to_string();
                closed.push(Refused { path: dir, why });
                continue;
            };
            for info in entries {
                if dir.is_empty() && info.name == META_DIR {
                    continue;
                }
                let path = path::join(&dir, &info.name);
                if info.is_dir {
                    level.push(path.clone());
                }
                found.push(Plain { path, info });
            }
        }
    }
    Ok((found, closed))
}

/// What a directory lists by this name. A listing leaves symbolic links out, which a stat would
/// follow, perhaps out of the root: what lies there is not stowfs's to take in, let alone to delete.
async fn listed(store: &dyn Store, at: &str) -> Result<Plain> {
    let (dir, name) = path::split(at).unwrap_or(("", at));
    let entries = store
        .list(dir)
        .await
        .context(format_args!("looking at /{at}"))?;
    let info = entries.into_iter().find(|info| info.name == name);
    let info = info.ok_or_else(|| {
        let text = format!(
            "/{at}: there is no plain file or directory of this name (symbolic links and special files \
             are left out)"
        );
        Error::new(ErrorKind::NotFound, text)
    })?;
    let path = at.to_string();
    Ok(Plain { path, info })
}

/// No entries if it may not be listed.
type Listing = (Option<Vec<FileInfo>>, Vec<Refused>);

async fn list(store: &dyn Store, dir: &str) -> Result<Listing> {
    let both = async { Ok::<_, Error>((store.list(dir).await?, store.left_out(dir).await?)) };
    match both.await {
        // It was removed since its parent was listed.
        Err(e) if e.is(ErrorKind::NotFound) && !dir.is_empty() => {
            Ok((Some(Vec::new()), Vec::new()))
        }
        Err(e) if e.is(ErrorKind::Denied) && !dir.is_empty() => Ok((None, Vec::new())),
        Err(e) => Err(e.context(format_args!("listing /{dir}"))),
        Ok((entries, strange)) => {
            let refuse = |found: LeftOut| Refused {
                path: path::join(dir, &found.name),
                why: found.what.to_string(),
            };
            Ok((Some(entries), strange.into_iter().map(refuse).collect()))
        }
    }
}

async fn unfinished(store: &dyn Store, found: &[Plain]) -> Result<Vec<Refused>> {
    let files: Vec<&Plain> = found.iter().filter(|plain| !plain.info.is_dir).collect();
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let now = store.now().await.context("asking the store for its time")?;
    let recent: Vec<&Plain> = files
        .iter()
        .filter(|plain| is_within(now, RECENT, plain.info.mtime))
        .copied()
        .collect();
    let mut refused = second_look(store, now, &recent).await?;
    let ask = files.into_iter().filter(|plain| {
        is_within(now, OLD, plain.info.mtime) || plain.info.len.is_multiple_of(WHOLE_BLOCKS)
    });
    let ask: Vec<&Plain> = ask.collect();
    for some in ask.chunks(AT_ONCE) {
        let jobs = some.iter().map(|plain| check_open(store, plain));
        refused.extend(try_join_all(jobs).await?.into_iter().flatten());
    }
    refused.sort_by(|a, b| a.path.cmp(&b.path));
    refused.dedup_by(|a, b| a.path == b.path);
    Ok(refused)
}

/// A file may also be dated in the future; that says nothing then.
fn is_within(now: Timestamp, span: Duration, time: Timestamp) -> bool {
    time.abs_diff(now) < span.as_nanos() as u64
}

async fn second_look(
    store: &dyn Store,
    mut now: Timestamp,
    recent: &[&Plain],
) -> Result<Vec<Refused>> {
    if recent.is_empty() {
        return Ok(Vec::new());
    }
    tokio::time::sleep(QUIET).await;
    let mut again = Vec::new();
    for some in recent.chunks(AT_ONCE) {
        let jobs = some.iter().map(|plain| store.stat(&plain.path));
        again.extend(some.iter().zip(join_all(jobs).await));
    }
    now = now.saturating_add(QUIET.as_nanos() as Timestamp);
    let mut refused = Vec::new();
    for (plain, info) in again {
        let why = match info {
            Err(e) if e.is(ErrorKind::NotFound) => "it was deleted a moment ago".to_string(),
            Err(e) if e.is(ErrorKind::Denied) => "permission denied".to_string(),
            Err(e) => return Err(e.context(format_args!("looking at /{}", plain.path))),
            Ok(info) if (info.len, info.mtime) != (plain.info.len, plain.info.mtime) => {
                let (before, now) = (plain.info.len, info.len);
                format!("it is being written ({before} bytes a moment ago, {now} now)")
            }
            Ok(info) if is_within(now, QUIET, info.mtime) => {
                format!("it was written less than {} s ago", QUIET.as_secs())
            }
            Ok(_) => continue,
        };
        let path = plain.path.clone();
        refused.push(Refused { path, why });
    }
    Ok(refused)
}

async fn check_open(store: &dyn Store, plain: &Plain) -> Result<Option<Refused>> {
    let path = plain.path.clone();
    let refuse = |why: &str| {
        let why = why.to_string();
        Ok(Some(Refused { path, why }))
    };
    match store.is_open(&plain.path).await {
        Ok(true) => refuse("it is open for writing"),
        Ok(false) => Ok(None),
        Err(e) if e.is(ErrorKind::NotFound) => refuse("it was deleted a moment ago"),
        // Who may not read it cannot be told more.
        Err(e) if e.is(ErrorKind::Denied) => refuse("it cannot be opened: permission denied"),
        Err(e) => Err(e.context(format_args!("looking at /{}", plain.path))),
    }
}
