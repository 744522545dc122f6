"""`version`: print the version. Imports nothing slow."""

from __future__ import annotations

import sys

from webhook import __version__


def version_command() -> None:
    """Print the version."""
    sys.stdout.write(f"rightslice {__version__}\n")
