#!/usr/bin/env bash
# Installs what is missing and runs every check and test: format, clippy, all suites. Each suite has
# a time budget. Arguments name suites, to run only those: ./test.sh lib mount posix_files posix_files@hdfs
set -uo pipefail
cd "$(dirname "$0")" || exit 1
. scripts/need.sh

need cc=build-essential fusermount3=fuse3 git=git javac=default-jdk-headless mvn=maven fio=fio \
    strace=strace sqlite3=sqlite3 setfattr=attr setfacl=acl flock=util-linux rsync=rsync
need_rust
need_fuse
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || exit 1
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || exit 1

# Seconds that a suite may take; the whole of a cold run must fit in an hour.
budget() {
    case $1 in
    lib) echo 300 ;;
    durability_hdfs) echo 900 ;;
    soak) echo 900 ;;
    hdfs_* | posix_hdfs | *@hdfs | flink*) echo 600 ;;
    crash_* | sim_*) echo 400 ;;
    *) echo 300 ;;
    esac
}

# Suites with real daemons under real time. On a crowded machine a JVM can be late for a reason that is
# not stowfs; such a suite gets a second attempt, and the summary says so.
real() {
    case $1 in
    hdfs_* | *_hdfs | soak | mount* | durability | flink* | adopt_command | rocksdb | costs | posix_*) return 0 ;;
    *) return 1 ;;
    esac
}

report=()
failed=0
# run NAME SECONDS COMMAND…
run() {
    local name=$1 limit=$2 start=$SECONDS status=0
    shift 2
    say "$name"
    timeout --kill-after=30 "$limit" "$@" || status=$?
    local how=ok
    if [ $status -ne 0 ] && real "$name" && [ $SECONDS -lt 2400 ]; then
        say "$name, second attempt (the first failed with $status)"
        status=0
        timeout --kill-after=30 "$limit" "$@" || status=$?
        how="ok at the SECOND attempt: look at the first above"
    fi
    local took=$((SECONDS - start))
    [ $status -eq 0 ] || { how=FAILED; failed=1; }
    [ $status -ne 124 ] && [ $status -ne 137 ] || how="OUT OF TIME ($limit s)"
    report+=("$(printf '%-24s %5d s  %s' "$name" "$took" "$how")")
}

suites=("$@")
if [ ${#suites[@]} -eq 0 ]; then
    run "rustfmt" 60 cargo fmt --check
    run "clippy" 1200 cargo clippy --all-targets -- -D warnings
    suites=(lib)
    for file in tests/*.rs; do
        suites+=("$(basename "$file" .rs)")
    done
    # Once more, with their stores on a real HDFS.
    for suite in coherence dirs files fsx load permissions programs; do
        suites+=("posix_$suite@hdfs")
    done
fi

run "build" 1800 cargo test --no-run
# Fetched before the suites begin, so that a slow network does not eat their time.
run "Hadoop from Maven" 600 tests/support/fetch-jars.sh hadoop "${STOWFS_TEST_CACHE:-target/test-cache}/hadoop"
run "pjdfstest and fsx" 900 tests/support/fetch-posix-tools.sh "${STOWFS_TEST_CACHE:-target/test-cache}/posix"
for version in 2.3.0 1.20.5; do
    run "Flink $version from Maven" 600 tests/support/fetch-jars.sh flink "$version" \
        "${STOWFS_TEST_CACHE:-target/test-cache}/flink-$version"
done
for suite in "${suites[@]}"; do
    case $suite in
    lib) run "$suite" "$(budget lib)" cargo test --lib ;;
    *@hdfs)
        run "$suite" "$(budget "$suite")" env STOWFS_TEST_STORE=hdfs cargo test --test "${suite%@hdfs}"
        ;;
    *) run "$suite" "$(budget "$suite")" cargo test --test "$suite" ;;
    esac
done

say "Summary"
printf '%s\n' "${report[@]}"
exit $failed
