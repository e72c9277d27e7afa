# Sourced by demo.sh and test.sh: installs what is missing on Debian and Ubuntu.
# shellcheck shell=bash

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { echo "$*" >&2; exit 1; }

# as_root COMMAND…
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || die "need root to run: $*  (sudo is not installed)"
        sudo "$@"
    fi
}

# need PROGRAM=PACKAGE…: installs the packages whose program is not there, in one go.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || [ -e "/sbin/${pair%%=*}" ] || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    command -v apt-get >/dev/null || die "install these first: ${missing[*]}"
    say "Installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

need_rust() {
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    command -v cargo >/dev/null ||
        die "need a Rust toolchain (1.88 or later): see https://rustup.rs"
}

need_fuse() {
    [ -e /dev/fuse ] || as_root modprobe fuse || true
    [ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module, or (in a container) add
--device /dev/fuse --cap-add SYS_ADMIN"
}
