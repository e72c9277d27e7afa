//! What only a local store has: permissions, locks, inodes, a disk.

use bytes::Bytes;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stowfs::base::ErrorKind;
use stowfs::store::Store;
use stowfs::store::local::LocalStore;

fn store(dir: &Path) -> Arc<LocalStore> {
    Arc::new(LocalStore::new("file:///test", dir))
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

/// After a power loss a file that was said to be gone was there again, and taken for a new one. Runs
/// this test once more, below strace.
#[test]
fn a_deletion_is_synced_before_it_is_reported() {
    const CHILD: &str = "STOWFS_TEST_DELETES_IN";
    if let Some(dir) = std::env::var_os(CHILD) {
        let store = store(Path::new(&dir));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            store.delete("d/file").await.unwrap();
            store.delete("d").await.unwrap();
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/file"), "x").unwrap();
    let trace = dir.path().join("trace");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-y", "-e", "trace=unlink,unlinkat,rmdir,fsync", "-o"]);
    strace.arg(&trace).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "a_deletion_is_synced_before_it_is_reported"]);
    let output = strace.env(CHILD, dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&trace).unwrap();
    let at = |call: &str, path: &str| {
        let line = |l: &&str| {
            l.contains(call) && l.contains(&format!("{path}\"")) | l.contains(&format!("{path}>"))
        };
        text.lines().position(|l| line(&l))
    };
    let (file, parent) = (dir.path().join("d/file"), dir.path().join("d"));
    let (file, parent) = (file.display().to_string(), parent.display().to_string());
    let root = dir.path().display().to_string();
    let order = [
        at("unlink", &file),
        at("fsync", &parent),
        at("rmdir", &parent).or(at("unlinkat", &parent)),
        at("fsync", &root),
    ];
    assert!(order.iter().all(Option::is_some), "{order:?}: {text}");
    assert!(order.is_sorted(), "{order:?}: {text}");
}

#[tokio::test]
async fn files_are_for_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("deep/root");
    let store = store(&root);
    assert!(store.stat("").await.unwrap_err().is(ErrorKind::NotFound));
    store.mkdir("a").await.unwrap();
    store.put("a/put", "1".into()).await.unwrap();
    store
        .create("a/created")
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    for (path, expected) in [
        ("", 0o700),
        ("a", 0o700),
        ("a/put", 0o600),
        ("a/created", 0o600),
    ] {
        assert_eq!(mode(&root.join(path)), expected, "{path}");
        assert_eq!(store.stat(path).await.unwrap().mode, expected, "{path}");
    }
    let owner = store.stat("a").await.unwrap().owner;
    assert!(!owner.is_empty());
}

#[tokio::test]
async fn errors_name_the_path_and_what_became_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let e = store.stat("no").await.unwrap_err().to_string();
    assert!(e.contains(dir.path().join("no").to_str().unwrap()), "{e}");

    store.mkdir("log/1").await.unwrap();
    let mut renamed = store.create("log/1/0").await.unwrap();
    let mut recovered = store.create("recovered").await.unwrap();
    let mut deleted = store.create("deleted").await.unwrap();
    store.rename("log/1", "log/1.fenced").await.unwrap();
    store.recover("recovered").await.unwrap();
    store.delete("deleted").await.unwrap();
    // A take-over renames a directory, but so does who moves the store away; and whoever recovers one
    // file need not own the root.
    let e = renamed.sync().await.unwrap_err();
    assert!(
        e.is(ErrorKind::Other) && e.to_string().contains("log/1/0"),
        "{e:?}"
    );
    assert!(recovered.sync().await.unwrap_err().is(ErrorKind::Other));
    assert!(deleted.sync().await.unwrap_err().is(ErrorKind::Other));
    assert!(
        deleted
            .append("x".into())
            .await
            .unwrap_err()
            .is(ErrorKind::Invalid),
        "broken now"
    );
}

/// A directory that was renamed and made again must not let its old writers pass.
#[tokio::test]
async fn a_writer_is_bound_to_its_inode_not_to_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.mkdir("log/1").await.unwrap();
    let mut old = store.create("log/1/0").await.unwrap();
    old.sync().await.unwrap();
    store.rename("log/1", "log/1.fenced").await.unwrap();
    store.mkdir("log/1").await.unwrap();
    let _new = store.create("log/1/0").await.unwrap();
    assert!(old.sync().await.is_err());
}

#[tokio::test]
async fn a_dead_writers_file_is_kept_and_a_living_ones_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let inode = |name: &str| dir.path().join(name).metadata().unwrap().ino();
    let mut alive = store.create("alive").await.unwrap();
    alive.append("abc".into()).await.unwrap();
    alive.sync().await.unwrap();
    let mut dead = store.create("dead").await.unwrap();
    dead.append("abc".into()).await.unwrap();
    dead.sync().await.unwrap();
    drop(dead);
    let before = (inode("alive"), inode("dead"));
    store.recover("alive").await.unwrap();
    store.recover("dead").await.unwrap();
    assert_ne!(
        inode("alive"),
        before.0,
        "its writer could lengthen the old one"
    );
    assert_eq!(inode("dead"), before.1, "free of cost");
    // More than a writer keeps in memory.
    alive.append(vec![b'z'; 2 << 20].into()).await.unwrap();
    for name in ["alive", "dead"] {
        assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"abc");
        assert_eq!(mode(&dir.path().join(name)), 0o400);
    }
    assert_eq!(
        store.list("").await.unwrap().len(),
        2,
        "no temporary file is left"
    );
}

