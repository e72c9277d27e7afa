//! A filesystem as one would write it without caring for time, space or crashes.

use std::collections::BTreeMap;

pub type Id = usize;
pub type Outcome<T> = Result<T, i32>;

pub const ROOT: Id = 0;

#[derive(Clone, Default, Debug)]
pub struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// None where nothing was ever written: a hole.
    pub data: Vec<Option<u8>>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub entries: BTreeMap<Vec<u8>, Id>,
    pub parent: Id,
    /// What utimes set, until the content changes.
    pub mtime: Option<i64>,
}

impl Inode {
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
    pub fn bytes(&self) -> Vec<u8> {
        self.data.iter().map(|b| b.unwrap_or(0)).collect()
    }
    fn lose_suid(&mut self) {
        if !self.is_dir() {
            let group = if self.mode & 0o010 != 0 { 0o2000 } else { 0 };
            self.mode &= !(0o4000 | group);
        }
    }
}

#[derive(Clone, Default, Debug)]
pub struct Model {
    pub inodes: BTreeMap<Id, Inode>,
    next: Id,
}

impl Model {
    pub fn new(root: Inode) -> Model {
        Model {
            inodes: BTreeMap::from([(ROOT, root)]),
            next: 1,
        }
    }

    pub fn of(&mut self, id: Id) -> &mut Inode {
        self.inodes
            .get_mut(&id)
            .expect("the test names inodes that exist")
    }

    fn dir(&mut self, id: Id) -> Outcome<&mut Inode> {
        let dir = self.of(id);
        dir.is_dir().then_some(dir).ok_or(libc::ENOTDIR)
    }

    pub fn find(&mut self, dir: Id, name: &[u8]) -> Outcome<Id> {
        let found = self.dir(dir)?.entries.get(name).copied();
        found.ok_or(libc::ENOENT)
    }

    pub fn make(&mut self, dir: Id, name: &[u8], mut new: Inode) -> Outcome<Id> {
        let id = self.next;
        let is_dir = new.is_dir();
        let d = self.dir(dir)?;
        if d.nlink == 0 {
            return Err(libc::ENOENT);
        }
        if d.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        if d.mode & 0o2000 != 0 {
            new.gid = d.gid;
            new.mode |= if is_dir { 0o2000 } else { 0 };
        }
        d.entries.insert(name.to_vec(), id);
        d.nlink += is_dir as u32;
        d.mtime = None;
        new.nlink = 1 + is_dir as u32;
        new.parent = dir;
        self.inodes.insert(id, new);
        self.next += 1;
        Ok(id)
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Outcome<()> {
        if self.of(id).is_dir() {
            return Err(libc::EPERM);
        }
        if self.of(id).nlink == 0 {
            return Err(libc::ENOENT);
        }
        let d = self.dir(dir)?;
        if d.nlink == 0 {
            return Err(libc::ENOENT);
        }
        if d.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        d.entries.insert(name.to_vec(), id);
        d.mtime = None;
        self.of(id).nlink += 1;
        Ok(())
    }

    pub fn unlink(&mut self, dir: Id, name: &[u8]) -> Outcome<Id> {
        let id = self.find(dir, name)?;
        if self.of(id).is_dir() {
            return Err(libc::EISDIR);
        }
        self.of(dir).entries.remove(name);
        self.of(dir).mtime = None;
        self.of(id).nlink -= 1;
        Ok(id)
    }

    pub fn rmdir(&mut self, dir: Id, name: &[u8]) -> Outcome<Id> {
        let id = self.find(dir, name)?;
        if !self.of(id).is_dir() {
            return Err(libc::ENOTDIR);
        }
        if !self.of(id).entries.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.of(dir).entries.remove(name);
        self.of(dir).nlink -= 1;
        self.of(dir).mtime = None;
        self.of(id).nlink = 0;
        Ok(id)
    }

    fn is_below(&mut self, mut id: Id, above: Id) -> bool {
        loop {
            if id == above {
                return true;
            }
            if id == ROOT {
                return false;
            }
            id = self.of(id).parent;
        }
    }

    pub fn rename(&mut self, d1: Id, n1: &[u8], d2: Id, n2: &[u8], flags: u32) -> Outcome<()> {
        let id = self.find(d1, n1)?;
        if self.dir(d2)?.nlink == 0 {
            return Err(libc::ENOENT);
        }
        let target = self.dir(d2)?.entries.get(n2).copied();
        if flags & libc::RENAME_EXCHANGE != 0 {
            return self.exchange(id, d1, n1, d2, n2);
        }
        if target.is_some() && flags & libc::RENAME_NOREPLACE != 0 {
            return Err(libc::EEXIST);
        }
        if target == Some(id) {
            return Ok(());
        }
        let is_dir = self.of(id).is_dir();
        if is_dir && self.is_below(d2, id) {
            return Err(libc::EINVAL);
        }
        if let Some(target) = target {
            let gone = self.of(target);
            match (is_dir, gone.is_dir()) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !gone.entries.is_empty() => return Err(libc::ENOTEMPTY),
                (true, true) => {
                    gone.nlink = 0;
                    self.of(d2).nlink -= 1;
                }
                (false, false) => gone.nlink -= 1,
            }
        }
        self.of(d1).entries.remove(n1);
        self.of(d2).entries.insert(n2.to_vec(), id);
        self.of(d1).mtime = None;
        self.of(d2).mtime = None;
        if is_dir {
            self.of(d1).nlink -= 1;
            self.of(d2).nlink += 1;
            self.of(id).parent = d2;
        }
        Ok(())
    }

