"""`version_command`: what is installed. Imports nothing that takes time."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed


def rightslice_version() -> str:
    """The version of this package."""
    return installed("rightslice")


def version_command() -> None:
    """Print the version."""
    sys.stdout.write(f"rightslice {rightslice_version()}\n")