/// Several recoverers against a writer in full swing: every one of them sees the same final
/// length, which covers every sync that was acknowledged. (Without their taking turns a slow one
/// put its older copy over a finished one. And a copy that went on to the end of the file never came
/// there, once the writer was faster than it.)
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn recoverers_and_a_writer_race() {
    for round in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let mut writer = store.create("f").await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        // Then it only appends, and learns of nothing: the worst zombie there is.
        let syncs = round % 3;
        let writing = tokio::spawn(async move {
            let (mut appended, mut acked) = (0, 0);
            while !stopping.load(Ordering::Relaxed) {
                writer.append(Bytes::from(vec![7; 1000])).await.unwrap();
                appended += 1000;
                if appended % 5000 == 0 && appended <= 5000 * syncs {
                    match writer.sync().await {
                        Ok(()) => acked = appended,
                        Err(_) => break,
                    }
                }
            }
            acked
        });
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        let recoverers = (0..4).map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                store.recover("f").await.unwrap();
                store.stat("f").await.unwrap().len
            })
        });
        let seen = futures::future::join_all(recoverers).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        stop.store(true, Ordering::Relaxed);
        let acked = writing.await.unwrap();
        let len = store.stat("f").await.unwrap().len;
        assert!(
            len >= acked,
            "round {round}: {len} of {acked} acknowledged bytes"
        );
        for seen in seen {
            assert_eq!(seen.unwrap(), len, "round {round}: the length was final");
        }
    }
}

#[tokio::test]
async fn reads_notice_a_file_that_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.put("f", vec![1; 5000].into()).await.unwrap();
    let reader = store.open("f").await.unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(dir.path().join("f"))
        .unwrap();
    file.set_len(100).unwrap();
    let e = reader.read_at(0, 5000).await.unwrap_err();
    assert!(
        e.is(ErrorKind::Corrupt) && e.to_string().contains("/f"),
        "{e:?}"
    );
}

#[tokio::test]
async fn listings_leave_out_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.put("f", "1".into()).await.unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    let names: Vec<_> = store
        .list("")
        .await
        .unwrap()
        .into_iter()
        .map(|info| info.name)
        .collect();
    assert_eq!(names, ["f"]);

    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"latin\xe9");
    std::fs::write(dir.path().join(name), "x").unwrap();
    // One such name used to keep a whole root from being mounted.
    assert_eq!(store.list("").await.unwrap().len(), 1);
}

/// A full disk: `NoSpace`, nothing acknowledged is lost, and there is room again after a deletion.
/// The disk is a tmpfs in a mount namespace of this thread, so it goes away whatever happens.
#[test]
fn a_full_disk_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let test = move || {
        if !private_tmpfs(&path, 1 << 20) {
            println!("skipped: mounting needs root");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(fill(store(&path)));
    };
    std::thread::spawn(test).join().unwrap();
}

async fn fill(store: Arc<LocalStore>) {
    let mut writer = store.create("f").await.unwrap();
    let mut synced = 0;
    let e = loop {
        let appended = writer.append(vec![5; 100_000].into()).await;
        match appended.and(writer.sync().await) {
            Ok(()) => synced += 100_000,
            Err(e) => break e,
        }
    };
    assert!(e.is(ErrorKind::NoSpace), "{e:?}");
    assert!(synced >= 500_000 && store.usage().await.unwrap().available < 100_000);
    let e = store.put("g", vec![0; 100_000].into()).await.unwrap_err();
    assert!(e.is(ErrorKind::NoSpace), "{e:?}");
    assert_eq!(
        store.list("").await.unwrap().len(),
        1,
        "no temporary file is left"
    );
    let reader = store.open("f").await.unwrap();
    assert!(
        reader
            .read_at(0, synced)
            .await
            .unwrap()
            .iter()
            .all(|&b| b == 5)
    );

    drop((reader, writer));
    store.delete("f").await.unwrap();
    store.put("g", vec![0; 100_000].into()).await.unwrap();
}

fn private_tmpfs(at: &Path, bytes: u64) -> bool {
    use nix::mount::{MsFlags, mount};
    const NOTHING: Option<&str> = None;
    // SAFETY: changes only which mounts this thread and those it starts see.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    let options = format!("size={bytes}");
    unshared
        && mount(
            NOTHING,
            "/",
            NOTHING,
            MsFlags::MS_PRIVATE | MsFlags::MS_REC,
            NOTHING,
        )
        .is_ok()
        && mount(
            Some("tmpfs"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(&*options),
        )
        .is_ok()
}