    fn exchange(&mut self, a: Id, d1: Id, n1: &[u8], d2: Id, n2: &[u8]) -> Outcome<()> {
        let b = self.find(d2, n2)?;
        if a == b {
            return Ok(());
        }
        let (a_dir, b_dir) = (self.of(a).is_dir(), self.of(b).is_dir());
        if a_dir && self.is_below(d2, a) || b_dir && self.is_below(d1, b) {
            return Err(libc::EINVAL);
        }
        for (id, is_dir, from, to, name) in [(a, a_dir, d1, d2, n2), (b, b_dir, d2, d1, n1)] {
            self.of(to).entries.insert(name.to_vec(), id);
            self.of(from).mtime = None;
            if is_dir {
                self.of(from).nlink -= 1;
                self.of(to).nlink += 1;
                self.of(id).parent = to;
            }
        }
        Ok(())
    }

    pub fn write(&mut self, id: Id, off: usize, data: &[u8]) {
        let f = self.of(id);
        let end = off + data.len();
        if f.data.len() < end {
            f.data.resize(end, None);
        }
        for (n, b) in data.iter().enumerate() {
            f.data[off + n] = Some(*b);
        }
        f.mtime = None;
    }

    pub fn truncate(&mut self, id: Id, size: usize, root: bool) {
        let f = self.of(id);
        f.data.resize(size, None);
        f.mtime = None;
        if !root {
            f.lose_suid();
        }
    }

    /// `mode` is one that is supported.
    pub fn fallocate(&mut self, id: Id, off: usize, len: usize, mode: i32, root: bool) {
        let f = self.of(id);
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zero = mode & !libc::FALLOC_FL_KEEP_SIZE != 0;
        if keep && !zero {
            return;
        }
        let end = (off + len).min(f.data.len());
        if zero && off < end {
            f.data[off..end].fill(None);
        }
        if zero || (!keep && off + len > f.data.len()) {
            f.mtime = None;
        }
        if !keep && off + len > f.data.len() {
            f.data.resize(off + len, None);
        }
        if !root {
            f.lose_suid();
        }
    }

    pub fn clone_range(
        &mut self,
        from: Id,
        a: usize,
        to: Id,
        b: usize,
        len: usize,
    ) -> Outcome<u64> {
        if from == to && a < b + len && b < a + len {
            return Err(libc::EINVAL);
        }
        let source = &self.of(from).data;
        let part = source[a.min(source.len())..(a + len).min(source.len())].to_vec();
        if part.is_empty() {
            return Ok(0);
        }
        let f = self.of(to);
        if f.data.len() < b + part.len() {
            f.data.resize(b + part.len(), None);
        }
        f.data[b..b + part.len()].copy_from_slice(&part);
        f.mtime = None;
        Ok(part.len() as u64)
    }

    pub fn lose_suid(&mut self, id: Id) {
        self.of(id).lose_suid();
    }

    pub fn chown(&mut self, id: Id, uid: u32, gid: u32) {
        let f = self.of(id);
        (f.uid, f.gid) = (uid, gid);
        f.lose_suid();
    }

    pub fn seek(&mut self, id: Id, off: usize, whence: i32) -> Outcome<u64> {
        let data = &self.of(id).data;
        if off >= data.len() {
            return Err(libc::ENXIO);
        }
        let wanted = |b: &Option<u8>| b.is_some() == (whence == libc::SEEK_DATA);
        match data[off..].iter().position(wanted) {
            Some(n) => Ok((off + n) as u64),
            None if whence == libc::SEEK_DATA => Err(libc::ENXIO),
            None => Ok(data.len() as u64),
        }
    }
}
