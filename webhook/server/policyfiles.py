"""Where policies stand on disk: a folder of YAML and JSON files, for example a mounted ConfigMap, or one file."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".yaml", ".yml", ".json")
FILE_MOST = 10 * 1024 * 1024


class PolicyFiles(NamedTuple):
    """A folder or a file. A ConfigMap's folder is swapped by turning its `..data` link."""

    path: Path

    def fingerprint(self) -> Hashable:
        """Changes whenever something about the files does. Cheap; looks at no content.

        Raises:
            OSError: the folder or a file in it is not there.
        """
        link = self.path / "..data"
        target = str(link.readlink()) if link.is_symlink() else ""
        stats = [(str(path), path.stat()) for path in self.files()]
        return target, tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)

    def files(self) -> list[Path]:
        """The files, by name, those of folders below too; hidden ones, where a ConfigMap keeps its versions, not."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(path for path in self.path.rglob("*") if self._is_policy(path))

    def _is_policy(self, path: Path) -> bool:
        parts = path.relative_to(self.path).parts
        return path.suffix in SUFFIXES and not any(part.startswith(".") for part in parts) and path.is_file()

    def read(self) -> list[tuple[str, str]]:
        """File names and texts.

        Raises:
            OSError: the folder or a file cannot be read.
            ValueError: a file is too large, or is not UTF-8.
        """
        return [(str(path), _text(path)) for path in self.files()]


def _text(path: Path) -> str:
    if path.stat().st_size > FILE_MOST:
        raise ValueError(f"{path}: must be at most {FILE_MOST} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be UTF-8") from None
