//! Random calls of the whole operation set, on a volume in memory and on a simple model: same
//! results, same trees, also after remounts. `STOWFS_SEED=n` replays one seed.

#[path = "support/model.rs"]
mod model;
#[path = "support/seeds.rs"]
mod seeds;
#[path = "support/sim.rs"]
mod sim;

use bytes::Bytes;
use model::{Inode, Model, ROOT};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sim::{Open, Sim};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::fs::{Fs, FsOptions, SetAttr, SetTime, WriteMode};
use stowfs::index::Index;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use stowfs::volume::{OpenOptions, Volume};

/// Files up to this size go into the log, longer ones to a lane.
const SMALL: u64 = 3000;
const MAX_FILE: usize = 20_000;

async fn open(store: &Arc<dyn Store>, rng: &mut StdRng) -> Arc<Fs> {
    let options = OpenOptions::new(Config {
        segment_size: 64 << 10,
        block_size: 4 << 10,
        small_file: SMALL,
        // Sometimes so little that writers push others' bytes out.
        write_buffer: if rng.random() { 16 << 10 } else { 64 << 20 },
        ..Config::default()
    });
    let volume = Volume::open(store.clone(), options).await.expect("open");
    Fs::new(volume, FsOptions::default())
}

impl Sim {
    async fn make(&mut self) {
        let (dir, name, who) = (self.dir(), self.name(), self.caller());
        let kind = *[
            libc::S_IFREG,
            libc::S_IFREG,
            libc::S_IFDIR,
            libc::S_IFLNK,
            libc::S_IFIFO,
        ]
        .choose(&mut self.rng)
        .expect("not empty");
        let mode = kind
            | *[0o644, 0o755, 0o2755, 0o6755]
                .choose(&mut self.rng)
                .expect("not empty");
        let mode = if kind == libc::S_IFLNK {
            kind | 0o777
        } else {
            mode
        };
        let new = Inode {
            mode,
            uid: who.uid,
            gid: who.gid,
            target: if kind == libc::S_IFLNK {
                name.to_vec()
            } else {
                Vec::new()
            },
            ..Inode::default()
        };
        let parent = self.ino(dir);
        let want = self.model.make(dir, &name, new);
        let mut handle = None;
        let n = name.clone();
        let entry = match kind {
            libc::S_IFDIR => self.fs.mkdir(who, parent, n, mode, 0).await,
            libc::S_IFLNK => self.fs.symlink(who, parent, n, name.clone()).await,
            libc::S_IFREG if self.rng.random() => {
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
                let made = self.fs.create(who, parent, n, mode, 0, flags).await;
                handle = made.as_ref().ok().map(|(_, fh)| *fh);
                made.map(|(entry, _)| entry)
            }
            _ => self.fs.mknod(who, parent, n, mode, 0, 0).await,
        };
        let what = format!("make {mode:o} {name:?} in {dir}");
        self.same(
            what,
            entry.as_ref().map(|_| ()).map_err(|e| *e),
            want.map(|_| ()),
        );
        if let (Ok(entry), Ok(id)) = (entry, want) {
            self.told(id, &entry);
            self.open.extend(handle.map(|fh| Open { id, fh }));
        }
    }

    async fn names(&mut self) {
        let (d1, d2, n1, n2, who) = (
            self.dir(),
            self.dir(),
            self.name(),
            self.name(),
            self.caller(),
        );
        let (p1, p2) = (self.ino(d1), self.ino(d2));
        match self.rng.random_range(0..10) {
            0..2 => {
                let want = self.model.unlink(d1, &n1).map(|_| ());
                let real = self.fs.unlink(who, p1, n1.clone()).await;
                self.same(format!("unlink {d1}/{n1:?}"), real, want);
            }
            2 => {
                let want = self.model.rmdir(d1, &n1).map(|_| ());
                let real = self.fs.rmdir(who, p1, n1.clone()).await;
                self.same(format!("rmdir {d1}/{n1:?}"), real, want);
            }
            3..7 => {
                let flags = *[0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]
                    .choose(&mut self.rng)
                    .expect("not empty");
                let want = self.model.rename(d1, &n1, d2, &n2, flags);
                let real = self
                    .fs
                    .rename(who, p1, n1.clone(), p2, n2.clone(), flags)
                    .await;
                self.same(
                    format!("rename {d1}/{n1:?} {d2}/{n2:?} {flags}"),
                    real,
                    want,
                );
            }
            7 => {
                let Some(id) = self.pick(|_| true) else {
                    return;
                };
                let want = self.model.link(id, d1, &n1);
                let real = self.fs.link(self.ino(id), p1, n1.clone()).await;
                if let Ok(entry) = &real {
                    self.told(id, entry);
                }
                self.same(format!("link {id} {d1}/{n1:?}"), real.map(|_| ()), want);
            }
            _ => {
                let want = self.model.find(d1, &n1);
                let real = self.fs.lookup(p1, n1.clone()).await;
                if let (Ok(entry), Ok(id)) = (&real, want) {
                    self.told(id, entry);
                }
                self.same(
                    format!("lookup {d1}/{n1:?}"),
                    real.map(|_| ()),
                    want.map(|_| ()),
                );
            }
        }
        self.sweep();
    }

