"""Kubernetes quantities, exactly and in integers.

Source: `k8s.io/apimachinery/pkg/api/resource`. Values are kept in nano-units, the finest that the API
keeps; finer ones round up, away from zero, as there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

from webhook.errors import QuantityError
from webhook.model.pods import Amount

NANO = 1_000_000_000
MAX_DIGITS = 64
"""Longest number we read. 2^63 has 19 digits; the rest is room for fractions."""

MAX_EXPONENT = 100
"""Largest power of ten we read: a nine-character quantity must not cost a second of arithmetic."""

_GRAMMAR = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([A-Za-z]*)([+-]?[0-9]*)\Z", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def nano(amount: Amount) -> int:
    """Read a quantity in nano-units.

    >>> nano("1500m")
    1500000000

    Raises:
        QuantityError: it is no quantity, or larger than this program reads.
    """
    if isinstance(amount, str):
        return _nano(amount)
    if isinstance(amount, float):
        return _nano(repr(amount))
    if abs(amount) >= 10**MAX_DIGITS:
        _refuse("a number", "is too large")
    return _nano(str(amount))


@lru_cache(maxsize=8192)
def _nano(text: str) -> int:
    if len(text) > MAX_DIGITS:
        _refuse(text, "is too long to be a quantity")
    match = _GRAMMAR.match(text.strip(" "))
    if match is None:
        _refuse(text, "must be a quantity such as 1, 500m or 8Gi")
    sign, whole, fraction, suffix, exponent = match.groups()
    fraction = fraction or ""
    if not whole and not fraction:
        _refuse(text, "must be a quantity such as 1, 500m or 8Gi")
    digits, ten, two = int(whole + fraction), -len(fraction), 0
    if exponent and suffix in ("e", "E") and exponent not in ("+", "-"):
        if abs(int(exponent)) > MAX_EXPONENT:
            _refuse(text, "is too large")
        ten += int(exponent)
    elif exponent or (suffix not in _DECIMAL and suffix not in _BINARY):
        _refuse(text, "must be a quantity such as 1, 500m or 8Gi")
    else:
        ten += _DECIMAL.get(suffix, 0)
        two = _BINARY.get(suffix, 0)
    value = _scaled(digits << two, ten + 9)
    return -value if sign == "-" else value


def _scaled(digits: int, power: int) -> int:
    """digits × 10^power, rounded up."""
    if power >= 0:
        return digits * int(10**power)
    return -(-digits // int(10**-power))


def _refuse(found: object, why: str) -> NoReturn:
    raise QuantityError(found, why)


@lru_cache(maxsize=8192)
def readable(amount: Amount | None) -> int | None:
    """Read a quantity in nano-units; None where there is none, or where it is no quantity."""
    if amount is None:
        return None
    try:
        return nano(amount)
    except QuantityError:
        return None


def milli(amount: Amount) -> int:
    """Read a quantity in thousandths, rounded up."""
    return -(-nano(amount) // 1_000_000)


def units(amount: Amount) -> int:
    """Read a quantity in whole units, rounded up (what the scheduler does with an extended resource)."""
    return -(-nano(amount) // NANO)


def mebibytes(amount: Amount) -> int:
    """Read an amount of memory in MiB, rounded up."""
    return -(-nano(amount) // (NANO << 20))


@lru_cache(maxsize=8192)
def whole(amount: Amount) -> int | None:
    """Read a count that must be a whole number; None if it is a fraction or no quantity at all."""
    try:
        value, rest = divmod(nano(amount), NANO)
    except QuantityError:
        return None
    return None if rest else value


def written(value: int) -> str:
    """Write nano-units the way people do: the shortest of plain, milli and binary.

    >>> written(nano("8Gi")), written(nano("0.5")), written(nano("12"))
    ('8Gi', '500m', '12')
    """
    count, rest = divmod(value, NANO)
    if rest:
        return f"{-(-value // 1_000_000)}m"
    for suffix, power in reversed(_BINARY.items()):
        if count and not count % (1 << power):
            return f"{count >> power}{suffix}"
    return str(count)
