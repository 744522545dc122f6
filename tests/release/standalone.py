"""`make binary`: one file for Linux on amd64 that runs without Python.

It is a shell script with the runtime behind it, which the first start unpacks into the user's cache. The runtime is an
archive of its folders, and several of its files, unpacked at the same time because decompression takes most of that
start. The folders come first: tar gives up where another tar creates the same folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.release.archive import add_files, add_text
from tests.release.runtime import LIBRARIES, LOADER, PYTHON
from webhook import __version__

SCRIPT = Path(__file__).with_suffix(".sh")
PROGRAMS = ("rightslice", "kubectl-rightslice", "kubectl_complete-rightslice")
START = """\
import sys
try:
    from webhook.cli.main import run
    run()
except ImportError as error:
    folder = sys.argv[0].removesuffix("/usr/bin/" + sys.argv[0].rpartition("/")[2])
    hint = "Remove the folder: the next start unpacks it again"
    sys.stderr.write(f"error: {folder}: must be as it was unpacked, found: {error}. {hint}\\n")
    sys.exit(2)
"""
PYTHON_SCRIPT = f"""\
#!/bin/sh
# Runs Python with the libraries of this folder, for Rightslice and for the processes that it starts.
root=${{0%/{PYTHON}}}
exec "$root/{LOADER}" --library-path "$root/{LIBRARIES}" --argv0 "$0" "$root/usr/bin/python3.real" "$@"
"""
EXECUTED = (PYTHON, f"{PYTHON}.real", LOADER)
"""What runs before the program itself can say that something is missing."""

PARTS = 4
"""Archives of files, unpacked at the same time."""

WIDTH = 9
"""Characters of each number in the script, whose length must not depend on them."""


def standalone_file(tree: Path, seconds: int) -> bytes:
    """Return the file for a runtime."""
    parts = [gzip.compress(each, compresslevel=6, mtime=0) for each in _archives(tree, seconds)]
    identity = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    script = SCRIPT.read_text(encoding="utf-8").replace("VERSION", __version__)
    script = script.replace("EXECUTED", " ".join(EXECUTED))
    script = script.replace("IDENTITY", f"{__version__}-{identity}").replace("# PARTS", _part_lines(0, parts))
    return script.replace(_part_lines(0, parts), _part_lines(len(script), parts)).encode("ascii") + b"".join(parts)


def _part_lines(offset: int, parts: Iterable[bytes]) -> str:
    """Return the lines of the script that unpack the parts, which start at an offset of the file."""
    lines: list[str] = []
    for part in parts:
        after = '& parts="$parts $!"' if lines else "|| incomplete"
        lines.append(f"unpack {offset + 1:<{WIDTH}} {len(part):<{WIDTH}} {after}")
        offset += len(part)
    return "\n  ".join(lines)


def _archives(tree: Path, seconds: int) -> list[bytes]:
    """Return the archives: folders, then the runtime with Python under another name and the programs that start it."""
    python = (tree / PYTHON).resolve()
    files = [path for path in tree.rglob("*") if path not in (tree / PYTHON, python)]
    folders = [path for path in files if path.is_dir() and not path.is_symlink()]
    texts = {f"{PYTHON}.real": python.read_bytes(), PYTHON: PYTHON_SCRIPT.encode("ascii")}
    texts |= {f"usr/bin/{name}": START.encode("ascii") for name in PROGRAMS}
    first, *others = _split_by_size(set(files) - set(folders))
    return [
        _archive(tree, folders, {}, seconds),
        _archive(tree, first, texts, seconds),
        *(_archive(tree, each, {}, seconds) for each in others),
    ]


def _split_by_size(files: Iterable[Path]) -> list[list[Path]]:
    """Return the files in parts of nearly equal size."""
    parts: list[list[Path]] = [[] for _ in range(PARTS)]
    sizes = [0] * PARTS
    for path in sorted(files, key=lambda path: (-path.lstat().st_size, path)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(path)
        sizes[smallest] += path.lstat().st_size
    return parts


def _archive(tree: Path, files: Iterable[Path], texts: Mapping[str, bytes], seconds: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        add_files(archive, tree, files, seconds)
        for name, text in texts.items():
            add_text(archive, name, text, seconds)
    return stream.getvalue()
