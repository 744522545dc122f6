"""Convert plain (unquoted) YAML scalars to values.

Manifests are read as kubectl reads them: `sigs.k8s.io/yaml`, which accepts YAML 1.1 words (`yes` is true) and octals
(`017` is 15) as well as YAML 1.2. Policies are read as YAML 1.2; spellings that the two versions read differently
are rejected as ambiguous.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

MAX_SCALAR_LENGTH = 64
"""Longer scalars are text, which bounds the time to parse a number."""

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML11_WORDS: dict[str, bool] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z", re.ASCII)
_RADIX_INTEGER = re.compile(r"([-+]?)0([xob])([0-9a-fA-F]+)\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_YAML11_OCTAL = re.compile(r"([-+]?)0([0-7]+)\Z", re.ASCII)
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z", re.ASCII)
_UNDERSCORED = re.compile(r"[-+]?(?:0[xob])?[0-9a-fA-F.][0-9a-fA-F_.]*\Z", re.ASCII)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+\Z", re.ASCII)


def is_ambiguous(text: str) -> bool:
    """Return whether YAML 1.1 and 1.2 read a plain scalar differently, or it is not a finite number.

    >>> [is_ambiguous(text) for text in ("no", "017", "1_000", "12:30:45", ".inf", "nvidia")]
    [True, True, True, True, True, False]
    """
    if len(text) > MAX_SCALAR_LENGTH:
        return False
    if text in _YAML11_WORDS or _NOT_FINITE.match(text) or _LEADING_ZERO.match(text) or _SEXAGESIMAL.match(text):
        return True
    return "_" in text and text[0] in "+-.0123456789" and _UNDERSCORED.match(text) is not None


def is_finite(value: Scalar) -> bool:
    """Return False for infinities and NaN, which JSON and Kubernetes do not support."""
    return not isinstance(value, float) or math.isfinite(value)


def parse_yaml12(text: str) -> Scalar:
    """Parse a plain scalar with the YAML 1.2 core schema. Times and dates remain text.

    >>> [parse_yaml12(text) for text in ("8", "0x10", "1e3", "true", "2026-12-01", "no")]
    [8, 16, 1000.0, True, '2026-12-01', 'no']
    """
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if not (first.isdigit() or first in "+-.") or len(text) > MAX_SCALAR_LENGTH:
        return text
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return _parse_radix_integer(text)


def _parse_radix_integer(text: str) -> Scalar:
    match = _RADIX_INTEGER.match(text)
    if match is None:
        return text
    sign, letter, digits = match.groups()
    try:
        return int(sign + digits, {"x": 16, "o": 8, "b": 2}[letter])
    except ValueError:
        return text


def parse_like_kubectl(text: str) -> Scalar:
    """Parse a plain scalar as kubectl does.

    >>> [parse_like_kubectl(text) for text in ("yes", "017", "1_000", "12:30:45")]
    [True, 15, 1000, '12:30:45']
    """
    if text in _YAML11_WORDS:
        return _YAML11_WORDS[text]
    if _NOT_FINITE.match(text):
        return math.nan
    if len(text) > MAX_SCALAR_LENGTH or not text or text[0] not in "+-.0123456789":
        return parse_yaml12(text)
    bare = text.replace("_", "")
    octal = _YAML11_OCTAL.match(bare)
    if octal is not None:
        return int("".join(octal.groups()), 8)
    value = parse_yaml12(bare) if bare else text
    return text if isinstance(value, str) else value
