"""Where what was fetched and built is kept, by one caller at a time; and how people are told that it takes a while."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], object]


def tell(line: str) -> None:
    """Say what is going on, to people."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # its place is the terminal


def cache() -> Path:
    """Where everything is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RIGHTSLICE_CACHE") or Path(home, "rightslice")).absolute()


@contextmanager
def alone(folder: Path, say: Say) -> Iterator[None]:
    """Hold a folder's lock, made where it is not there yet; the system gives it back whatever becomes of us."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is building into {folder}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
