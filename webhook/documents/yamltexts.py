"""YAML text to documents. One with a fault costs nothing but itself: the reader goes on at the next `---`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from yaml import MarkedYAMLError
from yaml.cyaml import CParser

from webhook.documents.bounds import Bounds
from webhook.documents.building import Builder
from webhook.documents.faults import fault, template_fault
from webhook.documents.places import Document, Mark, Spot
from webhook.documents.texts import odd_in
from webhook.errors import DocumentError, Place

FAULTS = 100
"""Documents with a fault in one file; each costs a new start on the rest of it."""

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What libyaml counts as the end of a line."""

_MARKER = re.compile("---(?<![^\n\r\x85\u2028\u2029]---)(?=[ \t\n\r\x85\u2028\u2029]|\\Z)")
"""Where a document begins, at the start of a line: it ends a block of text too, and stands inside no other value."""


class _Stop(NamedTuple):
    """A fault, and the line (from 0) and offset that the parser had come to."""

    error: DocumentError
    line: int
    offset: int


def read_yaml(text: str, file: str, bounds: Bounds, *, aliases: bool) -> Iterator[Document | DocumentError]:
    """Read every document of a text; one with a fault comes out as its error.

    After `FAULTS` of them the rest is not read, and the last error says so.
    """
    builder = Builder(file, bounds, aliases=aliases)
    above = 0
    for _ in range(FAULTS):
        stop = yield from _until_fault(text, file, builder, above)
        if stop is None:
            return
        yield stop.error
        marker = _MARKER.search(text, max(stop.offset, 1))
        if marker is None:
            return
        above += stop.line + sum(1 for _ in _BREAK.finditer(text, stop.offset, marker.start()))
        text = text[marker.start() :]
        builder.restart(above)
    yield _too_many(Place(file, above + 1, 1))


def _too_many(place: Place) -> DocumentError:
    sentence = f"must have at most {FAULTS} documents with a fault; from here on it is not read. Correct those above"
    return DocumentError(place, sentence)


def set_aside(text: str, file: str) -> tuple[str, list[DocumentError]]:
    """A text without the documents that hold characters which no text has, each line where it was; and their errors."""
    ends = [0, *(marker.start() for marker in _MARKER.finditer(text)), len(text)]
    kept: list[str] = []
    errors: list[DocumentError] = []
    for start, end in pairwise(ends):
        error = odd_in(text, file, start, end)
        if error is not None:
            errors.append(error)
        if len(errors) > FAULTS:
            return "".join(kept), [*errors[:-1], _too_many(errors[-1].place)]
        kept.append(text[start:end] if error is None else "".join(_BREAK.findall(text, start, end)))
    return "".join(kept), errors


def spot_of(text: str, file: str, bounds: Bounds, mark: Mark) -> Spot:
    """Where everything in a value stands that begins at a mark; the mark alone where YAML cannot read it."""
    builder = Builder(file, bounds, aliases=True)
    builder.restart(mark[0] - 1, mark[1] - 1)
    document = next(_until_fault(text, file, builder, 0), None)
    return document.spot if document else mark


def moved(mark: Mark, text: str, start: int, end: int) -> Mark:
    """The mark of one offset in a text, by that of another before it."""
    ends = [line.end() for line in _BREAK.finditer(text, start, end)]
    return (mark[0] + len(ends), end - ends[-1] + 1) if ends else (mark[0], mark[1] + end - start)


def _until_fault(text: str, file: str, builder: Builder, above: int) -> Generator[Document, None, _Stop | None]:
    parser = CParser(text)
    mark: Any = None
    try:
        while (event := parser.get_event()) is not None:
            mark = event.start_mark
            builder.feed(event)
            yield from builder.finished()
    except DocumentError as error:
        braces = text[mark.index - 1 :] if text.startswith("{{", mark.index - 1) else ""
        return _Stop(template_fault(braces, error.place) or error, mark.line, mark.index)
    except MarkedYAMLError as error:
        mark, problem = error.problem_mark, fault(error, text, file, above)
        around = _document_around(text, mark.index)
        return _Stop(template_fault(around, problem.place) or problem, mark.line, mark.index)
    return None


def _document_around(text: str, offset: int) -> str:
    marker = _MARKER.search(text, offset)
    return text[max(text.rfind("\n---", 0, offset), 0) : marker.start() if marker else len(text)]
