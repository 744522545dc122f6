"""Every dependency has a reason, and the lock files contain exactly the requirements, by hash."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.checkout import ROOT, files, project, read_checkout_file
from webhook.placement.integer_program import SOLVER_REQUIREMENT

LOCKS = ["run", "all", "build", "docs", "dev"]


def required(lock: str) -> list[Requirement]:
    """Return the requirements of pyproject.toml that a lock file must contain."""
    runtime: list[str] = project()["project"]["dependencies"]
    extras: dict[str, list[str]] = project()["project"]["optional-dependencies"]
    optional = [text for texts in extras.values() for text in texts]
    groups = project()["dependency-groups"]
    build: list[str] = groups["build"]
    docs: list[str] = groups["docs"]
    dev: list[str] = [entry for entry in groups["dev"] if isinstance(entry, str)]
    locks = {"run": runtime, "all": runtime + optional, "build": build, "docs": docs}
    locks["dev"] = locks["all"] + build + docs + dev
    return [Requirement(text) for text in locks[lock]]


def test_the_solver_that_messages_name_is_the_required_one() -> None:
    [required_solver] = project()["project"]["optional-dependencies"]["layout"]
    assert required_solver == SOLVER_REQUIREMENT
    for page in ("docs/layout.md", "docs/console.md", "webhook/cli/commands/layout.py"):
        assert f"pip install '{SOLVER_REQUIREMENT}'" in read_checkout_file(page)


def pins(lock: str) -> dict[str, Version]:
    """Return name and version of every entry of a lock file."""
    entries = re.findall(r"^([\w.-]+)==([^ ;\\]+)", read_checkout_file(f"requirements/{lock}.txt"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in entries}


PINNED_BY = {"pydantic-core": "pydantic"}
"""Distributions that belong to another one, which requires exactly one version of them."""


def imported(folder: str) -> set[str]:
    """Return the top-level names of third-party modules that the code of a folder imports."""
    ours = {"webhook", "tests", "benchmarks", "__future__"}
    sources = [file for file in files(ROOT / folder) if file.suffix == ".py"]
    return {name for file in sources for name in imports(file)} - ours - sys.stdlib_module_names


def imports(file: Path) -> Iterator[str]:
    """Yield the top-level names of the imports of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def distributions(modules: set[str]) -> dict[str, set[str]]:
    """Return the distributions that may contain each module."""
    known = packages_distributions()
    found = {module: {canonicalize_name(name) for name in known.get(module, [module])} for module in modules}
    return {module: names | {PINNED_BY[name] for name in names if name in PINNED_BY} for module, names in found.items()}


@pytest.mark.parametrize(("folder", "lock"), [("webhook", "all"), ("tests", "dev"), ("benchmarks", "dev")])
def test_imported_distributions_are_required(folder: str, lock: str) -> None:
    wanted = {canonicalize_name(requirement.name) for requirement in required(lock)}

    assert [module for module, names in distributions(imported(folder)).items() if not names & wanted] == []


def test_every_runtime_dependency_is_imported() -> None:
    wanted = {canonicalize_name(requirement.name) for requirement in required("all")}

    assert wanted - set().union(*distributions(imported("webhook")).values()) == set()


def test_every_dependency_has_a_comment_with_its_reason() -> None:
    text = read_checkout_file("pyproject.toml")
    start, end = text.index("dependencies = ["), text.index("[tool.hatch")
    entries = [line for line in text[start:end].splitlines() if line.startswith('    "')]

    assert len(entries) == len(required("dev"))
    assert [line for line in entries if not re.search(r'", +# \S+ \S+ ', line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_contains_the_requirements(lock: str) -> None:
    pinned = pins(lock)

    missing = [str(requirement) for requirement in required(lock) if canonicalize_name(requirement.name) not in pinned]
    assert missing == [], "update the lock files: make lock"

    unlike = [
        str(requirement)
        for requirement in required(lock)
        if pinned[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert unlike == [], "update the lock files: make lock"


@pytest.mark.parametrize("lock", ["run", "all", "build", "docs"])
def test_shipped_versions_are_the_tested_ones(lock: str) -> None:
    tested = pins("dev")

    assert {name: version for name, version in pins(lock).items() if tested.get(name) != version} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_of_a_lock_file_is_a_version_with_hashes(lock: str) -> None:
    text = re.sub(r"^ *#.*\n", "", read_checkout_file(f"requirements/{lock}.txt"), flags=re.MULTILINE)
    entries = re.sub(r" *\\\n *", " ", text).splitlines()

    assert {canonicalize_name(entry.split("==")[0]) for entry in entries} == set(pins(lock))
    assert [entry for entry in entries if not re.search(r"==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_names_no_index_and_no_file(lock: str) -> None:
    assert (
        re.findall(
            r"://|^--(?:extra-)?index|^--find-links|^-e|^file:", read_checkout_file(f"requirements/{lock}.txt"), re.M
        )
        == []
    )
