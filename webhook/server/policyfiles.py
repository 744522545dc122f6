"""Where policies stand on disk: folders of YAML and JSON files, for example a mounted ConfigMap, and single files."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

from webhook.documents.names import is_document

FILE_MOST = 10 * 1024 * 1024


class PolicyFiles(NamedTuple):
    """Folders and files. A ConfigMap's folder is swapped by turning its `..data` link."""

    paths: tuple[Path, ...]

    def fingerprint(self) -> Hashable:
        """Changes whenever something about the files does. Cheap; looks at no content.

        Raises:
            OSError: a folder, or a file in one, is not there.
        """
        return tuple(map(_fingerprint, self.paths))

    def empty(self) -> list[Path]:
        """The folders that hold no files of policies."""
        return [path for path in self.paths if not _files(path)]

    def read(self) -> list[tuple[str, str]]:
        """File names and texts.

        Raises:
            OSError: a folder or a file cannot be read.
            ValueError: a file is too large, or is not UTF-8.
        """
        return [(str(file), _text(file)) for path in self.paths for file in _files(path)]


def _fingerprint(path: Path) -> Hashable:
    link = path / "..data"
    target = str(link.readlink()) if link.is_symlink() else ""
    stats = [(str(file), file.stat()) for file in _files(path)]
    return target, tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def _files(path: Path) -> list[Path]:
    """The files, by name, those of folders below too."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if is_document(file.relative_to(path).parts) and file.is_file())


def _text(path: Path) -> str:
    if path.stat().st_size > FILE_MOST:
        raise ValueError(f"{path}: must be at most {FILE_MOST} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be UTF-8") from None
