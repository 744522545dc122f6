"""YAML text to documents. One with a fault costs nothing but itself: the reader goes on at the next `---`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from yaml import MarkedYAMLError
from yaml.cyaml import CParser

from webhook.documents.decode import SizeBounds, find_invalid_character
from webhook.documents.document import Document, Mark, Positions
from webhook.documents.yaml_builder import DocumentBuilder
from webhook.errors import DocumentError, SourceLocation, TemplateError, shorten_text

_TEMPLATE_BRACES = re.compile(r"\{\{(?:(?!\{\{|\}\}).){0,400}\}\}", re.DOTALL)
"""The innermost braces: a search ends at each that opens, so that no text costs more than reading it once."""

_QUOTED_OR_COMMENT = re.compile(r"""(?m)"(?:[^"\\\n]|\\.)*(?:"|$)|'[^'\n]*'|(?:^|(?<=[ \t]))#.*$""")
"""What stands in quotes on one line, and comments."""

_SYNTAX_MESSAGES = {
    "mapping values are not allowed in this context": (
        "must have one `key: value` on a line, found a second colon or a wrong indentation. "
        "Put text that holds a colon in quotes, or correct the indentation"
    ),
    "did not find expected key": (
        "must have keys of one map in one column, found another indentation or text left over. "
        "Line the keys up, and put text with special characters in quotes"
    ),
    "found unexpected ':'": "must not end text with a colon inside { } and [ ]. Put the text in quotes",
    "could not find expected ':'": "must be `key: value`, found a key without a colon. Write key: value",
    "did not find expected '-' indicator": "must have list items in one column. Line the dashes up",
    "did not find expected ',' or ']'": "must have a comma or ] here. Close the list",
    "did not find expected ',' or '}'": "must have a comma or } here. Close the map",
    "found unexpected end of stream": "must close its quotes, found the end of the file. Add the closing quote",
    "block sequence entries are not allowed in this context": "must have list items on lines of their own",
    "did not find expected alphabetic or numeric character": (
        "must not begin with * or & unquoted. Put the text in quotes"
    ),
    "found undefined tag handle": "must have no tags. Write the plain value",
}


