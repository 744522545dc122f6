"""Quantities exactly as the API server parses, computes and prints them.

A quantity keeps its original spelling if that is canonical enough, and is stored either in 64 bits or as a decimal of
any size: the two overflow, round and print differently, and error messages show it. `quantity` parses amounts where
only their value matters.

Source: `k8s.io/apimachinery/pkg/api/resource`, built for amd64 (a float too large for an integer becomes the
least one). Two bounds are added, because Go would compute for hours: a text has at most 64 characters, and a power of
ten is at most 400. Every quantity that was parsed is within them, so no later arithmetic can fail or take long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.bounded_cache import request_cache

MAX_LENGTH = 64
MAX_POWER = 400
"""The largest power of ten of an amount that is not zero."""

_MIN_ZERO_POWER = -40
"""The least power of ten that is kept of a zero; sums with a lower one have the same values and texts."""

DECIMAL = "DecimalSI"
BINARY = "BinarySI"
EXPONENT = "DecimalExponent"

MAX_INT64 = (1 << 63) - 1
MIN_INT64 = -(1 << 63)
MAX_MILLI = MAX_INT64 // 1000
"""Above this whole value, the API server compares whole units instead of thousandths."""

_DIGITS_HELD = 18
"""Digits that always fit 64 bits."""

_WRAPPING = frozenset({0, 1, 2, 3, 6, 9})
"""Powers of ten at which a Go product beyond 64 bits wraps; at all others it becomes 0."""

_GRAMMAR = re.compile(r"([+-]?)0*([0-9]*)(?:(\.)([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,18})?\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_POWERS_OF_TEN = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWERS_OF_TWO = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _POWERS_OF_TEN.items()}
_BINARY_SUFFIX = {power: suffix for suffix, power in _POWERS_OF_TWO.items()}
_MUST = "must be a quantity such as 1, 500m or 8Gi"


class Quantity(NamedTuple):
    """`unscaled` × 10^`exponent`.

    Attributes:
        unscaled: Digits, with the sign.
        exponent: Power of ten.
        form: DECIMAL, BINARY or EXPONENT: what the suffix was.
        wide: True if Go holds it as a decimal of any size, False if in 64 bits.
        text: The original spelling if it is kept; "" if it is formatted from the value.
    """

    unscaled: int
    exponent: int = 0
    form: str = DECIMAL
    wide: bool = False
    text: str = ""


ZERO = Quantity(0)


def amount_text(amount: str | float) -> str:
    """Return an amount as text; QuantityError for an integer with more digits than Python would print."""
    if isinstance(amount, int) and abs(amount) >= 10**MAX_LENGTH:
        raise QuantityError("a number", "is too large", is_quantity=True)
    return str(amount)


@request_cache(2048)
def parse_quantity(text: str) -> Quantity:
    """Parse a quantity.

    Raises:
        QuantityError: it is not a quantity, or beyond the bounds above.
    """
    if len(text) > MAX_LENGTH:
        raise QuantityError(text, "is too long to be a quantity", is_quantity=_NUMBER.match(text) is not None)
    match = _GRAMMAR.match(text)
    if match is None or not text:
        raise QuantityError(text, _MUST)
    if text == "0":
        return Quantity(0, text="0")
    sign, whole, _, fraction, suffix = match.groups()
    form, ten, two = _parse_suffix(text, suffix)
    amount = _parse_int64_amount(text, sign, whole or "0", fraction or "", form, ten, two)
    return amount or _parse_decimal_amount(text, match.start(5), form, ten, two)


def _parse_suffix(text: str, suffix: str) -> tuple[str, int, int]:
    if suffix in _POWERS_OF_TEN:
        return DECIMAL, _POWERS_OF_TEN[suffix], 0
    if suffix in _POWERS_OF_TWO:
        return BINARY, 0, _POWERS_OF_TWO[suffix]
    power = int(suffix[1:]) if suffix[0] in "eE" and _INTEGER.match(suffix, 1) else None
    if power is None or not MIN_INT64 <= power <= MAX_INT64:
        raise QuantityError(text, _MUST)
    return EXPONENT, _wrap_int32(power), 0


def _parse_int64_amount(
    text: str, sign: str, whole: str, fraction: str, form: str, ten: int, two: int
) -> Quantity | None:
    if form == BINARY:
        if fraction or 14 - len(whole) - two * 3 // 10 < 0:
            return None
        value, power = int(whole), 0
        spelled = value & 7 != 0
    else:
        digits = whole + fraction
        power = _wrap_int32(ten - len(fraction))
        if len(digits) > _DIGITS_HELD or power < -9:
            return None
        value = int(digits)
        power = _bound_power(text, value, power)
        spelled = power % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    value <<= two
    return Quantity(-value if sign == "-" else value, power, form, text=text if spelled else "")


def _parse_decimal_amount(text: str, end: int, form: str, ten: int, two: int) -> Quantity:
    """Return the quantity as a decimal: rounded up to nano-units, and a binary one capped at 2^63 - 1."""
    digits = text[:end].lstrip("+-")
    whole, _, fraction = digits.partition(".")
    if not whole and not fraction:
        raise QuantityError(text, _MUST)
    value = int(whole + fraction) << two
    power = _bound_power(text, value, _wrap_int32(ten - len(fraction)))
    if value:
        value, power = _rescale_to_nano(value, power), -9
    if form == BINARY:
        if value > MAX_INT64 * 10**9:
            value, power = MAX_INT64, 0
        elif 0 < value < 10**9:
            form = DECIMAL
    return Quantity(-value if text[0] == "-" else value, power, form, wide=True)


def _bound_power(text: str, value: int, power: int) -> int:
    """Return a power of ten that is safe to compute with; that of zero does not change any sum."""
    if value and power > MAX_POWER:
        raise QuantityError(text, f"is too large: the exponent must be at most {MAX_POWER}", is_quantity=True)
    return min(max(power, _MIN_ZERO_POWER), MAX_POWER) if not value else power


def _rescale_to_nano(value: int, power: int) -> int:
    """Return a positive value in nano-units, rounded up."""
    if power >= -9:
        return int(value * _power_of_ten(power + 9))
    if power < -9 - MAX_LENGTH:
        return 1
    return -(-value // _power_of_ten(-9 - power))


def round_to_milli(quantity: Quantity) -> Quantity:
    """Round away from zero to thousandths, as the API server does with amounts of pods and LimitRanges."""
    unscaled, exponent, form, wide, _ = quantity
    if wide:
        return Quantity(_rescale_away_from_zero(unscaled, exponent, -3), -3, form, wide=True)
    if exponent >= -3:
        return quantity
    return Quantity(_rescale_away_from_zero(unscaled, exponent, -3), -3, form)


def _rescale_away_from_zero(unscaled: int, exponent: int, target: int) -> int:
    if exponent >= target:
        return unscaled * _power_of_ten(exponent - target)
    size = -(-abs(unscaled) // _power_of_ten(target - exponent))
    return size if unscaled > 0 else -size


def canonical_text(quantity: Quantity) -> str:
    """Format a quantity as the API server stores and prints it.

    >>> [canonical_text(parse_quantity(text)) for text in ("0.5", "1024Mi", "1000m")]
    ['500m', '1Gi', '1']
    """
    return quantity.text or _format_canonical(quantity)


@request_cache(2048)
def _format_canonical(quantity: Quantity) -> str:
    unscaled, exponent, form, wide, _ = quantity
    if not unscaled:
        return "0"
    if form != BINARY:
        return _format_decimal(unscaled, exponent, form)
    is_whole = exponent >= 0 or unscaled % _power_of_ten(-exponent) == 0
    if is_whole and _is_beyond_1024(abs(unscaled), exponent):
        return _format_binary(unscaled, exponent, wide=wide)
    return _format_decimal(unscaled, exponent, DECIMAL)


def _is_beyond_1024(size: int, exponent: int) -> bool:
    if exponent < 0:
        return size >= 1024 * _power_of_ten(-exponent)
    return exponent > 3 or size * _power_of_ten(exponent) >= 1024


def _format_binary(unscaled: int, exponent: int, *, wide: bool) -> str:
    amount = (
        unscaled * _power_of_ten(exponent) if exponent >= 0 else _divide_toward_zero(unscaled, _power_of_ten(-exponent))
    )
    times = 0
    while abs(amount) >= (1 if wide else 1024) and amount % 1024 == 0:
        amount //= 1024
        times += 1
    return f"{amount}{_BINARY_SUFFIX.get(10 * times, '')}"


def _format_decimal(unscaled: int, exponent: int, form: str) -> str:
    digits = str(unscaled).rstrip("0")
    exponent += len(str(unscaled)) - len(digits)
    digits += "0" * (exponent % 3)
    exponent -= exponent % 3
    if form == EXPONENT:
        return f"{digits}e{exponent}" if exponent else digits
    return digits + _DECIMAL_SUFFIX.get(exponent, "")


def add_quantities(one: Quantity, other: Quantity) -> Quantity:
    """Return the sum, in the form of the first summand that is not zero."""
    form = one.form if one.unscaled else other.form
    if not one.wide and not other.wide:
        total = _sum_in_int64(one, other)
        if total is not None:
            return Quantity(*total, form)
    exponent = min(one.exponent, other.exponent)
    unscaled = sum(each.unscaled * _power_of_ten(each.exponent - exponent) for each in (one, other))
    return Quantity(unscaled, exponent, form, wide=True)


def _sum_in_int64(one: Quantity, other: Quantity) -> tuple[int, int] | None:
    if not other.unscaled:
        return one.unscaled, one.exponent
    if not one.unscaled:
        return other.unscaled, other.exponent
    exponent = min(one.exponent, other.exponent)
    if max(one.exponent, other.exponent) - exponent > _DIGITS_HELD:
        return None
    parts = [each.unscaled * _power_of_ten(each.exponent - exponent) for each in (one, other)]
    if all(MIN_INT64 <= part <= MAX_INT64 for part in (*parts, sum(parts))):
        return sum(parts), exponent
    return None


def negate_quantity(quantity: Quantity) -> Quantity:
    """Return the negative of a quantity; that of -2^63 in 64 bits is itself, as in Go."""
    unscaled = -quantity.unscaled if quantity.wide else _wrap_int64(-quantity.unscaled)
    return quantity._replace(unscaled=unscaled, text="")


def compare_quantities(one: Quantity, other: Quantity) -> int:
    """Return a number below, equal to or above zero if `one` is less than, equal to or more than `other`."""
    if one.exponent == other.exponent:
        return one.unscaled - other.unscaled
    signs = _sign_of(one.unscaled) - _sign_of(other.unscaled)
    if signs or not one.unscaled:
        return signs
    sizes = _magnitude_of(one) - _magnitude_of(other)
    if sizes:
        return sizes * _sign_of(one.unscaled)
    exponent = min(one.exponent, other.exponent)
    return one.unscaled * _power_of_ten(one.exponent - exponent) - other.unscaled * _power_of_ten(
        other.exponent - exponent
    )


def _sign_of(value: int) -> int:
    return (value > 0) - (value < 0)


def _magnitude_of(quantity: Quantity) -> int:
    """Return the power of ten above the first digit."""
    return len(str(abs(quantity.unscaled))) + quantity.exponent


def whole_value(quantity: Quantity) -> int:
    """Return whole units as Go's Value() does: rounded up, and overflowing as in Go."""
    return _scaled_value(quantity, 0)


