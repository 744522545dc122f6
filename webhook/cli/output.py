"""`-o FORMAT[=PATH]`, several times: which report goes where."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import typer

from webhook.report.text import Paint, TextStyle, without_style

CLEAN, FINDINGS, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3
"""Exit codes: nothing to act on; findings; our input is wrong; the cluster did not answer."""

_ANSI_CODES = {
    TextStyle.BAD: "31;1",
    TextStyle.WARNING: "33",
    TextStyle.GOOD: "32",
    TextStyle.FAINT: "2",
    TextStyle.STRONG: "1",
}


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


def paint_for(*, no_color: bool) -> Paint:
    """Colours for a terminal that shows them and a person who wants them; else none."""
    unwanted = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return without_style if unwanted or not sys.stdout.isatty() else _paint_ansi


def _paint_ansi(text: str, style: TextStyle) -> str:
    return f"\x1b[{_ANSI_CODES[style]}m{text}\x1b[0m"


def print_result(lines: str | Iterable[str]) -> None:
    """Write the result. A reader that has seen enough is no error: the exit code stays that of the result."""
    text = lines if isinstance(lines, str) else "".join(f"{line}\n" for line in lines)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if not isinstance(error, BrokenPipeError):
            exit_with_error(f"stdout: cannot be written: {error.strerror or error}")


def _discard_stdout() -> None:
    """Send what is still to be written nowhere, or Python would fail on it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_note(line: str) -> None:
    """Write what is not the result."""
    sys.stderr.write(f"{line}\n")


def exit_with_error(message: str, code: int = WRONG_INPUT) -> NoReturn:
    """End with a message for a person."""
    print_note(f"error: {message}")
    raise typer.Exit(code)
