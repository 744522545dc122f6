"""`-o FORMAT[=PATH]`, several times: which report goes where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from webhook.cli.console import say, stop

Render = Callable[[], str | Iterator[str]]
"""Writes one report, whole or piece by piece."""


SOME = 1000
"""Pieces that are written to stdout together."""


class Target(NamedTuple):
    """A format, and the file it goes to ("" for stdout)."""

    form: str
    path: str


def targets(wanted: Sequence[str] | None, known: Sequence[str]) -> list[Target]:
    """Read the flags. Stops the program where a format is not known or two reports would go to one place."""
    found = [Target(*_split(each)) for each in wanted or [known[0]]]
    for target in found:
        if target.form not in known:
            stop(
                f"-o: must be one of {', '.join(known)}, found {target.form!r}. Write -o {known[0]}, or -o FORMAT=PATH"
            )
    if sum(not target.path for target in found) > 1:
        stop("-o: only one report can go to stdout. Give the others a file: -o FORMAT=PATH")
    files = Counter(os.path.realpath(target.path) for target in found if target.path)
    for file, times in files.items():
        if times > 1:
            stop(f"-o: each report must have a file of its own, found {times} for {file}. Name another file")
    return found


def _split(text: str) -> tuple[str, str]:
    form, equals, path = text.partition("=")
    if equals and not path:
        stop(f"-o: must name a file after =, found {text!r}. Write -o {text}PATH, or -o {form} for stdout")
    return form, path


def write(wanted: Sequence[Target], renders: Mapping[str, Render]) -> None:
    """Write each report to its place. Stops the program where a file cannot be written."""
    for target in wanted:
        made = renders[target.form]()
        pieces = iter((made,)) if isinstance(made, str) else made
        if not target.path:
            while some := "".join(islice(pieces, SOME)):
                say(some)
            continue
        try:
            with Path(target.path).open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(pieces)
        except OSError as error:
            stop(f"{target.path}: cannot be written: {error.strerror or error}")


def lines(each: Sequence[str]) -> str:
    """Lines to text."""
    return "".join(f"{line}\n" for line in each)
