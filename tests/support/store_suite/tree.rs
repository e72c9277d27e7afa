//! Names, directories, renaming and deleting.

use super::*;

pub(super) async fn what_is_missing_is_not_found(s: Stage) {
    let path = s.at("no");
    refused(s.store.open(&path).await, ErrorKind::NotFound);
    refused(s.store.stat(&path).await, ErrorKind::NotFound);
    refused(s.store.list(&path).await, ErrorKind::NotFound);
    refused(s.store.delete(&path).await, ErrorKind::NotFound);
    refused(s.store.recover(&path).await, ErrorKind::NotFound);
}

pub(super) async fn a_listing_is_whole_and_sorted(s: Stage) {
    assert!(s.names(&s.dir).await.is_empty());
    let mut expected: Vec<String> = (0..150).map(|i| format!("f{i}")).collect();
    for name in &expected {
        s.file(name, name.as_bytes()).await;
    }
    s.store.mkdir(&s.at("dir")).await.unwrap();
    let (open, _writer) = s.create("open").await;
    expected.extend(["dir".to_string(), "open".to_string()]);
    expected.sort();
    assert_eq!(s.names(&s.dir).await, expected);
    for info in s.other.list(&s.dir).await.unwrap() {
        assert_eq!(info, s.other.stat(&s.at(&info.name)).await.unwrap());
        assert_eq!(info.is_dir, info.name == "dir");
        assert!(info.is_dir || info.name == "open" || info.len == info.name.len() as u64);
    }
    assert!(s.other.list(&open).await.is_err(), "a file has no listing");
}

pub(super) async fn mkdir_makes_parents_and_is_idempotent(s: Stage) {
    let deep = s.at("a/b/c");
    let racers = (0..6).map(|i| if i % 2 == 0 { &s.store } else { &s.other });
    for made in join_all(racers.map(|store| store.mkdir(&deep))).await {
        made.unwrap();
    }
    for dir in [s.at("a"), s.at("a/b"), deep] {
        let info = s.other.stat(&dir).await.unwrap();
        assert!(info.is_dir);
        assert_eq!(info.mode & 0o777, 0o700, "{dir}");
    }
}

pub(super) async fn mkdir_over_a_file_fails(s: Stage) {
    let path = s.file("f", b"content").await;
    assert!(s.store.mkdir(&path).await.is_err());
    assert!(s.store.mkdir(&format!("{path}/below")).await.is_err());
    assert_eq!(s.read(&path).await, "content");
}

pub(super) async fn rename_moves_files_and_trees(s: Stage) {
    s.store.mkdir(&s.at("a/b")).await.unwrap();
    s.store.mkdir(&s.at("c")).await.unwrap();
    s.file("a/b/f", b"1").await;
    s.store.rename(&s.at("a/b/f"), &s.at("c/g")).await.unwrap();
    assert_eq!(s.read(&s.at("c/g")).await, "1");
    s.store.rename(&s.at("c"), &s.at("a/b/d")).await.unwrap();
    assert_eq!(s.names(&s.dir).await, ["a"]);
    assert_eq!(s.names(&s.at("a/b")).await, ["d"]);
    assert_eq!(s.read(&s.at("a/b/d/g")).await, "1");
}

pub(super) async fn rename_never_replaces(s: Stage) {
    let (f, g) = (s.file("f", b"1").await, s.file("g", b"2").await);
    s.store.mkdir(&s.at("dir")).await.unwrap();
    s.store.mkdir(&s.at("empty")).await.unwrap();
    for (from, to) in [("f", "g"), ("f", "empty"), ("dir", "empty"), ("dir", "g")] {
        refused(
            s.store.rename(&s.at(from), &s.at(to)).await,
            ErrorKind::AlreadyExists,
        );
    }
    assert_eq!(s.names(&s.dir).await, ["dir", "empty", "f", "g"]);
    assert_eq!(
        (s.read(&f).await, s.read(&g).await),
        ("1".into(), "2".into())
    );
}

pub(super) async fn rename_has_one_winner(s: Stage) {
    let mut sources = Vec::new();
    for i in 0..6 {
        sources.push(s.file(&format!("f{i}"), format!("{i}").as_bytes()).await);
    }
    let target = s.at("target");
    let races = sources.iter().enumerate().map(|(i, from)| {
        let store = if i % 2 == 0 { &s.store } else { &s.other };
        store.rename(from, &target)
    });
    let winner = one_winner(join_all(races).await);
    assert_eq!(s.read(&target).await, format!("{winner}"));
    assert_eq!(s.names(&s.dir).await.len(), 6);
}

pub(super) async fn rename_needs_source_and_parent(s: Stage) {
    refused(
        s.store.rename(&s.at("no"), &s.at("to")).await,
        ErrorKind::NotFound,
    );
    let f = s.file("f", b"1").await;
    refused(s.store.rename(&f, &s.at("no/f")).await, ErrorKind::NotFound);
    assert_eq!(s.read(&f).await, "1");
}

