"""`version`: print the version. Imports nothing slow."""

from __future__ import annotations

import sys
from importlib.metadata import version


def rightslice_version() -> str:
    """Return the version of this package."""
    return version("rightslice")


def version_command() -> None:
    """Print the version."""
    sys.stdout.write(f"rightslice {rightslice_version()}\n")
