"""The code and manifests of an earlier version, from the history of the checkout."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

EARLIER = "893489a157d89d534a3ecaa699b2eadfa9df0b7c"
"""The commit whose stored objects `files/first` holds. A release replaces it with the tag of the one before."""

FOLDERS = ("webhook", "manifests", "policies")


def export_earlier(folder: Path) -> Path:
    """Write the files of the earlier version to a folder. Skips the test if the checkout has no such commit."""
    archive = subprocess.run(["git", "archive", EARLIER, *FOLDERS], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs commit {EARLIER[:8]}: this is a shallow clone (git fetch --unshallow) or no clone")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder
