"""Lists the documents of a folder, also while files and folders in it appear, vanish or cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import NamedTuple

from webhook.documents.reader import DOCUMENT_SUFFIXES
from webhook.errors import read_problem

_LINK_REASONS = {errno.ENOENT: "a broken symlink", errno.ELOOP: "a symlink loop"}


class FolderEntry(NamedTuple):
    """A document in a folder, or what looks like one and is not read.

    Attributes:
        reason: Why it is not read; "" for a document to read.
        error: The folder may have documents that are not listed, as this could not be read.
    """

    path: Path
    reason: str = ""
    error: OSError | None = None


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False if that cannot be known, so that reading it says why."""
    try:
        return path.is_dir()
    except OSError:
        return False


def list_folder(folder: Path) -> list[FolderEntry]:
    """Return the documents below a folder and what looks like some, sorted. Hidden files and folders are left out."""
    errors: list[OSError] = []
    entries: list[FolderEntry | None] = []
    for top, folders, files in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        entries += [_describe(Path(top, name)) for name in (*folders, *files) if not name.startswith(".")]
    entries += [_failed(Path(error.filename or folder), error) for error in errors]
    return sorted(filter(None, entries), key=lambda entry: entry.path)


def folder_files(folder: Path) -> list[Path]:
    """Return the documents below a folder, sorted.

    Raises:
        OSError: Some of it cannot be read, or vanished meanwhile.
    """
    entries = list_folder(folder)
    for error in filter(None, (entry.error for entry in entries)):
        raise error
    return [entry.path for entry in entries if not entry.reason]


def _describe(file: Path) -> FolderEntry | None:
    """Describe a path; None for a folder, and for a file that does not look like a document."""
    is_document, link = file.suffix in DOCUMENT_SUFFIXES, False
    try:
        link = S_ISLNK(file.lstat().st_mode)
        mode = file.stat().st_mode
    except OSError as error:
        if link and error.errno in _LINK_REASONS and (is_document or not file.suffix):
            return FolderEntry(file, _LINK_REASONS[error.errno])
        return _failed(file, error) if is_document else None
    if S_ISDIR(mode):
        reason = "a symlink to a folder: these are not followed, name the folder itself"
        return FolderEntry(file, reason) if link else None
    if S_ISREG(mode):
        return FolderEntry(file) if is_document else None
    if link and (is_document or not file.suffix):
        return FolderEntry(file, "a symlink to a special file")
    return FolderEntry(file, "not a regular file") if is_document else None


def _failed(path: Path, error: OSError) -> FolderEntry:
    return FolderEntry(path, read_problem(error), error)
