"""Why plain data is not what a model holds: the field, what must stand there and what was found.

msgspec ends its messages with the way to the field, and leaves out under which key of a map it was: that is looked up.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from webhook.model.paths import Path, dotted

LONGEST_KEY = 100
_TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_WORDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "array": ("a list", (list,)),
    "object": ("a map", (dict,)),
    "str": ("text", (str,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (float,)),
    "bool": ("true or false", (bool,)),
    "null": ("nothing", (type(None),)),
}
"""The types of JSON: what people call them, and what they are here."""


class Misfit(NamedTuple):
    """What does not fit.

    Attributes:
        path: The field, or the nearest that is there.
        sentence: The field, what must hold and what was found.
    """

    path: Path
    sentence: str


def misfit(message: str, data: object) -> Misfit:
    """Read what msgspec says of data.

    Args:
        message: Its `ValidationError`, as text.
        data: What was converted.
    """
    said, _, way = message.partition(" - at `$")
    missing, types = _MISSING.search(said), _TYPES.search(said)
    found = types[2] if types else ""
    path = _path(way, data, found)
    if missing:
        return Misfit(path, f"{dotted((*path, missing[1]))}: must be there, found nothing")
    where = f"{dotted(path)}: " if path else ""
    if types is None:
        return Misfit(path, f"{where}must be a value that this field can hold")
    return Misfit(path, f"{where}must be {_wanted(types[1])}, found {_word(found)}")


def _path(way: str, data: Any, found: str) -> Path:
    path: list[str | int] = []
    for key, index in _STEP.findall(way):
        step = key or (_odd_key(data, found) if index == "..." else int(index))
        if step is None:
            break
        path.append(step)
        data = _member(data, step)
    return tuple(path)


def _odd_key(data: object, found: str) -> str | None:
    """The first key of a map with a value of the type that was found; None where it is no plain name."""
    kinds = _WORDS.get(found, ("", ()))[1]
    members = data.items() if isinstance(data, dict) else ()
    key = next((key for key, value in members if type(value) in kinds), None)
    plain = isinstance(key, str) and len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()
    return key if plain else None


def _member(data: Any, step: str | int) -> Any:
    try:
        return data[step]
    except (LookupError, TypeError):
        return None


def _wanted(types: str) -> str:
    """The types that fit, said once: whole numbers are numbers, and nothing is not asked for."""
    names = [name for name in types.split(" | ") if name != "null"]
    if "float" in names and "int" in names:
        names.remove("int")
    return " or ".join(map(_word, names))


def _word(json_type: str) -> str:
    return _WORDS.get(json_type, (json_type, ()))[0]
