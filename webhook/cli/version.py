"""`version`: what is installed. Imports nothing that takes time."""

from __future__ import annotations

from importlib.metadata import version as installed


def rightslice_version() -> str:
    """The version of this package."""
    return installed("rightslice")


def version() -> None:
    """Print the version."""
    from webhook.cli.console import say

    say([f"rightslice {rightslice_version()}"])
