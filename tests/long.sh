#!/bin/sh
# The long forms of the POSIX tests; arguments name suites, without any all of them run.
set -eu
cd "$(dirname "$0")/.."
export STOWFS_TEST_LONG=1
if [ $# -eq 0 ]; then
    for file in tests/posix_*.rs; do
        set -- "$@" "$(basename "$file" .rs)"
    done
fi
for suite in "$@"; do
    cargo test --test "$suite" -- --nocapture
done
