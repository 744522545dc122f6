"""What goes to the terminal: the result to stdout, everything else to stderr, colour where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NoReturn

import typer

from webhook.report.words import Paint, TextStyle, without_style

CLEAN, FINDINGS, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3
"""Exit codes: nothing to act on; findings; our input is wrong; the cluster did not answer."""

_ANSI_CODES = {TextStyle.BAD: "31;1", TextStyle.WARNING: "33", TextStyle.GOOD: "32", TextStyle.FAINT: "2", TextStyle.STRONG: "1"}


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
