//! Undo on a store in memory: what was deleted is listed and comes back with the bytes that it had,
//! with garbage collection, compaction, snapshots, remounts and crashes in between.

#[path = "support/tree.rs"]
#[allow(dead_code)]
mod tree;

use std::sync::Arc;
use std::time::Duration;
use stowfs::admin::{DeletedLine, UndeleteOptions};
use stowfs::base::Ino;
use stowfs::base::config::Config;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use tree::{Tree, at, eager as config};

fn store(cluster: &MemoryCluster) -> Arc<dyn Store> {
    cluster.host("one")
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_of_a_thousand_files_comes_back_also_after_a_remount_and_a_crash() {
    let cluster = MemoryCluster::new(1);
    let host = cluster.host("one");
    let mut t = Tree::open(&(host.clone() as Arc<dyn Store>), config()).await;
    for n in 0..1000 {
        let size = if n % 50 == 0 { 9000 } else { 300 };
        t.write(&format!("job/chk-{}/{n}", n % 7), &tree::content(n, size))
            .await;
    }
    t.remove_all("job").await;
    let all = |t: &Tree| {
        let list = t.list(None);
        let [line] = &list[..] else {
            panic!("one line for a tree: {list:#?}");
        };
        assert_eq!((&line.path[..], &line.kind[..]), ("job", "directory"));
        assert_eq!((line.files, &line.lost), (1000, &None));
        assert!(
            line.seconds_left > 30.0 && line.seconds_left <= 60.0,
            "{line:?}"
        );
    };
    all(&t);
    t.remount(&store(&cluster), config()).await;
    all(&t);
    pass(5).await;
    t.sync().await;
    host.crash();
    t = Tree::open(&store(&cluster), config()).await;
    all(&t);
    let done = t.undelete(at("/job")).await.unwrap();
    assert_eq!((done.files, done.directories), (1000, 8));
    t.is_sound();
    for n in 0..1000 {
        let size = if n % 50 == 0 { 9000 } else { 300 };
        let found = t.read(&format!("job/chk-{}/{n}", n % 7)).await;
        assert!(
            found.as_deref() == Some(&tree::content(n, size)[..]),
            "file {n}"
        );
    }
    // It is referred to again, so nothing takes it away.
    pass(300).await;
    t.remount(&store(&cluster), config()).await;
    assert_eq!(
        t.read("job/chk-1/50").await.unwrap(),
        tree::content(50, 9000)
    );
    t.is_sound();
}

#[tokio::test(start_paused = true)]
async fn when_the_grace_is_over_it_says_so() {
    let cluster = MemoryCluster::new(2);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("f", &tree::content(1, 30_000)).await;
    t.write("other", &tree::content(2, 30_000)).await;
    pass(3).await;
    t.remove("f").await;
    pass(55).await;
    assert_eq!(t.list(None)[0].lost, None);
    pass(30).await;
    let lost = t.list(None)[0].lost.clone().expect("it is gone");
    assert!(lost.contains("gc-grace 1m"), "{lost}");
    let e = t.refused(at("f")).await;
    assert!(e.contains("/f cannot be brought back: its grace"), "{e}");
    let e = t.refused(at("never")).await;
    assert!(e.contains("/never is remembered"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn when_the_budget_took_it_it_says_so() {
    let cluster = MemoryCluster::new(3);
    let gc_keep = 0.1;
    let t = Tree::open(
        &store(&cluster),
        Config {
            gc_keep,
            ..config()
        },
    )
    .await;
    t.write("d/f", &tree::content(1, 30_000)).await;
    t.write("d/small", b"in the log, which is needed").await;
    t.write("other", &tree::content(2, 30_000)).await;
    pass(3).await;
    t.remove_all("d").await;
    pass(10).await;
    let e = t.refused(at("d")).await;
    assert!(
        e.contains("/d/f cannot") && e.contains("gc-keep (0.1)"),
        "{e}"
    );
    assert!(e.contains("--partial"), "{e}");
    let partial = true;
    let done = t
        .undelete(UndeleteOptions { partial, ..at("d") })
        .await
        .unwrap();
    assert_eq!((done.files, done.lost), (1, 1));
    assert_eq!(t.read("d/f").await, None);
    assert!(t.read("d/small").await.is_some());
}

/// An engine had deleted files in the directory long before: nobody misses them.
#[tokio::test(start_paused = true)]
async fn what_went_long_before_its_directory_does_not_stand_in_the_way() {
    let cluster = MemoryCluster::new(11);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("d/old", &tree::content(1, 30_000)).await;
    t.write("other", &tree::content(2, 30_000)).await;
    pass(3).await;
    t.remove("d/old").await;
    pass(80).await;
    t.write("d/new", &tree::content(3, 30_000)).await;
    t.remove_all("d").await;
    let list = t.list(None);
    assert_eq!((&list[0].lost, list[0].files), (&None, 1), "{list:?}");
    assert!(list[0].seconds_left > 50.0, "{list:?}");
    let done = t.undelete(at("d")).await.unwrap();
    assert_eq!((done.files, done.older, done.lost), (1, 1, 0));
    assert_eq!(t.read("d/new").await.unwrap(), tree::content(3, 30_000));
}

#[tokio::test(start_paused = true)]
async fn what_was_replaced_comes_back_beside_what_replaced_it() {
    let cluster = MemoryCluster::new(4);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("a", b"old").await;
    for new in ["newer", "newest"] {
        t.write("tmp", new.as_bytes()).await;
        t.rename("tmp", "a").await;
    }
    let list = t.list(None);
    assert_eq!(list.len(), 2, "{list:#?}");
    assert!(
        list.iter()
            .all(|l| l.path == "a" && l.exists && l.lost.is_none())
    );
    let e = t.refused(at("a")).await;
    assert!(e.contains("/a exists") && e.contains("--to"), "{e}");
    for bad in ["/", "../a", "x/./y", "x//y"] {
        let to = Some(bad.into());
        let e = t.refused(UndeleteOptions { to, ..at("a") }).await;
        assert!(e.contains("no path to bring back to"), "{e}");
    }
    let to = Some("/x/y/before".into());
    t.undelete(UndeleteOptions { to, ..at("a") }).await.unwrap();
    assert_eq!(t.read("x/y/before").await.unwrap(), b"newer");
    assert_eq!(t.read("a").await.unwrap(), b"newest");
    t.is_sound();
}

#[tokio::test(start_paused = true)]
async fn directories_above_it_are_made_as_they_were() {
    let cluster = MemoryCluster::new(5);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("p/q/r/f", b"deep").await;
    t.write("p/q/other", b"stays away").await;
    t.chmod("p/q", 0o750).await;
    t.remove_all("p").await;
    t.undelete(at("p/q/r/f")).await.unwrap();
    assert_eq!(t.read("p/q/r/f").await.unwrap(), b"deep");
    assert_eq!(t.read("p/q/other").await, None);
    assert_eq!(t.attr("p/q").unwrap().mode & 0o7777, 0o750);
    t.is_sound();
    // The other one comes from the directory that had this name before.
    t.undelete(at("p/q/other")).await.unwrap();
    assert_eq!(t.read("p/q/other").await.unwrap(), b"stays away");
    let e = t.refused(at("p")).await;
    assert!(e.contains("/p exists"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn what_an_interrupted_removal_took_comes_back_into_the_directory() {
    let cluster = MemoryCluster::new(6);
    let t = Tree::open(&store(&cluster), config()).await;
    for n in 0..20 {
        t.write(&format!("d/{n}"), &tree::content(n, 100)).await;
        t.write(&format!("d/sub/{n}"), &tree::content(100 + n, 100))
            .await;
    }
    t.remove_all("d/sub").await;
    for n in 0..10 {
        t.remove(&format!("d/{n}")).await;
    }
    t.write("d/3", b"new").await;
    let into = true;
    let done = t
        .undelete(UndeleteOptions { into, ..at("d") })
        .await
        .unwrap();
    assert_eq!((done.files, done.directories, done.exist), (29, 1, 1));
    assert_eq!(t.read("d/3").await.unwrap(), b"new");
    assert_eq!(t.read("d/sub/19").await.unwrap(), tree::content(119, 100));
    t.is_sound();
}

/// `--into` looked only at what was deleted in the directory that is there now: of one that was
/// deleted and made again nothing came back.
#[tokio::test(start_paused = true)]
async fn what_a_directory_held_comes_back_into_the_one_that_was_made_again() {
    let cluster = MemoryCluster::new(12);
    let t = Tree::open(&store(&cluster), config()).await;
    for n in 0..10 {
        t.write(&format!("d/{n}"), &tree::content(n, 100)).await;
        t.write(&format!("d/sub/{n}"), &tree::content(100 + n, 100))
            .await;
        t.write(&format!("d/gone/deep/{n}"), &tree::content(200 + n, 100))
            .await;
    }
    t.remove_all("d").await;
    t.write("d/3", b"new").await;
    t.write("d/sub/4", b"new").await;
    t.write("d/sub/5", b"deleted since").await;
    t.remove("d/sub/5").await;
    let into = true;
    let done = t.undelete(UndeleteOptions { into, ..at("d") }).await;
    let done = done.unwrap();
    assert_eq!((done.files, done.directories, done.exist), (28, 2, 2));
    assert_eq!(done.existing, ["d/3", "d/sub/4"]);
    assert!(done.to_string().contains("exists: /d/sub/4"), "{done}");
    for (path, content) in [
        ("d/2", tree::content(2, 100)),
        ("d/3", b"new".to_vec()),
        ("d/sub/4", b"new".to_vec()),
        ("d/sub/5", b"deleted since".to_vec()),
        ("d/sub/6", tree::content(106, 100)),
        ("d/gone/deep/9", tree::content(209, 100)),
    ] {
        assert_eq!(t.read(path).await.unwrap(), content, "{path}");
    }
    assert_eq!(t.attr("d").unwrap().nlink, 4);
    t.is_sound();
    let e = t.refused(UndeleteOptions { into, ..at("d") }).await;
    assert!(e.contains("nothing in /d can be brought back"), "{e}");
}

/// Of two trees that were deleted at one path only the newer could be named.
#[tokio::test(start_paused = true)]
async fn of_several_trees_at_one_path_each_can_be_named() {
    let cluster = MemoryCluster::new(13);
    let mut t = Tree::open(&store(&cluster), config()).await;
    for round in 0..3 {
        for n in 0..5 {
            let content = tree::content(round * 10 + n, 100);
            t.write(&format!("d/s/{round}-{n}"), &content).await;
        }
        t.remove_all("d").await;
    }
    t.remount(&store(&cluster), config()).await;
    let list = t.list(None);
    assert_eq!(list.len(), 3, "{list:#?}");
    let id = Some(list[0].id);
    t.undelete(UndeleteOptions { id, ..at("d") }).await.unwrap();
    assert_eq!(t.read("d/s/0-4").await.unwrap(), tree::content(4, 100));
    assert_eq!(t.read("d/s/2-4").await, None);
    // The second one into the first.
    let (id, into) = (Some(list[1].id), true);
    let done = t
        .undelete(UndeleteOptions {
            id,
            into,
            ..at("d")
        })
        .await;
    assert_eq!(done.unwrap().files, 5);
    assert_eq!(t.read("d/s/1-0").await.unwrap(), tree::content(10, 100));
    t.is_sound();
    let id = Some(987_654);
    let e = t.refused(UndeleteOptions { id, ..at("d") }).await;
    assert!(e.contains("with the id 987654"), "{e}");
}

/// The reason given was the budget, which had nothing to do with it.
#[tokio::test(start_paused = true)]
async fn after_a_collection_at_once_the_reason_names_it() {
    let cluster = MemoryCluster::new(14);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("f", &tree::content(1, 30_000)).await;
    t.write("other", &tree::content(2, 30_000)).await;
    pass(3).await;
    t.remove("f").await;
    t.sync().await;
    let duty = t.volume().duty().unwrap();
    duty.collect(&**t.volume(), true, &|_| true).await.unwrap();
    let e = t.refused(at("f")).await;
    assert!(e.contains("early: by `stowfs gc --now`, or"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn names_of_one_file_and_files_that_are_still_open() {
    let cluster = MemoryCluster::new(7);
    let t = Tree::open(&store(&cluster), config()).await;
    t.write("d/one", b"shared").await;
    t.link("d/one", "d/two").await;
    t.link("d/one", "outside").await;
    t.remove("outside").await;
    assert_eq!(t.list(None)[0].kind, "name");
    t.undelete(at("outside")).await.unwrap();
    assert_eq!(t.attr("outside").unwrap().nlink, 3);
    t.is_sound();
    t.remove("outside").await;
    t.remove_all("d").await;
    t.undelete(at("d")).await.unwrap();
    assert_eq!(t.read("d/one").await.unwrap(), b"shared");
    assert_eq!(t.ino("d/one"), t.ino("d/two"));
    assert_eq!(t.attr("d/one").unwrap().nlink, 2);
    t.is_sound();

    t.write("open", b"committed").await;
    t.write("e/open", b"committed").await;
    let (held, dir) = (t.hold("open").await, t.hold("e").await);
    t.remove("open").await;
    t.remove_all("e").await;
    assert_eq!(t.list(None).last().unwrap().path, "e");
    t.undelete(at("e")).await.unwrap();
    t.undelete(at("open")).await.unwrap();
    assert_eq!(t.read("open").await.unwrap(), b"committed");
    assert_eq!(t.read("e/open").await.unwrap(), b"committed");
    assert_ne!(t.ino("open"), Some(held));
    t.let_go(held);
    t.let_go(dir);
    t.is_sound();
}

/// A segment that undelete brought into use was taken for one that had waited since the first
/// deletion: its second one had no grace, and readers that planned in between were not waited for.
#[tokio::test(start_paused = true)]
async fn a_second_deletion_has_a_grace_of_its_own() {
    let cluster = MemoryCluster::new(8);
    // The collector looks seldom enough not to see the file while it is back.
    let upkeep_every = Duration::from_secs(20);
    let t = Tree::open(
        &store(&cluster),
        Config {
            upkeep_every,
            ..config()
        },
    )
    .await;
    t.write("f", &tree::content(1, 30_000)).await;
    t.write("other", &tree::content(2, 30_000)).await;
    pass(25).await;
    t.remove("f").await;
    pass(56).await;
    t.undelete(at("f")).await.unwrap();
    t.remove("f").await;
    pass(45).await;
    assert_eq!(t.list(None).last().unwrap().lost, None);
    t.undelete(at("f")).await.unwrap();
    assert_eq!(t.read("f").await.unwrap(), tree::content(1, 30_000));
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_the_oldest_are_forgotten_first() {
    let cluster = MemoryCluster::new(9);
    let undo_memory = 20_000;
    let config = Config {
        undo_memory,
        ..config()
    };
    let t = Tree::open(&store(&cluster), config).await;
    for n in 0..300 {
        t.write(&format!("f{n}"), b"x").await;
        t.remove(&format!("f{n}")).await;
    }
    let list = t.list(None);
    assert!((40..120).contains(&list.len()), "{}", list.len());
    assert_eq!(list.last().unwrap().path, "f299");
    t.refused(at("f0")).await;
    t.undelete(at("f299")).await.unwrap();
}

/// Snapshots say what is deleted, so that a remount knows it though it does not read older log.
#[tokio::test(start_paused = true)]
async fn a_snapshot_keeps_what_was_deleted_before_it() {
    let cluster = MemoryCluster::new(10);
    let snapshot_bytes = 8 << 10;
    let config = Config {
        snapshot_bytes,
        ..config()
    };
    let mut t = Tree::open(&store(&cluster), config.clone()).await;
    t.write("d/e/f", &tree::content(1, 500)).await;
    t.write("d/g", &tree::content(2, 5000)).await;
    t.write("h", b"before").await;
    t.write("tmp", b"after").await;
    t.rename("tmp", "h").await;
    t.remove_all("d").await;
    let before = t.list(Some("/"));
    for n in 0..10 {
        t.write(&format!("more{n}"), &tree::content(n, 3000)).await;
        pass(1).await;
    }
    t.remount(&store(&cluster), config).await;
    let snapshots = cluster.tree();
    assert!(snapshots.iter().any(|line| line.contains(".idx")));
    let after = t.list(Some("/"));
    let essence = |l: &DeletedLine| (l.path.clone(), l.kind.clone(), l.size, l.deleted.clone());
    assert_eq!(
        after.iter().map(essence).collect::<Vec<_>>(),
        before.iter().map(essence).collect::<Vec<_>>()
    );
    t.is_sound();
    t.undelete(at("d")).await.unwrap();
    assert_eq!(t.read("d/e/f").await.unwrap(), tree::content(1, 500));
    assert_eq!(t.read("h").await.unwrap(), b"after");
    assert_eq!(t.volume().read(|i| i.attr(Ino::ROOT)).unwrap().nlink, 3);
    t.is_sound();
}
