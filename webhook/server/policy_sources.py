"""Combines policies from files and from objects of the cluster into one set.

If both exist, the file takes precedence. A source that does not load keeps its last valid version: each object by
itself, the files together. So an invalid object does not affect the others, and no mistake means "allow all".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from webhook.cache.folder_documents import folder_files
from webhook.policy.lint import CONFLICT_CODE
from webhook.policy.loader import SAME_NAME, LoadResult
from webhook.policy.policy_set import PolicySet

MAX_FILE_BYTES = 10 * 1024 * 1024

PolicyTextList = Sequence[tuple[str, str]]
"""Source name, for messages, and text of each document."""


class NoPoliciesError(Exception):
    """There is no usable set of policies; `errors` has the reasons."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


class PolicyFiles(NamedTuple):
    """Folders and files of policies; a mounted ConfigMap is replaced through its `..data` symlink."""

    paths: tuple[Path, ...]

    def fingerprint(self) -> Hashable:
        """Return a value that changes with the files, also when they are created or deleted."""
        parts: list[Hashable] = []
        try:
            for path in self.paths:
                link = path / "..data"
                parts.append(str(link.readlink()) if link.is_symlink() else "")
                for file in list_policy_files(path):
                    stat = file.stat()
                    parts.append((str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError as error:
            return ("missing", error.errno)
        return tuple(parts)

    def read(self) -> list[tuple[str, str]]:
        """Return file names and texts.

        Raises:
            NoPoliciesError: a folder or a file cannot be read, is too large, or is not UTF-8.
        """
        try:
            return [(str(file), _read_policy_text(file)) for path in self.paths for file in list_policy_files(path)]
        except OSError as error:
            message = f"{error.filename}: must be a folder or file of policies ({error.strerror})"
            raise NoPoliciesError([message]) from error


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
    """Load all sources; repeat with the last valid version of those with errors, until there is no error.

    A conflict is an error of the later of two sources, so those that have not changed come first, in the given order.
    """
    named = dict(sorted(objects, key=lambda each: last_loaded.objects.get(each[0]) != each[1]))
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
                reason = "Conflict" if error.code == CONFLICT_CODE else "Invalid"
                unused.setdefault(source, UnusedReason(reason, str(error)))
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


def list_policy_files(path: Path) -> list[Path]:
    return folder_files(path) if path.is_dir() else [path]


def _read_policy_text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise NoPoliciesError([f"{path}: must be at most {MAX_FILE_BYTES} bytes"])
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NoPoliciesError([f"{path}: must be UTF-8"]) from None
