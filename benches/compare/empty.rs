//! A filesystem that keeps names and drops bytes: the most that FUSE can do with the same options.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use nix::mount::{MntFlags, umount2};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// How long the kernel remembers names and attributes.
pub const TTL: Duration = Duration::from_secs(1);
const MAX_IO: u32 = 1 << 20;

/// What is agreed with fuser and the kernel.
#[derive(Clone, Copy)]
pub struct Options {
    pub threads: usize,
    pub clone_fd: bool,
    pub max_write: u32,
    pub writeback: bool,
    /// Bytes; only root can set it.
    pub readahead: u32,
    /// How long the kernel remembers names and attributes.
    pub ttl: Duration,
    /// Bytes are kept (one file's at a time) in memory, and checksums made of what is written and read: the
    /// least that a filesystem does with them.
    pub keeps: bool,
}

impl Default for Options {
    /// As stowfs by default.
    fn default() -> Options {
        Options {
            threads: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
            clone_fd: true,
            max_write: MAX_IO,
            writeback: false,
            readahead: MAX_IO,
            ttl: TTL,
            keeps: false,
        }
    }
}

/// The mount; it goes away with this.
pub struct Empty {
    dir: Option<TempDir>,
}

impl Empty {
    pub fn mount() -> Empty {
        Empty::with(Options::default())
    }

