"""The files that a command is given: their bytes, and what of a folder is none."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

from webhook.documents.names import DOCUMENT_SUFFIXES, is_document_file

SHELL_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell hands over: standard input, and the pipes of `<(...)`. Somebody writes to them for sure."""


def read_content(file: str, most: int) -> bytes:
    """The beginning of a file, at most so many bytes.

    Raises:
        OSError: it cannot be read, or is no file: a pipe that nobody writes to would be waited for without end.
    """
    if not file.startswith(SHELL_STREAMS):
        _reject_special_file(file, Path(file).stat().st_mode)
    with Path(file).open("rb") as stream:
        return stream.read(most)


def _reject_special_file(file: str, mode: int) -> None:
    if S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "a pipe, and no file. Give what it holds on standard input, as -", file)
    if not S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", file)


def document_files(path: str) -> list[str]:
    """The file itself, or every YAML and JSON file under a folder; hidden folders and files are left out."""
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    found = sorted(folder.rglob("*"))
    return [str(file) for file in found if is_document_file(file.relative_to(folder).parts) and file.is_file()]


def skipped_paths(path: str) -> Iterator[tuple[str, str]]:
    """What is under a folder as if it were a file to read and is none, with the reason: links and pipes."""
    folder = Path(path)
    for file in _visible_paths(folder) if folder.is_dir() else ():
        reason = _skip_reason(file)
        if reason:
            yield str(file), reason


def _visible_paths(folder: Path) -> list[Path]:
    found = folder.rglob("*")
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def _skip_reason(file: Path) -> str:
    if file.is_symlink() and file.is_dir():
        return "a link to a folder: links are not followed, name the folder itself"
    if (file.suffix and file.suffix not in DOCUMENT_SUFFIXES) or file.is_dir() or file.is_file():
        return ""
    if not file.is_symlink():
        return "no regular file" if file.suffix else ""
    try:
        file.stat()
    except OSError as error:
        circles = error.errno == errno.ELOOP
        return "a link that leads round in a circle" if circles else "a link to what is not there"
    return "a link to no regular file"