pub(super) async fn a_renamed_directory_admits_no_new_file(s: Stage) {
    s.store.mkdir(&s.at("log/1")).await.unwrap();
    let (_, _writer) = s.create("log/1/0").await;
    s.other
        .rename(&s.at("log/1"), &s.at("log/1.fenced"))
        .await
        .unwrap();
    refused(s.store.create(&s.at("log/1/1")).await, ErrorKind::NotFound);
    assert_eq!(s.names(&s.at("log/1.fenced")).await, ["0"]);
}

pub(super) async fn delete_removes_files_and_empty_directories_only(s: Stage) {
    s.store.mkdir(&s.at("dir")).await.unwrap();
    let path = s.file("dir/f", b"1").await;
    refused(s.store.delete(&s.at("dir")).await, ErrorKind::Invalid);
    assert_eq!(s.read(&path).await, "1");
    s.store.delete(&path).await.unwrap();
    refused(s.store.delete(&path).await, ErrorKind::NotFound);
    s.store.delete(&s.at("dir")).await.unwrap();
    assert!(s.names(&s.dir).await.is_empty());
}

pub(super) async fn odd_names_are_names(s: Stage) {
    let mut names = vec![
        "a b",
        "%41",
        "ü€",
        "a+b#c?d&e",
        "-x",
        ".hidden",
        "~",
        "*",
        "\"q\"",
        "a\\b",
    ];
    for name in &names {
        let path = s.file(name, name.as_bytes()).await;
        assert_eq!(s.read(&path).await, name.as_bytes());
        assert_eq!(s.other.stat(&path).await.unwrap().name, *name);
    }
    names.sort_unstable();
    assert_eq!(s.names(&s.dir).await, names);
}

pub(super) async fn paths_cannot_leave_the_root(s: Stage) {
    for path in ["/etc/passwd", "../x", "t/../../x", "t//x", "t/./x", "t/"] {
        refused(s.store.open(path).await, ErrorKind::Invalid);
        refused(s.store.stat(path).await, ErrorKind::Invalid);
        refused(s.store.list(path).await, ErrorKind::Invalid);
        refused(s.store.create(path).await, ErrorKind::Invalid);
        refused(s.store.mkdir(path).await, ErrorKind::Invalid);
        refused(s.store.put(path, Bytes::new()).await, ErrorKind::Invalid);
        refused(s.store.delete(path).await, ErrorKind::Invalid);
        refused(s.store.recover(path).await, ErrorKind::Invalid);
        refused(s.store.rename(path, &s.at("to")).await, ErrorKind::Invalid);
        refused(
            s.store.rename(&s.at("from"), path).await,
            ErrorKind::Invalid,
        );
    }
}

pub(super) async fn the_root_is_a_directory(s: Stage) {
    s.store.mkdir("").await.unwrap();
    let root = s.store.stat("").await.unwrap();
    assert!(root.is_dir);
    assert_eq!(root.name, "");
    assert!(s.names("").await.contains(&"t".to_string()));
    assert!(s.store.open("").await.is_err());
}

/// Asking must change nothing: neither the file nor what its writer may do.
pub(super) async fn a_writer_shows_while_it_has_the_file_open(s: Stage) {
    let closed = s.file("closed lease", b"content").await;
    let before = s.other.stat(&closed).await.unwrap();
    assert!(!s.other.is_open(&closed).await.unwrap());
    assert_eq!(s.other.stat(&closed).await.unwrap(), before);
    let (open, mut writer) = s.create("open").await;
    for n in 1..=2 {
        writer.append("more".into()).await.unwrap();
        writer.sync().await.unwrap();
        assert!(s.other.is_open(&open).await.unwrap(), "after sync {n}");
        assert!(s.store.is_open(&open).await.unwrap(), "its own client");
    }
    writer.close().await.unwrap();
    assert!(!s.other.is_open(&open).await.unwrap());
    assert_eq!(s.read(&open).await, "moremore");
    refused(s.other.is_open(&s.at("no")).await, ErrorKind::NotFound);
    assert_eq!(s.names(&s.dir).await, ["closed lease", "open"]);
}

pub(super) async fn attributes_can_be_set(s: Stage) {
    let file = s.file("f", b"content").await;
    let dir = s.at("d");
    s.store.mkdir(&dir).await.unwrap();
    let time = 1_600_000_000_123_000_000;
    for (path, mode) in [(&file, 0o640), (&dir, 0o755)] {
        s.store.set_attr(path, mode, time).await.unwrap();
        let info = s.other.stat(path).await.unwrap();
        assert_eq!((info.mode & 0o777, info.mtime), (mode, time), "{path}");
    }
    assert_eq!(s.read(&file).await, "content");
    refused(
        s.store.set_attr(&s.at("no"), 0o600, time).await,
        ErrorKind::NotFound,
    );
}
