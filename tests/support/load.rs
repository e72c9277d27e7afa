//! Writers that create, overwrite, rename and remove files, and know after every crash or fault
//! what may be found: what was acknowledged, and nothing else but what was under way.
//!
//! Each writer has a directory of its own and does one thing after the other, so that everything
//! before an acknowledgement is durable with it. A random run prints its seed.

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One write(2), which the kernel passes on as one request: a commit has all of it or nothing.
const CHUNK: usize = 128 << 10;
const LONGEST: usize = 6 << 20;
const PATCH: usize = 64 << 10;

/// Random bytes; each content is a slice of them.
static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; 4 * LONGEST];
    StdRng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes
});

fn slice(at: usize, len: usize) -> &'static [u8] {
    &POOL[at..at + len]
}

/// What a file contains: bytes of the pool, with later overwrites.
#[derive(Clone, Debug)]
struct Content {
    at: usize,
    len: usize,
    /// Offset, place in the pool, length.
    patches: Vec<(usize, usize, usize)>,
}

impl Content {
    fn random(rng: &mut StdRng) -> Content {
        let len = match rng.random_range(0..40) {
            0 => rng.random_range(LONGEST * 2 / 3..LONGEST),
            // As many small ones as large ones.
            _ => 1usize << rng.random_range(0..22) | rng.random_range(0..64),
        };
        let at = rng.random_range(0..POOL.len() - len);
        let patches = Vec::new();
        Content { at, len, patches }
    }

    fn is(&self, found: &[u8]) -> bool {
        if self.patches.is_empty() {
            return slice(self.at, self.len) == found;
        }
        let mut all = slice(self.at, self.len).to_vec();
        for &(off, at, len) in &self.patches {
            all[off..off + len].copy_from_slice(slice(at, len));
        }
        all == found
    }
}

/// What may be found under a name.
#[derive(Clone, Debug)]
enum State {
    Absent,
    Whole(Content),
    /// Some of its writes, from the first one on.
    Begun(Content),
}

impl State {
    fn is(&self, found: Option<&[u8]>) -> bool {
        match (self, found) {
            (State::Absent, None) => true,
            (State::Whole(content), Some(found)) => content.is(found),
            (State::Begun(content), Some(found)) => {
                let at_a_write = found.len() % CHUNK == 0 || found.len() == content.len;
                found.len() <= content.len && at_a_write && found == slice(content.at, found.len())
            }
            _ => false,
        }
    }
}

pub struct Writer {
    dir: PathBuf,
    rng: StdRng,
    /// Every state that a name may have; the last one is the newest.
    names: BTreeMap<String, Vec<State>>,
    /// Names on which an operation failed: that may still be carried out, at any time.
    doubtful: BTreeMap<String, ()>,
    /// A rename that was under way when it failed.
    renaming: Option<(String, String, Content)>,
    next: u32,
    /// When each durable operation began, and how long it took.
    pub acknowledged: Vec<(Instant, Duration)>,
    /// What failed, and how long it took.
    pub errors: Vec<(String, io::Error, Duration)>,
}

/// Writers in directories below `dir`.
pub fn writers(dir: &Path, count: u64, seed: u64) -> Vec<Writer> {
    let writer = |n| Writer {
        dir: dir.join(format!("writer-{n}")),
        rng: StdRng::seed_from_u64(seed.wrapping_mul(1000) + n),
        names: BTreeMap::new(),
        doubtful: BTreeMap::new(),
        renaming: None,
        next: 0,
        acknowledged: Vec::new(),
        errors: Vec::new(),
    };
    let writers: Vec<Writer> = (0..count).map(writer).collect();
    for w in &writers {
        fs::create_dir_all(&w.dir).unwrap();
        File::open(&w.dir).unwrap().sync_all().unwrap();
    }
    writers
}

/// All write until `stop`. One that gets an error goes on with other files, unless the mount is gone.
pub fn run(writers: &mut [Writer], stop: &AtomicBool, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let gone = |e: &io::Error| {
                        matches!(
                            e.raw_os_error(),
                            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)
                        )
                    };
                    match writer.step() {
                        Err(e) if gone(&e) => break,
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                        Ok(()) => {}
                    }
                }
            });
        }
        let ended = StopAtEnd(stop);
        meanwhile();
        drop(ended);
    });
}