    async fn handles(&mut self) {
        if self.open.len() < 8
            && let Some(id) = self.pick(Inode::is_file)
        {
            let opened = self
                .fs
                .open(self.ino(id), libc::O_RDWR)
                .await
                .expect("open");
            self.log.push(format!("open {id}"));
            self.open.push(Open { id, fh: opened.fh });
        }
        if self.open.is_empty() || self.rng.random() {
            return;
        }
        let at = self.rng.random_range(0..self.open.len());
        let Open { id, fh } = self.open[at];
        let ino = self.ino(id);
        match self.rng.random_range(0..4) {
            0 => {
                let real = self.fs.fsync(ino, fh, false).await;
                self.same(format!("fsync {id}"), real, Ok(()));
            }
            1 => {
                let real = self.fs.flush(ino, fh, 0).await;
                self.same(format!("flush {id}"), real, Ok(()));
            }
            _ => {
                self.open.remove(at);
                let real = self.fs.release(ino, fh).await;
                self.same(format!("release {id}"), real, Ok(()));
                self.sweep();
            }
        }
    }

    fn range(&mut self, size: usize) -> (usize, usize) {
        let off = match self.rng.random_range(0..3) {
            0 => size,
            1 => self.rng.random_range(0..=size),
            _ => self.rng.random_range(0..MAX_FILE),
        };
        let len = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(1..50),
            1 => self.rng.random_range(1..2000),
            _ => self.rng.random_range(1..9000),
        };
        (off, len)
    }

    async fn content(&mut self) {
        let Some(Open { id, fh }) = self.open.choose(&mut self.rng).copied() else {
            return;
        };
        let (ino, size, who) = (self.ino(id), self.model.of(id).data.len(), self.caller());
        let root = who.uid == 0;
        let (off, len) = self.range(size);
        match self.rng.random_range(0..14) {
            0..5 => {
                let mut data = vec![0; len];
                self.rng.fill(&mut data[..]);
                self.model.write(id, off, &data);
                let mode = WriteMode {
                    cached: self.rng.random_bool(0.1),
                    ..WriteMode::default()
                };
                let real = self.fs.write(ino, fh, off as u64, data.into(), mode).await;
                self.same(format!("write {id} {off} {len}"), real, Ok(len as u32));
            }
            5..8 => self.read(Open { id, fh }, off, len).await,
            8 => {
                let set = SetAttr {
                    size: Some(off as u64),
                    ..SetAttr::default()
                };
                self.model.truncate(id, off, root);
                let real = self.fs.setattr(who, ino, set).await.map(|s| s.attr.size);
                self.same(format!("truncate {id} {off}"), real, Ok(off as u64));
            }
            9 => {
                const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
                let mode = *[
                    0,
                    KEEP,
                    KEEP | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                    KEEP | libc::FALLOC_FL_ZERO_RANGE,
                ]
                .choose(&mut self.rng)
                .expect("not empty");
                self.model.fallocate(id, off, len, mode, root);
                let real = self
                    .fs
                    .fallocate(who, ino, fh, off as u64, len as u64, mode)
                    .await;
                self.same(format!("fallocate {id} {off} {len} {mode}"), real, Ok(()));
            }
            10..12 => {
                let to = self.open.choose(&mut self.rng).copied().expect("not empty");
                let at = self.rng.random_range(0..MAX_FILE);
                let want = self.model.clone_range(id, off, to.id, at, len);
                let real = self
                    .fs
                    .copy_file_range(
                        who,
                        ino,
                        fh,
                        off as u64,
                        self.ino(to.id),
                        to.fh,
                        at as u64,
                        len as u64,
                    )
                    .await;
                if !root && matches!(want, Ok(n) if n > 0) {
                    self.model.lose_suid(to.id);
                }
                self.same(
                    format!("clone {id} {off} {len} to {} {at}", to.id),
                    real,
                    want,
                );
            }
            _ => {
                let whence = *[libc::SEEK_DATA, libc::SEEK_HOLE]
                    .choose(&mut self.rng)
                    .expect("not empty");
                let want = self.model.seek(id, off, whence);
                let real = self.fs.lseek(ino, fh, off as u64, whence).await;
                self.same(format!("seek {id} {off} {whence}"), real, want);
            }
        }
    }

    async fn attributes(&mut self) {
        let Some(id) = self.pick(|_| true) else {
            return;
        };
        let (ino, who) = (self.ino(id), self.caller());
        let name = Bytes::from(format!("user.{}", self.rng.random_range(0..3)));
        let kind = self.model.of(id).kind();
        match self.rng.random_range(0..6) {
            0 => {
                let mode = *[0o600, 0o4711, 0o6755, 0o2755]
                    .choose(&mut self.rng)
                    .expect("not empty");
                self.model.of(id).mode = kind | mode;
                let set = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                let real = self.fs.setattr(who, ino, set).await.map(|s| s.attr.mode);
                self.same(format!("chmod {id} {mode:o}"), real, Ok(kind | mode));
            }
            1 => {
                let uid = self.rng.random_range(0..5);
                self.model.chown(id, uid, uid + 1);
                let set = SetAttr {
                    uid: Some(uid),
                    gid: Some(uid + 1),
                    ..SetAttr::default()
                };
                let real = self.fs.setattr(who, ino, set).await.map(|s| s.attr.gid);
                self.same(format!("chown {id} {uid}"), real, Ok(uid + 1));
            }
            2 => {
                let time = self.rng.random_range(-1000..1000);
                self.model.of(id).mtime = Some(time);
                let set = SetAttr {
                    mtime: Some(SetTime::At(time)),
                    ..SetAttr::default()
                };
                let real = self.fs.setattr(who, ino, set).await.map(|s| s.attr.mtime);
                self.same(format!("utimes {id} {time}"), real, Ok(time));
            }
            3..5 => {
                let flags = *[0, libc::XATTR_CREATE, libc::XATTR_REPLACE]
                    .choose(&mut self.rng)
                    .expect("not empty");
                let value = Bytes::from(vec![7; self.rng.random_range(0..20)]);
                let xattrs = &mut self.model.of(id).xattrs;
                let want = match (xattrs.contains_key(&name[..]), flags) {
                    (true, libc::XATTR_CREATE) => Err(libc::EEXIST),
                    (false, libc::XATTR_REPLACE) => Err(libc::ENODATA),
                    _ => {
                        xattrs.insert(name.to_vec(), value.to_vec());
                        Ok(())
                    }
                };
                let real = self.fs.setxattr(who, ino, name.clone(), value, flags).await;
                self.same(format!("setxattr {id} {name:?} {flags}"), real, want);
            }
            _ => {
                let had = self.model.of(id).xattrs.remove(&name[..]);
                let want = had.map(|_| ()).ok_or(libc::ENODATA);
                let real = self.fs.removexattr(who, ino, name.clone()).await;
                self.same(format!("removexattr {id} {name:?}"), real, want);
            }
        }
    }
}

async fn close_all(sim: &mut Sim) {
    for Open { id, fh } in std::mem::take(&mut sim.open) {
        let ino = sim.ino(id);
        sim.fs.flush(ino, fh, 0).await.expect("flush");
        sim.fs.release(ino, fh).await.expect("release");
    }
    sim.sweep();
}

async fn run(seed: u64, steps: usize) {
    let cluster = MemoryCluster::new(seed);
    let store: Arc<dyn Store> = cluster.host("one");
    let mut rng = StdRng::seed_from_u64(seed);
    let fs = open(&store, &mut rng).await;
    let root = fs.getattr(Ino::ROOT).await.expect("root").attr;
    let mut sim = Sim {
        rng,
        model: Model::new(Inode {
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
            nlink: 2,
            ..Inode::default()
        }),
        inos: BTreeMap::from([(ROOT, Ino::ROOT)]),
        lookups: BTreeMap::new(),
        open: Vec::new(),
        fs,
        log: Vec::new(),
    };
    for step in 0..steps {
        match sim.rng.random_range(0..24) {
            0..3 => sim.make().await,
            3..7 => sim.names().await,
            7..10 => sim.handles().await,
            10..20 => sim.content().await,
            20..22 => sim.attributes().await,
            22 => {
                let n = sim.rng.random_range(1..3000);
                sim.log.push(format!("{n} ms pass"));
                tokio::time::sleep(Duration::from_millis(n)).await;
            }
            _ if sim.rng.random_bool(0.1) => remount(&mut sim, &store).await,
            _ => {}
        }
        if step % 50 == 0 {
            sim.compare().await;
        }
    }
    sim.compare().await;
    remount(&mut sim, &store).await;
    sim.compare().await;
    let held = sim.fs.held();
    if held[1..] != [0, 0, 0] {
        sim.fail(format!("nodes, dirty inodes, handles left: {held:?}"));
    }
}

async fn remount(sim: &mut Sim, store: &Arc<dyn Store>) {
    sim.log.push("remount".into());
    close_all(sim).await;
    sim.fs.sync_all().await.expect("sync_all");
    sim.fs.volume().shutdown().await.expect("shutdown");
    let fs = open(store, &mut sim.rng).await;
    sim.fs = fs;
    sim.lookups.clear();
    let left = sim.fs.volume().read(Index::nameless);
    assert_eq!(left, Vec::new(), "inodes without a name outlived a mount");
}

#[test]
fn random_calls_do_what_a_simple_model_does() {
    seeds::each("filesystem model", 60, |seed| run(seed, 600));
}
