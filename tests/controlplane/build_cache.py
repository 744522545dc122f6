"""The cache of fetched and built files, with a lock; and messages about slow steps."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Printer = Callable[[str], object]


def print_message(line: str) -> None:
    """Print a message about the progress."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # messages for the terminal


def cache() -> Path:
    """Return the folder of the cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RIGHTSLICE_CACHE") or Path(home, "rightslice")).absolute()


@contextmanager
def lock_folder(folder: Path, report: Printer) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; the system releases it when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"Another process is building into {folder}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
