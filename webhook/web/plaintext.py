"""Text of strangers made fit for headers, logs and terminals."""

from __future__ import annotations

import re

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+")
"""What moves a cursor, ends a line, or turns the reading direction."""


def strip_control_characters(text: str) -> str:
    """The text without control characters; a run of them becomes one space."""
    return text if text.isascii() and text.isprintable() else _CONTROL_CHARACTERS.sub(" ", text)


def escape_to_ascii(text: str) -> str:
    """The same in ASCII: other characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL_CHARACTERS.sub(" ", text).replace("…", "...").encode("ascii", "backslashreplace").decode()
