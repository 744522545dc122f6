"""The code and manifests of an earlier version, from the history of the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

EARLIER = "893489a157d89d534a3ecaa699b2eadfa9df0b7c"
"""The commit whose stored objects `files/first` holds. A release replaces it with the tag of the one before."""

FILES = ("webhook", "manifests", "policies", "charts", "docs/helm-values.md")


def find_earlier(folder: Path) -> Path | None:
    """Write the files of the earlier version to a folder, and return it; None if the checkout has no such commit."""
    archive = subprocess.run(["git", "archive", EARLIER, *FILES], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def export_earlier(folder: Path) -> Path:
    """Do the same, but skip the test if the checkout has no such commit."""
    if found := find_earlier(folder):
        return found
    pytest.skip(f"needs commit {EARLIER[:8]}: this is a shallow clone (git fetch --unshallow) or no clone")
