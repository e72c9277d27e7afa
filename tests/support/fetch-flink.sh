#!/bin/sh
# Fetches the jars of a real Flink with Maven: fetch-flink.sh <version> <directory>
# Does nothing (and needs no network) when the directory is complete already.
set -eu

version=${1:?usage: fetch-flink.sh <version> <directory>}
dir=${2:?usage: fetch-flink.sh <version> <directory>}
pom=$(dirname "$0")/flink/pom.xml
parent=$(dirname "$dir")
mkdir -p "$parent"

# Test binaries that start together must not fetch twice.
exec 9>"$dir.lock"
flock 9

if [ -d "$dir" ] && cmp -s "$pom" "$dir/pom.xml"; then
    exit 0
fi
if ! command -v mvn >/dev/null; then
    echo "fetch-flink.sh: mvn is missing; install it (Debian: apt-get install maven)" >&2
    exit 1
fi
rm -rf "$dir" "$dir.part"
mvn --batch-mode --quiet -f "$pom" -Dflink.version="$version" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$(realpath "$parent")/$(basename "$dir").part"
# Last, so that a complete directory is recognised by it.
cp "$pom" "$dir.part/pom.xml"
mv "$dir.part" "$dir"
