//! `undelete --into` where several trees of one path were deleted, and what `deleted` says when there
//! is nothing, or not for long.

#[path = "support/tree.rs"]
#[allow(dead_code)]
mod tree;

use std::sync::Arc;
use std::time::Duration;
use stowfs::admin::{UndeleteOptions, deleted};
use stowfs::base::config::Config;
use stowfs::store::Store;
use stowfs::store::memory::MemoryCluster;
use tree::{Tree, at, small as config};

async fn open(seed: u64, config: Config) -> Tree {
    let store: Arc<dyn Store> = MemoryCluster::new(seed).host("one");
    Tree::open(&store, config).await
}

fn into(path: &str) -> UndeleteOptions {
    UndeleteOptions {
        into: true,
        ..at(path)
    }
}

/// Only the last tree of a path was looked at: what had been in an earlier one stayed away without a
/// word.
#[tokio::test(start_paused = true)]
async fn all_trees_of_a_path_come_back_into_it_each_name_as_it_was_last() {
    let t = open(1, config()).await;
    // Three lives of one directory; the second of `d/same` and `d/sub/same` is the last.
    for (life, names) in [
        (1, &["d/one", "d/same", "d/sub/one", "d/sub/same"][..]),
        (2, &["d/two", "d/same", "d/sub/two", "d/sub/same", "d/new"]),
    ] {
        for name in names {
            t.write(name, &tree::content(life * 100, 50 * life)).await;
        }
        t.remove_all("d").await;
    }
    t.write("d/new", b"new").await;
    let done = t.undelete(into("d")).await.unwrap();
    assert_eq!(
        (done.files, done.directories, done.exist),
        (6, 1, 1),
        "{done}"
    );
    assert_eq!(done.existing, ["d/new"]);
    for (path, life) in [
        ("d/one", 1),
        ("d/two", 2),
        ("d/same", 2),
        ("d/sub/one", 1),
        ("d/sub/two", 2),
        ("d/sub/same", 2),
    ] {
        let right = tree::content(life * 100, 50 * life);
        assert_eq!(t.read(path).await, Some(right), "{path}");
    }
    assert_eq!(t.read("d/new").await.unwrap(), b"new");
    assert_eq!(t.attr("d/sub").unwrap().nlink, 2);
    t.is_sound();
}

#[tokio::test(start_paused = true)]
async fn a_directory_above_may_have_been_deleted_and_made_again_as_well() {
    let t = open(2, config()).await;
    t.write("a/b/first", &tree::content(1, 90)).await;
    t.remove_all("a/b").await;
    t.write("a/b/second", &tree::content(2, 90)).await;
    t.write("a/other", &tree::content(3, 90)).await;
    t.remove_all("a").await;
    t.write("a/b/third", &tree::content(4, 90)).await;
    let done = t.undelete(into("a/b")).await.unwrap();
    assert_eq!((done.files, done.exist), (2, 0), "{done}");
    assert_eq!(t.read("a/b/first").await, Some(tree::content(1, 90)));
    assert_eq!(t.read("a/b/second").await, Some(tree::content(2, 90)));
    assert_eq!(t.read("a/other").await, None);
    let done = t.undelete(into("a")).await.unwrap();
    assert_eq!(done.files, 1, "{done}");
    assert_eq!(t.read("a/other").await, Some(tree::content(3, 90)));
    t.is_sound();
}

/// What went long before its tree is left out wherever the tree comes back to.
#[tokio::test(start_paused = true)]
async fn what_went_long_before_its_tree_is_left_out_of_it() {
    let t = open(3, config()).await;
    t.write("d/sub/old", &tree::content(1, 90)).await;
    t.write("d/sub/young", &tree::content(2, 90)).await;
    t.remove("d/sub/old").await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    t.remove_all("d").await;
    t.write("d/new", b"new").await;
    let done = t.undelete(into("d")).await.unwrap();
    assert_eq!(
        (done.files, done.directories, done.older),
        (1, 1, 1),
        "{done}"
    );
    assert_eq!(t.read("d/sub/young").await, Some(tree::content(2, 90)));
    t.is_sound();
}

/// It said that nothing at all was remembered.
#[tokio::test(start_paused = true)]
async fn a_path_below_which_nothing_was_deleted_is_named() {
    let t = open(4, config()).await;
    t.write("f", b"f").await;
    t.remove("f").await;
    let said = deleted(t.volume(), Some("/nope/")).unwrap().to_string();
    assert!(said.contains("at or below /nope is remembered"), "{said}");
    let t = open(5, config()).await;
    let said = deleted(t.volume(), None).unwrap().to_string();
    assert_eq!(said, "nothing that was deleted is remembered");
}

/// The list promised the whole grace while the budget was used up.
#[tokio::test(start_paused = true)]
async fn beyond_gc_keep_the_time_left_is_an_upper_bound() {
    for (gc_keep, beyond) in [(0.1, true), (10.0, false)] {
        let upkeep_every = Duration::from_secs(600);
        let t = open(
            6,
            Config {
                gc_keep,
                upkeep_every,
                ..config()
            },
        )
        .await;
        t.write("f", &tree::content(1, 90_000)).await;
        t.write("other", &tree::content(2, 90_000)).await;
        t.sync().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        t.remove("f").await;
        t.sync().await;
        let list = deleted(t.volume(), None).unwrap();
        let said = list.to_string();
        assert_eq!(list.beyond_keep.is_some(), beyond, "{said}");
        assert_eq!(said.contains("for at most "), beyond, "{said}");
        assert_eq!(said.contains("that gc-keep allows"), beyond, "{said}");
    }
}
