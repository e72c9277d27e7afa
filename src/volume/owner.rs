//! Who owns a root. One owner at a time; a higher epoch fences all lower ones.
//!
//! `owner/<epoch>` names the owner of an epoch; it is created exclusively, so one claimant wins. On
//! one host a lock tells at once whether the holder lives. Who does not share that lock (another host, another run-dir) asks:
//! `owner/<epoch>.claim.<id>` must be answered by `owner/<epoch>.answer.<id>` in time.

use crate::base::error::Context;
use crate::base::{Epoch, Error, ErrorKind, Pos, Result, Timestamp};
use crate::segment::{OWNER_DIR, log_dir};
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// How long a holder has to answer a claim.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How often a holder looks for claims, and a claimant for answers.
pub const LOOK_EVERY: Duration = Duration::from_secs(3);

/// How often a claimant that others overtook looks again.
const ATTEMPTS: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub epoch: u32,
    pub host: String,
    pub pid: u32,
    /// Nanoseconds since 1970, by the owner's clock.
    pub since: Timestamp,
    /// Which lock file the owner holds; who can lock the same file shares its host.
    pub lock: Option<String>,
}

impl Owner {
    pub fn decode(bytes: &[u8], path: &str) -> Result<Owner> {
        serde_json::from_slice(bytes).map_err(|e| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{path} is not what stowfs wrote: {e}"),
            )
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    pub fn describe(&self) -> String {
        let since = std::time::UNIX_EPOCH + Duration::from_nanos(self.since.max(0) as u64);
        format!(
            "host {}, pid {}, since {} (epoch {})",
            self.host,
            self.pid,
            humantime::format_rfc3339_seconds(since),
            self.epoch
        )
    }
}

/// A lock on this host that its holder keeps while it lives, however it dies.
pub struct HostLock {
    file: File,
    /// Names the file, not its content: boot, device, inode.
    identity: String,
    held: bool,
}

impl HostLock {
    /// Opens the lock of a root in `dir` and takes it if it is free.
    pub fn take(dir: &Path, root: &uuid::Uuid) -> Result<HostLock> {
        use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
        let path = dir.join(format!("{root}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .context(format_args!("opening the lock {}", path.display()))?;
        let meta = file.metadata().context("looking at the lock")?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let identity = format!("{}:{}:{}", boot.trim(), meta.dev(), meta.ino());
        let held = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(e)) => {
                return Err(Error::from(e).context(format_args!("locking {}", path.display())));
            }
        };
        Ok(HostLock {
            file,
            identity,
            held,
        })
    }

    /// Takes the lock as soon as a fenced holder has let go; until then other mounts of this host
    /// must ask by a claim.
    fn try_again(&mut self) {
        self.held = self.held || self.file.try_lock().is_ok();
    }
}

/// A held epoch.
pub struct Ownership {
    pub owner: Owner,
    epoch: Epoch,
    lock: parking_lot::Mutex<Option<HostLock>>,
}

/// What a directory `owner/` says.
#[derive(Default)]
pub struct Listing {
    pub highest: u32,
    /// Whether the highest epoch ended cleanly.
    pub released: bool,
    /// The highest epoch that did.
    pub last_released: Option<u32>,
    pub claims: Vec<(u32, String)>,
    pub answers: Vec<(u32, String)>,
    /// Names that stowfs does not make.
    pub strange: Vec<String>,
}

pub async fn look(store: &dyn Store) -> Result<Listing> {
    let files = store
        .list(OWNER_DIR)
        .await
        .context("looking up the owner of the root")?;
    let mut found = Listing::default();
    let mut released = Vec::new();
    for file in files {
        let mut parts = file.name.splitn(3, '.');
        let Some(Ok(epoch)) = parts.next().map(str::parse::<u32>) else {
            found.strange.push(file.name);
            continue;
        };
        match (parts.next(), parts.next()) {
            (None, None) => found.highest = found.highest.max(epoch),
            (Some("released"), None) => released.push(epoch),
            (Some("claim"), Some(id)) => found.claims.push((epoch, id.to_string())),
            (Some("answer"), Some(id)) => found.answers.push((epoch, id.to_string())),
            _ => found.strange.push(file.name.clone()),
        }
    }
    found.released = released.contains(&found.highest);
    found.last_released = released.into_iter().max();
    Ok(found)
}

pub async fn read_owner(store: &dyn Store, epoch: u32) -> Result<Owner> {
    let path = format!("{OWNER_DIR}/{epoch}");
    let reader = store
        .open(&path)
        .await
        .context(format_args!("opening {path}"))?;
    let bytes = reader
        .read_at(0, reader.len().min(1 << 16) as usize)
        .await?;
    Owner::decode(&bytes, &path)
}

/// What the file `<epoch>.released` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    pub log_end: Pos,
}

