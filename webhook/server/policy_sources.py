"""Policies from files and from objects of the cluster, made into one set.

Files win on equal names. What does not load is left as it was when it last did, source by source: an object by
itself, the files together. So one bad object takes nothing from the others, and no mistake means "allow all".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from webhook.documents.reader import is_document_file
from webhook.errors import LocatedError
from webhook.policy.loader import SAME_NAME
from webhook.policy.policy_set import PolicySet

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


PolicyTextList = Sequence[tuple[str, str]]
"""What to call each text in messages, and the text."""


class LoadedPolicies(Protocol):
    """What `webhook.policy.loader.load_policies` gives."""

    @property
    def policies(self) -> PolicySet | None:
        """The set, or None where anything is wrong."""

    @property
    def errors(self) -> Sequence[Exception]:
        """Everything that is wrong."""


PolicyLoader = Callable[[PolicyTextList], LoadedPolicies]


class LastLoaded(NamedTuple):
    """What loaded last: the files, and each object by its name."""

    files: PolicyTextList = ()
    objects: Mapping[str, str] = {}


class UnusedReason(NamedTuple):
    """Why an object is not in use as it is written now: a word for programs, and a sentence."""

    reason: str
    message: str


FILE_WINS = UnusedReason("FileWins", "a policy file has the same name, and files win")


class CombinedPolicies(NamedTuple):
    """What came of all sources.

    Attributes:
        policies: The set; None where not even what was good before loads.
        faults: Why some of what is there now is not in it, one sentence each, and what it is about: what to call a
            text, or "".
        good: What to fall back on next time.
        unused: The objects that are not in use as they are written now, and why.
    """

    policies: PolicySet | None
    errors: Mapping[str, str]
    last_loaded: LastLoaded
    unused: Mapping[str, UnusedReason] = {}


def combine_sources(
    files: PolicyTextList, objects: PolicyTextList, good: LastLoaded, load: PolicyLoader
) -> CombinedPolicies:
    """Load all of it, and again without what is wrong until nothing is.

    Args:
        files: Texts of the policy files.
        objects: Texts of the objects.
        good: What loaded last.
        load: The policy loader.
    """
    named = dict(objects)
    faults: dict[str, str] = {}
    unused: dict[str, UnusedReason] = {}
    while True:
        loaded = load([*files, *named.items()])
        if loaded.policies is not None:
            return CombinedPolicies(loaded.policies, faults, LastLoaded(files, named), unused)
        before = (files, dict(named))
        for error in loaded.errors:
            source = error.location.file if isinstance(error, LocatedError) else ""
            if source in named and getattr(error, "code", "") == SAME_NAME:
                del named[source]
                unused.setdefault(source, FILE_WINS)
                continue
            faults[str(error)] = source
            if source in before[1]:
                _revert_object(named, source, before[1][source], good)
                unused.setdefault(source, UnusedReason("Invalid", str(error)))
            else:
                files = good.files
        if (files, named) == before:
            return CombinedPolicies(None, faults, good, unused)


def _revert_object(named: dict[str, str], source: str, text: str, good: LastLoaded) -> None:
    """The object as it was when it last loaded; where that is what does not load, without it."""
    former = good.objects.get(source, text)
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
