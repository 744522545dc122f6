"""Combines policies from files and from objects of the cluster into one set.

If both exist, the file takes precedence. A source that does not load keeps its last valid version: each object by
itself, the files together. So an invalid object does not affect the others, and no mistake means "allow all".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from webhook.documents.reader import is_document_file
from webhook.policy.loader import SAME_NAME, LoadResult
from webhook.policy.policy_set import PolicySet

MAX_FILE_BYTES = 10 * 1024 * 1024

PolicyTextList = Sequence[tuple[str, str]]
"""Source name, for messages, and text of each document."""


class PolicyFiles(NamedTuple):
    """Folders and files of policies; a mounted ConfigMap is replaced through its `..data` symlink."""

    paths: tuple[Path, ...]

    def fingerprint(self) -> Hashable:
        """Return a value that changes with the files, also when they are created or deleted."""
        try:
            return tuple(map(_path_fingerprint, self.paths))
        except OSError as error:
            return ("missing", error.errno)

    def empty_folders(self) -> list[Path]:
        """Return the folders without policy files."""
        return [path for path in self.paths if not _list_policy_files(path)]

    def read(self) -> list[tuple[str, str]]:
        """Return file names and texts.

        Raises:
            OSError: a folder or a file cannot be read.
            ValueError: a file is too large or not UTF-8.
        """
        return [(str(file), _read_policy_text(file)) for path in self.paths for file in _list_policy_files(path)]


PolicyLoader = Callable[[PolicyTextList], LoadResult]


class LastLoaded(NamedTuple):
    """The last valid version of the files and of each object, by source name."""

    files: PolicyTextList = ()
    objects: Mapping[str, str] = {}


class UnusedReason(NamedTuple):
    """The condition reason and message of an object whose current version is not used."""

    reason: str
    message: str


FILE_WINS = UnusedReason("OverriddenByFile", "a policy file has the same name and takes precedence")


class CombinedPolicies(NamedTuple):
    """The combined policies of all sources.

    Attributes:
        policies: The set; None if not even the last valid version loads.
        errors: Messages about sources that do not load, with the source name or "".
        last_loaded: The valid versions, for the next time.
        unused: The objects whose current version is not used, by source name.
    """

    policies: PolicySet | None
    errors: Mapping[str, str]
    last_loaded: LastLoaded
    unused: Mapping[str, UnusedReason] = {}


def combine_sources(
    files: PolicyTextList, objects: PolicyTextList, last_loaded: LastLoaded, load: PolicyLoader
) -> CombinedPolicies:
    """Load all sources; repeat with the last valid version of those with errors, until there is no error."""
    named = dict(objects)
    errors: dict[str, str] = {}
    unused: dict[str, UnusedReason] = {}
    while True:
        loaded = load([*files, *named.items()])
        if loaded.policies is not None:
            return CombinedPolicies(loaded.policies, errors, LastLoaded(files, named), unused)
        before = (files, dict(named))
        for error in loaded.errors:
            source = error.location.file
            if source in named and error.code == SAME_NAME:
                del named[source]
                unused.setdefault(source, FILE_WINS)
                continue
            errors[str(error)] = source
            if source in before[1]:
                _revert_object(named, source, before[1][source], last_loaded)
                unused.setdefault(source, UnusedReason("Invalid", str(error)))
            else:
                files = last_loaded.files
        if (files, named) == before:
            return CombinedPolicies(None, errors, last_loaded, unused)


def _revert_object(named: dict[str, str], source: str, text: str, last_loaded: LastLoaded) -> None:
    """Replace an object by its last valid version; remove it if that is the text that does not load."""
    former = last_loaded.objects.get(source, text)
    if former == text:
        named.pop(source, None)
    else:
        named[source] = former


def _path_fingerprint(path: Path) -> Hashable:
    link = path / "..data"
    target = str(link.readlink()) if link.is_symlink() else ""
    stats = [(str(file), file.stat()) for file in _list_policy_files(path)]
    return target, tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def _list_policy_files(path: Path) -> list[Path]:
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
