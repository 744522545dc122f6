"""Where the files are that come with the program: policies to start from, and examples."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(name: str) -> Path:
    """The folder "policies" or "examples": inside an installed package, else beside it in a checkout.

    >>> shipped("examples").name
    'examples'
    """
    installed = _PACKAGE / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
