"""Every dependency has its reason, and the locks hold exactly what was asked for, by hash."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.checkout import project, read

LOCKS = ["run", "build", "dev"]


def asked(lock: str) -> list[Requirement]:
    """What pyproject.toml asks for, of all that a lock must hold."""
    runtime: list[str] = project()["project"]["dependencies"]
    groups = project()["dependency-groups"]
    build: list[str] = groups["build"]
    dev: list[str] = [entry for entry in groups["dev"] if isinstance(entry, str)]
    return [Requirement(text) for text in {"run": runtime, "build": build, "dev": runtime + build + dev}[lock]]


def pins(lock: str) -> dict[str, Version]:
    """Name and version of every entry of a lock."""
    entries = re.findall(r"^([\w.-]+)==([^ ;\\]+)", read(f"requirements/{lock}.txt"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in entries}


def test_every_dependency_has_its_reason_beside_it() -> None:
    text = read("pyproject.toml")
    start, end = text.index("dependencies = ["), text.index("[tool.hatch")
    entries = [line for line in text[start:end].splitlines() if line.startswith('    "')]

    assert len(entries) == len(asked("dev"))
    assert [line for line in entries if not re.search(r'", +# \S+ \S+ ', line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_what_pyproject_asks_for(lock: str) -> None:
    pinned = pins(lock)

    missing = [str(wish) for wish in asked(lock) if canonicalize_name(wish.name) not in pinned]
    assert missing == [], "write the locks anew: make lock"

    unlike = [str(wish) for wish in asked(lock) if pinned[canonicalize_name(wish.name)] not in wish.specifier]
    assert unlike == [], "write the locks anew: make lock"


@pytest.mark.parametrize("lock", ["run", "build"])
def test_what_ships_is_what_is_tested(lock: str) -> None:
    tested = pins("dev")

    assert {name: version for name, version in pins(lock).items() if tested.get(name) != version} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_of_a_lock_is_a_version_with_hashes(lock: str) -> None:
    text = re.sub(r"^ *#.*\n", "", read(f"requirements/{lock}.txt"), flags=re.MULTILINE)
    entries = re.sub(r" *\\\n *", " ", text).splitlines()

    assert len(entries) == len(pins(lock))
    assert [entry for entry in entries if not re.search(r"==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_file(lock: str) -> None:
    assert re.findall(r"://|^--(?:extra-)?index|^--find-links|^-e|^file:", read(f"requirements/{lock}.txt"), re.M) == []
