"""Which of the files under a folder, or of the keys of a ConfigMap that is mounted as one, hold documents."""

from __future__ import annotations

from collections.abc import Sequence

DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")


def is_document_file(way: Sequence[str]) -> bool:
    """Is a file read? Hidden ones are not, nor those in hidden folders, where a ConfigMap keeps its versions.

    Args:
        way: The names from the folder to the file, that of the file last. A file that somebody names is read anyway.

    >>> is_document(["team", "guard.yaml"]), is_document(["README.txt"]), is_document(["..2026_06_01", "guard.yaml"])
    (True, False, False)
    """
    return way[-1].endswith(DOCUMENT_SUFFIXES) and not any(name.startswith(".") for name in way)
