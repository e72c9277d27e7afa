#!/bin/sh
# The long forms of the POSIX and the durability tests; arguments name suites, without any all of them run.
set -eu
cd "$(dirname "$0")/.."
export STOWFS_TEST_LONG=1
export STOWFS_TEST_ROUNDS=${STOWFS_TEST_ROUNDS:-100} STOWFS_TEST_REPEAT=${STOWFS_TEST_REPEAT:-5}
if [ $# -eq 0 ]; then
    for file in tests/posix_*.rs tests/durability*.rs; do
        set -- "$@" "$(basename "$file" .rs)"
    done
fi
for suite in "$@"; do
    cargo test --test "$suite" -- --nocapture
done
