"""What is told of an object that is not as it should be."""

from __future__ import annotations

from json import dumps
from typing import Any, NamedTuple

from webhook.errors import shorten
from webhook.model.paths import Path


class Misshapen(NamedTuple):
    """Where an object is not as it should be.

    Attributes:
        path: Of the field.
        sentence: What must hold, and what was found.
        refused: True where the API server refuses it, False where it is stored and holds nobody.
    """

    path: Path
    sentence: str
    refused: bool = True


def invalid(path: Path, value: Any, words: str) -> Misshapen:
    """What the API server says of a value that breaks one of its rules."""
    said = dumps(value, separators=(",", ":"), default=str)
    return Misshapen(path, f"Invalid value: {shorten(said, 120)}: {words}")
