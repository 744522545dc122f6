"""One JSON document from bytes, exactly: no key twice, no number bent, nothing that JSON does not have.

Every fast decoder keeps the last of two equal keys without a word, and orjson makes floats of integers beyond
64 bits. Both are seen without looking at each key: a text that equals what its decoded form encodes to has no
key twice and no number that changed. API servers send exactly that text, with or without Go's escapes of `<`,
`>` and `&`. What does not is read again the slow and exact way.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from webhook.errors import ReviewError

GO_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))
"""What Go's `encoding/json` writes for characters that HTML knows, unless told otherwise."""

_NOT_JSON = "the body must be one JSON document in UTF-8, with plain numbers and no more than 250 levels"
_KEY_TWICE = "the body must not have a key twice in one object"


def decode(body: bytes) -> Any:
    """Decode one document.

    Raises:
        ReviewError: it is not JSON in UTF-8, is nested too deeply, holds a number out of bounds, or has a key
            twice in one object.
    """
    try:
        data = orjson.loads(body)
        again = orjson.dumps(data)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        raise ReviewError(_NOT_JSON) from None
    if again == body or _as_go_writes(again) == body.rstrip(b"\n"):
        return data
    return _decode_exactly(body)


def _as_go_writes(text: bytes) -> bytes:
    for plain, escaped in GO_ESCAPES:
        text = text.replace(plain, escaped)
    return text


def _decode_exactly(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ReviewError(_NOT_JSON) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ReviewError(_KEY_TWICE)
    return members


def _refuse(_constant: str) -> NoReturn:
    raise ReviewError(_NOT_JSON)
