"""The base of objects read from the API server and from nodes: frozen, unknown fields ignored.

Errors about data that does not fit a model: the field, what is expected and what was found.

msgspec ends its messages with the path of the field, but leaves out map keys: those are looked up in the data.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from webhook.model.field_paths import FieldPath, format_path


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Only the fields in use; a new field in a new Kubernetes must not break admission.

    A null means "absent" in Kubernetes. `msgspec` rejects null for a list or a map, so decoders remove nulls, but only
    after a first attempt fails.
    """


LONGEST_KEY = 100
_TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_TYPE_WORDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "array": ("a list", (list,)),
    "object": ("a map", (dict,)),
    "str": ("text", (str,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (float,)),
    "bool": ("true or false", (bool,)),
    "null": ("nothing", (type(None),)),
}
"""JSON types: their names for people, and their Python types."""


class FieldMismatch(NamedTuple):
    """A value of the wrong type, or a missing field.

    Attributes:
        path: The field, or the nearest existing one.
        sentence: The field, what is expected and what was found.
    """

    path: FieldPath
    sentence: str


def describe_mismatch(message: str, data: object) -> FieldMismatch:
    """Return the field and sentence of a msgspec error.

    Args:
        message: Text of its `ValidationError`.
        data: The data that was converted.
    """
    problem, _, steps = message.partition(" - at `$")
    missing, types = _MISSING.search(problem), _TYPES.search(problem)
    found = types[2] if types else ""
    path = _mismatch_path(steps, data, found)
    if missing:
        return FieldMismatch(path, f"{format_path((*path, missing[1]))}: must be set, found nothing")
    where = f"{format_path(path)}: " if path else ""
    if types is None:
        return FieldMismatch(path, f"{where}must be a valid value for this field")
    return FieldMismatch(path, f"{where}must be {_expected_types(types[1])}, found {_type_words(found)}")


def _mismatch_path(steps: str, data: Any, found: str) -> FieldPath:
    path: list[str | int] = []
    for key, index in _STEP.findall(steps):
        step = key or (_mismatched_key(data, found) if index == "..." else int(index))
        if step is None:
            break
        path.append(step)
        try:
            data = data[step]
        except (LookupError, TypeError):
            data = None
    return tuple(path)


def _mismatched_key(data: object, found: str) -> str | None:
    """Return the first key of a map with a value of the found type; None if it is not a plain name."""
    kinds = _TYPE_WORDS.get(found, ("", ()))[1]
    members = data.items() if isinstance(data, dict) else ()
    key = next((key for key, value in members if type(value) in kinds), None)
    plain = isinstance(key, str) and len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()
    return key if plain else None


def _expected_types(types: str) -> str:
    """Whole numbers are numbers, and null is never expected."""
    names = [name for name in types.split(" | ") if name != "null"]
    if "float" in names and "int" in names:
        names.remove("int")
    return " or ".join(map(_type_words, names))


def _type_words(json_type: str) -> str:
    return _TYPE_WORDS.get(json_type, (json_type, ()))[0]
