//! The run-dir: one lock file and one control socket for each mount on this host, and the log
//! files of daemons. Only its owner may look inside.

use crate::base::error::Context;
use crate::base::{Config, Error, ErrorKind, Result};
use crate::fuse::Mountpoint;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the option is called in the environment; some commands have no other options.
const VARIABLE: &str = "STOWFS_RUN_DIR";

/// Where this user's mounts keep their files.
pub fn path(configured: Option<&Path>) -> PathBuf {
    let uid = Uid::effective();
    let named = configured.map(Path::to_path_buf);
    let given = || std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty());
    let named = named.or_else(|| given().map(PathBuf::from));
    match (named, std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(path), _) => path,
        (None, _) if uid.is_root() => PathBuf::from("/run/stowfs"),
        (None, Some(xdg)) if !xdg.is_empty() => Path::new(&xdg).join("stowfs"),
        (None, _) => PathBuf::from(format!("/tmp/stowfs-{uid}")),
    }
}

/// Makes the run-dir, and refuses one that another user controls.
pub fn prepare(config: &Config) -> Result<PathBuf> {
    let dir = path(config.run_dir.as_deref());
    let naming = format!("run-dir {}", dir.display());
    // A daemon leaves the directory that a relative path begins at.
    let dir = std::path::absolute(dir).context(&naming)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .context(&naming)?;
    let found = dir.symlink_metadata().context(&naming)?;
    if !found.is_dir() || found.uid() != Uid::effective().as_raw() {
        let text = format!("{naming}: not a directory of yours; name another with --run-dir");
        return Err(Error::new(ErrorKind::Denied, text));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(&dir, Permissions::from_mode(0o700)).context(&naming)?;
    }
    Ok(dir)
}

/// `sun_path` has 108 bytes, the last of them NUL.
const SOCKET_PATH_MAX: usize = 107;

fn pid(holder: Option<Holder>) -> String {
    holder.map_or("unknown".to_string(), |h| h.pid.to_string())
}

/// The files of one mount.
#[derive(Clone, Debug)]
pub struct MountFiles {
    stem: PathBuf,
}

impl MountFiles {
    /// Named after the mountpoint, shortened to a hash: the path of a socket is limited to 107
    /// bytes.
    pub fn new(run_dir: &Path, mountpoint: &Mountpoint) -> MountFiles {
        let hash = fnv1a(mountpoint.path().as_os_str().as_bytes());
        MountFiles {
            stem: run_dir.join(format!("{hash:016x}")),
        }
    }

    pub fn lock(&self) -> PathBuf {
        self.stem.with_extension("lock")
    }

    pub fn socket(&self) -> PathBuf {
        self.stem.with_extension("sock")
    }

    pub fn log(&self) -> PathBuf {
        self.stem.with_extension("log")
    }

    /// A mount that no command could reach must not begin.
    pub fn check_length(&self) -> Result<()> {
        let path = self.socket();
        let length = path.as_os_str().len();
        if length <= SOCKET_PATH_MAX {
            return Ok(());
        }
        let text = format!(
            "the path of the control socket {} has {length} bytes, and the kernel takes {SOCKET_PATH_MAX}; \
             name a shorter directory with --run-dir",
            path.display()
        );
        Err(Error::new(ErrorKind::Usage, text))
    }

    /// Of the process that serves the mountpoint, or did so last.
    pub fn holder_pid(&self) -> String {
        pid(File::open(self.lock()).ok().and_then(read_holder))
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Who serves a mountpoint; the content of a lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub url: String,
    pub mountpoint: String,
}

/// Held by the mount's process until it ends, however it ends.
pub struct MountLock {
    _file: Flock<File>,
}

impl MountLock {
    pub fn take(files: &MountFiles, holder: &Holder) -> Result<MountLock> {
        let path = files.lock();
        let naming = format!("lock file {}", path.display());
        let file = open_lock(&path).context(&naming)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let text = serde_json::to_string(holder)
                    .map_err(|e| Error::new(ErrorKind::Other, e.to_string()))?;
                file.set_len(0).context(&naming)?;
                file.write_all(text.as_bytes()).context(&naming)?;
                Ok(MountLock { _file: file })
            }
            Err((file, Errno::EWOULDBLOCK)) => {
                let pid = pid(read_holder(file));
                let at = &holder.mountpoint;
                Err(Error::new(
                    ErrorKind::Owned,
                    format!("{at} is served by process {pid} already; stowfs umount {at} ends it"),
                ))
            }
            Err((_, e)) => Err(std::io::Error::from(e)).context(&naming),
        }
    }
}

fn open_lock(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

fn read_holder(mut file: File) -> Option<Holder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// The mounts of this user on this host that are alive.
pub fn live_mounts(run_dir: &Path) -> Vec<(MountFiles, Holder)> {
    let entries = run_dir.read_dir().into_iter().flatten().flatten();
    let locks = entries.filter(|e| e.path().extension().is_some_and(|x| x == "lock"));
    let found = locks.filter_map(|entry| {
        let stem = entry.path().with_extension("");
        // Of a root's lock the name is another, and its content is no holder.
        let holder = read_holder(File::open(entry.path()).ok()?)?;
        let files = MountFiles { stem };
        let ended = wait_for_end(&files, Duration::ZERO).unwrap_or(true);
        (!ended).then_some((files, holder))
    });
    found.collect()
}

/// Waits until no process serves the mountpoint. False when the time is over.
pub fn wait_for_end(files: &MountFiles, limit: Duration) -> Result<bool> {
    let path = files.lock();
    let begun = Instant::now();
    loop {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(Error::from(e).context(format!("lock file {}", path.display()))),
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => return Ok(true),
            Err((_, Errno::EWOULDBLOCK)) if begun.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err((_, Errno::EWOULDBLOCK)) => return Ok(false),
            Err((_, e)) => return Err(Error::from(std::io::Error::from(e))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> MountFiles {
        MountFiles::new(dir, &Mountpoint::named(dir).unwrap())
    }

    fn holder() -> Holder {
        let text = |s: &str| s.to_string();
        Holder {
            pid: 42,
            url: text("file:///s"),
            mountpoint: text("/m"),
        }
    }

    #[test]
    fn one_process_serves_a_mountpoint() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        assert!(wait_for_end(&files, Duration::ZERO).unwrap());
        let lock = MountLock::take(&files, &holder()).unwrap();
        let e = MountLock::take(&files, &holder()).err().unwrap();
        assert!(
            e.is(ErrorKind::Owned) && e.to_string().contains("42"),
            "{e}"
        );
        assert!(!wait_for_end(&files, Duration::from_millis(30)).unwrap());
        drop(lock);
        assert!(wait_for_end(&files, Duration::ZERO).unwrap());
        assert_eq!(files.lock().metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_run_dir_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("a/b");
        let config = Config {
            run_dir: Some(run_dir.clone()),
            ..Config::default()
        };
        assert_eq!(prepare(&config).unwrap(), run_dir);
        std::fs::set_permissions(&run_dir, Permissions::from_mode(0o755)).unwrap();
        prepare(&config).unwrap();
        assert_eq!(run_dir.metadata().unwrap().mode() & 0o777, 0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&run_dir, &link).unwrap();
        let config = Config {
            run_dir: Some(link),
            ..Config::default()
        };
        assert!(prepare(&config).unwrap_err().is(ErrorKind::Denied));
    }
}
