"""Where policies stand on disk: folders of YAML and JSON files, for example a mounted ConfigMap, and single files."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

from webhook.documents.names import is_document_file

MAX_FILE_BYTES = 10 * 1024 * 1024


class PolicyFiles(NamedTuple):
    """Folders and files. A ConfigMap's folder is swapped by turning its `..data` link."""

    paths: tuple[Path, ...]

    def fingerprint(self) -> Hashable:
        """Changes whenever something about the files does. Cheap; looks at no content.

        Raises:
            OSError: a folder, or a file in one, is not there.
        """
        return tuple(map(_path_fingerprint, self.paths))

    def empty_folders(self) -> list[Path]:
        """The folders that hold no files of policies."""
        return [path for path in self.paths if not _list_policy_files(path)]

    def read(self) -> list[tuple[str, str]]:
        """File names and texts.

        Raises:
            OSError: a folder or a file cannot be read.
            ValueError: a file is too large, or is not UTF-8.
        """
        return [(str(file), _read_policy_text(file)) for path in self.paths for file in _list_policy_files(path)]


def _path_fingerprint(path: Path) -> Hashable:
    link = path / "..data"
    target = str(link.readlink()) if link.is_symlink() else ""
    stats = [(str(file), file.stat()) for file in _list_policy_files(path)]
    return target, tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def _list_policy_files(path: Path) -> list[Path]:
    """The files, by name, those of folders below too."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if is_document_file(file.relative_to(path).parts) and file.is_file())


def _read_policy_text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path}: must be at most {MAX_FILE_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be UTF-8") from None
