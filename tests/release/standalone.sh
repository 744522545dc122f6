#!/bin/sh
# Rightslice VERSION for Linux on amd64, with its Python and C library. The first start unpacks them into a folder
# of the user ($XDG_CACHE_HOME, else ~/.cache), which later starts use. Needs sh, tar, gzip and coreutils.
set -eu
fail() {
  echo "error: $*" >&2
  exit 2
}
incomplete() {
  wait # the other parts may have something to say too, and the error comes last
  fail "$cache: a part could not be unpacked. Free 250 MB there, or download $0 again"
}
unpack() { # the part of this file that starts here and has this length; of what tar says, the first line
  said=$(tail -c "+$1" "$0" | head -c "$2" | gzip -dc | tar -xf - -C "$new" 2>&1) || {
    printf '%s\n' "$said" | head -n 1 >&2
    return 1
  }
}
[ -n "${XDG_CACHE_HOME:-${HOME:-}}" ] || fail "HOME: must be set, found none. Set HOME, or XDG_CACHE_HOME to a folder"
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/rightslice
runtime=$cache/IDENTITY
if [ ! -d "$runtime" ]; then
  [ ! -t 2 ] || echo "Unpacking Rightslice, once, into $runtime" >&2
  umask 077
  new=$(mkdir -p "$cache" 2>/dev/null && mktemp -d "$cache/new.XXXXXX" 2>/dev/null) ||
    fail "$cache: must be a folder that can be created and written. Set XDG_CACHE_HOME to another folder"
  trap 'wait; rm -rf "$new"' EXIT
  trap 'exit 130' HUP INT TERM
  parts=
  # PARTS
  for part in $parts; do
    wait "$part" || incomplete
  done
  mv -T "$new" "$runtime" 2>/dev/null || [ -d "$runtime" ] # another start was faster
  rm -rf "$new"
  trap - EXIT HUP INT TERM
fi
for part in EXECUTED; do
  [ -x "$runtime/$part" ] && continue
  [ ! -e "$runtime/$part" ] || fail "$runtime: must be on a file system that is mounted without noexec," \
    "found that $part cannot be run. Set XDG_CACHE_HOME to a folder on another"
  fail "$runtime: must be as it was unpacked, found no $part. Remove the folder: the next start unpacks it again"
done
program=${0##*/}
[ -f "$runtime/usr/bin/$program" ] || program=rightslice
exec "$runtime/usr/bin/python3" -I "$runtime/usr/bin/$program" "$@"
exit # what follows are the archives