    pub fn with(options: Options) -> Empty {
        let dir = tempfile::Builder::new()
            .prefix("bench-empty-")
            .tempdir()
            .expect("a directory");
        let mut config = fuser::Config::default();
        config.mount_options = vec![
            MountOption::FSName("empty".into()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        config.acl = SessionACL::Owner;
        config.n_threads = Some(options.threads);
        config.clone_fd = options.clone_fd;
        let session = Session::new(Names::new(options), dir.path(), &config).expect("a mount");
        let background = session.spawn().expect("a session");
        // Its own unmounting fails while files are open.
        std::mem::forget(background);
        read_far_ahead(dir.path(), options.readahead);
        Empty { dir: Some(dir) }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.as_ref().expect("mounted").path().to_path_buf()
    }
}

fn read_far_ahead(dir: &Path, bytes: u32) {
    let device = nix::sys::stat::stat(dir).expect("stat").st_dev;
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(e) = std::fs::write(&setting, (bytes / 1024).to_string()) {
        println!("  {setting}: {e}");
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        if umount2(&self.path(), MntFlags::MNT_DETACH).is_err() {
            // Removing the directory would remove what is in the mount.
            let _kept = self.dir.take().map(TempDir::keep);
        }
    }
}

#[derive(Default)]
struct Directory {
    places: HashMap<OsString, usize>,
    /// A place is the offset for listing, so it stays.
    entries: Vec<Option<(OsString, u64, FileType)>>,
}

impl Directory {
    fn insert(&mut self, name: &OsStr, ino: u64, kind: FileType) {
        self.remove(name);
        self.places.insert(name.into(), self.entries.len());
        self.entries.push(Some((name.into(), ino, kind)));
    }

    fn get(&self, name: &OsStr) -> Option<(u64, FileType)> {
        let entry = self.entries[*self.places.get(name)?].as_ref()?;
        Some((entry.1, entry.2))
    }

    fn remove(&mut self, name: &OsStr) -> Option<(u64, FileType)> {
        let (_, ino, kind) = self.entries[self.places.remove(name)?].take()?;
        Some((ino, kind))
    }
}

struct Names {
    options: Options,
    next: AtomicU64,
    dirs: Mutex<HashMap<u64, Directory>>,
    /// Sizes of files that were written or cut.
    sizes: Mutex<HashMap<u64, u64>>,
    kept: Option<File>,
}

fn checksum(bytes: &[u8]) -> u32 {
    let blocks = bytes.chunks(64 << 10).map(crc32c::crc32c);
    blocks.fold(0, |all, crc| all ^ std::hint::black_box(crc))
}

impl Names {
    fn new(options: Options) -> Names {
        Names {
            options,
            next: AtomicU64::default(),
            dirs: Mutex::default(),
            sizes: Mutex::default(),
            kept: options
                .keeps
                .then(|| tempfile::tempfile_in("/dev/shm").expect("a file in memory")),
        }
    }

    fn attr(&self, ino: u64, kind: FileType) -> FileAttr {
        let size = self.sizes.lock().unwrap().get(&ino).copied().unwrap_or(0);
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn kind(&self, ino: u64) -> FileType {
        match ino == 1 || self.dirs.lock().unwrap().contains_key(&ino) {
            true => FileType::Directory,
            false => FileType::RegularFile,
        }
    }

    fn make(&self, parent: INodeNo, name: &OsStr, kind: FileType) -> FileAttr {
        let ino = 2 + self.next.fetch_add(1, Ordering::Relaxed);
        let mut dirs = self.dirs.lock().unwrap();
        dirs.entry(parent.0).or_default().insert(name, ino, kind);
        if kind == FileType::Directory {
            dirs.insert(ino, Directory::default());
        }
        drop(dirs);
        self.attr(ino, kind)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut dirs = self.dirs.lock().unwrap();
        match dirs.get_mut(&parent.0).and_then(|d| d.remove(name)) {
            Some((ino, _)) => {
                dirs.remove(&ino);
                drop(dirs);
                self.sizes.lock().unwrap().remove(&ino);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    /// The entries of a directory from an offset on, until `add` says that it is full.
    fn list(&self, ino: u64, from: u64, mut add: impl FnMut(&OsStr, u64, FileType, u64) -> bool) {
        let dirs = self.dirs.lock().unwrap();
        let Some(dir) = dirs.get(&ino) else { return };
        let places = dir.entries.iter().enumerate().skip(from as usize);
        for (place, entry) in places {
            if let Some((name, ino, kind)) = entry
                && add(name, *ino, *kind, place as u64 + 1)
            {
                return;
            }
        }
    }
}

impl Filesystem for Names {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // A kernel without it goes on without it.
            let _ = config.add_capabilities(flag);
        }
        if self.options.writeback {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let _ = config.set_max_write(self.options.max_write);
        let _ = config.set_max_background(64);
        if let Err(most) = config.set_max_readahead(MAX_IO) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = {
            let dirs = self.dirs.lock().unwrap();
            dirs.get(&parent.0).and_then(|d| d.get(name))
        };
        match found {
            Some((ino, kind)) => {
                reply.entry(&self.options.ttl, &self.attr(ino, kind), Generation(0))
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.options.ttl, &self.attr(ino.0, self.kind(ino.0)));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            self.sizes.lock().unwrap().insert(ino.0, size);
        }
        reply.attr(&self.options.ttl, &self.attr(ino.0, self.kind(ino.0)));
    }

    fn mknod(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let attr = self.make(parent, name, FileType::RegularFile);
        reply.entry(&self.options.ttl, &attr, Generation(0));
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let attr = self.make(parent, name, FileType::Directory);
        reply.entry(&self.options.ttl, &attr, Generation(0));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut dirs = self.dirs.lock().unwrap();
        let moved = dirs.get_mut(&parent.0).and_then(|d| d.remove(name));
        match moved {
            Some((ino, kind)) => {
                let to = dirs.entry(newparent.0).or_default();
                to.insert(newname, ino, kind);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let attr = self.make(parent, name, FileType::RegularFile);
        let flags = FopenFlags::FOPEN_KEEP_CACHE;
        reply.created(
            &self.options.ttl,
            &attr,
            Generation(0),
            FileHandle(0),
            flags,
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(kept) = &self.kept {
            let len = self.sizes.lock().unwrap().get(&ino.0).copied().unwrap_or(0);
            let len = len.saturating_sub(offset).min(size.into());
            let mut data = vec![0; len as usize];
            kept.read_exact_at(&mut data, offset).expect("read");
            checksum(&data);
            return reply.data(&data);
        }
        static ZEROS: [u8; MAX_IO as usize] = [0; MAX_IO as usize];
        reply.data(&ZEROS[..(size as usize).min(ZEROS.len())]);
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(kept) = &self.kept {
            checksum(data);
            kept.write_all_at(data, offset).expect("write");
        }
        let end = offset + data.len() as u64;
        let mut sizes = self.sizes.lock().unwrap();
        let size = sizes.entry(ino.0).or_default();
        *size = end.max(*size);
        drop(sizes);
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.list(ino.0, offset, |name, ino, kind, next| {
            reply.add(INodeNo(ino), next, kind, name)
        });
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.list(ino.0, offset, |name, ino, kind, next| {
            let attr = self.attr(ino, kind);
            reply.add(
                INodeNo(ino),
                next,
                name,
                &self.options.ttl,
                &attr,
                Generation(0),
            )
        });
        reply.ok();
    }
}
