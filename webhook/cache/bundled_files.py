"""Locate the files that come with the program: shipped policies and examples."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
_SHIPPED = _PACKAGE_FOLDER / "shipped"


def bundled_folder(name: str) -> Path:
    """Return the folder "policies" or "examples": inside an installed package, or next to it in a checkout.

    >>> bundled_folder("examples").name
    'examples'
    """
    installed = _SHIPPED / name
    return installed if installed.is_dir() else _PACKAGE_FOLDER.parent / name


def shown_name(file: str) -> str:
    """Return the name that messages show for a file: for one inside of an installed package, its name in a checkout.

    >>> shown_name(f"{_SHIPPED}/policies/guard.yaml")
    'policies/guard.yaml'
    >>> shown_name("policies/mine.yaml")
    'policies/mine.yaml'
    """
    path = Path(file).absolute()
    return path.relative_to(_SHIPPED).as_posix() if path.is_relative_to(_SHIPPED) else file
