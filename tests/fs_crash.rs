//! Several programs write through the filesystem while its host crashes at any call of the store;
//! the next mount is checked against what each of them was told.
//!
//! Each byte of a file must be the one of the last acknowledged state, or one written since; the
//! size must be one that the file had since; a name that a rename acknowledged must be there.
//! `STOWFS_SEED=n` replays one seed.

#[path = "support/seeds.rs"]
mod seeds;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::fs::{Caller, Errno, Fh, Fs, FsOptions, SetAttr, WriteMode};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::faulty::{Faults, Rates};
use stowfs::store::memory::{LastCall, MemoryCluster};
use stowfs::store::timeout::{Limits, with_time_out};
use stowfs::volume::{OpenOptions, Volume};

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// What a program knows about its file.
#[derive(Clone, Default)]
struct Known {
    now: Vec<u8>,
    /// The state that was acknowledged last; None if not even the file was.
    sure: Option<Vec<u8>>,
    /// All states since.
    since: Vec<Vec<u8>>,
    /// Under which names it may be found, the acknowledged ones being the last only.
    names: Vec<String>,
    named: bool,
    unlinked: bool,
    story: Vec<String>,
}

impl Known {
    fn changed(&mut self) {
        self.story.push(format!("change, size {}", self.now.len()));
        self.since.push(self.now.clone());
    }

    fn acknowledged(&mut self, what: &str) {
        let size = self.now.len();
        self.story.push(format!("{what} acknowledged, size {size}"));
        self.sure = Some(self.now.clone());
        self.since.clear();
        self.named = true;
    }

    /// Why `found` cannot be; None if it can.
    fn refutes(&self, found: &[u8]) -> Option<String> {
        let empty = Vec::new();
        let sure = self.sure.as_ref().unwrap_or(&empty);
        let states: Vec<&Vec<u8>> = std::iter::once(sure).chain(&self.since).collect();
        if !states.iter().any(|s| s.len() == found.len()) {
            let sizes: Vec<usize> = states.iter().map(|s| s.len()).collect();
            return Some(format!("size {}, was {sizes:?}", found.len()));
        }
        let at = found
            .iter()
            .enumerate()
            .find(|(at, byte)| !states.iter().any(|s| s.get(*at) == Some(byte)));
        at.map(|(at, byte)| format!("byte {at} of {} is {byte}", found.len()))
    }
}

async fn mount(store: Arc<dyn Store>) -> Option<Arc<Fs>> {
    let options = OpenOptions::new(Config {
        segment_size: 48 << 10,
        block_size: 4 << 10,
        small_file: 3000,
        write_buffer: 64 << 10,
        op_timeout: Duration::from_secs(30),
        dirty_age: Duration::from_secs(2),
        ..Config::default()
    });
    let volume = Volume::open(store, options).await.ok()?;
    Some(Fs::new(volume, FsOptions::default()))
}