/// Also when `meanwhile` panics: the scope waits for the writers.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Writer {
    fn step(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        let known = self.known();
        let (what, done) = match self.rng.random_range(0..20) {
            0..=10 => self.create(),
            11..=13 if known > 0 => self.overwrite(),
            14..=16 if known > 0 => self.rename(),
            17..=19 if known > 8 => self.unlink(),
            _ => self.create(),
        };
        if let Err(e) = &done {
            let e = io::Error::new(e.kind(), e.to_string());
            self.errors.push((what, e, begun.elapsed()));
        }
        done
    }

    /// Names that surely have one content.
    fn sure(&self) -> impl Iterator<Item = (&String, &Content)> {
        self.names
            .iter()
            .filter_map(|(name, states)| match states.as_slice() {
                [State::Whole(content)] if !self.doubtful.contains_key(name) => {
                    Some((name, content))
                }
                _ => None,
            })
    }

    fn known(&self) -> usize {
        self.sure().count()
    }

    fn pick(&mut self) -> (String, Content) {
        let n = self.rng.random_range(0..self.known());
        let (name, content) = self.sure().nth(n).unwrap();
        (name.clone(), content.clone())
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("{}", self.next)
    }

    fn may_be(&mut self, name: &str, state: State) {
        let absent = || vec![State::Absent];
        self.names
            .entry(name.into())
            .or_insert_with(absent)
            .push(state);
    }

    /// Everything that this writer did so far is durable.
    fn settle(&mut self, begun: Instant) {
        self.acknowledged.push((begun, begun.elapsed()));
        for (name, states) in &mut self.names {
            if !self.doubtful.contains_key(name) {
                states.drain(..states.len() - 1);
            }
        }
        let doubtful = &self.doubtful;
        self.names
            .retain(|name, s| doubtful.contains_key(name) || !matches!(s[..], [State::Absent]));
    }

    fn doubt(&mut self, names: &[&str]) {
        for name in names {
            self.doubtful.insert(name.to_string(), ());
        }
    }

    fn create(&mut self) -> (String, io::Result<()>) {
        let name = self.new_name();
        let content = Content::random(&mut self.rng);
        let synced = self.rng.random_bool(0.5);
        self.may_be(&name, State::Begun(content.clone()));
        let path = self.dir.join(&name);
        let begun = Instant::now();
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&path)?;
            for chunk in slice(content.at, content.len).chunks(CHUNK) {
                file.write_all(chunk)?;
            }
            if synced {
                file.sync_all()?;
            }
            close(file)
        };
        let done = write();
        match &done {
            Ok(()) => {
                *self.names.get_mut(&name).unwrap() = vec![State::Whole(content)];
                self.settle(begun);
            }
            Err(_) => self.doubt(&[&name]),
        }
        (format!("creating {name}"), done)
    }

    fn overwrite(&mut self) -> (String, io::Result<()>) {
        let (name, mut content) = self.pick();
        let off = self.rng.random_range(0..content.len);
        let len = self.rng.random_range(1..=PATCH.min(content.len - off));
        let at = self.rng.random_range(0..POOL.len() - len);
        content.patches.push((off, at, len));
        self.may_be(&name, State::Whole(content));
        let path = self.dir.join(&name);
        let begun = Instant::now();
        let write = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(slice(at, len), off as u64)?;
            close(file)
        };
        let done = write();
        match &done {
            Ok(()) => self.settle(begun),
            Err(_) => self.doubt(&[&name]),
        }
        (format!("overwriting {name}"), done)
    }

    /// To a new name, or over another file.
    fn rename(&mut self) -> (String, io::Result<()>) {
        let (from, content) = self.pick();
        let to = match self.rng.random_bool(0.5) {
            true => self.pick().0,
            false => self.new_name(),
        };
        if to == from {
            return ("nothing".into(), Ok(()));
        }
        self.may_be(&from, State::Absent);
        self.may_be(&to, State::Whole(content.clone()));
        let begun = Instant::now();
        let done = fs::rename(self.dir.join(&from), self.dir.join(&to));
        match &done {
            Ok(()) => self.settle(begun),
            Err(_) => {
                self.doubt(&[&from, &to]);
                self.renaming = Some((from.clone(), to.clone(), content));
            }
        }
        (format!("renaming {from} to {to}"), done)
    }

    /// Durable only with what follows.
    fn unlink(&mut self) -> (String, io::Result<()>) {
        let (name, _) = self.pick();
        self.may_be(&name, State::Absent);
        let done = fs::remove_file(self.dir.join(&name));
        if done.is_err() {
            self.doubt(&[&name]);
        }
        (format!("removing {name}"), done)
    }

    /// Removes what is more than so many names.
    pub fn prune(&mut self, most: usize) {
        while self.known() > most {
            if let (what, Err(e)) = self.unlink() {
                self.errors.push((what, e, Duration::ZERO));
                return;
            }
        }
    }

    /// Everything is as it may be, and there is nothing else. After a remount (`certain`) what is
    /// found is durable.
    pub fn verify(&mut self, certain: bool) {
        let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in fs::read_dir(&self.dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let bytes = fs::read(entry.path());
            let bytes = bytes.unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
            assert!(
                self.names.contains_key(&name),
                "{name} was removed, or never made"
            );
            found.insert(name, bytes);
        }
        let names = std::mem::take(&mut self.names);
        for (name, states) in &names {
            let bytes = found.get(name).map(Vec::as_slice);
            let Some(state) = states.iter().rev().find(|state| state.is(bytes)) else {
                let states: Vec<&State> = states.iter().rev().take(4).collect();
                panic!(
                    "{} has {:?} bytes; it may only be {states:?} (newest first)",
                    self.dir.join(name).display(),
                    bytes.map(<[u8]>::len)
                );
            };
            let is = match (state, bytes) {
                (State::Begun(content), Some(bytes)) => State::Whole(Content {
                    len: bytes.len(),
                    ..content.clone()
                }),
                (state, _) => state.clone(),
            };
            // What a live mount shows may still be lost with it.
            let kept = match certain {
                true => vec![is],
                false => states.clone(),
            };
            self.names.insert(name.clone(), kept);
        }
        if let Some((from, to, content)) = &self.renaming
            && certain
            // Short ones may be alike.
            && content.len > 8
        {
            let arrived = found.get(to).is_some_and(|bytes| content.is(bytes));
            let left = !found.contains_key(from);
            assert!(arrived == left, "half a rename of {from} to {to}");
        }
        if certain {
            self.renaming = None;
            self.doubtful.clear();
            // An empty file cannot be overwritten.
            self.names.retain(|name, states| match &states[..] {
                [State::Absent] => false,
                [State::Whole(content)] if content.len == 0 => {
                    fs::remove_file(self.dir.join(name)).unwrap();
                    false
                }
                _ => true,
            });
            File::open(&self.dir).unwrap().sync_all().unwrap();
        }
    }
}

