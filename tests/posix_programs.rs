//! Programs that people use, on a mount.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::fetch;
use support::java::{compile, java};
use support::posix::{TestMount, command, output, run, scale, shell};
use support::programs::{git, sqlite};

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite(TestMount::new(), "delete");
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite(TestMount::new(), "wal");
}

#[test]
fn sqlite_from_several_processes() {
    let mount = TestMount::new();
    let python = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for n in range(int(sys.argv[3])):
    db.execute('insert into c values (?, ?)', (sys.argv[2], n))
";
    let rounds = scale("40", "500");
    // Beforehand: SQLite does not wait for locks while it changes the kind of journal, so that of
    // several that do it at once some fail, on any filesystem.
    let mut prepare = command("sqlite3", &[mount.at("db")]);
    run(prepare.arg("pragma journal_mode=wal; create table c (who, n);"));
    let all: Vec<_> = (0..4)
        .map(|who| {
            let mut writer = command("python3", &["-c", python]);
            writer.arg(mount.at("db")).arg(who.to_string()).arg(rounds);
            writer.spawn().unwrap()
        })
        .collect();
    for mut writer in all {
        assert!(writer.wait().unwrap().success());
    }
    let mut sqlite3 = command("sqlite3", &[mount.at("db")]);
    let text =
        run(sqlite3.arg("pragma integrity_check; select who, count(*) from c group by who;"));
    let want: String = (0..4).map(|who| format!("{who}|{rounds}\n")).collect();
    assert_eq!(text, format!("ok\n{want}"));
    mount.finish();
}

#[test]
fn git_clones_commits_collects_and_checks() {
    git(TestMount::new());
}

/// Files of every kind, with all that can be known of them.
fn make_tree(folder: &Path) {
    let line = r"
mkdir -p tree/deep/er tree/empty && cd tree
printf 'text' >plain; head -c 3000000 /dev/urandom >large; : >nothing
truncate -s 5M sparse; printf end >>sparse; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
ln plain deep/hard; ln -s ../plain deep/soft; ln -s /nowhere dangling; mkfifo fifo
chmod 4751 plain; chmod 1777 empty; chmod 600 large; chown 2:3 nothing; chown -h 5:6 dangling
setfattr -n user.colour -v blue plain; setfattr -n user.on.dir -v yes deep
setfattr -n trusted.t -v 1 large
touch -d '2001-02-03 04:05:06.123456789' plain large deep/er nothing sparse empty
touch -h -d '1999-12-31 23:59:59.5' dangling deep/soft fifo; touch -d '2010-01-01 00:00:00.000000001' deep .
";
    shell(folder, line);
}

/// Everything but inode numbers, access and change times.
fn describe(tree: &Path) -> String {
    let metadata = r"find . -printf '%p %M %U %G %n %s %T@ %l\n' | sed -E '/^[^ ]+ d/ s/ [0-9]+ ([0-9]+\.)/ - \1/' | sort";
    let content = "find . -type f -exec cksum {} + | sort -k3";
    let xattrs = "find . ! -type l -exec getfattr --absolute-names -d -m - {} + 2>/dev/null";
    let links = "find . -type f -links +1 -printf '%i\n' | sort | uniq -c | awk '{print $1}'";
    shell(
        tree,
        &format!("{metadata}; {content}; {xattrs} | sort; {links}"),
    )
}

#[test]
fn tar_rsync_and_cp_keep_all_metadata() {
    let mut mount = TestMount::with(&["-o", "suid,dev"]);
    let disk = tempfile::tempdir().unwrap();
    make_tree(disk.path());
    let want = describe(&disk.path().join("tree"));
    let (from, to) = (disk.path().display().to_string(), mount.path());
    let ways = [
        ("cp", format!("cp -a {from}/tree cp")),
        (
            "cp-sparse",
            format!("cp -a --sparse=always {from}/tree cp-sparse"),
        ),
        ("rsync", format!("rsync -aHX --sparse {from}/tree/ rsync/")),
        (
            "tar",
            format!(
                "mkdir tar && tar -C {from}/tree --xattrs --xattrs-include='*' -Scf - . | tar -C tar --xattrs --xattrs-include='*' -xpf -"
            ),
        ),
        ("within", "cp -a --reflink=auto cp within".to_string()),
        ("reflink", "cp -a tar reflink".to_string()),
    ];
    for (name, line) in &ways {
        shell(&to, line);
        assert_same(&describe(&to.join(name)), &want, name);
    }
    mount.cycle();
    for (name, _) in &ways {
        assert_same(
            &describe(&to.join(name)),
            &want,
            &format!("{name} after a remount"),
        );
    }
    // And back, and nothing to do the second time.
    shell(
        disk.path(),
        &format!(
            "tar -C {}/tar --xattrs --xattrs-include='*' -cf t.tar . && mkdir back && tar -C back --xattrs --xattrs-include='*' -xpf t.tar",
            to.display()
        ),
    );
    assert_same(&describe(&disk.path().join("back")), &want, "back");
    let again = shell(&to, &format!("rsync -aHXi {from}/tree/ rsync/"));
    assert_eq!(again, "", "rsync finds nothing to do");
    let blocks = shell(
        &to,
        "du -k --apparent-size cp/sparse | cut -f1; du -k cp-sparse/sparse | cut -f1",
    );
    let sizes: Vec<u64> = blocks.lines().map(|l| l.trim().parse().unwrap()).collect();
    assert!(sizes[1] * 10 < sizes[0], "holes are holes: {blocks}");
    mount.finish();
}

fn assert_same(found: &str, want: &str, name: &str) {
    let (found, want) = (found.lines(), want.lines());
    let differ: Vec<_> = found.zip(want).filter(|(f, w)| f != w).take(5).collect();
    assert!(differ.is_empty(), "{name}: found, wanted: {differ:#?}");
}

/// `--reflink=always` needs FICLONE, which the kernel keeps from FUSE: the tool says so, clearly.
#[test]
fn a_forced_reflink_is_refused() {
    let mount = TestMount::new();
    fs::write(mount.at("a"), "x").unwrap();
    let mut cp = command("cp", &["--reflink=always", "a", "b"]);
    let refused = output(cp.current_dir(mount.path()));
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("not supported"), "{text}");
    mount.finish();
}

/// A compiler that maps its files, renames its output and runs it.
#[test]
fn a_program_is_built_and_run() {
    let mount = TestMount::new();
    let source = "#include <stdio.h>\nint main(void) { puts(\"built on stowfs\"); return 0; }\n";
    fs::write(mount.at("main.c"), source).unwrap();
    run(Command::new("cc")
        .args(["-g", "-o", "program", "main.c"])
        .current_dir(mount.path()));
    assert_eq!(
        shell(&mount.path(), "ar rc lib.a main.c && ./program"),
        "built on stowfs\n"
    );
    mount.finish();
}

#[test]
fn java_and_hadoop_find_space() {
    let mount = TestMount::new();
    let jars = fetch::jars("fetch-jars.sh", &["hadoop"], "hadoop").unwrap();
    let classes = tempfile::tempdir().unwrap();
    compile("Space", &jars, classes.path()).unwrap();
    let class_path = [classes.path().to_path_buf(), jars.join("*")];
    let text = run(java(&class_path, 128, &[], "Space").arg(mount.path()));
    assert!(text.ends_with("ok\n"), "{text}");
    mount.finish();
}
