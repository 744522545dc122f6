"""Output of the commands: results to stdout or to files, notes and errors to stderr, and exit codes."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO, TypeVar

import typer

from webhook.errors import JsonPathError
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import Paint, TextStyle, sanitize, without_style

if TYPE_CHECKING:
    from webhook.report.tables import Row, Table

EXIT_OK, EXIT_FINDINGS, EXIT_INVALID_INPUT, EXIT_NO_ANSWER = 0, 1, 2, 3
"""Nothing to act on; findings; invalid input; the cluster did not answer."""

T = TypeVar("T")

ReportRenderer = Callable[[], str | Iterator[str]]
"""Renders one report, whole or in pieces."""

PIECES_PER_WRITE = 1000
"""Pieces that are written to stdout together."""

_ANSI_CODES = {
    TextStyle.BAD: "31;1",
    TextStyle.WARNING: "33",
    TextStyle.GOOD: "32",
    TextStyle.FAINT: "2",
    TextStyle.STRONG: "1",
}


JSONPATH = "jsonpath"
"""The format with a template after its =; every report with JSON has it."""


class ReportTarget(NamedTuple):
    """A format, and the file to write it to ("" for stdout); of a JSONPath also its template."""

    form: str
    path: str
    template: str = ""


def parse_targets(outputs: Sequence[str] | None, formats: Sequence[str]) -> list[ReportTarget]:
    """Parse `-o FORMAT[=PATH]`; by default the first format goes to stdout.

    Exits if a format is unknown or two reports have the same destination.
    """
    targets = []
    for output in outputs or [formats[0]]:
        form, equals, path = output.partition("=")
        if form == JSONPATH and "json" in formats:
            targets.append(ReportTarget(form, "", _checked_template(path)))
            continue
        if equals and not path:
            must = f"must name a file after =, found {output!r}"
            exit_with_error(f"-o: {must}. Write -o {output}PATH, or -o {form} for stdout")
        if form not in formats:
            known = (*formats, f"{JSONPATH}=TEMPLATE") if "json" in formats else formats
            choices = f"must be one of {', '.join(known)}, found {form!r}"
            exit_with_error(f"-o: {choices}. Write -o {formats[0]}, or -o FORMAT=PATH")
        targets.append(ReportTarget(form, path))
    if sum(not target.path for target in targets) > 1:
        exit_with_error("-o: only one report can go to stdout. Give the others a file: -o FORMAT=PATH")
    files = Counter(os.path.realpath(target.path) for target in targets if target.path)
    for file, times in files.items():
        if times > 1:
            exit_with_error(f"-o: each report needs its own file, found {times} for {file}. Name another file")
    return targets


def _checked_template(template: str) -> str:
    """Return a JSONPath template. Exits if it is invalid."""
    from webhook.report.jsonpath import parse_template  # rarely used

    if not template:
        exit_with_error(f"-o {JSONPATH}: must have a template. Write -o {JSONPATH}='{{.name}}'")
    try:
        parse_template(template)
    except JsonPathError as error:
        exit_with_error(f"-o {JSONPATH}: {error}")
    return template


def write_reports(targets: Sequence[ReportTarget], renderers: Mapping[str, ReportRenderer]) -> None:
    """Write each report to its destination. Exits if a file cannot be written."""
    for target in targets:
        report = renderers["json" if target.template else target.form]()
        pieces = iter((report,)) if isinstance(report, str) else report
        if target.template:
            print_result(_render_jsonpath(target.template, "".join(pieces)))
            continue
        if not target.path:
            while text := "".join(islice(pieces, PIECES_PER_WRITE)):
                print_result(text)
            continue
        try:
            with Path(target.path).open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(pieces)
        except OSError as error:
            exit_with_error(f"{target.path}: cannot be written: {error.strerror or error}")


def _render_jsonpath(template: str, text: str) -> str:
    import msgspec

    from webhook.report.jsonpath import render_template  # rarely used

    try:
        return render_template(template, msgspec.json.decode(text))
    except JsonPathError as error:
        exit_with_error(f"-o {JSONPATH}: {error}")


class RowFlags(NamedTuple):
    """The flags of a report with rows: --sort-by and --no-headers."""

    sort_by: str = ""
    no_headers: bool = False

    def sort(
        self, table: Table[Row], rows: Sequence[Row], document: Callable[[Row], Any] | None = None
    ) -> Sequence[Row]:
        """Return the rows in the order of --sort-by. Exits if none has such a value."""
        if not self.sort_by:
            return rows
        try:
            return table.sort(rows, self.sort_by, document)
        except JsonPathError as error:
            exit_with_error(f"--sort-by: {error}")

    def reports(
        self,
        table: Table[Row],
        rows: Sequence[Row],
        name: Callable[[Row], str],
        paint: Paint,
        *,
        wide: Table[Row] | None = None,
        totals: Sequence[Row] = (),
        around: Callable[[list[str]], Iterable[str]] = iter,
    ) -> dict[str, ReportRenderer]:
        """Return the renderers of the rows for people, and of their names.

        Args:
            name: KIND/NAME of a row.
            wide: The table with -o wide, if it has other cells.
            totals: The first rows; left out with --no-headers.
            around: Adds to the lines of the table what stands before and after it; left out with --no-headers.
        """

        def text(table: Table[Row], *, wide: bool) -> str:
            if self.no_headers:
                return join_lines(table.to_lines(rows, wide=wide)[1:])
            return join_lines(around(table.to_lines([*totals, *rows], paint, wide=wide)))

        return {
            "table": lambda: text(table, wide=False),
            "wide": lambda: text(wide or table, wide=True),
            "name": lambda: join_lines(sanitize(name(row)) for row in rows),
        }


DEFAULT_ROWS = RowFlags()


def text_reports(lines: Callable[[], Iterable[str]]) -> dict[str, ReportRenderer]:
    """Return the renderers of a report for people that has no more columns with -o wide."""

    def text() -> str:
        return join_lines(lines())

    return {"table": text, "wide": text}


def document_reports(document: Callable[[], Any]) -> dict[str, ReportRenderer]:
    """Return the renderers of plain data as JSON and as YAML."""
    return {"json": lambda: json_text(document()), "yaml": lambda: yaml_text(document())}


def join_lines(lines: Iterable[str]) -> str:
    """Join lines to text, each with a line feed."""
    return "".join(f"{line}\n" for line in lines)


def paint_for(*, no_color: bool) -> Paint:
    """Return the styling of text: ANSI colors if stdout is a terminal and color is wanted, else none."""
    unwanted = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if unwanted or not sys.stdout.isatty():
        return without_style
    return lambda text, style: f"\x1b[{_ANSI_CODES[style]}m{text}\x1b[0m"


def print_result(result: str | Iterable[str]) -> None:
    """Write text or lines to stdout. A reader that closes the pipe early does not change the exit code."""
    text = result if isinstance(result, str) else join_lines(result)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _discard_output(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            exit_with_error(f"stdout: cannot be written: {error.strerror or error}")


def _discard_output(stream: TextIO) -> None:
    """Discard what a stream could not write, and what follows: Python would fail on it when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def show_progress(items: Iterable[T], length: int) -> Iterator[Iterable[T]]:
    """Show a progress bar on stderr if it is a terminal."""
    interactive = sys.stderr.isatty() and not os.environ.get("CI")
    with typer.progressbar(items, length=length, label="pods", file=sys.stderr, hidden=not interactive) as bar:
        yield bar


def print_note(line: str) -> None:
    """Write a line to stderr. If nobody can read it, the command goes on without it."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        _discard_output(sys.stderr)


class ErrorExit(typer.Exit):
    """An exit after an error was written to stderr."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


def exit_with_error(message: str, code: int = EXIT_INVALID_INPUT) -> NoReturn:
    """Write an error to stderr and exit."""
    print_note(f"error: {message}")
    raise ErrorExit(message, code)
