"""Read YAML and JSON text into documents: plain data with the position of every value.

Policy files use a strict subset of YAML: no aliases, tags or merge keys, no repeated keys, and no spelling that two
YAML versions read differently. Manifests and snapshots are read as kubectl reads them, with bounded aliases.

A JSON parser reads what the YAML parser cannot: large snapshots, and escapes that YAML does not support. Consecutive
values are separate documents, as for kubectl.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any, NamedTuple

from webhook.documents.document import (
    MANIFEST_BOUNDS,
    MIB,
    POLICY_BOUNDS,
    UNKNOWN_MARK,
    Document,
    SizeBounds,
    decode_text,
    find_invalid_character,
    location_at,
)
from webhook.documents.yaml_builder import bound_integer
from webhook.documents.yaml_reader import advance_mark, drop_invalid_documents, positions_in, read_yaml_documents
from webhook.errors import DocumentError, SourceLocation, quote_text, shorten_text

DOCUMENT_SUFFIXES = (".yaml", ".yml", ".json")
LARGE_JSON_BYTES = 2 * MIB
"""Larger JSON files are machine-written: the JSON parser reads them ten times faster, without positions."""

MAX_POSITIONED_VALUES = 10_000
"""Consecutive JSON values that get full positions; each needs a parser of its own."""


def read_documents(content: str | bytes, file: str, *, aliases: bool = False) -> tuple[Document, ...]:
    """Read every document of a file, except empty ones.

    Args:
        content: The file's text, or its bytes (UTF-8).
        aliases: False for a policy: strict, at most 1 MiB. True for a manifest or snapshot: read as kubectl does, at
            most 64 MiB.

    Raises:
        DocumentError: The content is not accepted; a `TemplateError` if it looks like an unrendered template.
    """
    documents: list[Document] = []
    for result in iter_documents(content, file, aliases=aliases):
        if isinstance(result, DocumentError):
            raise result
        documents.append(result)
    return tuple(documents)


def iter_documents(content: str | bytes, file: str, *, aliases: bool = False) -> Iterator[Document | DocumentError]:
    """Yield the documents of a file one by one; an invalid document yields its error."""
    bounds = MANIFEST_BOUNDS if aliases else POLICY_BOUNDS
    try:
        text = decode_text(content, file, bounds)
        looks_like_json = text.lstrip()[:1] in ("{", "[")
        invalid = find_invalid_character(text, file)
        if invalid is not None and looks_like_json:
            raise invalid
        if invalid is not None:
            text, errors = drop_invalid_documents(text, file)
            yield from errors
        if not looks_like_json:
            yield from read_yaml_documents(text, file, bounds, aliases=aliases)
        elif len(text) > LARGE_JSON_BYTES:
            yield from read_json_documents(text, file, bounds)
        else:
            yield from _parse_yaml_or_json(text, file, bounds, aliases=aliases)
    except DocumentError as error:
        yield error


def _parse_yaml_or_json(text: str, file: str, bounds: SizeBounds, *, aliases: bool) -> list[Document | DocumentError]:
    """Parse text that begins like JSON as YAML, or as JSON if that reads more documents."""
    as_yaml = list(read_yaml_documents(text, file, bounds, aliases=aliases))
    valid = sum(isinstance(result, Document) for result in as_yaml)
    if valid == len(as_yaml):
        return as_yaml
    as_json: list[Document | DocumentError] = []
    try:
        as_json.extend(_json_documents(text, file, bounds))
    except DocumentError as error:
        return [*as_json, error] if len(as_json) > valid else as_yaml
    return as_json


def _json_documents(text: str, file: str, bounds: SizeBounds) -> Iterator[Document]:
    """Yield JSON values with full positions; after `MAX_POSITIONED_VALUES` values, only with their start."""
    mark, start = (1, 1), 0
    for count, value in enumerate(iter_json_values(text, file, bounds)):
        mark, start = advance_mark(mark, text, start, value.start), value.start
        positions = (
            positions_in(text[value.start : value.end], file, bounds, mark) if count < MAX_POSITIONED_VALUES else mark
        )
        yield Document(value.data, file, positions)


def is_document_file(parts: Sequence[str]) -> bool:
    """Return whether a file below a folder, or a key of a mounted ConfigMap, is read as a document.

    Hidden files and folders are skipped: a mounted ConfigMap keeps its versions in hidden folders.

    Args:
        parts: Names of the folders and the file, relative to the folder that was given.

    >>> is_document_file(["team", "guard.yaml"]), is_document_file(["..2026_06_01", "guard.yaml"])
    (True, False)
    """
    return parts[-1].endswith(DOCUMENT_SUFFIXES) and not any(name.startswith(".") for name in parts)


_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
"""One half of a surrogate pair; a lone half is not valid text."""

MAX_JSON_DIGITS = 30
"""Longer integers are beyond 64 bits."""

_SPACE = re.compile(r"[ \t\r\n]*")


class _UnsupportedJsonError(ValueError):
    """Valid JSON that is not supported; the argument is the message."""


class JsonValue(NamedTuple):
    """One JSON value of a text, and its offsets."""

    data: Any
    start: int
    end: int


def _build_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        must = f"must have each key once in an object, found {quote_text(key)} twice"
        raise _UnsupportedJsonError(f"{must}. Remove one of them")
    return data


def _reject_json_constant(name: str) -> Any:
    raise _UnsupportedJsonError(f"must be JSON, found {name}, which is not a JSON number. Write a finite number")


def _parse_json_integer(text: str) -> int | float:
    """Return an integer; one beyond 64 bits as a float, as kubectl reads it."""
    return bound_integer(int(text)) if len(text) <= MAX_JSON_DIGITS else _parse_json_float(text)


def _parse_json_float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise _UnsupportedJsonError(f"must be JSON with finite numbers, found {shorten_text(text)}. Write it as text")
    return number


_decoder = json.JSONDecoder(
    object_pairs_hook=_build_json_object,
    parse_constant=_reject_json_constant,
    parse_int=_parse_json_integer,
    parse_float=_parse_json_float,
)


def read_json_documents(text: str, file: str, bounds: SizeBounds) -> Iterator[Document]:
    """Yield the JSON values of a text as documents without positions.

    Raises:
        DocumentError: The text is not JSON or exceeds the bounds. Earlier values have been yielded.
    """
    return (Document(value.data, file, UNKNOWN_MARK) for value in iter_json_values(text, file, bounds))


def iter_json_values(text: str, file: str, bounds: SizeBounds) -> Iterator[JsonValue]:
    """Yield the JSON values of a text, except null.

    Raises:
        DocumentError: The text is not JSON or exceeds the bounds.
    """
    end = _skip_whitespace(text, 0)
    while end < len(text):
        start = end
        data, end = _decode_json_value(text, start, file)
        _check_json_bounds(data, file, bounds)
        if _HALF_ESCAPE.search(text, start, end) is not None:
            _check_surrogates(data, file)
        if data is not None:
            yield JsonValue(data, start, end)
        end = _skip_whitespace(text, end)


def _skip_whitespace(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _decode_json_value(text: str, position: int, file: str) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, position)
    except json.JSONDecodeError as error:
        location = location_at(text, error.pos, file)
        raise DocumentError(location, f"must be JSON, found a syntax error: {error.msg}. Fix it") from None
    except _UnsupportedJsonError as error:
        raise DocumentError(SourceLocation(file), str(error)) from None
    except RecursionError:
        raise DocumentError(SourceLocation(file), "must be less deeply nested. Reduce the nesting") from None
    except ValueError as error:
        raise DocumentError(SourceLocation(file), f"must be JSON, found an error: {shorten_text(str(error))}") from None


def _check_json_bounds(data: Any, file: str, bounds: SizeBounds) -> None:
    """Count values and depth level by level, without recursion."""
    level, depth, values = [data], 0, 1
    while level:
        depth += 1
        collections = (value for value in level if isinstance(value, (dict, list)))
        level = [child for one in collections for child in (one.values() if isinstance(one, dict) else one)]
        values += len(level)
        if depth > bounds.depth + 1:
            raise DocumentError(SourceLocation(file), f"must be at most {bounds.depth} levels deep. Reduce the nesting")
        if values > bounds.values:
            raise DocumentError(SourceLocation(file), f"must hold at most {bounds.values} values. Split the file")


def _check_surrogates(data: Any, file: str) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "must be text, found half a surrogate pair (such as \\ud800 alone). Write the whole character"
        raise DocumentError(SourceLocation(file), message) from None
