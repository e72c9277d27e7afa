#!/bin/sh
# Fetches the jars of a real Hadoop or Flink with Maven:
#   fetch-jars.sh hadoop <directory>
#   fetch-jars.sh flink <version> <directory>
# Does nothing (and needs no network) when the directory is complete already.
set -eu

usage="usage: fetch-jars.sh hadoop|flink [<version>] <directory>"
what=${1:?$usage}
case $# in
2) version= dir=$2 ;;
3) version=-D$what.version=$2 dir=$3 ;;
*) echo "$usage" >&2 && exit 2 ;;
esac
pom=$(dirname "$0")/$what/pom.xml
parent=$(dirname "$dir")
mkdir -p "$parent"

# Test binaries that start together must not fetch twice.
exec 9>"$dir.lock"
flock 9

if [ -d "$dir" ] && cmp -s "$pom" "$dir/pom.xml"; then
    exit 0
fi
if ! command -v mvn >/dev/null; then
    echo "fetch-jars.sh: mvn is missing; install it (Debian: apt-get install maven)" >&2
    exit 1
fi
rm -rf "$dir" "$dir.part"
mvn --batch-mode --quiet -f "$pom" ${version:+"$version"} dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$(realpath "$parent")/$(basename "$dir").part"
# Last, so that a complete directory is recognised by it.
cp "$pom" "$dir.part/pom.xml"
mv "$dir.part" "$dir"
