"""Parse JSON where the YAML parser cannot: large snapshots, and escapes that YAML does not support.

Consecutive values are separate documents, as for kubectl.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from webhook.documents.decode import SizeBounds, location_at
from webhook.documents.document import UNKNOWN_MARK, Document
from webhook.errors import DocumentError, SourceLocation, shorten_text

_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
"""One half of a surrogate pair; a lone half is not valid text."""

_SPACE = re.compile(r"[ \t\r\n]*")


class _UnsupportedJsonError(ValueError):
    """Valid JSON that is not supported; the argument is the message."""


class JsonValue(NamedTuple):
    """One JSON value of a text, and its offsets."""

    data: Any
    start: int
    end: int


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


def _build_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        shown = shorten_text(repr(key))
        raise _UnsupportedJsonError(f"must have each key once in an object, found {shown} twice. Remove one of them")
    return data


def _reject_json_constant(name: str) -> Any:
    raise _UnsupportedJsonError(f"must be JSON, found {name}, which is not a JSON number. Write a finite number")


_decoder = json.JSONDecoder(object_pairs_hook=_build_json_object, parse_constant=_reject_json_constant)


def _check_json_bounds(data: Any, file: str, bounds: SizeBounds) -> None:
    """Count values and depth level by level, without recursion."""
    level, depth, values = [data], 0, 1
    while level:
        depth += 1
        level = [member for value in level if isinstance(value, (dict, list)) for member in _json_children(value)]
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


def _json_children(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
