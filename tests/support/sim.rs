//! The state of a simulated kernel that calls the filesystem and the model alike, and how the two are
//! compared.

use super::MAX_FILE;
use super::model::{Id, Inode, Model};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use stowfs::base::Ino;
use stowfs::fs::{Caller, Entry, Errno, Fh, Fs};
use stowfs::index::Index;

/// A file that is open, and the kernel's reference to it.
#[derive(Clone, Copy)]
pub struct Open {
    pub id: Id,
    pub fh: Fh,
}

pub struct Sim {
    pub rng: StdRng,
    pub fs: Arc<Fs>,
    pub model: Model,
    pub inos: BTreeMap<Id, Ino>,
    /// The kernel's references.
    pub lookups: BTreeMap<Id, u64>,
    pub open: Vec<Open>,
    pub log: Vec<String>,
}

impl Sim {
    pub fn ino(&self, id: Id) -> Ino {
        self.inos[&id]
    }

    pub fn name(&mut self) -> Bytes {
        Bytes::from_owner([b'a' + self.rng.random_range(0..6)])
    }

    pub fn pick(&mut self, want: impl Fn(&Inode) -> bool) -> Option<Id> {
        let named = |i: &Inode| i.nlink > 0 && want(i);
        let all = self.model.inodes.iter().filter(|(_, i)| named(i));
        let all: Vec<Id> = all.map(|(id, _)| *id).collect();
        all.choose(&mut self.rng).copied()
    }

    pub fn dir(&mut self) -> Id {
        self.pick(Inode::is_dir).expect("there is always the root")
    }

    pub fn caller(&mut self) -> Caller {
        let uid = *[0, 1000].choose(&mut self.rng).expect("not empty");
        Caller {
            uid,
            gid: uid,
            pid: 1,
        }
    }

    #[track_caller]
    pub fn same<T: PartialEq + Debug>(
        &mut self,
        what: String,
        real: Result<T, Errno>,
        want: Result<T, i32>,
    ) {
        let real = real.map_err(|e| e.0);
        self.log.push(format!("{what} -> {want:?}"));
        if real != want {
            self.fail(format!("{what}: {real:?}, should be {want:?}"));
        }
    }

    #[track_caller]
    pub fn fail(&self, text: String) -> ! {
        for line in self.log.iter().rev().take(40).rev() {
            eprintln!("{line}");
        }
        panic!("{text}");
    }

    pub fn told(&mut self, id: Id, entry: &Entry) {
        let known = *self.inos.entry(id).or_insert(entry.ino);
        assert_eq!(known, entry.ino, "an inode number changed or was reused");
        *self.lookups.entry(id).or_default() += 1;
    }

    /// What nobody needs any more is gone from the model as well.
    pub fn sweep(&mut self) {
        let gone: Vec<Id> = self
            .model
            .inodes
            .iter()
            .filter(|(_, i)| i.nlink == 0)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if self.open.iter().any(|o| o.id == id) {
                continue;
            }
            let n = self.lookups.remove(&id).unwrap_or(0);
            let ino = self.inos.remove(&id);
            self.model.inodes.remove(&id);
            if let Some(ino) = ino {
                self.fs.forget(ino, n);
                let left = self.fs.volume().read(|index| index.attr(ino));
                if left.is_some() {
                    self.fail(format!("{ino:?} was not freed"));
                }
            }
        }
    }

    pub async fn read(&mut self, open: Open, off: usize, len: usize) {
        let all = self.model.of(open.id).bytes();
        let want = all[off.min(all.len())..(off + len).min(all.len())].to_vec();
        let real = self
            .fs
            .read(self.ino(open.id), open.fh, off as u64, len)
            .await;
        let what = format!("read {} {off} {len}", open.id);
        match real {
            Ok(bytes) if bytes == want => self.log.push(what),
            Ok(bytes) => {
                let at = bytes.iter().zip(&want).position(|(a, b)| a != b);
                self.fail(format!(
                    "{what}: {} bytes of {}, differ at {at:?}",
                    bytes.len(),
                    want.len()
                ));
            }
            Err(e) => self.fail(format!("{what}: {e}")),
        }
    }

    /// Compares the whole tree, and every open file.
    pub async fn compare(&mut self) {
        let ids: Vec<Id> = self.model.inodes.keys().copied().collect();
        for id in ids {
            let want = self.model.of(id).clone();
            let ino = self.ino(id);
            let stat = match self.fs.getattr(ino).await {
                Ok(stat) => stat,
                Err(e) => self.fail(format!("getattr {id}: {e}")),
            };
            let a = stat.attr;
            let size = if want.is_file() {
                want.data.len()
            } else {
                want.target.len()
            };
            let real = (a.mode, a.uid, a.gid, a.nlink, a.size);
            if real != (want.mode, want.uid, want.gid, want.nlink, size as u64) {
                self.fail(format!(
                    "attributes of {id}: {a:?}, should be {:o} {} {} {} {size}",
                    want.mode, want.uid, want.gid, want.nlink
                ));
            }
            if want.mtime.is_some_and(|t| t != a.mtime) {
                self.fail(format!(
                    "mtime of {id}: {}, was set to {:?}",
                    a.mtime, want.mtime
                ));
            }
            if want.is_file() {
                self.read(Open { id, fh: Fh(0) }, 0, MAX_FILE * 2).await;
            }
            if want.is_dir() {
                let mut expected: Vec<(Vec<u8>, Ino)> = want
                    .entries
                    .iter()
                    .map(|(n, id)| (n.clone(), self.ino(*id)))
                    .collect();
                expected.sort();
                let listed = list(&self.fs, ino).await;
                if want.nlink > 0 && listed != expected {
                    self.fail(format!(
                        "entries of {id}: {listed:?}, should be {expected:?}"
                    ));
                }
            }
            if !want.target.is_empty() {
                let real = self.fs.readlink(ino).await;
                self.same(format!("readlink {id}"), real, Ok(want.target.into()));
            }
            for (name, value) in &want.xattrs {
                let real = self.fs.getxattr(ino, name.clone().into()).await;
                self.same(format!("getxattr {id}"), real, Ok(value.clone().into()));
            }
        }
        let bad = self.fs.volume().read(Index::check);
        if !bad.is_empty() {
            self.fail(format!("index: {bad:#?}"));
        }
    }
}

async fn list(fs: &Arc<Fs>, ino: Ino) -> Vec<(Vec<u8>, Ino)> {
    let fh = fs.opendir(ino, 0).await.expect("opendir");
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let some = fs.readdir(ino, fh, cookie, 3).await.expect("readdir");
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        all.extend(some.into_iter().map(|i| (i.name.to_vec(), i.ino)));
    }
    fs.releasedir(ino, fh).await.expect("releasedir");
    all.retain(|(name, _)| !matches!(&name[..], b"." | b".."));
    all.sort();
    all
}
