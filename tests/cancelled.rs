//! Work that is given up: files that are unlinked while they are written, checkpoints that are
//! deleted under their writers, writers that stop in the middle. All of it must come back, on the
//! store and in memory, and nothing of it is an error.

#[path = "support/tidy.rs"]
mod tidy;

use bytes::Bytes;
use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::fs::{Caller, Fh, Fs, FsOptions, WriteMode};
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use stowfs::volume::{OpenOptions, Volume};
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

const WHO: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
const FILES: u64 = 4;
/// The second of these goes to a lane.
const SIZES: [usize; 2] = [700, 9000];
const WRITE_BUFFER: usize = 4 << 20;

async fn mount(store: Arc<dyn Store>) -> Arc<Fs> {
    let config = Config {
        segment_size: 48 << 10,
        block_size: 4 << 10,
        small_file: 3000,
        write_buffer: WRITE_BUFFER as u64,
        snapshot_bytes: 64 << 10,
        gc_grace: Duration::from_secs(5),
        delete_rate: 1000.0,
        orphan_age: Duration::from_secs(60),
        idle_seal: Duration::from_secs(5),
        upkeep_every: Duration::from_millis(500),
        // What could be brought back is in snapshots too, and a larger snapshot keeps more of the log.
        undo_memory: 0,
        ..Config::default()
    };
    let options = OpenOptions::new(config);
    let volume = Volume::open(store, options).await.unwrap();
    Fs::new(volume, FsOptions::default())
}

/// How a checkpoint is given up.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Its files are closed after they were unlinked.
    ClosedAfter,
    /// Some bytes are written after that, too.
    WrittenAfter,
    /// A writer stops in the middle of a close.
    Stopped,
    /// It was complete, and is deleted.
    Subsumed,
}

const EACH_WAY: [How; 4] = [
    How::ClosedAfter,
    How::WrittenAfter,
    How::Stopped,
    How::Subsumed,
];

async fn write(fs: &Fs, ino: Ino, fh: Fh, off: u64, len: usize) {
    let mode = WriteMode::default();
    for at in (0..len).step_by(1000) {
        let data = Bytes::from(vec![at as u8; 1000.min(len - at)]);
        let done = fs.write(ino, fh, off + at as u64, data, mode).await;
        done.unwrap();
    }
}

async fn aborted_checkpoint(fs: &Arc<Fs>, n: usize) {
    let how = EACH_WAY[n % EACH_WAY.len()];
    let name = Bytes::from(format!("chk-{n}"));
    let dir = fs
        .mkdir(WHO, Ino::ROOT, name.clone(), 0o755, 0)
        .await
        .unwrap();
    let mut open = Vec::new();
    for i in 0..FILES {
        let file = Bytes::from(format!("{i}.sst"));
        let flags = libc::O_RDWR;
        let created = fs.create(WHO, dir.ino, file, 0o644, 0, flags).await;
        let (entry, fh) = created.unwrap();
        write(fs, entry.ino, fh, 0, SIZES[i as usize % 2]).await;
        match how {
            How::Subsumed => fs.flush(entry.ino, fh, 0).await.unwrap(),
            How::Stopped => {
                let flush = fs.flush(entry.ino, fh, 0);
                let _ = tokio::time::timeout(Duration::from_millis(3), flush).await;
            }
            _ => {}
        }
        open.push((entry.ino, fh));
    }
    if n.is_multiple_of(7) {
        // Long enough for the background to commit some of it.
        sleep(Duration::from_secs(7)).await;
    }
    for i in 0..FILES {
        let file = Bytes::from(format!("{i}.sst"));
        fs.unlink(WHO, dir.ino, file).await.unwrap();
    }
    fs.rmdir(WHO, Ino::ROOT, name).await.unwrap();
    for (ino, fh) in open {
        if matches!(how, How::WrittenAfter) {
            write(fs, ino, fh, 5000, 6000).await;
        }
        fs.flush(ino, fh, 0).await.unwrap();
        fs.release(ino, fh).await.unwrap();
        fs.forget(ino, 1);
    }
    fs.forget(dir.ino, 1);
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_aborted_checkpoints_leave_nothing() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(log.clone())
        .finish();
    let _collecting = tracing::subscriber::set_default(subscriber);
    let cluster = MemoryCluster::new(1);
    let fs = mount(cluster.host("a")).await;
    for n in 0..1000 {
        aborted_checkpoint(&fs, n).await;
    }
    fs.sync_all().await.unwrap();
    let volume = fs.volume().clone();
    assert_eq!(tidy::leaks(&cluster, &volume).await, Vec::<String>::new());

    assert_eq!(volume.read(|i| i.inodes()), 1, "the root directory");
    assert_eq!(volume.read(|i| i.check()), Vec::<String>::new());
    // What the memory has of files: nothing.
    assert_eq!(fs.held(), [0, 0, 0, 0]);
    assert_eq!(volume.staged_frames(), 0);
    assert!(
        volume.try_buffer(WRITE_BUFFER).is_some(),
        "all of the write buffer"
    );
    // An empty root has its last bit of log, up to the second to last snapshot.
    let size = volume.read(|i| i.segments().map(|s| s.row.size).sum::<u64>());
    let live = volume.read(|i| i.segments().map(|s| s.live.bytes).sum::<u64>());
    assert_eq!(live, 0);
    assert!(size < 4 * (64 << 10), "{size} bytes in segments");
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert!(text.is_empty(), "{text}");
    volume.shutdown().await.unwrap();
}