/// close(2) with its result: here it is what acknowledges.
fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    nix::unistd::close(file.into_raw_fd()).map_err(io::Error::from)
}

pub fn verify(writers: &mut [Writer], certain: bool) {
    std::thread::scope(|scope| {
        for writer in writers {
            scope.spawn(|| writer.verify(certain));
        }
    });
}

/// The number in an environment variable.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// `STOWFS_TEST_SEED`, or a new one, which is printed.
pub fn seed(what: &str) -> u64 {
    let seed = number("STOWFS_TEST_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("{what}: seed {seed} (STOWFS_TEST_SEED={seed} chooses it)");
    seed
}

/// Kills a mount under load `rounds` times; each time all that was acknowledged is found.
pub fn kill_again_and_again(mount: &mut super::mount::Mount, what: &str, rounds: u64) {
    let seed = seed(what);
    let rounds = number("STOWFS_TEST_ROUNDS").unwrap_or(rounds);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut writers = writers(&mount.path(), 4, seed);
    for round in 0..rounds {
        let life = Duration::from_millis(rng.random_range(200..2500));
        let stop = AtomicBool::new(false);
        run(&mut writers, &stop, || {
            std::thread::sleep(life);
            mount.kill9();
        });
        let begun = Instant::now();
        mount.remount();
        let remount = begun.elapsed();
        verify(&mut writers, true);
        let acknowledged: usize = writers.iter().map(|w| w.acknowledged.len()).sum();
        println!(
            "round {round}: killed after {life:?}, mounted after {remount:?}, {acknowledged} \
             acknowledgements so far"
        );
    }
    let acknowledged: usize = writers.iter().map(|w| w.acknowledged.len()).sum();
    assert!(acknowledged as u64 > rounds * 5, "{acknowledged}");
}
