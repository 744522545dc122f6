"""`python -m tests.release.advisories DATABASE`: whether a locked package has a known vulnerability. Needs no network.

The database is that of https://osv.dev for PyPI, which `pip-audit --vulnerability-service osv` asks: its `all.zip`, or
a folder or file of its JSON documents (https://ossf.github.io/osv-schema/).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.conftest import ROOT
from tests.release.lock_files import LockedPackage, read_lock_file

ECOSYSTEM = "PyPI"
Json = Mapping[str, Any]


class Vulnerability(NamedTuple):
    """A locked version with an advisory; `fixed` has the versions that mend it."""

    lock: str
    package: LockedPackage
    advisory: str
    summary: str
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        mend = (
            f"Write at least {', '.join(self.fixed)}: make lock UPGRADE=--upgrade" if self.fixed else "No fix is known"
        )
        found = f"{self.package.name} {self.package.version} has {self.advisory} ({self.summary})"
        return f"requirements/{self.lock}: {found}. {mend}"


def read_database(path: Path) -> dict[str, list[tuple[Json, Json]]]:
    """Return advisories and what they affect, by name of the package.

    Raises:
        OSError, ValueError, BadZipFile: the database cannot be read, or has no advisory for PyPI.
    """
    found: dict[str, list[tuple[Json, Json]]] = defaultdict(list)
    for advisory in _read_advisories(path):
        for affected in advisory.get("affected") or () if not advisory.get("withdrawn") else ():
            package = affected.get("package") or {}
            if package.get("ecosystem") == ECOSYSTEM:
                found[canonicalize_name(package["name"])].append((advisory, affected))
    if not found:
        raise ValueError(f"{path}: must hold advisories of the ecosystem {ECOSYSTEM}, found none")
    return found


def find_vulnerabilities(
    locks: Mapping[str, Sequence[LockedPackage]], database: Mapping[str, Sequence[tuple[Json, Json]]]
) -> list[Vulnerability]:
    """Return every locked package that an advisory names, by lock file."""
    return [
        Vulnerability(lock, package, advisory["id"], str(advisory.get("summary") or "no summary"), _fixes(affected))
        for lock, packages in sorted(locks.items())
        for package in packages
        for advisory, affected in database.get(package.name, ())
        if is_affected(package.version, affected)
    ]


def is_affected(version: str, affected: Json) -> bool:
    """Return whether a version is listed, or is inside a range."""
    if version in (affected.get("versions") or ()):
        return True
    ranges = [each for each in affected.get("ranges") or () if each.get("type") == "ECOSYSTEM"]
    return any(_is_in_range(Version(version), each["events"]) for each in ranges)


def _is_in_range(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Return whether the last event at or before a version begins a range; `last_affected` itself is inside."""
    inside = False
    for bound, kind in sorted((_bound(value), kind) for event in events for kind, value in event.items()):
        if kind == "introduced" and version >= bound:
            inside = True
        if (kind == "fixed" and version >= bound) or (kind == "last_affected" and version > bound):
            inside = False
    return inside


def _bound(text: str) -> Version:
    """Return a version; one that is none counts as the lowest, so that more is reported rather than less."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def _fixes(affected: Json) -> tuple[str, ...]:
    events = [
        event for each in affected.get("ranges") or () if each.get("type") == "ECOSYSTEM" for event in each["events"]
    ]
    return tuple(event["fixed"] for event in events if "fixed" in event)


def _read_advisories(path: Path) -> Iterator[Json]:
    if path.suffix == ".zip":
        with ZipFile(path) as archive:
            yield from (json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json"))
        return
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        data = json.loads(file.read_bytes())
        yield from data if isinstance(data, list) else [data]


def main(arguments: Sequence[str]) -> int:
    """Check all lock files; return 0 for none, 1 for vulnerabilities, 2 for a database that cannot be used."""
    if len(arguments) != 1:
        sys.stderr.write("name the database: make advisories ADVISORIES=all.zip\n")
        return 2
    try:
        database = read_database(Path(arguments[0]))
    except (OSError, ValueError, BadZipFile) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    locks = {path.name: read_lock_file(path) for path in sorted((ROOT / "requirements").glob("*.txt"))}
    found = find_vulnerabilities(locks, database)
    sys.stdout.writelines(f"{each}\n" for each in found)
    checked = sum(map(len, locks.values()))
    sys.stdout.write(f"{checked} locked packages, {sum(map(len, database.values()))} advisories: {len(found)} found\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