MAX_FAULTY_DOCUMENTS = 100
"""Documents with a fault in one file; each costs a new start on the rest of it."""

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What libyaml counts as the end of a line."""

_DOCUMENT_MARKER = re.compile("---(?<![^\n\r\x85\u2028\u2029]---)(?=[ \t\n\r\x85\u2028\u2029]|\\Z)")
"""Where a document begins, at the start of a line: it ends a block of text too, and stands inside no other value."""


class _ParserStop(NamedTuple):
    """A fault, and the line (from 0) and offset that the parser had come to."""

    error: DocumentError
    line: int
    offset: int


def read_yaml_documents(
    text: str, file: str, bounds: SizeBounds, *, aliases: bool
) -> Iterator[Document | DocumentError]:
    """Read every document of a text; one with a fault comes out as its error.

    After `MAX_FAULTY_DOCUMENTS` of them the rest is not read, and the last error says so.
    """
    builder = DocumentBuilder(file, bounds, aliases=aliases)
    above = 0
    for _ in range(MAX_FAULTY_DOCUMENTS):
        stop = yield from _parse_until_error(text, file, builder, above)
        if stop is None:
            return
        yield stop.error
        marker = _DOCUMENT_MARKER.search(text, max(stop.offset, 1))
        if marker is None:
            return
        above += stop.line + sum(1 for _ in _LINE_BREAK.finditer(text, stop.offset, marker.start()))
        text = text[marker.start() :]
        builder.start_at(above)
    yield _too_many_errors(SourceLocation(file, above + 1, 1))


def _too_many_errors(place: SourceLocation) -> DocumentError:
    sentence = (
        f"must have at most {MAX_FAULTY_DOCUMENTS} documents with a fault; from "
        f"here on it is not read. Correct those above"
    )
    return DocumentError(place, sentence)


def drop_invalid_documents(text: str, file: str) -> tuple[str, list[DocumentError]]:
    """A text without the documents that hold characters which no text has, each line where it was; and their errors."""
    ends = [0, *(marker.start() for marker in _DOCUMENT_MARKER.finditer(text)), len(text)]
    kept: list[str] = []
    errors: list[DocumentError] = []
    for start, end in pairwise(ends):
        error = find_invalid_character(text, file, start, end)
        if error is not None:
            errors.append(error)
        if len(errors) > MAX_FAULTY_DOCUMENTS:
            return "".join(kept), [*errors[:-1], _too_many_errors(errors[-1].location)]
        kept.append(text[start:end] if error is None else "".join(_LINE_BREAK.findall(text, start, end)))
    return "".join(kept), errors


def positions_in(text: str, file: str, bounds: SizeBounds, mark: Mark) -> Positions:
    """Where everything in a value stands that begins at a mark; the mark alone where YAML cannot read it."""
    builder = DocumentBuilder(file, bounds, aliases=True)
    builder.start_at(mark[0] - 1, mark[1] - 1)
    document = next(_parse_until_error(text, file, builder, 0), None)
    return document.positions if document else mark


def advance_mark(mark: Mark, text: str, start: int, end: int) -> Mark:
    """The mark of one offset in a text, by that of another before it."""
    ends = [line.end() for line in _LINE_BREAK.finditer(text, start, end)]
    return (mark[0] + len(ends), end - ends[-1] + 1) if ends else (mark[0], mark[1] + end - start)


def _parse_until_error(
    text: str, file: str, builder: DocumentBuilder, above: int
) -> Generator[Document, None, _ParserStop | None]:
    parser = CParser(text)
    mark: Any = None
    try:
        while (event := parser.get_event()) is not None:
            mark = event.start_mark
            builder.feed(event)
            yield from builder.take_documents()
    except DocumentError as error:
        braces = text[mark.index - 1 :] if text.startswith("{{", mark.index - 1) else ""
        return _ParserStop(template_error(braces, error.location) or error, mark.line, mark.index)
    except MarkedYAMLError as error:
        mark, problem = error.problem_mark, syntax_error(error, text, file, above)
        around = _enclosing_document(text, mark.index)
        return _ParserStop(template_error(around, problem.location) or problem, mark.line, mark.index)
    return None


def _enclosing_document(text: str, offset: int) -> str:
    marker = _DOCUMENT_MARKER.search(text, offset)
    return text[max(text.rfind("\n---", 0, offset), 0) : marker.start() if marker else len(text)]


def syntax_error(error: Any, text: str, file: str, above: int = 0) -> DocumentError:
    """Turn a parser's exception into ours, with the place; `above` counts the lines above the text in its file."""
    mark = error.problem_mark
    return DocumentError(SourceLocation(file, above + mark.line + 1, mark.column + 1), _syntax_message(error, text))


def template_error(text: str, place: SourceLocation) -> TemplateError | None:
    """The error for a text with `{{ … }}` in it that is not YAML; None for any other.

    In comments and in quotes braces are YAML: they are not what is wrong with it.
    """
    if _TEMPLATE_BRACES.search(text) is None or _TEMPLATE_BRACES.search(_QUOTED_OR_COMMENT.sub("", text)) is None:
        return None
    return TemplateError(
        place,
        "must be YAML, found {{ … }}: it looks like a Helm template. Render it first: helm template CHART | …",
    )


def _syntax_message(error: Any, text: str) -> str:
    problem = str(error.problem)
    if problem == "found character that cannot start any token" or "tab character" in problem:
        return _unquoted_start_message(text, error.problem_mark.index)
    known = _SYNTAX_MESSAGES.get(problem)
    return known or f"must be YAML, found a fault: {shorten_text(problem, 120)}. Correct the text there"


def _unquoted_start_message(text: str, offset: int) -> str:
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    character = text[offset : offset + 1]
    if character == "\t" or ("\t" in before and not before.strip()):
        return "must be indented with spaces, found a tab. Write spaces"
    return f"must not begin with {character!r} unquoted. Put the text in quotes"
