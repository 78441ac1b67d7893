#!/usr/bin/env bash
# `make demo` and `make test` on a Debian that has Python, venv, make and git only, in a clone with nothing beside it.
#
#     tests/bare_machine.sh [RELEASE [COMMAND…]]        bookworm 'make demo' 'make test'
#
# Needs root, and debootstrap, which is installed if it is missing. apt and pip have the settings of this machine there.
# The variable KEEP names a folder in which the machine remains, for the next run too; otherwise it is deleted.
set -euo pipefail
release=${1:-bookworm}
shift $(($# > 0))
[ $# -gt 0 ] || set -- 'make demo' 'make test'
project=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${BARE_MACHINE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo 'bare_machine.sh needs root: sudo tests/bare_machine.sh'; exit 1; }
    folder=$(mktemp -d)
    trap 'rm -rf --one-file-system "$folder"' EXIT
    [ -z "${KEEP:-}" ] || mkdir -p "$KEEP"
    # Everything that is mounted or started in these namespaces ends with the script.
    BARE_MACHINE=${KEEP:-$folder} unshare --mount --pid --fork --kill-child "$0" "$release" "$@"
    exit
fi

root=$BARE_MACHINE/$release
shopt -s nullglob # any of these files may be missing
sources=(/etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources)
[ ! -f /etc/apt/sources.list ] || sources=(/etc/apt/sources.list "${sources[@]}")
if [ ! -e "$root/complete" ]; then
    command -v debootstrap >/dev/null || { apt-get -qq update; apt-get -qq install debootstrap; } >/dev/null
    # The first archive of apt's settings, in either of their formats.
    archive=$(cat "${sources[@]}" | sed -nE 's/^(URIs:|deb) +(\[.*\] +)?((https?|file):[^ ]+).*/\3/p' | sed -n 1p)
    debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-venv "$release" "$root" "$archive" \
        >"$BARE_MACHINE/debootstrap.log" 2>&1 || { tail -3 "$BARE_MACHINE/debootstrap.log"; exit 1; }
    touch "$root/complete"
fi
mount --bind "$root" "$root" # in which a test may mount its own file systems
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp -r /etc/ssl/certs/. "$root/etc/ssl/certs/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
rm -f "$root/etc/apt/sources.list"
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
for file in "${sources[@]}"; do
    sed "s/\b$codename\b/$release/g" "$file" >"$root$file"
done
# pip's settings, and the folders that they name.
for file in /etc/pip.conf /etc/xdg/pip/* ~/.config/pip/* ~/.pip/*; do
    [ ! -f "$file" ] || install -D -m 644 "$file" "$root$file"
done
{ env | grep '^PIP_' || :; cat /etc/pip.conf /etc/xdg/pip/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf 2>/dev/null || :; } |
    { grep -oE '[=/ ]/[A-Za-z0-9_./-]+' || :; } | sed -E 's#^.##; s#/simple/?$##' | sort -u | while read -r folder; do
        [ ! -d "$folder" ] || { mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; }
    done

inside() {
    # shellcheck disable=SC2046  # each variable is a word
    chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        $(env | grep -E '^(PIP_|https?_proxy=|HTTPS?_PROXY=|no_proxy=|NO_PROXY=|MINHUB_)') bash -ec "cd; $1"
}
rm -rf "$root/root/minhub_py" "$root/root/minhub_py.git"
git clone --quiet --bare "$project" "$root/root/minhub_py.git"
inside 'git clone --quiet minhub_py.git'
echo "Debian $(cat "$root/etc/debian_version") with $(inside 'python3 --version'): $((SECONDS)) s"
for command; do
    start=$SECONDS
    inside "cd minhub_py; $command" || { echo "$command failed on a bare machine"; exit 1; }
    echo "$command: $((SECONDS - start)) s"
done
# With a compiler or without one, the installation has a decoder.
inside 'minhub_py/.venv/bin/minhub doctor' | grep 'decoder in C' | grep -E "kernels:|${MINHUB_NO_DECODER:+disabled}" ||
    { echo 'the decoder in C was not compiled'; exit 1; }
