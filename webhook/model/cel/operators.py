"""The operators and functions of strings, numbers and optional values at run time.

Source: `common/types` and `ext/strings.go` of cel-go, `pkg/cel/library` of `k8s.io/apiserver`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import re2

from webhook.model.apimachinery import (
    EXPONENT,
    MAX_INT64,
    MIN_INT64,
    Quantity,
    add_quantities,
    compare_quantities,
    negate_quantity,
)
from webhook.model.cel.cel_errors import CelError
from webhook.model.cel.values import (
    NO_VALUE,
    CelMap,
    CelValue,
    OptionalValue,
    QuantityValue,
    SemanticVersion,
    UnsignedInteger,
    is_list,
    normalize_version,
    quantity_value,
    semantic_version,
    size_of,
    type_name,
)

MAX_UINT64: Final = (1 << 64) - 1

Implementation = Callable[..., Any]


def no_overload(*arguments: CelValue) -> CelError:
    """Return the error of arguments that a function does not take."""
    return CelError(f"no such overload for {', '.join(map(type_name, arguments)) or 'no arguments'}")


def checked_int(value: int) -> int:
    """Return an integer that fits 64 bits.

    Raises:
        CelError: It does not.
    """
    if MIN_INT64 <= value <= MAX_INT64:
        return value
    raise CelError("integer overflow")


def checked_uint(value: int) -> UnsignedInteger:
    """Return an unsigned integer that fits 64 bits.

    Raises:
        CelError: It does not.
    """
    if 0 <= value <= MAX_UINT64:
        return UnsignedInteger(value)
    raise CelError("unsigned integer overflow")


def _calculate(one: CelValue, other: CelValue, integer: Callable[[int, int], int], real: Implementation) -> CelValue:
    kind = type(one)
    if kind is not type(other) or kind not in (int, UnsignedInteger, float):
        raise no_overload(one, other)
    if kind is float:
        return float(real(one, other))
    result = integer(int(one), int(other))
    return checked_int(result) if kind is int else checked_uint(result)


def add_values(one: CelValue, other: CelValue) -> CelValue:
    """Return a sum of numbers, or concatenated strings, bytes or lists."""
    if type(one) is type(other) and (isinstance(one, (str, bytes)) or is_list(one)):
        return one + other
    return _calculate(one, other, lambda a, b: a + b, lambda a, b: a + b)


def subtract_values(one: CelValue, other: CelValue) -> CelValue:
    """Return a difference of numbers."""
    return _calculate(one, other, lambda a, b: a - b, lambda a, b: a - b)


def multiply_values(one: CelValue, other: CelValue) -> CelValue:
    """Return a product of numbers."""
    return _calculate(one, other, lambda a, b: a * b, lambda a, b: a * b)


def divide_values(one: CelValue, other: CelValue) -> CelValue:
    """Return a quotient of numbers, of integers rounded toward zero."""
    return _calculate(one, other, _divide_integers, _divide_doubles)


def remainder_of_values(one: CelValue, other: CelValue) -> CelValue:
    """Return the remainder of a division of integers, with the sign of the first."""
    if isinstance(one, float):
        raise no_overload(one, other)
    return _calculate(one, other, _integer_remainder, math.fmod)


def _divide_integers(one: int, other: int) -> int:
    if other == 0:
        raise CelError("division by zero")
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def _integer_remainder(one: int, other: int) -> int:
    if one == MIN_INT64 and other == -1:
        raise CelError("integer overflow")
    return one - other * _divide_integers(one, other)


def _divide_doubles(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if one == 0 or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1, other)


def negate_value(value: CelValue) -> CelValue:
    """Return a number with the other sign."""
    if type(value) is int:
        return checked_int(-value)
    if isinstance(value, float):
        return -value
    raise no_overload(value)


def compare_values(one: CelValue, other: CelValue) -> int:
    """Return a number below, equal to or above zero, as the first value is less than, equal to or above the second."""
    if _is_number(one) and _is_number(other):
        if isinstance(one, float) or isinstance(other, float):
            one, other = float(one), float(other)
            if math.isnan(one) or math.isnan(other):
                raise CelError("NaN values cannot be ordered")
    elif type(one) is not type(other) or type(one) not in (bool, str, bytes):
        raise no_overload(one, other)
    return int(one > other) - int(one < other)


def _is_number(value: CelValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def size_value(value: CelValue) -> int:
    """Return the size of a string, bytes, list or map."""
    size = size_of(value)
    if size is None:
        raise no_overload(value)
    return size


def convert_to_int(value: CelValue) -> int:
    """Return a number, or the number in a text, as an integer."""
    if isinstance(value, str):
        return checked_int(_parse_integer(value, "+-"))
    if isinstance(value, float):
        if not -(2.0**63) < value < 2.0**63:
            raise CelError("integer overflow")
        return int(value)
    return checked_int(int(value))


def convert_to_uint(value: CelValue) -> UnsignedInteger:
    """Return a number, or the number in a text, as an unsigned integer."""
    if isinstance(value, str):
        return checked_uint(_parse_integer(value, ""))
    if isinstance(value, float):
        if not 0 <= value < 2.0**64:
            raise CelError("unsigned integer overflow")
        return UnsignedInteger(int(value))
    return checked_uint(int(value))


def _parse_integer(text: str, signs: str) -> int:
    digits = text[1:] if text[:1] and text[0] in signs else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 1000:
        raise CelError("type conversion error")
    return int(text)


_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z", re.ASCII)
_NOT_FINITE = re.compile(r"([+-]?)(inf|infinity|nan)\Z", re.IGNORECASE | re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+\Z", re.ASCII)


def convert_to_double(value: CelValue) -> float:
    """Return a number, or the number in a text, as a double."""
    if not isinstance(value, str):
        return float(value)
    if _NOT_FINITE.match(value) and not (value[0] in "+-" and value.lower().endswith("nan")):
        return float(value)
    try:
        number = float(value) if _DECIMAL.match(value) else float.fromhex(value) if _HEXADECIMAL.match(value) else None
    except OverflowError:
        number = math.inf
    if number is None or math.isinf(number):
        raise CelError("type conversion error")
    return number


_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def convert_to_bool(value: CelValue) -> bool:
    """Return a boolean, or the one in a text."""
    if isinstance(value, bool):
        return value
    if str(value) not in _BOOLEANS:
        raise CelError("type conversion error")
    return _BOOLEANS[str(value)]


def convert_to_string(value: CelValue) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
    return format_double(value) if isinstance(value, float) else str(value)


def convert_to_bytes(value: CelValue) -> bytes:
    """Return bytes, or a text in UTF-8."""
    return value if isinstance(value, bytes) else str(value).encode()


def format_double(value: float) -> str:
    """Format a double as Go does: shortest, with an exponent below 1e-04 and from 1e+06 on.

    >>> format_double(0.5), format_double(-1e6), format_double(123456.0)
    ('0.5', '-1e+06', '123456')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    magnitude = len(digits) + int(exponent) - 1 if value else 0
    if not -4 <= magnitude < _MAX_PLAIN_MAGNITUDE:
        mantissa = f"{text[0]}.{text[1:]}".rstrip(".")
        text = f"{mantissa}e{'-' if magnitude < 0 else '+'}{abs(magnitude):02d}"
    elif magnitude < 0:
        text = f"0.{'0' * (-magnitude - 1)}{text}"
    else:
        text = f"{text[: magnitude + 1].ljust(magnitude + 1, '0')}.{text[magnitude + 1 :]}".rstrip(".")
    return f"-{text}" if sign else text


