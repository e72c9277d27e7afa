//! One suite for all stores: each line of the contract in `src/store/mod.rs` has a case here.
//!
//! A backend's test makes two clients of one empty store and calls `run_suite`. `STORE_CASE=name`
//! runs the cases whose names contain that.

mod files;
mod recovery;
mod tree;

use bytes::Bytes;
use files::*;
use futures::future::{BoxFuture, join_all};
use recovery::*;
use std::sync::Arc;
use std::time::Duration;
use stowfs::base::{ErrorKind, Result};
use stowfs::store::{OpenVisibility, Store, Writer};
use tree::*;

/// Where a case plays: two clients of the same store, and a directory of its own.
#[derive(Clone)]
pub struct Stage {
    pub store: Arc<dyn Store>,
    pub other: Arc<dyn Store>,
    dir: String,
}

impl Stage {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    async fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.at(name);
        self.store
            .put(&path, Bytes::copy_from_slice(content))
            .await
            .unwrap();
        path
    }

    async fn create(&self, name: &str) -> (String, Box<dyn Writer>) {
        let path = self.at(name);
        let writer = self.store.create(&path).await.unwrap();
        (path, writer)
    }

    /// The whole file, as the other client sees it.
    async fn read(&self, path: &str) -> Bytes {
        let reader = self.other.open(path).await.unwrap();
        assert_eq!(reader.len().min(1) == 0, reader.is_empty());
        reader.read_at(0, reader.len() as usize).await.unwrap()
    }

    async fn names(&self, path: &str) -> Vec<String> {
        self.other
            .list(path)
            .await
            .unwrap()
            .into_iter()
            .map(|info| info.name)
            .collect()
    }
}

type Case = fn(Stage) -> BoxFuture<'static, ()>;

macro_rules! cases {
    ($($name:ident)*) => { &[$((stringify!($name), |stage| Box::pin($name(stage)))),*] };
}

const CASES: &[(&str, Case)] = cases! {
    create_has_one_winner
    a_writer_shows_while_it_has_the_file_open
    attributes_can_be_set
    create_refuses_what_exists
    create_never_makes_a_parent
    appended_bytes_read_back
    many_small_appends_are_one_file
    an_empty_file_can_be_synced_and_closed
    reads_are_exact_or_refused
    readers_are_shared
    what_is_missing_is_not_found
    a_synced_length_is_reported_while_open
    visibility_while_open_is_as_declared
    a_closed_writer_stays_closed
    a_listing_is_whole_and_sorted
    mkdir_makes_parents_and_is_idempotent
    mkdir_over_a_file_fails
    rename_moves_files_and_trees
    rename_never_replaces
    rename_has_one_winner
    rename_needs_source_and_parent
    a_renamed_directory_admits_no_new_file
    a_writer_in_a_renamed_directory_loses_nothing_it_synced
    recover_fences_and_keeps_what_was_synced
    recover_of_an_abandoned_file
    recover_of_a_file_without_a_sync
    recover_of_a_closed_file_changes_nothing
    recover_by_two_at_once
    delete_removes_files_and_empty_directories_only
    delete_fences_the_writer
    put_is_whole_and_never_replaces
    put_has_one_winner
    files_are_dated_by_the_stores_clock
    usage_is_plausible
    many_writers_at_once
    odd_names_are_names
    paths_cannot_leave_the_root
    the_root_is_a_directory
};

/// Runs every case, each in its own directory, and panics at the end with all that failed.
pub async fn run_suite(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let filter = std::env::var("STORE_CASE").unwrap_or_default();
    let mut failed = Vec::new();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&filter)) {
        let stage = Stage {
            store: store.clone(),
            other: other.clone(),
            dir: format!("t/{name}"),
        };
        store.mkdir(&stage.dir).await.unwrap();
        let case = tokio::time::timeout(Duration::from_secs(120), case(stage));
        match tokio::spawn(case).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failed.push(format!("{name}: not done after 120 s")),
            Err(panic) => failed.push(format!("{name}: {panic}")),
        }
    }
    assert!(failed.is_empty(), "{}:\n{}", store.url(), failed.join("\n"));
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind) {
    match result {
        Ok(_) => panic!("not refused; expected {kind:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{e:?}"),
    }
}

/// Of many results exactly one is Ok, all others are `AlreadyExists`; returns which.
#[track_caller]
fn one_winner<T>(results: Vec<Result<T>>) -> usize {
    let winners: Vec<usize> = (0..results.len()).filter(|&i| results[i].is_ok()).collect();
    assert_eq!(winners.len(), 1, "winners {winners:?}");
    for e in results.into_iter().filter_map(Result::err) {
        assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e:?}");
    }
    winners[0]
}

/// Bytes that differ at every position of interest.
fn pattern(seed: u8, len: usize) -> Bytes {
    (0..len)
        .map(|i| (i as u8) ^ ((i >> 8) as u8).wrapping_mul(31) ^ seed)
        .collect()
}
