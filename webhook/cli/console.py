"""What goes to the terminal: the result to stdout, everything else to stderr, colour where it is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NoReturn

import typer

from webhook.report.words import Paint, Style, plain

CLEAN, FINDINGS, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3
"""Exit codes: nothing to act on; findings; our input is wrong; the cluster did not answer."""

_COLOURS = {Style.BAD: "31;1", Style.WARNING: "33", Style.GOOD: "32", Style.FAINT: "2", Style.STRONG: "1"}


def paint_for(*, no_color: bool) -> Paint:
    """Colours for a terminal that shows them and a person who wants them; else none."""
    unwanted = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return plain if unwanted or not sys.stdout.isatty() else _ansi


def _ansi(text: str, style: Style) -> str:
    return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m"


def say(lines: str | Iterable[str]) -> None:
    """Write the result. A reader that has seen enough is no error: the exit code stays that of the result."""
    text = lines if isinstance(lines, str) else "".join(f"{line}\n" for line in lines)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _silence()
        if not isinstance(error, BrokenPipeError):
            stop(f"stdout: cannot be written: {error.strerror or error}")


def _silence() -> None:
    """Send what is still to be written nowhere, or Python would fail on it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def tell(line: str) -> None:
    """Write what is not the result."""
    sys.stderr.write(f"{line}\n")


def stop(message: str, code: int = WRONG_INPUT) -> NoReturn:
    """End with a message for a person."""
    tell(f"error: {message}")
    raise typer.Exit(code)