def milli_value(quantity: Quantity) -> int:
    """Return thousandths as Go's MilliValue() does; see `whole_value`."""
    return _scaled_value(quantity, -3)


@request_cache(2048)
def _scaled_value(quantity: Quantity, target: int) -> int:
    unscaled, exponent, _, wide, _ = quantity
    if wide:
        return _scaled_decimal_value(unscaled, exponent - target)
    if exponent < target:
        return _rescale_away_from_zero(unscaled, exponent, target)
    if exponent - target in _WRAPPING:
        return _wrap_int64(unscaled * _power_of_ten(exponent - target))
    if exponent - target > _DIGITS_HELD:
        return 0
    scaled = unscaled * _power_of_ten(exponent - target)
    return scaled if MIN_INT64 <= scaled <= MAX_INT64 else 0


def _scaled_decimal_value(unscaled: int, up: int) -> int:
    if up == 0:
        return _wrap_int64(unscaled)
    if up > 0:
        return _wrap_int64(_wrap_int64(unscaled) * (_power_of_ten(up) if up <= _DIGITS_HELD else MIN_INT64))
    if unscaled < MAX_INT64 and up > -19:
        wrapped, divisor = _wrap_int64(unscaled), _power_of_ten(-up)
        return _divide_toward_zero(wrapped, divisor) + (1 if wrapped % divisor else 0)
    result, rest = divmod(unscaled, _power_of_ten(-up))
    return _wrap_int64(result + (1 if rest else 0))


def _divide_toward_zero(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)


def _power_of_ten(power: int) -> int:
    return int(10**power)


def _wrap_int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _wrap_int64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
