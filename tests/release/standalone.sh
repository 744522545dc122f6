#!/bin/sh
# Rightslice VERSION for Linux on amd64, with its Python and C library. The first start unpacks them into a folder
# of the user ($XDG_CACHE_HOME, else ~/.cache), which later starts use. Needs sh, tail, tar and gzip.
set -eu
cache=${XDG_CACHE_HOME:-${HOME:?must name a folder for ~/.cache, or set XDG_CACHE_HOME}/.cache}/rightslice
runtime=$cache/IDENTITY
if [ ! -d "$runtime" ]; then
  [ ! -t 2 ] || echo "Unpacking Rightslice, once, into $runtime" >&2
  umask 077
  mkdir -p "$cache"
  new=$(mktemp -d "$cache/new.XXXXXX")
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
