#!/bin/sh
# Builds pjdfstest and fsx from their crates: fetch-posix-tools.sh <directory>
# Does nothing (and needs no network) when they are there already.
set -eu

pjdfstest=0.2.2
fsx=0.3.2

dir=${1:?usage: fetch-posix-tools.sh <directory>}
mkdir -p "$dir"

# Test binaries that start together must not build twice.
exec 9>"$dir/lock"
flock 9

# `cargo install` compares versions itself, but asks the registry first.
installed() {
    grep -qs "^\"$1 $2 " "$dir/.crates.toml" && [ -x "$dir/bin/$1" ]
}
install() {
    installed "$1" "$2" && return
    cargo install --quiet --locked --root "$dir" --target-dir "$dir/build" "$1@$2"
}
install pjdfstest $pjdfstest
install fsx $fsx
rm -rf "$dir/build"