/// One program: makes a file, changes it, renames it, closes it, now and then unlinks it.
async fn program(fs: Arc<Fs>, known: Arc<Mutex<Known>>, id: u64, seed: u64) -> Result<(), Errno> {
    let mut rng = StdRng::seed_from_u64(seed);
    let first = format!("p{id}");
    known.lock().names.push(first.clone());
    let name = Bytes::from(first);
    let (entry, mut fh) = fs
        .create(WHO, Ino::ROOT, name, 0o644, 0, libc::O_RDWR)
        .await?;
    let ino = entry.ino;
    for _ in 0..rng.random_range(1..40) {
        match rng.random_range(0..20) {
            0..10 => write(&fs, &known, &mut rng, ino, fh).await?,
            10 => {
                let size = rng.random_range(0..12_000);
                {
                    let mut known = known.lock();
                    known.now.resize(size, 0);
                    known.changed();
                }
                let set = SetAttr {
                    size: Some(size as u64),
                    ..SetAttr::default()
                };
                fs.setattr(WHO, ino, set).await?;
            }
            11 => punch(&fs, &known, &mut rng, ino, fh).await?,
            12..15 => {
                fs.fsync(ino, fh, false).await?;
                known.lock().acknowledged("fsync");
            }
            15 => {
                fs.flush(ino, fh, 0).await?;
                known.lock().acknowledged("close");
                fs.release(ino, fh).await?;
                fh = fs.open(ino, libc::O_RDWR).await?.fh;
            }
            16 => {
                let (from, to) = {
                    let mut known = known.lock();
                    let from = known.names.last().cloned().expect("it has a name");
                    // Now and then to the name that it has.
                    let to = format!("p{id}-{}", rng.random_range(0..10));
                    if to != from {
                        known.names.push(to.clone());
                    }
                    (from, to)
                };
                fs.rename(WHO, Ino::ROOT, from.into(), Ino::ROOT, to.into(), 0)
                    .await?;
                let mut known = known.lock();
                known.acknowledged("rename");
                let old = known.names.len() - 1;
                known.names.drain(..old);
            }
            17 => check_read(&fs, &known, ino, fh).await?,
            18 if rng.random_bool(0.1) => {
                let name = {
                    let mut known = known.lock();
                    known.unlinked = true;
                    known.names.last().cloned().expect("it has a name")
                };
                fs.unlink(WHO, Ino::ROOT, name.into()).await?;
                write(&fs, &known, &mut rng, ino, fh).await?;
                check_read(&fs, &known, ino, fh).await?;
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await,
        }
    }
    fs.flush(ino, fh, 0).await?;
    if !known.lock().unlinked {
        known.lock().acknowledged("last close");
    }
    fs.release(ino, fh).await?;
    fs.forget(ino, 1);
    Ok(())
}

async fn write(
    fs: &Arc<Fs>,
    known: &Mutex<Known>,
    rng: &mut StdRng,
    ino: Ino,
    fh: Fh,
) -> Result<(), Errno> {
    let mut data = vec![0; rng.random_range(1..4000)];
    rng.fill(&mut data[..]);
    let off = {
        let mut known = known.lock();
        let off = match rng.random() {
            true => known.now.len(),
            false => rng.random_range(0..8000),
        };
        let end = off + data.len();
        let size = known.now.len().max(end);
        known.now.resize(size, 0);
        known.now[off..end].copy_from_slice(&data);
        known.changed();
        off
    };
    fs.write(ino, fh, off as u64, data.into(), WriteMode::default())
        .await?;
    Ok(())
}

async fn punch(
    fs: &Arc<Fs>,
    known: &Mutex<Known>,
    rng: &mut StdRng,
    ino: Ino,
    fh: Fh,
) -> Result<(), Errno> {
    let (off, len) = (rng.random_range(0..8000), rng.random_range(1..4000));
    {
        let mut known = known.lock();
        let end = (off + len).min(known.now.len());
        if off < end {
            known.now[off..end].fill(0);
        }
        known.changed();
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fs.fallocate(WHO, ino, fh, off as u64, len as u64, mode)
        .await
}

async fn check_read(fs: &Arc<Fs>, known: &Mutex<Known>, ino: Ino, fh: Fh) -> Result<(), Errno> {
    let read = fs.read(ino, fh, 0, 1 << 20).await?;
    assert_eq!(
        &read[..],
        &known.lock().now[..],
        "a program reads what it wrote"
    );
    Ok(())
}

async fn names(fs: &Arc<Fs>) -> BTreeMap<String, Ino> {
    let items = fs
        .readdir(Ino::ROOT, Fh(0), 2, 100_000)
        .await
        .expect("readdir");
    items
        .into_iter()
        .map(|i| (String::from_utf8_lossy(&i.name).into_owned(), i.ino))
        .collect()
}

async fn verify(fs: &Arc<Fs>, programs: &[Arc<Mutex<Known>>]) {
    let bad = fs.volume().read(Index::check);
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(fs.volume().read(Index::nameless), Vec::new());
    let names = names(fs).await;
    for (id, known) in programs.iter().enumerate() {
        let known = known.lock().clone();
        let found: Vec<&String> = known
            .names
            .iter()
            .filter(|n| names.contains_key(*n))
            .collect();
        match found[..] {
            [] => assert!(known.unlinked || !known.named, "program {id} lost its file"),
            [one] => {
                let size = fs.volume().read(|i| i.attr(names[one]).map(|a| a.size));
                let read = fs.read(names[one], Fh(0), 0, size.unwrap_or(0) as usize);
                let bytes = read.await.expect("committed bytes are readable");
                if let Some(why) = known.refutes(&bytes) {
                    panic!("program {id}, {one}: {why}\n{}", known.story.join("\n"));
                }
            }
            _ => panic!("program {id}: {found:?} all exist"),
        }
    }
}

async fn run(seed: u64) {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let host = cluster.host("first");
    let last = if rng.random() {
        LastCall::Done
    } else {
        LastCall::Lost
    };
    let crashes = rng.random_bool(0.9);
    if crashes {
        host.crash_at(rng.random_range(1..250), last);
    }
    let programs: Vec<Arc<Mutex<Known>>> = (0..6).map(|_| Arc::default()).collect();
    let life = async {
        let Some(fs) = mount(host.clone()).await else {
            return;
        };
        let tasks: Vec<_> = programs
            .iter()
            .enumerate()
            .map(|(id, known)| {
                let seed = rng.random();
                tokio::spawn(program(fs.clone(), known.clone(), id as u64, seed))
            })
            .collect();
        for task in tasks {
            task.await
                .expect("no panic")
                .expect("no error before a crash");
        }
        assert_eq!(fs.held()[1..], [0, 0, 0], "nodes, dirty inodes, handles");
        if rng.random() {
            fs.sync_all().await.expect("sync_all");
            fs.volume().shutdown().await.expect("shutdown");
        }
    };
    tokio::select! {
        biased;
        () = host.crashed() => {}
        () = life => {}
    }
    host.crash();
    // Tasks of the dead host may still say that something was acknowledged: it never is.
    let fs = mount(cluster.host("second")).await.expect("the next mount");
    verify(&fs, &programs).await;
    fs.volume().shutdown().await.expect("a clean shutdown");
}

#[test]
fn what_programs_were_told_survives_a_crash_at_any_call() {
    seeds::each("filesystem crash", 400, run);
}

/// One file grows by small and long writes while the store refuses, fails and hangs. Errors may
/// come from any sync; bytes that a write took are never dropped.
async fn run_faulty(seed: u64) {
    let cluster = MemoryCluster::new(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let host = cluster.host("first");
    let faults = Faults::new(seed);
    let limits = Limits {
        call: Duration::from_secs(4),
        recover: Duration::from_secs(10),
        slow: Duration::from_secs(60),
    };
    let store = with_time_out(faults.wrap(host.clone()), limits);
    let fs = mount(store).await.expect("mount");
    let made = fs.create(WHO, Ino::ROOT, "f".into(), 0o644, 0, libc::O_RDWR);
    let (entry, fh) = made.await.expect("create");
    let often = rng.random_range(4..40);
    faults.set_rates(Rates {
        refuse: if rng.random() { often } else { 0 },
        fail_after: if rng.random() { often } else { 0 },
        delay: 0,
        longest_delay: Duration::ZERO,
        hang: if rng.random() { often } else { 0 },
    });
    let mut want: Vec<u8> = Vec::new();
    for _ in 0..40 {
        let mut data = vec![0; rng.random_range(1..6000)];
        rng.fill(&mut data[..]);
        let taken = fs.write(
            entry.ino,
            fh,
            want.len() as u64,
            data.clone().into(),
            WriteMode::default(),
        );
        if taken.await.is_ok() {
            want.extend(data);
        }
        if rng.random_bool(0.3) {
            let _either = fs.fsync(entry.ino, fh, false).await;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
    }
    faults.clear();
    // The first may still tell of a commit that failed in the background.
    let _told = fs.fsync(entry.ino, fh, false).await;
    fs.fsync(entry.ino, fh, false)
        .await
        .expect("service resumes");
    let read = fs.read(entry.ino, fh, 0, 1 << 20).await.expect("read");
    assert!(read == want, "{} bytes of {}", read.len(), want.len());
    host.crash();
    let fs = mount(cluster.host("second")).await.expect("the next mount");
    let found = names(&fs).await["f"];
    let read = fs.read(found, Fh(0), 0, 1 << 20).await.expect("read");
    assert!(
        read == want,
        "after a crash: {} of {}",
        read.len(),
        want.len()
    );
}

#[test]
fn a_store_that_fails_delays_but_loses_nothing() {
    seeds::each("filesystem faults", 150, run_faulty);
}
