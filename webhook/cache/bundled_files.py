"""Locate the files that come with the program: shipped policies and examples."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


def bundled_folder(name: str) -> Path:
    """Return the folder "policies" or "examples": inside an installed package, or next to it in a checkout.

    >>> bundled_folder("examples").name
    'examples'
    """
    installed = _PACKAGE_FOLDER / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE_FOLDER.parent / name
