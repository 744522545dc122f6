"""JSON text to plain data where the YAML reader cannot serve: large snapshots, and escapes that YAML lacks.

The data is the same. Several values in a row are several documents, as for kubectl.
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
"""Half of a character beyond 16 bits: two in a row are a character, one alone is no text."""

_SPACE = re.compile(r"[ \t\r\n]*")


class _UnsupportedJsonError(ValueError):
    """A value that JSON has but we do not take; the argument is the sentence."""


class JsonValue(NamedTuple):
    """One of the values of a text, and its offsets."""

    data: Any
    start: int
    end: int


def read_json_documents(text: str, file: str, bounds: SizeBounds) -> Iterator[Document]:
    """Read every JSON value of a text, without places. What stands before a fault has come when the fault does.

    Raises:
        DocumentError: not JSON, or beyond the bounds.
    """
    return (Document(row.data, file, UNKNOWN_MARK) for row in iter_json_values(text, file, bounds))


def iter_json_values(text: str, file: str, bounds: SizeBounds) -> Iterator[JsonValue]:
    """Every JSON value of a text, null left out.

    Raises:
        DocumentError: not JSON, or beyond the bounds.
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
        place = location_at(text, error.pos, file)
        raise DocumentError(place, f"must be JSON, found a fault: {error.msg}. Correct the text there") from None
    except _UnsupportedJsonError as error:
        raise DocumentError(SourceLocation(file), str(error)) from None
    except RecursionError:
        raise DocumentError(SourceLocation(file), "must be less deep. Write it flatter") from None
    except ValueError as error:
        raise DocumentError(SourceLocation(file), f"must be JSON, found a fault: {shorten_text(str(error))}") from None


def _build_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise _UnsupportedJsonError(
            f"must have each key once in an object, found {_repeated_key(pairs)} twice. Remove one of them"
        )
    return data


def _repeated_key(pairs: list[tuple[str, Any]]) -> str:
    counts = Counter(key for key, _ in pairs)
    return shorten_text(repr(counts.most_common(1)[0][0]))


def _reject_json_constant(name: str) -> Any:
    raise _UnsupportedJsonError(f"must be JSON, found {name}, which JSON has no number for. Write a finite number")


_decoder = json.JSONDecoder(object_pairs_hook=_build_json_object, parse_constant=_reject_json_constant)


def _check_json_bounds(data: Any, file: str, bounds: SizeBounds) -> None:
    """Count values and depth level by level, so that no depth can end the stack."""
    level, depth, values = [data], 0, 1
    while level:
        depth += 1
        level = [member for value in level if isinstance(value, (dict, list)) for member in _json_children(value)]
        values += len(level)
        if depth > bounds.depth + 1:
            raise DocumentError(SourceLocation(file), f"must be at most {bounds.depth} levels deep. Write it flatter")
        if values > bounds.values:
            raise DocumentError(SourceLocation(file), f"must hold at most {bounds.values} values. Split the file")


def _check_surrogates(data: Any, file: str) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        sentence = "must be text, found half a character (a lone \\ud800 escape). Write the whole character"
        raise DocumentError(SourceLocation(file), sentence) from None


def _json_children(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
