"""The packages of the browser are locked by hash, and the lock file names no registry."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.browser.installation import HERE, install_browser


@pytest.fixture(scope="module")
def packages() -> dict[str, Any]:
    """Return the entries of the lock file."""
    packages: dict[str, Any] = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    return packages


def test_required_versions_are_exact_and_locked(packages: dict[str, Any]) -> None:
    required = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]

    assert [version for version in required.values() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    assert {name: packages[f"node_modules/{name}"]["version"] for name in required} == required


def test_every_package_has_a_hash_and_no_address(packages: dict[str, Any]) -> None:
    installed = {name: entry for name, entry in packages.items() if name}

    assert len(installed) > 20
    assert [name for name, entry in installed.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert [name for name, entry in installed.items() if "resolved" in entry] == []


def test_an_installed_browser_has_its_own_libraries_and_fonts() -> None:
    browser = install_browser()

    assert browser.program.stat().st_mode & 0o111
    assert (browser.program.parent / "lib" / "libnss3.so").is_file()
    assert {file.suffix for file in (browser.program.parent / "fonts").rglob("*") if file.is_file()} == {".ttf"}
