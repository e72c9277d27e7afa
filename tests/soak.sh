#!/bin/sh
# The long form of the soak test: an hour, or as many seconds as the argument says.
# STOWFS_TEST_SEED=n repeats the choices of a run.
set -eu
cd "$(dirname "$0")/.."
STOWFS_TEST_SOAK=${1:-3600} exec cargo test --test soak -- --nocapture
