//! Between the kernel's values and ours.

use crate::base::{Ino, Timestamp};
use crate::fs::{SetTime, Stat};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The mount options `uid=`, `gid=` and `umask=`: what every file shows, whatever is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squash {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub umask: Option<u32>,
}

impl Squash {
    fn mode(&self, mode: u32) -> u32 {
        match self.umask {
            Some(umask) => (mode & libc::S_IFMT) | (0o777 & !umask),
            None => mode,
        }
    }

    /// Whether a change of owner cannot be: the ids are fixed by the mount.
    pub fn refuses(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        let differs = |fixed: Option<u32>, wanted: Option<u32>| matches!((fixed, wanted), (Some(f), Some(w)) if f != w);
        differs(self.uid, uid) || differs(self.gid, gid)
    }
}

pub fn file_attr(ino: Ino, stat: &Stat, squash: &Squash) -> FileAttr {
    let attr = &stat.attr;
    let mode = squash.mode(attr.mode);
    FileAttr {
        ino: INodeNo(ino.0),
        size: attr.size,
        blocks: stat.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: file_type(mode),
        perm: (mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: squash.uid.unwrap_or(attr.uid),
        gid: squash.gid.unwrap_or(attr.gid),
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

pub fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn system_time(t: Timestamp) -> SystemTime {
    let distance = Duration::from_nanos(t.unsigned_abs());
    if t >= 0 {
        UNIX_EPOCH + distance
    } else {
        UNIX_EPOCH - distance
    }
}

pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(timestamp(t)),
    }
}

/// A time that fuser decoded. For a time before 1970 the kernel sends negative seconds and
/// positive nanoseconds; fuser 0.18 takes both as a distance back from 1970, so the nanoseconds
/// have the wrong sign. Times beyond the years 1677 and 2262 become the nearest that fits.
fn timestamp(time: SystemTime) -> Timestamp {
    const SECOND: i128 = 1_000_000_000;
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(d) => (i128::from(d.as_secs()), d.subsec_nanos()),
        Err(e) => (
            -i128::from(e.duration().as_secs()),
            e.duration().subsec_nanos(),
        ),
    };
    let t = seconds * SECOND + i128::from(nanos);
    t.clamp(i128::from(Timestamp::MIN), i128::from(Timestamp::MAX)) as Timestamp
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Attr;

    /// As fuser 0.18 decodes (seconds, nanoseconds).
    fn fuser_decodes(seconds: i64, nanos: u32) -> SystemTime {
        if seconds >= 0 {
            UNIX_EPOCH + Duration::new(seconds as u64, nanos)
        } else {
            UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanos)
        }
    }

    #[test]
    fn times_around_1970_keep_their_fractions() {
        for (seconds, nanos, want) in [
            (1, 5, 1_000_000_005),
            (0, 0, 0),
            (-1, 0, -1_000_000_000),
            (-1, 500_000_000, -500_000_000),
            (-2, 800_000_000, -1_200_000_000),
        ] {
            assert_eq!(
                timestamp(fuser_decodes(seconds, nanos)),
                want,
                "{seconds} {nanos}"
            );
        }
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(timestamp(fuser_decodes(i64::MAX, 0)), Timestamp::MAX);
        assert_eq!(timestamp(fuser_decodes(i64::MIN, 0)), Timestamp::MIN);
        for t in [Timestamp::MIN, -1, 0, Timestamp::MAX] {
            let back = match system_time(t).duration_since(UNIX_EPOCH) {
                Ok(d) => d.as_nanos() as i128,
                Err(e) => -(e.duration().as_nanos() as i128),
            };
            assert_eq!(back, i128::from(t));
        }
    }

    #[test]
    fn squashed_files_show_the_mounts_owner_and_mode() {
        let attr = Attr {
            mode: libc::S_IFREG | 0o4640,
            uid: 5,
            gid: 6,
            ..Attr::default()
        };
        let stored = Stat { attr, blocks: 8 };
        let squash = Squash {
            uid: Some(100),
            gid: None,
            umask: Some(0o027),
        };
        let shown = file_attr(Ino(9), &stored, &squash);
        assert_eq!((shown.uid, shown.gid, shown.perm), (100, 6, 0o750));
        assert!(squash.refuses(Some(5), None));
        assert!(!squash.refuses(Some(100), Some(7)));
        let plain = file_attr(Ino(9), &stored, &Squash::default());
        assert_eq!((plain.uid, plain.perm), (5, 0o4640));
    }
}
