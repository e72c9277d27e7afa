#!/bin/sh
# The long forms of the POSIX and the durability tests; arguments name suites, without any all of them
# run. `posix_files@hdfs` is posix_files with its stores on a real HDFS.
set -eu
cd "$(dirname "$0")/.."
export STOWFS_TEST_LONG=1
export STOWFS_TEST_ROUNDS=${STOWFS_TEST_ROUNDS:-100} STOWFS_TEST_REPEAT=${STOWFS_TEST_REPEAT:-5}
if [ $# -eq 0 ]; then
    for file in tests/posix_*.rs tests/durability*.rs; do
        set -- "$@" "$(basename "$file" .rs)"
    done
    for suite in coherence differential dirs files fsx load permissions programs; do
        set -- "$@" "posix_$suite@hdfs"
    done
fi
for suite in "$@"; do
    case $suite in
    *@hdfs) STOWFS_TEST_STORE=hdfs cargo test --test "${suite%@hdfs}" -- --nocapture ;;
    *) cargo test --test "$suite" -- --nocapture ;;
    esac
done
