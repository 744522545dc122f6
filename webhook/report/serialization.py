"""Plain data as JSON and YAML text.

The YAML is the subset that parsers of YAML 1.1 and 1.2 read alike: block maps and lists, and every string in double
quotes unless it is a bare word that no parser reads as another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from webhook.errors import SourceLocation

_BARE_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*\Z", re.ASCII)
_RESERVED_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Bare words that some YAML parser reads as a boolean, null or a number."""


def location_document(location: SourceLocation) -> dict[str, Any]:
    """Return a location as plain data; line and column are 0 if unknown."""
    return {"file": location.file, "line": location.line, "column": location.column}


def json_text(data: Any) -> str:
    """Return JSON indented by two, with keys in their order and a final line end."""
    text = orjson.dumps(
        _json_safe(data), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    )
    return text.decode()


def json_chunks(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of `json_text` in chunks; of a value that is an iterator, one member is in memory at a time."""
    comma = ""
    for key, value in data.items():
        yield f"{comma or '{'}\n  {_indented_json(key, 2)}: "
        yield from _json_array_chunks(value) if isinstance(value, Iterator) else (_indented_json(value, 2),)
        comma = ","
    yield "\n}\n" if comma else "{}\n"


def _json_array_chunks(values: Iterator[Any]) -> Iterator[str]:
    comma = ""
    for value in values:
        yield f"{comma or '['}\n    {_indented_json(value, 4)}"
        comma = ","
    yield "\n  ]" if comma else "[]"


def _indented_json(data: Any, by: int) -> str:
    """Return JSON with all lines but the first indented further."""
    return json_text(data).rstrip("\n").replace("\n", "\n" + " " * by)


def yaml_text(data: Any) -> str:
    """Return YAML in block style, with keys in their order; a value may be an iterator."""
    if isinstance(data, dict):
        data = {key: list(value) if isinstance(value, Iterator) else value for key, value in data.items()}
    if not isinstance(data, dict | list | tuple) or not data:
        return f"{_yaml_scalar(data)}\n"
    return "\n".join(_yaml_block(data, 0)) + "\n"


def _yaml_block(data: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(data, dict):
        for key, value in data.items():
            head = f"{pad}{_yaml_scalar(str(key))}:"
            if isinstance(value, dict | list | tuple) and value:
                yield head
                yield from _yaml_block(value, indent + 2)
            else:
                yield f"{head} {_yaml_scalar(value)}"
        return
    for value in data:
        if isinstance(value, dict | list | tuple) and value:
            first, *rest = _yaml_block(value, indent + 2)
            yield f"{pad}- {first[indent + 2 :]}"
            yield from rest
        else:
            yield f"{pad}- {_yaml_scalar(value)}"


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str) and _BARE_WORD.match(value) and value.lower() not in _RESERVED_WORDS:
        return value
    if isinstance(value, tuple):
        return "[]"
    return "".join(map(_escape_unprintable, orjson.dumps(_json_safe(value)).decode()))


def _escape_unprintable(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _json_safe(data: Any) -> Any:
    """Replace what orjson rejects: integers beyond 64 bits and lone surrogates become text, iterators become lists."""
    if isinstance(data, dict):
        return {_json_safe(key): _json_safe(value) for key, value in data.items()}
    if isinstance(data, list | tuple | Iterator):
        return [_json_safe(value) for value in data]
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        return str(data)
    return data.encode(errors="backslashreplace").decode() if isinstance(data, str) else data
