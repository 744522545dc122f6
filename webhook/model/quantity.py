"""Kubernetes quantities as exact integers in nano-units, the finest that the API keeps; `apimachinery` parses them."""

from __future__ import annotations

import re

from webhook.errors import QuantityError
from webhook.model.apimachinery import MAX_INT64, MAX_LENGTH, amount_text, parse_quantity
from webhook.model.bounded_cache import request_cache
from webhook.model.pods import QuantityText

NANO = 1_000_000_000
MAX_EXPONENT = 100
"""The largest power of ten that is read: nine characters must not cost a second of arithmetic."""

_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtTpP])[iI]?[bB]?\Z", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_nano(amount: QuantityText) -> int:
    """Parse a quantity in nano-units.

    >>> parse_nano("1500m")
    1500000000

    Raises:
        QuantityError: it is not a quantity, or too large.
    """
    return _parse_nano_text(amount_text(amount))


_PLAIN_DIGITS = 9
_PLAIN_SUFFIXES = {"": NANO, "m": NANO // 1000, "Ki": NANO << 10, "Mi": NANO << 20, "Gi": NANO << 30}
"""Suffixes of most amounts, in nano-units; with that many digits none is beyond 64 bits."""


@request_cache(2048)
def _parse_nano_text(text: str) -> int:
    digits = text.rstrip("mKMGi")
    scale = _PLAIN_SUFFIXES.get(text[len(digits) :])
    if scale is not None and len(digits) <= _PLAIN_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits) * scale
    unscaled, exponent, *_ = parse_quantity(text.strip(" "))
    if not unscaled:
        return 0
    if exponent > MAX_EXPONENT:
        raise QuantityError(text, f"is too large: the exponent must be at most {MAX_EXPONENT}", is_quantity=True)
    return unscaled * int(10 ** (exponent + 9))


@request_cache(2048)
def parse_nano_or_none(amount: QuantityText | None) -> int | None:
    """Parse a quantity in nano-units; None for None, or if it is not a quantity."""
    if amount is None:
        return None
    try:
        return parse_nano(amount)
    except QuantityError:
        return None


def parse_units(amount: QuantityText) -> int:
    """Parse a quantity in whole units, rounded up, as the scheduler does for extended resources."""
    return -(-parse_nano(amount) // NANO)


def parse_mebibytes(amount: QuantityText) -> int:
    """Parse an amount of memory in MiB, rounded up."""
    return -(-parse_nano(amount) // (NANO << 20))


@request_cache(2048)
def parse_whole_number(amount: QuantityText) -> int | None:
    """Parse a whole number; None if it is a fraction or not a quantity."""
    try:
        value, rest = divmod(parse_nano(amount), NANO)
    except QuantityError:
        return None
    return None if rest else value


def suggest_quantity(amount: QuantityText) -> str:
    """Return a sentence with what to write instead of an amount that is not a quantity.

    >>> suggest_quantity("16GB")
    'Write 16Gi (powers of 1024) or 16G (powers of 1000).'
    """
    text = str(amount)[:MAX_LENGTH].replace(" ", "")
    if parse_nano_or_none(text) is not None:
        return f"Write {text}."
    if match := _BYTES.match(text):
        number, letter = match[1], match[2].upper()
        return f"Write {number}{letter}i (powers of 1024) or {number}{letter.replace('K', 'k')} (powers of 1000)."
    return "Write a number and at most one suffix: m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, or e and an exponent."


def format_nano(value: int) -> str:
    """Format nano-units for people: plain, milli or binary, whichever is shortest.

    >>> format_nano(parse_nano("8Gi")), format_nano(parse_nano("0.5")), format_nano(parse_nano("12"))
    ('8Gi', '500m', '12')
    """
    count, rest = divmod(value, NANO)
    if rest:
        return f"{-(-value // 1_000_000)}m"
    for suffix, power in reversed(_BINARY.items()):
        if 0 < abs(count) <= MAX_INT64 and not count % (1 << power):
            return f"{count >> power}{suffix}"
    return str(count)


def format_mib(mebibyte: int) -> str:
    """Format MiB for people, for example "8Gi"."""
    return format_nano(mebibyte * (NANO << 20))
