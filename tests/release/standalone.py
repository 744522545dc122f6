"""`make binary`: one file for Linux on amd64 that runs without Python.

It is a shell script with the archive of the runtime behind it, which the first start unpacks into the user's cache.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

from tests.release.archive import add_files, add_text
from tests.release.runtime import LIBRARIES, LOADER, PYTHON
from webhook import __version__

SCRIPT = Path(__file__).with_suffix(".sh")
PROGRAMS = ("rightslice", "kubectl-rightslice", "kubectl_complete-rightslice")
START = """\
from webhook.cli.main import run
run()
"""
PYTHON_SCRIPT = f"""\
#!/bin/sh
# Runs Python with the libraries of this folder, for Rightslice and for the processes that it starts.
root=${{0%/{PYTHON}}}
exec "$root/{LOADER}" --library-path "$root/{LIBRARIES}" --argv0 "$0" "$root/usr/bin/python3.real" "$@"
"""


def standalone_file(tree: Path, seconds: int) -> bytes:
    """Return the file for a runtime."""
    archive = gzip.compress(_archive(tree, seconds), compresslevel=6, mtime=0)
    script = SCRIPT.read_text(encoding="utf-8").replace("VERSION", __version__)
    script = script.replace("IDENTITY", f"{__version__}-{hashlib.sha256(archive).hexdigest()[:16]}")
    script = script.replace("OFFSET", f"{len(script) + 1:06d}")  # as long as the word
    return script.encode("ascii") + archive


def _archive(tree: Path, seconds: int) -> bytes:
    """Return the archive: the runtime with Python under another name, and the programs that start it."""
    python = (tree / PYTHON).resolve()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        add_files(archive, tree, (path for path in tree.rglob("*") if path not in (tree / PYTHON, python)), seconds)
        add_text(archive, f"{PYTHON}.real", python.read_bytes(), seconds)
        add_text(archive, PYTHON, PYTHON_SCRIPT.encode("ascii"), seconds)
        for name in PROGRAMS:
            add_text(archive, f"usr/bin/{name}", START.encode("ascii"), seconds)
    return stream.getvalue()
