"""Archives of a folder that are equal for equal files."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable
from pathlib import Path


def add_files(archive: tarfile.TarFile, root: Path, files: Iterable[Path], seconds: int) -> None:
    """Add files of a folder, owned by root and with one time, in their order."""
    for path in sorted(files):
        entry = archive.gettarinfo(path, path.relative_to(root).as_posix())
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = seconds
        entry.mode = 0o1777 if entry.mode & stat.S_ISVTX else 0o755 if entry.mode & stat.S_IXUSR else 0o644
        if entry.isreg():
            with path.open("rb") as content:
                archive.addfile(entry, content)
        else:
            archive.addfile(entry)


def add_text(archive: tarfile.TarFile, name: str, text: bytes, seconds: int, mode: int = 0o755) -> None:
    """Add a file with this content."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(text), seconds, mode
    archive.addfile(entry, io.BytesIO(text))
