"""Strict JSON decoding: no duplicate keys, no changed numbers, no extensions of JSON.

Fast decoders silently keep the last of two equal keys, and orjson converts integers beyond 64 bits to floats. Both are
detected without checking each key: if encoding the decoded data yields the same text, there was no duplicate key and no
changed number. That holds for the text of API servers, with or without Go's escapes of `<`, `>` and `&`. Any other text
is decoded again by a slow and exact parser.
"""

from __future__ import annotations

import json
from math import isinf
from typing import Any, NoReturn

import orjson

from webhook.errors import ReviewError

GO_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))
"""The HTML escapes of Go's `encoding/json`, which are on by default."""

MAX_DIGITS = 20
INTEGERS = range(-(1 << 63), 1 << 64)
"""Larger ones are floats in Go, so no API server sends one."""

_EMPTY = "the body must not be empty: it must be an AdmissionReview in JSON"
_NOT_UTF8 = "the body must be UTF-8 without a byte order mark"
_NOT_UNICODE = "the body must be valid Unicode: it contains an unpaired surrogate"
_BROKEN = "the body must be valid JSON: syntax error at line {line}, column {column}"
_MORE = "the body must be one JSON document: extra data at line {line}, column {column}"
_TOO_DEEP = "the body must be nested at most 250 levels deep"
_NO_NUMBER = "numbers in the body must be valid JSON: NaN and Infinity are not"
_TOO_LARGE = "numbers in the body must be integers of at most 64 bits, or floats below 1e308"
_KEY_TWICE = "the body must not have duplicate keys in an object"


def decode_strict_json(body: bytes) -> Any:
    """Decode one document.

    Raises:
        ReviewError: it is empty, not JSON, not UTF-8, nested too deeply, has a number out of range, or has a duplicate
            key. Each case has its own message.
    """
    try:
        data = orjson.loads(body)
        again = orjson.dumps(data)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        raise ReviewError(_explain_decode_error(body)) from None
    if again == body or _escape_like_go(again) == body.rstrip(b"\n"):
        return data
    return _decode_exactly(body)


def _escape_like_go(text: bytes) -> bytes:
    for plain, escaped in GO_ESCAPES:
        text = text.replace(plain, escaped)
    return text


def _explain_decode_error(body: bytes) -> str:
    """Return why the fast decoder rejects a body, by decoding it with the exact parser."""
    try:
        json.dumps(_decode_exactly(body), ensure_ascii=False).encode()
    except ReviewError as error:
        return str(error)
    except UnicodeEncodeError:
        return _NOT_UNICODE
    except RecursionError:
        pass
    return _TOO_DEEP


def _decode_exactly(body: bytes) -> Any:
    if not body.strip():
        raise ReviewError(_EMPTY)
    try:
        return json.loads(
            body.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_finite_float,
            parse_int=_parse_bounded_int,
        )
    except UnicodeDecodeError:
        raise ReviewError(_NOT_UTF8) from None
    except json.JSONDecodeError as error:
        sentence = _MORE if error.msg == "Extra data" else _BROKEN
        starts_with_mark = error.doc.startswith("\ufeff")
        message = _NOT_UTF8 if starts_with_mark else sentence.format(line=error.lineno, column=error.colno)
        raise ReviewError(message) from None
    except RecursionError:
        raise ReviewError(_TOO_DEEP) from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ReviewError(_KEY_TWICE)
    return members


def _reject_constant(_constant: str) -> NoReturn:
    raise ReviewError(_NO_NUMBER)


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ReviewError(_TOO_LARGE)
    return number


def _parse_bounded_int(text: str) -> int:
    if len(text) > MAX_DIGITS or int(text) not in INTEGERS:
        raise ReviewError(_TOO_LARGE)
    return int(text)
