"""Where the files are that come with the program: policies to start from, and examples."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent


def bundled_folder(name: str) -> Path:
    """The folder "policies" or "examples": inside an installed package, else beside it in a checkout.

    >>> shipped("examples").name
    'examples'
    """
    installed = _PACKAGE_FOLDER / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE_FOLDER.parent / name
