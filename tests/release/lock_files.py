"""Reads the lock files in requirements/, which uv writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))?(?: \\)?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PARENT = re.compile(r"^ +# +(?:via )?([A-Za-z0-9._-]+)$")


class LockedPackage(NamedTuple):
    """One requirement of a lock file.

    Attributes:
        hashes: SHA-256 of each accepted file.
        marker: Where it is needed; "" for everywhere.
        parents: Packages that depend on it; none if only the project does.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]


def read_lock_file(path: Path) -> list[LockedPackage]:
    """Return the packages of a lock file.

    Raises:
        ValueError: a line is neither a requirement, a hash nor a comment, or a requirement has no hash.
    """
    packages = list(_packages_of(path.read_text(encoding="utf-8").splitlines()))
    if not packages or any(not each.hashes for each in packages):
        raise ValueError(f"{path}: must hold requirements with hashes, as `make lock` writes them")
    return packages


def _packages_of(lines: list[str]) -> Iterator[LockedPackage]:
    found: LockedPackage | None = None
    for line in lines:
        if requirement := _REQUIREMENT.match(line):
            if found is not None:
                yield found
            name, version, marker = requirement.groups()
            found = LockedPackage(canonicalize_name(name), version, marker or "", (), ())
        elif found is not None and (digest := _HASH.search(line)):
            found = found._replace(hashes=(*found.hashes, digest[1]))
        elif found is not None and (parent := _PARENT.match(line)):
            found = found._replace(parents=(*found.parents, parent[1]) if parent[1] != "via" else found.parents)
        elif line and not line.lstrip().startswith("#"):
            raise ValueError(f"must be a requirement, a hash or a comment, found {line!r}")
    if found is not None:
        yield found
