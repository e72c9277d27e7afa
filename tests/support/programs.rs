//! Programs on a mount that crashes.

use super::posix::{TestMount, command, run, scale, shell};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Commits rows and prints each number that is committed. With a rollback journal SQLite commits by an
/// unlink, and with `full` it does not sync the directory; with `extra` it does, but takes a directory
/// that it cannot open (for the mount was killed just now) for one that needs no sync. So the directory
/// is synced here, too, before a commit counts.
const WRITER: &str = "
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[2])
db.execute('pragma synchronous=extra')
db.execute('create table if not exists t (n integer primary key, text)')
n = db.execute('select coalesce(max(n), 0) from t').fetchone()[0]
while True:
    n += 1
    db.execute('begin')
    db.execute('insert into t values (?, ?)', (n, 'x' * (n * 37 % 3000)))
    if n % 7 == 0:
        db.execute('update t set text = text || ? where n % 7 = 3 and n > ?', ('y', n - 50))
    db.execute('commit')
    folder = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    print(n, flush=True)
";

const CHECK: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute('pragma integrity_check').fetchone()[0], end=' ')
print(*db.execute('select count(*), coalesce(max(n), 0) from t').fetchone())
";

/// Whatever SQLite has reported as committed is there after a crash of the mount.
pub fn sqlite(mut mount: TestMount, journal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for _ in 0..scale(3, 20) {
        let printed = folder.path().join("printed");
        let mut writer = command("python3", &["-c", WRITER]);
        writer.arg(mount.at("db")).arg(journal);
        writer.stdout(fs::File::create(&printed).unwrap());
        let mut writer = writer.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        mount.kill9();
        let _ended = writer.kill();
        writer.wait().unwrap();
        mount.remount();
        let lines = fs::read_to_string(&printed).unwrap();
        let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
        if let Some(last) = whole.lines().last() {
            acknowledged = last.parse().unwrap();
        }
        let text = run(command("python3", &["-c", CHECK]).arg(mount.at("db")));
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[0], "ok", "{text}");
        assert_eq!(words[1], words[2], "{text}");
        let found: u64 = words[2].parse().unwrap();
        assert!(
            found >= acknowledged,
            "{journal}: {found} rows, {acknowledged} acknowledged"
        );
    }
    println!("{journal}: {acknowledged} commits");
    assert!(acknowledged > 0);
    mount.finish();
}

/// git, with a crash before its check.
pub fn git(mut mount: TestMount) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = |folder: &Path, line: &str| {
        let who = "-c user.name=t -c user.email=t@example.com -c safe.directory='*'";
        shell(folder, &line.replace("git ", &format!("git {who} ")))
    };
    let root = mount.path();
    // The sources of this program, whether or not they come with their history.
    let source = here.display();
    git(&root, "git init -q origin");
    shell(
        &root,
        &format!("cp -r {source}/src {source}/tests {source}/Cargo.toml origin/"),
    );
    git(&root, "cd origin && git add -A && git commit -qm one");
    git(&root, "git clone -q --no-local origin clone");
    let clone = mount.at("clone");
    for n in 0..5 {
        let change = format!("echo {n} >>Cargo.toml && git mv src s{n} && git mv s{n} src");
        git(&clone, &format!("{change} && git commit -qam change-{n}"));
    }
    git(
        &clone,
        "git checkout -qb branch HEAD~3 && echo x >new && git add new && git commit -qm x",
    );
    git(
        &clone,
        "git checkout -q - && git merge -q branch -m merge && git gc -q --prune=now",
    );
    git(&clone, "git push -q origin branch");
    mount.crash();
    for folder in ["clone", "origin"] {
        let text = git(
            &mount.at(folder),
            "git fsck --full 2>&1 && git status --porcelain",
        );
        assert_eq!(text.trim(), "", "{folder}");
    }
    assert_eq!(git(&clone, "git log --oneline | wc -l").trim(), "8");
    mount.finish();
}
