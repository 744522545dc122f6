"""`-o FORMAT[=PATH]`, several times: which report goes where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from webhook.cli.console import print_result, exit_with_error

ReportRenderer = Callable[[], str | Iterator[str]]
"""Writes one report, whole or piece by piece."""


PIECES_PER_WRITE = 1000
"""Pieces that are written to stdout together."""


class ReportTarget(NamedTuple):
    """A format, and the file it goes to ("" for stdout)."""

    form: str
    path: str


def parse_targets(wanted: Sequence[str] | None, known: Sequence[str]) -> list[ReportTarget]:
    """Read the flags. Stops the program where a format is not known or two reports would go to one place."""
    found = [ReportTarget(*_split_target(each)) for each in wanted or [known[0]]]
    for target in found:
        if target.form not in known:
            exit_with_error(
                f"-o: must be one of {', '.join(known)}, found {target.form!r}. Write -o {known[0]}, or -o FORMAT=PATH"
            )
    if sum(not target.path for target in found) > 1:
        exit_with_error("-o: only one report can go to stdout. Give the others a file: -o FORMAT=PATH")
    files = Counter(os.path.realpath(target.path) for target in found if target.path)
    for file, times in files.items():
        if times > 1:
            exit_with_error(f"-o: each report must have a file of its own, found {times} for {file}. Name another file")
    return found


def _split_target(text: str) -> tuple[str, str]:
    form, equals, path = text.partition("=")
    if equals and not path:
        exit_with_error(f"-o: must name a file after =, found {text!r}. Write -o {text}PATH, or -o {form} for stdout")
    return form, path


def write_reports(wanted: Sequence[ReportTarget], renders: Mapping[str, ReportRenderer]) -> None:
    """Write each report to its place. Stops the program where a file cannot be written."""
    for target in wanted:
        made = renders[target.form]()
        pieces = iter((made,)) if isinstance(made, str) else made
        if not target.path:
            while some := "".join(islice(pieces, PIECES_PER_WRITE)):
                print_result(some)
            continue
        try:
            with Path(target.path).open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(pieces)
        except OSError as error:
            exit_with_error(f"{target.path}: cannot be written: {error.strerror or error}")


def join_lines(each: Sequence[str]) -> str:
    """Lines to text."""
    return "".join(f"{line}\n" for line in each)
