"""Parse YAML text into documents. After an invalid document the parser continues at the next `---`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from yaml import MarkedYAMLError
from yaml.cyaml import CParser

from webhook.documents.document import Document, Mark, Positions, SizeBounds, find_invalid_character
from webhook.documents.yaml_builder import DocumentBuilder
from webhook.errors import DocumentError, SourceLocation, TemplateError, shorten_text

_TEMPLATE_BRACES = re.compile(r"\{\{(?:(?!\{\{|\}\}).){0,400}\}\}", re.DOTALL)
"""Innermost braces. The search stops at every opening brace, so it takes linear time."""

_QUOTED_OR_COMMENT = re.compile(r"""(?m)"(?:[^"\\\n]|\\.)*(?:"|$)|'[^'\n]*'|(?:^|(?<=[ \t]))#.*$""")
"""Quoted text on one line, and comments."""

_SYNTAX_MESSAGES = {
    "mapping values are not allowed in this context": (
        "must have one `key: value` per line, found a second colon or wrong indentation. "
        "Put text with a colon in quotes, or fix the indentation"
    ),
    "did not find expected key": (
        "must have all keys of a map in one column, found other indentation or extra text. "
        "Align the keys, and put text with special characters in quotes"
    ),
    "found unexpected ':'": "must not have text that ends with a colon inside { } or [ ]. Put the text in quotes",
    "could not find expected ':'": "must be `key: value`, found a key without a colon. Write key: value",
    "did not find expected '-' indicator": "must have all list items in one column. Align the dashes",
    "did not find expected ',' or ']'": "must have a comma or ] here. Close the list",
    "did not find expected ',' or '}'": "must have a comma or } here. Close the map",
    "found unexpected end of stream": "must have a closing quote, found the end of the file. Add the closing quote",
    "block sequence entries are not allowed in this context": "must have each list item on its own line",
    "did not find expected alphabetic or numeric character": (
        "must not begin with * or & unquoted. Put the text in quotes"
    ),
    "found undefined tag handle": "must have no tags. Write the plain value",
}


MAX_FAULTY_DOCUMENTS = 100
"""Invalid documents per file after which parsing stops: each restarts the parser on the rest of the file."""

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""Line breaks, as libyaml counts them."""

_DOCUMENT_MARKER = re.compile("---(?<![^\n\r\x85\u2028\u2029]---)(?=[ \t\n\r\x85\u2028\u2029]|\\Z)")
"""A document marker at the start of a line. No value can contain one."""


class _ParserStop(NamedTuple):
    """An error, and the line (from 0) and offset where the parser stopped."""

    error: DocumentError
    line: int
    offset: int


def read_yaml_documents(
    text: str, file: str, bounds: SizeBounds, *, aliases: bool
) -> Iterator[Document | DocumentError]:
    """Parse every document of a text; an invalid document yields its error.

    After `MAX_FAULTY_DOCUMENTS` errors parsing stops, and the last error says so.
    """
    builder = DocumentBuilder(file, bounds, aliases=aliases)
    first_line = 0
    for _ in range(MAX_FAULTY_DOCUMENTS):
        stop = yield from _parse_until_error(text, file, builder, first_line)
        if stop is None:
            return
        yield stop.error
        marker = _DOCUMENT_MARKER.search(text, max(stop.offset, 1))
        if marker is None:
            return
        first_line += stop.line + sum(1 for _ in _LINE_BREAK.finditer(text, stop.offset, marker.start()))
        text = text[marker.start() :]
        builder.start_at(first_line)
    yield _too_many_errors(SourceLocation(file, first_line + 1, 1))


def _too_many_errors(location: SourceLocation) -> DocumentError:
    return DocumentError(
        location,
        f"must have at most {MAX_FAULTY_DOCUMENTS} invalid documents; the rest is not read. Fix these errors first",
    )


def drop_invalid_documents(text: str, file: str) -> tuple[str, list[DocumentError]]:
    """Blank out documents with forbidden characters, keeping all line numbers, and return their errors."""
    ends = [0, *(marker.start() for marker in _DOCUMENT_MARKER.finditer(text)), len(text)]
    parts: list[str] = []
    errors: list[DocumentError] = []
    for start, end in pairwise(ends):
        error = find_invalid_character(text, file, start, end)
        if error is not None:
            errors.append(error)
        if len(errors) > MAX_FAULTY_DOCUMENTS:
            return "".join(parts), [*errors[:-1], _too_many_errors(errors[-1].location)]
        parts.append(text[start:end] if error is None else "".join(_LINE_BREAK.findall(text, start, end)))
    return "".join(parts), errors


def positions_in(text: str, file: str, bounds: SizeBounds, mark: Mark) -> Positions:
    """Return the positions inside a value that begins at a mark, or the mark if YAML cannot parse it."""
    builder = DocumentBuilder(file, bounds, aliases=True)
    builder.start_at(mark[0] - 1, mark[1] - 1)
    document = next(_parse_until_error(text, file, builder, 0), None)
    return document.positions if document else mark


def advance_mark(mark: Mark, text: str, start: int, end: int) -> Mark:
    """Return the mark of an offset, given the mark of an earlier offset."""
    ends = [line.end() for line in _LINE_BREAK.finditer(text, start, end)]
    return (mark[0] + len(ends), end - ends[-1] + 1) if ends else (mark[0], mark[1] + end - start)


def _parse_until_error(
    text: str, file: str, builder: DocumentBuilder, first_line: int
) -> Generator[Document, None, _ParserStop | None]:
    parser = CParser(text)
    mark: Any = None
    try:
        while (event := parser.get_event()) is not None:
            mark = event.start_mark
            builder.feed(event)
            yield from builder.take_documents()
    except DocumentError as error:
        rest = text[mark.index - 1 :] if text.startswith("{{", mark.index - 1) else ""
        return _ParserStop(template_error(rest, error.location) or error, mark.line, mark.index)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        location = SourceLocation(file, first_line + mark.line + 1, mark.column + 1)
        next_marker = _DOCUMENT_MARKER.search(text, mark.index)
        end = next_marker.start() if next_marker else len(text)
        document = text[max(text.rfind("\n---", 0, mark.index), 0) : end]
        problem = template_error(document, location) or DocumentError(location, _syntax_message(error, text))
        return _ParserStop(problem, mark.line, mark.index)
    return None


def template_error(text: str, location: SourceLocation) -> TemplateError | None:
    """Return an error if an invalid text contains `{{ … }}` outside of comments and quotes, or None."""
    if _TEMPLATE_BRACES.search(text) is None or _TEMPLATE_BRACES.search(_QUOTED_OR_COMMENT.sub("", text)) is None:
        return None
    return TemplateError(
        location,
        "must be YAML, found {{ … }}: it looks like a Helm template. Render it first: helm template CHART | …",
    )


def _syntax_message(error: Any, text: str) -> str:
    problem, offset = str(error.problem), error.problem_mark.index
    if problem != "found character that cannot start any token" and "tab character" not in problem:
        known = _SYNTAX_MESSAGES.get(problem)
        return known or f"must be YAML, found a syntax error: {shorten_text(problem, 120)}. Fix the syntax"
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    character = text[offset : offset + 1]
    if character == "\t" or ("\t" in before and not before.strip()):
        return "must be indented with spaces, found a tab. Write spaces"
    return f"must not begin with {character!r} unquoted. Put the text in quotes"
