#!/bin/sh
# Rightslice VERSION for Linux on amd64, with its Python and C library. The first start unpacks them into a folder
# of the user ($XDG_CACHE_HOME, else ~/.cache), which later starts use. Needs sh, tail, tar and gzip.
set -eu
fail() {
  echo "error: $1" >&2
  exit 2
}
[ -n "${XDG_CACHE_HOME:-${HOME:-}}" ] || fail "HOME: must be set, found none. Set HOME, or XDG_CACHE_HOME to a folder"
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/rightslice
runtime=$cache/IDENTITY
if [ ! -d "$runtime" ]; then
  [ ! -t 2 ] || echo "Unpacking Rightslice, once, into $runtime" >&2
  umask 077
  new=$(mkdir -p "$cache" 2>/dev/null && mktemp -d "$cache/new.XXXXXX" 2>/dev/null) ||
    fail "$cache: must be a folder that can be created and written. Set XDG_CACHE_HOME to another folder"
  trap 'rm -rf "$new"' EXIT
  trap 'exit 130' HUP INT TERM
  tail -c +OFFSET "$0" | gzip -dc | tar -xf - -C "$new"
  mv -T "$new" "$runtime" 2>/dev/null || [ -d "$runtime" ] # another start was faster
  rm -rf "$new"
  trap - EXIT HUP INT TERM
fi
program=${0##*/}
[ -f "$runtime/usr/bin/$program" ] || program=rightslice
exec "$runtime/usr/bin/python3" -I "$runtime/usr/bin/$program" "$@"
exit # what follows is the archive
