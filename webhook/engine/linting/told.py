"""What is told of an object that is not as it should be."""

from __future__ import annotations

from json import dumps
from typing import Any, NamedTuple

from webhook.errors import shorten_text
from webhook.model.paths import FieldPath


class ObjectError(NamedTuple):
    """Where an object is not as it should be.

    Attributes:
        path: Of the field.
        sentence: What must hold, and what was found.
        refused: True where the API server refuses it, False where it is stored and holds nobody.
    """

    path: FieldPath
    message: str
    rejected: bool = True


def invalid_value(path: FieldPath, value: Any, words: str) -> ObjectError:
    """What the API server says of a value that breaks one of its rules."""
    said = dumps(value, separators=(",", ":"), default=str)
    return ObjectError(path, f"Invalid value: {shorten_text(said, 120)}: {words}")