impl Released {
    pub fn decode(bytes: &[u8], path: &str) -> Result<Released> {
        serde_json::from_slice(bytes).map_err(|e| {
            let text = format!("{path} is not what stowfs wrote: {e}");
            Error::new(ErrorKind::Corrupt, text)
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}

/// The log reaches at least to this position, by the last epoch that ended cleanly.
pub async fn promised_end(store: &dyn Store) -> Result<Pos> {
    let Some(epoch) = look(store).await?.last_released else {
        return Ok(0);
    };
    let path = format!("{OWNER_DIR}/{epoch}.released");
    let reader = store
        .open(&path)
        .await
        .context(format_args!("opening {path}"))?;
    let bytes = reader
        .read_at(0, reader.len().min(1 << 16) as usize)
        .await
        .context(format_args!("reading {path}"))?;
    Ok(Released::decode(&bytes, &path)?.log_end)
}

/// Who wants a root.
pub struct Claimant<'a> {
    pub host: &'a str,
    pub pid: u32,
    pub since: Timestamp,
    /// Where the lock of this host is made; None where hosts are simulated.
    pub lock_dir: Option<&'a Path>,
    /// Fence an owner that is alive.
    pub takeover: bool,
}

/// Becomes the owner, if the root is free, its owner is dead, or `takeover` says so.
pub async fn acquire(store: &dyn Store, root: &Uuid, who: Claimant<'_>) -> Result<Ownership> {
    let takeover = who.takeover;
    let lock = match who.lock_dir {
        Some(dir) => Some(HostLock::take(dir, root)?),
        None => None,
    };
    let mut me = Owner {
        epoch: 0,
        host: who.host.to_string(),
        pid: who.pid,
        since: who.since,
        lock: lock.as_ref().map(|l| l.identity.clone()),
    };
    let mut attempts = 0;
    loop {
        let before = look(store).await?;
        if before.highest > 0 && !before.released && !takeover {
            check_dead(store, before.highest, lock.as_ref()).await?;
        }
        if lock.as_ref().is_some_and(|l| !l.held) && !takeover {
            let text = "another mount of this root is starting or stopping on this host; try again";
            return Err(Error::new(ErrorKind::Owned, text));
        }
        me.epoch = before.highest.checked_add(1).ok_or_else(|| {
            let text = format!("{OWNER_DIR}/{} leaves no higher epoch", before.highest);
            Error::new(ErrorKind::Corrupt, text)
        })?;
        let winner = match claim(store, &me).await? {
            // The name of a past epoch is free again when it was removed as an orphan: who was frozen
            // for so long between its look and its claim has claimed what others are past.
            None => match look(store).await?.highest {
                highest if highest <= me.epoch => break,
                highest => read_owner(store, highest).await?,
            },
            Some(winner) => winner,
        };
        // The winner may be dead already: a claim can arrive long after its claimant died.
        if attempts == ATTEMPTS {
            return Err(owned(&winner));
        }
        attempts += 1;
    }
    Ok(Ownership {
        epoch: Epoch(me.epoch),
        owner: me,
        lock: parking_lot::Mutex::new(lock),
    })
}

/// Tries to become the owner of an epoch. Returns who was faster, if somebody was.
async fn claim(store: &dyn Store, me: &Owner) -> Result<Option<Owner>> {
    let epoch = Epoch(me.epoch);
    // Before the owner file: whoever comes later finds this directory and renames it, so that a
    // late owner of this epoch can never create it.
    store
        .mkdir(&log_dir(epoch, epoch))
        .await
        .context("beginning an epoch")?;
    let path = format!("{OWNER_DIR}/{epoch}");
    match store.put(&path, me.encode().into()).await {
        Ok(()) => Ok(None),
        Err(e) if e.is(ErrorKind::AlreadyExists) || e.is_ambiguous() => {
            let winner = read_owner(store, me.epoch).await.map_err(|_| e)?;
            Ok((winner != *me).then_some(winner))
        }
        Err(e) => Err(e.context("claiming the root")),
    }
}

fn owned(holder: &Owner) -> Error {
    let text = format!(
        "the root is mounted already: {}; unmount it there, or use --takeover to fence it",
        holder.describe()
    );
    Error::new(ErrorKind::Owned, text)
}

/// Fails with `Owned` if the holder of an epoch lives.
async fn check_dead(store: &dyn Store, epoch: u32, lock: Option<&HostLock>) -> Result<()> {
    let holder = read_owner(store, epoch).await?;
    if let Some(lock) = lock.filter(|l| holder.lock.as_ref() == Some(&l.identity)) {
        return if lock.held {
            Ok(())
        } else {
            Err(owned(&holder))
        };
    }
    tracing::info!(
        "asking the owner of the root for a sign of life: {}",
        holder.describe()
    );
    let id = uuid::Uuid::new_v4().simple().to_string();
    let claim = format!("{OWNER_DIR}/{epoch}.claim.{id}");
    store
        .put(&claim, Default::default())
        .await
        .context("claiming the root")?;
    let alive = await_answer(store, epoch, &id).await;
    // They are this claimant's own, and name nothing that anybody needs.
    let _ = store.delete(&claim).await;
    if alive? {
        let _ = store
            .delete(&format!("{OWNER_DIR}/{epoch}.answer.{id}"))
            .await;
        return Err(owned(&holder));
    }
    tracing::info!("the owner did not answer within {ANSWER_WITHIN:?}: taking the root over");
    Ok(())
}

async fn await_answer(store: &dyn Store, epoch: u32, id: &str) -> Result<bool> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    while Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY / 3).await;
        let found = look(store).await?;
        // Somebody else took the root over: that owner must be asked then.
        if found.highest > epoch || found.released {
            return Ok(false);
        }
        if found.answers.iter().any(|(e, i)| *e == epoch && i == id) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Ownership {
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Fails with `Fenced` if a higher epoch exists, and with `Vanished` if this one does not.
    pub async fn check(&self, store: &dyn Store) -> Result<()> {
        let found = self.look(store).await?;
        self.check_listing(store, &found).await
    }

    async fn look(&self, store: &dyn Store) -> Result<Listing> {
        match look(store).await {
            Err(e) if e.is(ErrorKind::NotFound) => Err(self.vanished(store)),
            found => found,
        }
    }

    fn vanished(&self, store: &dyn Store) -> Error {
        let text = format!(
            "{} has no {OWNER_DIR}/{} any more: its directory was deleted, moved away or unmounted; \
             nothing can be written there. Put it back as it was, then mount again",
            store.url(),
            self.epoch
        );
        Error::new(ErrorKind::Vanished, text)
    }

    async fn check_listing(&self, store: &dyn Store, found: &Listing) -> Result<()> {
        if found.highest < self.epoch.0 {
            return Err(self.vanished(store));
        }
        if found.highest == self.epoch.0 {
            return Ok(());
        }
        let by = match read_owner(store, found.highest).await {
            Ok(owner) => owner.describe(),
            Err(e) => format!("epoch {} ({e})", found.highest),
        };
        Err(Error::new(
            ErrorKind::Fenced,
            format!("the root was taken over by {by}"),
        ))
    }

    /// One look at `owner/`: fenced? gone? any claims to answer?
    pub async fn watch(&self, store: &dyn Store) -> Result<()> {
        let found = self.look(store).await?;
        self.check_listing(store, &found).await?;
        if let Some(lock) = self.lock.lock().as_mut() {
            lock.try_again();
        }
        for (epoch, id) in &found.claims {
            let answered = found.answers.iter().any(|(e, i)| e == epoch && i == id);
            if *epoch == self.epoch.0 && !answered {
                tracing::info!("somebody asks for this root; answering that it is in use");
                let answer = format!("{OWNER_DIR}/{epoch}.answer.{id}");
                match store.put(&answer, Default::default()).await {
                    Err(e) if !e.is(ErrorKind::AlreadyExists) => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Says that this epoch ended cleanly, so that the next owner need not wait, and where its log
    /// ends: nothing in the log itself could tell that its last segment was cut.
    pub async fn release(&self, store: &dyn Store, log_end: Pos) -> Result<()> {
        let path = format!("{OWNER_DIR}/{}.released", self.epoch);
        let text = Released { log_end }.encode();
        match store.put(&path, text.into()).await {
            Err(e) if !e.is(ErrorKind::AlreadyExists) => Err(e),
            _ => Ok(()),
        }
    }
}
