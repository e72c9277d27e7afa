#!/usr/bin/env bash
# Installs what is missing, builds stowfs, mounts a local store and shows packing on real files.
# Leaves nothing behind but the build.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/need.sh

need cc=build-essential fusermount3=fuse3
need_rust
need_fuse

say "Building (the first time takes some minutes)"
cargo build --release
stowfs=$PWD/target/release/stowfs

work=$(mktemp -d)
mnt=$work/mnt
store=$work/store
run=$work/run
mounted=
clean_up() {
    [ -z "$mounted" ] || "$stowfs" umount --run-dir "$run" "$mnt" || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
mkdir "$mnt" "$store"

mount_it() {
    "$stowfs" mount --daemon --run-dir "$run" "file://$store" "$mnt"
    mounted=yes
}

say "Mounting a local directory as the store"
mount_it

say "Writing thousands of small files, as a checkpoint does, and the sources of stowfs"
mkdir "$mnt/checkpoint"
head -c 48M /dev/urandom >"$work/bytes"
begin=$(date +%s%N)
split -b 16K -a 5 -d "$work/bytes" "$mnt/checkpoint/sst-"
ms=$((($(date +%s%N) - begin) / 1000000))
echo "3072 files of 16 KiB by one writer in $ms ms; each was durable when it was closed"
rm "$work/bytes"
cp -r src tests Cargo.toml Cargo.lock "$mnt/"
(cd "$mnt" && find . -type f -print0 | xargs -0 sha256sum) >"$work/sums"

say "In the mount: $(find "$mnt" -type f | wc -l) files, $(du -sh --apparent-size "$mnt" | cut -f1)"
ls -l "$mnt"
ls "$mnt/checkpoint" | sed -n "1,3p"

say "On the store: $(find "$store" -type f | wc -l) files"
find "$store" -type f -exec ls -l {} + | awk '{print $5, $NF}' | sed "s|$work/||"

say "Where one of the files is"
"$stowfs" stat "$mnt/checkpoint/sst-01234"

if "$stowfs" segments --help >/dev/null 2>&1; then
    say "Segments"
    "$stowfs" segments --run-dir "$run" "$mnt"
fi

say "Unmounting, mounting again, and comparing every file"
"$stowfs" umount --run-dir "$run" "$mnt"
mounted=
mount_it
(cd "$mnt" && sha256sum --quiet -c "$work/sums")
echo "all $(wc -l <"$work/sums") files are as they were written"

say "Done. To use it: $stowfs mount STORE-URL MOUNTPOINT"
