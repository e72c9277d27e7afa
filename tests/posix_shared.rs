//! A new file, its writer, and those who open and map it meanwhile; writes that are to be durable at
//! once. (They found what direct I/O on new files would have cost; see ARCHITECTURE.md.)

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::mapping::Map;
use support::posix::{TestMount, ok, scale};

const LEN: usize = 4 * 4096;

/// Opened only to be written, and new.
fn new_file() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create_new(true);
    options
}

#[test]
fn those_who_open_a_new_file_meanwhile_agree_with_its_writer() {
    let mount = TestMount::new();
    let path = mount.at("new");
    let writer = new_file().open(&path).unwrap();
    writer.write_all_at(&[0; LEN], 0).unwrap();
    let reader = File::open(&path).unwrap();
    let both = File::options().read(true).write(true).open(&path).unwrap();
    let map = Map::to_read(&reader, LEN);
    let read = |from: &File, at: usize| {
        let mut found = [0; 1];
        from.read_exact_at(&mut found, at as u64).unwrap();
        found[0]
    };
    for n in 1..200u8 {
        let at = n as usize * 83 % LEN;
        let one = if n.is_multiple_of(2) { &writer } else { &both };
        one.write_all_at(&[n; 1], at as u64).unwrap();
        assert_eq!((read(&reader, at), read(&both, at)), (n, n), "write {n}");
        assert_eq!(map.byte(at), n, "mapping after write {n}");
    }
    writer.write_all_at(b"longer", LEN as u64).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), LEN as u64 + 6);
    assert_eq!(read(&reader, LEN + 5), b'r');
    drop((writer, both));
    let cached = File::options().read(true).write(true).open(&path).unwrap();
    cached.write_all_at(b"cached", 0).unwrap();
    assert_eq!((read(&reader, 5), map.byte(5)), (b'd', b'd'));
    assert_eq!(&fs::read(&path).unwrap()[..6], b"cached");
    mount.finish();
}

/// A page that is fetched for a mapping while it is being written must not stay as it was before.
#[test]
fn a_mapping_that_is_looked_at_all_the_time_is_never_behind() {
    let mount = TestMount::new();
    let path = mount.at("new");
    let writer = new_file().open(&path).unwrap();
    writer.write_all_at(&[0; LEN], 0).unwrap();
    let reader = File::open(&path).unwrap();
    let (map, stop, looks) = (
        Map::to_read(&reader, LEN),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for page in 0..4 {
                    map.byte(page * 4096);
                }
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut behind = None;
        for n in 1..=scale(3_000u32, 100_000) {
            let (value, at) = (n as u8, n as usize % 4 * 4096);
            writer.write_all_at(&[value; 100], at as u64).unwrap();
            if map.byte(at) != value {
                behind = Some(n);
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(behind, None, "the write after which the mapping was old");
    });
    assert!(looks.into_inner() > 0);
    mount.finish();
}

/// With direct I/O on new files the write waited for itself: dropping pages waits for those that are
/// being written back.
#[test]
fn a_mapping_beside_a_new_file_s_writer_is_written_back() {
    let mount = TestMount::new();
    let path = mount.at("new");
    let writer = new_file().open(&path).unwrap();
    writer.write_all_at(&[0; LEN], 0).unwrap();
    let both = File::options().read(true).write(true).open(&path).unwrap();
    let mut map = Map::of(&both, LEN);
    for n in 1..100u8 {
        map.bytes()[0] = n;
        writer.write_all_at(&[n], 1).unwrap();
        map.sync();
        assert_eq!(fs::read(&path).unwrap()[..2], [n, n]);
        assert_eq!(map.bytes()[..2], [n, n]);
    }
    drop(map);
    mount.finish();
}

fn write_durably(file: &File, text: &[u8]) {
    let part = IoSlice::new(text);
    let vector = std::ptr::from_ref(&part).cast();
    let wrote = unsafe { libc::pwritev2(file.as_raw_fd(), vector, 1, 0, libc::RWF_DSYNC) };
    assert_eq!(ok(wrote), text.len() as i64);
}

#[test]
fn synchronous_writes_of_new_files_are_durable_without_a_close() {
    let mut mount = TestMount::new();
    let mut open = Vec::new();
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        let mut file = new_file().custom_flags(flag).open(mount.at(name)).unwrap();
        file.write_all(b"durable").unwrap();
        open.push(file);
    }
    let file = new_file().open(mount.at("once")).unwrap();
    write_durably(&file, b"durable");
    mount.crash();
    for name in ["sync", "dsync", "once"] {
        assert_eq!(fs::read(mount.at(name)).unwrap(), b"durable", "{name}");
    }
    mount.finish();

    let mut mount = TestMount::with(&["-o", "sync"]);
    let file = new_file().open(mount.at("f")).unwrap();
    file.write_all_at(b"durable", 0).unwrap();
    mount.crash();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"durable");
    mount.finish();
}