_MAX_PLAIN_MAGNITUDE = 6
"""Powers of ten from which on Go writes an exponent if no precision is given."""


def match_pattern(text: CelValue, pattern: CelValue) -> bool:
    """Return whether a regular expression matches anywhere in a text."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_overload(text, pattern)
    return compile_pattern(pattern).search(text) is not None


def compile_pattern(pattern: str) -> Any:
    """Compile a regular expression in RE2 syntax.

    Raises:
        CelError: It is not one.
    """
    try:
        return re2.compile(pattern, _PATTERN_OPTIONS)
    except re2.error as error:
        raise CelError(f"invalid regular expression: {error.args[0].decode(errors='replace')}") from None


_PATTERN_OPTIONS = re2.Options()
_PATTERN_OPTIONS.log_errors = False


def find_pattern(text: str, pattern: str) -> str:
    """Return the first match of a regular expression, or ""."""
    match = compile_pattern(pattern).search(text)
    return match.group() if match is not None else ""


def find_all_patterns(text: str, pattern: str, most: int = -1) -> tuple[str, ...]:
    """Return the matches of a regular expression; an empty one that touches the match before it is left out."""
    found: list[str] = []
    before = -1
    for match in compile_pattern(pattern).finditer(text):
        start, end = match.span()
        if len(found) == most:
            break
        if start < end or start != before:
            found.append(match.group())
        before = end
    return tuple(found)


def character_at(text: str, index: int) -> str:
    """Return one character of a text; "" behind its end."""
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")
    return text[index : index + 1]


def index_in_string(text: str, part: str, offset: int = 0) -> int:
    """Return where a text contains another from an offset on, or -1."""
    if not part:
        return offset
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    return text.find(part, offset)


def last_index_in_string(text: str, part: str, offset: int | None = None) -> int:
    """Return where a text contains another last, at or before an offset, or -1."""
    if offset is None:
        return text.rfind(part) if part else len(text)
    if not part:
        return offset
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    return text.rfind(part, 0, offset + len(part)) if offset < len(text) else -1


def lower_ascii(text: str) -> str:
    """Return a text with its ASCII letters in lower case."""
    return re.sub("[A-Z]+", lambda match: match.group().lower(), text)


def upper_ascii(text: str) -> str:
    """Return a text with its ASCII letters in upper case."""
    return re.sub("[a-z]+", lambda match: match.group().upper(), text)


def replace_in_string(text: str, old: str, new: str, most: int = -1) -> str:
    """Return a text with some or all occurrences of another replaced."""
    return text.replace(old, new, max(most, -1))


def split_string(text: str, separator: str, most: int = -1) -> tuple[str, ...]:
    """Return the parts of a text between separators, or its characters if the separator is empty."""
    if most == 0:
        return ()
    if separator:
        return tuple(text.split(separator, most - 1 if most > 0 else -1))
    if 0 < most < len(text):
        return (*text[: most - 1], text[most - 1 :])
    return tuple(text)


def substring_of(text: str, start: int, end: int | None = None) -> str:
    """Return a part of a text."""
    if end is not None and start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, len(text) if end is None else end):
        if not 0 <= index <= len(text):
            raise CelError(f"index out of range: {index}")
    return text[start:end]


_SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


def trim_string(text: str) -> str:
    """Return a text without white space around it."""
    return text.strip(_SPACES)


_QUOTED = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def quote_string(text: str) -> str:
    """Return a text in quotes, with escape sequences."""
    return f'"{text.translate(_QUOTED)}"'


def join_strings(texts: tuple[CelValue, ...], separator: str = "") -> str:
    """Return texts with a separator between them."""
    for text in texts:
        if not isinstance(text, str):
            raise CelError("join: invalid input")
    return separator.join(texts)


def _starts_with(text: CelValue, part: CelValue) -> bool:
    if not isinstance(text, str) or not isinstance(part, str):
        raise no_overload(text, part)
    return text.startswith(part)


def _ends_with(text: CelValue, part: CelValue) -> bool:
    if not isinstance(text, str) or not isinstance(part, str):
        raise no_overload(text, part)
    return text.endswith(part)


def _contains(text: CelValue, part: CelValue) -> bool:
    if not isinstance(text, str) or not isinstance(part, str):
        raise no_overload(text, part)
    return part in text


def _is_quantity(text: str) -> bool:
    try:
        quantity_value(text)
    except CelError:
        return False
    return True


def _parse_version(text: str, normalizes: bool = False) -> SemanticVersion:
    return semantic_version(normalize_version(text) if normalizes else text)


def _is_version(text: str, normalizes: bool = False) -> bool:
    try:
        _parse_version(text, normalizes)
    except CelError:
        return False
    return True


def _compare_quantities(one: QuantityValue, other: QuantityValue) -> int:
    difference = compare_quantities(one.quantity, other.quantity)
    return (difference > 0) - (difference < 0)


def _compare_versions(one: SemanticVersion, other: SemanticVersion) -> int:
    return (one.order > other.order) - (one.order < other.order)


def _add_quantities(one: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    return QuantityValue(add_quantities(one.quantity, _as_quantity(other)), computed=True)


def _subtract_quantities(one: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    return QuantityValue(add_quantities(one.quantity, negate_quantity(_as_quantity(other))), computed=True)


def _as_quantity(value: QuantityValue | int) -> Quantity:
    return value.quantity if isinstance(value, QuantityValue) else Quantity(value, form=EXPONENT)


def _approximate_float(value: QuantityValue) -> float:
    quantity = value.quantity
    base = float(quantity.unscaled)
    return base * 10.0**quantity.exponent if quantity.exponent else base


def _is_integer(value: QuantityValue) -> bool:
    return _integer_or_none(value.quantity) is not None


def _as_integer(value: QuantityValue) -> int:
    integer = _integer_or_none(value.quantity)
    if integer is None:
        raise CelError("cannot convert value to integer")
    return integer


def _integer_or_none(quantity: Quantity) -> int | None:
    if quantity.wide or quantity.exponent < 0:
        return None
    value = quantity.unscaled * 10**quantity.exponent
    return int(value) if MIN_INT64 <= value <= MAX_INT64 else None


def _sign_of_quantity(value: QuantityValue) -> int:
    return (value.quantity.unscaled > 0) - (value.quantity.unscaled < 0)


def _wrapped_number(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _of_non_zero(value: CelValue) -> OptionalValue:
    if isinstance(value, CelMap):
        is_zero = value.is_zero_value and not value
    else:
        is_zero = not isinstance(value, (OptionalValue, QuantityValue, SemanticVersion)) and not value
    return NO_VALUE if is_zero else OptionalValue(True, value)


def optional_content(value: OptionalValue) -> CelValue:
    """Return the value inside an optional one."""
    if not value.present:
        raise CelError("optional.none() dereference")
    if isinstance(value.value, CelError):
        raise value.value
    return value.value


def _identity(value: CelValue) -> CelValue:
    return value


OPERATORS: Final[Mapping[str, Implementation]] = {
    "_+_": add_values, "_-_": subtract_values, "_*_": multiply_values, "_/_": divide_values, "_%_": remainder_of_values,
    "-_": negate_value, "size": size_value, "matches": match_pattern, "dyn": _identity,
    "_<_": lambda one, other: compare_values(one, other) < 0,
    "_<=_": lambda one, other: compare_values(one, other) <= 0,
    "_>_": lambda one, other: compare_values(one, other) > 0,
    "_>=_": lambda one, other: compare_values(one, other) >= 0,
}  # fmt: skip
"""Functions with one implementation for all overloads, which checks its arguments itself."""

SCALAR_OVERLOADS: Final[Mapping[str, Implementation]] = {
    "contains_string": _contains, "starts_with_string": _starts_with, "ends_with_string": _ends_with,
    "bool_to_bool": _identity, "string_to_bool": convert_to_bool, "bytes_to_bytes": _identity,
    "string_to_bytes": convert_to_bytes, "double_to_double": _identity, "int64_to_double": convert_to_double,
    "string_to_double": convert_to_double, "uint64_to_double": convert_to_double, "int64_to_int64": _identity,
    "double_to_int64": convert_to_int, "string_to_int64": convert_to_int, "uint64_to_int64": convert_to_int,
    "string_to_string": _identity, "bool_to_string": convert_to_string, "bytes_to_string": convert_to_string,
    "double_to_string": convert_to_string, "int64_to_string": convert_to_string, "uint64_to_string": convert_to_string,
    "uint64_to_uint64": _identity, "double_to_uint64": convert_to_uint, "int64_to_uint64": convert_to_uint,
    "string_to_uint64": convert_to_uint, "optional_of": lambda value: OptionalValue(True, value),
    "optional_ofNonZeroValue": _of_non_zero, "optional_none": lambda: NO_VALUE, "optional_value": optional_content,
    "optional_hasValue": lambda value: value.present, "string_char_at_int": character_at,
    "string_index_of_string": index_in_string, "string_index_of_string_int": index_in_string,
    "string_last_index_of_string": last_index_in_string, "string_last_index_of_string_int": last_index_in_string,
    "string_lower_ascii": lower_ascii, "string_upper_ascii": upper_ascii,
    "string_replace_string_string": replace_in_string, "string_replace_string_string_int": replace_in_string,
    "string_split_string": split_string, "string_split_string_int": split_string, "string_substring_int": substring_of,
    "string_substring_int_int": substring_of, "string_trim": trim_string, "strings_quote": quote_string,
    "list_join": join_strings, "list_join_string": join_strings, "string_find_string": find_pattern,
    "string_find_all_string": find_all_patterns, "string_find_all_string_int": find_all_patterns,
    "string_to_quantity": quantity_value, "is_quantity_string": _is_quantity, "quantity_sign": _sign_of_quantity,
    "quantity_is_greater_than": lambda one, other: _compare_quantities(one, other) > 0,
    "quantity_is_less_than": lambda one, other: _compare_quantities(one, other) < 0,
    "quantity_compare_to": _compare_quantities, "quantity_get_float": _approximate_float,
    "quantity_add": _add_quantities,
    "quantity_get_int": _as_integer, "quantity_is_integer": _is_integer, "quantity_add_int": _add_quantities,
    "quantity_sub": _subtract_quantities, "quantity_sub_int": _subtract_quantities, "string_to_semver": _parse_version,
    "string_bool_to_semver": _parse_version, "is_semver_string": _is_version, "is_semver_string_bool": _is_version,
    "semver_is_greater_than": lambda one, other: _compare_versions(one, other) > 0,
    "semver_is_less_than": lambda one, other: _compare_versions(one, other) < 0, "semver_compare_to": _compare_versions,
    "semver_major": lambda value: _wrapped_number(value.major),
    "semver_minor": lambda value: _wrapped_number(value.minor),
    "semver_patch": lambda value: _wrapped_number(value.patch),
}  # fmt: skip
"""Implementations of overloads, by name; their arguments have the types of the overload."""
