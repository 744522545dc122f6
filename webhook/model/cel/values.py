"""Values of CEL at run time, and when two of them are equal.

Booleans, integers, doubles, strings, bytes and null are Python's own; other values are of the classes below. A value's
class determines its type: an unsigned integer is a `UnsignedInteger`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, compare_quantities, parse_quantity
from webhook.model.cel.cel_errors import CelError, FatalCelError, MissingKeyError
from webhook.model.cel.cel_types import CelType


class UnsignedInteger(int):
    """An unsigned integer."""

    __slots__ = ()


class OptionalValue(NamedTuple):
    """A value, or none."""

    present: bool
    value: object = None


NO_VALUE = OptionalValue(False)


class QuantityValue(NamedTuple):
    """A quantity. One that was computed is equal to none on its left: it is another type in Go."""

    quantity: Quantity
    computed: bool = False


class SemanticVersion(NamedTuple):
    """A semantic version; its build metadata is left out because nothing reads it."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[tuple[int, int, str], ...] = ()

    @property
    def order(self) -> tuple[object, ...]:
        """Return a key in order of precedence: a prerelease is before its release."""
        return (self.major, self.minor, self.patch, not self.prerelease, self.prerelease)


class CelMap:
    """A map. Numbers of different types that are equal are one key."""

    __slots__ = ("_entries",)

    is_zero_value = True

    def __init__(self, entries: Iterable[tuple[CelValue, CelValue]] = ()) -> None:
        self._entries = {normalize_key(key): (key, value) for key, value in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CelValue]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterable[tuple[CelValue, CelValue]]:
        """Return keys and values."""
        return self._entries.values()

    def lookup_key(self, key: CelValue) -> CelValue:
        """Return the form of a key by which an entry is found."""
        return normalize_key(key) if self._entries else None

    def contains(self, key: CelValue) -> bool:
        """Return whether the map has a key."""
        return self.lookup_key(key) in self._entries

    def find(self, key: CelValue) -> OptionalValue:
        """Return the value of a key."""
        entry = self._entries.get(self.lookup_key(key))
        return NO_VALUE if entry is None else OptionalValue(True, entry[1])

    def get(self, key: CelValue) -> CelValue:
        """Return the value of a key; `MissingKeyError` without it."""
        entry = self._entries.get(self.lookup_key(key))
        if entry is None:
            raise MissingKeyError(key)
        return entry[1]

    def with_entry(self, key: CelValue, value: CelValue) -> CelMap:
        """Return the map with one more entry."""
        if self.contains(key):
            raise CelError(f"insert failed: key {key} already exists")
        return CelMap((*self.items(), (key, value)))


class FieldMap(CelMap):
    """A map by name, such as the attributes of a domain: no key but a string is ever found."""

    __slots__ = ()

    def __init__(self, entries: Mapping[str, CelValue]) -> None:
        self._entries = {name: (name, value) for name, value in entries.items()}

    def lookup_key(self, key: CelValue) -> CelValue:
        return key if isinstance(key, str) else None


class DomainMap(FieldMap):
    """Attributes or capacities by domain: one that is not there is found as an empty map."""

    __slots__ = ()

    is_zero_value = False

    def find(self, key: CelValue) -> OptionalValue:
        found = super().find(key)
        return found if found.present else OptionalValue(True, _EMPTY)

    def get(self, key: CelValue) -> CelValue:
        return self.find(key).value


_EMPTY = FieldMap({})

CelValue: TypeAlias = Any
"""A value of an expression."""


def normalize_key(key: CelValue) -> CelValue:
    """Return a key in the form in which equal keys are equal in Python too."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind is bool:
        return ("bool", key)
    if isinstance(key, int):
        return int(key)
    if isinstance(key, float):
        return int(key) if key.is_integer() else key
    if key is None or isinstance(key, (CelType, QuantityValue)):
        return (kind.__name__, key)
    if isinstance(key, (tuple, CelMap)) and not isinstance(key, SemanticVersion):
        return (kind.__name__, id(key))
    raise FatalCelError(f"hash of unhashable type {type_name(key)}")


def are_equal(one: CelValue, other: CelValue) -> bool:
    """Return whether two values are equal.

    Raises:
        CelError: They cannot be compared, such as a quantity and a string.
    """
    if one is None or other is None:
        return one is None and other is None
    return equals(one, other)


def equals(one: CelValue, other: CelValue) -> bool:
    """Return whether two values are equal by the rules of the first one's type."""
    kind = type(one)
    if kind is bool or type(other) is bool:
        if isinstance(one, (QuantityValue, SemanticVersion)):
            raise _no_overload(one, other)
        return kind is type(other) and one == other
    if isinstance(one, (int, float)):
        return isinstance(other, (int, float)) and one == other
    if isinstance(one, (QuantityValue, SemanticVersion)):
        return _equal_objects(one, other)
    if isinstance(one, OptionalValue):
        return _equal_optionals(one, other)
    if isinstance(one, CelType):
        return isinstance(other, CelType) and runtime_name(one) == runtime_name(other)
    if isinstance(one, tuple):
        return is_list(other) and _equal_lists(one, other)
    if isinstance(one, CelMap):
        return isinstance(other, CelMap) and _equal_maps(one, other)
    return kind is type(other) and one == other


def _equal_objects(one: QuantityValue | SemanticVersion, other: CelValue) -> bool:
    if isinstance(one, SemanticVersion) and isinstance(other, SemanticVersion):
        return one == other
    if isinstance(one, QuantityValue) and isinstance(other, QuantityValue) and not other.computed:
        return compare_quantities(one.quantity, other.quantity) == 0
    raise _no_overload(one, other)


def _equal_optionals(one: OptionalValue, other: CelValue) -> bool:
    if not isinstance(other, OptionalValue) or not (one.present and other.present):
        return isinstance(other, OptionalValue) and one.present == other.present
    if isinstance(one.value, CelError):
        raise one.value
    if isinstance(other.value, CelError):
        if isinstance(one.value, (QuantityValue, SemanticVersion)):
            raise other.value
        return False
    if one.value is None:
        return other.value is None
    return equals(one.value, other.value)


def _equal_lists(one: tuple[CelValue, ...], other: tuple[CelValue, ...]) -> bool:
    """Return whether two lists are equal; elements that cannot be compared count as equal, as in cel-go."""
    return len(one) == len(other) and all(map(_are_not_different, one, other))


def _equal_maps(one: CelMap, other: CelMap) -> bool:
    if len(one) != len(other):
        return False
    for key, value in one.items():
        found = other.find(key)
        if not found.present or not _are_not_different(value, found.value):
            return False
    return True


def _are_not_different(one: CelValue, other: CelValue) -> bool:
    try:
        return are_equal(one, other)
    except CelError:
        return True


def list_contains(values: Iterable[CelValue], element: CelValue) -> bool:
    """Return whether a list has an element; those that cannot be compared with it are passed over."""
    return any(_is_element(element, value) for value in values)


def _is_element(element: CelValue, value: CelValue) -> bool:
    try:
        return value is None if element is None else equals(element, value)
    except CelError:
        return False


def is_list(value: object) -> bool:
    """Return whether a value is a list: named tuples are values of other types."""
    return type(value) is tuple


def size_of(value: CelValue) -> int | None:
    """Return the size of a string, list or map; None for other values."""
    if isinstance(value, (str, bytes, CelMap)) or is_list(value):
        return len(value)
    return None


def type_name(value: CelValue) -> str:
    """Return the name of a value's type.

    >>> type_name(1), type_name(UnsignedInteger(1)), type_name(None), type_name(())
    ('int', 'uint', 'null_type', 'list')
    """
    return "map" if isinstance(value, CelMap) else _TYPE_NAMES[type(value)]


_TYPE_NAMES: dict[type, str] = {
    type(None): "null_type", bool: "bool", int: "int", UnsignedInteger: "uint", float: "double", str: "string",
    bytes: "bytes", tuple: "list", OptionalValue: "optional_type", QuantityValue: "kubernetes.Quantity",
    SemanticVersion: "kubernetes.Semver", CelType: "type",
}  # fmt: skip


def runtime_name(one: CelType) -> str:
    """Return the name under which a type is compared with others."""
    return one.name or one.kind


def matches_type(expected: CelType, value: CelValue) -> bool:
    """Return whether a value can be an argument of a type: of lists and maps, the first element is looked at."""
    if expected.kind in ("dyn", "any", "parameter"):
        return True
    if runtime_name(expected) != type_name(value):
        return False
    if expected.kind == "list":
        return not value or matches_type(expected.parameters[0], value[0])
    if expected.kind == "map" and isinstance(value, CelMap) and value:
        return all(map(matches_type, expected.parameters, next(iter(value.items()))))
    return True


def _no_overload(one: CelValue, other: CelValue) -> CelError:
    return CelError(f"no such overload: {type_name(one)} and {type_name(other)}")


def quantity_value(text: str) -> QuantityValue:
    """Parse a quantity.

    Raises:
        CelError: It is not a quantity.
    """
    try:
        return QuantityValue(parse_quantity(text))
    except QuantityError as error:
        raise CelError(str(error)) from None


_DIGITS = r"(0|[1-9][0-9]{0,19})"
_PRERELEASE = r"(?:0|[1-9][0-9]{0,19}|[0-9A-Za-z-]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_DIGITS}\.{_DIGITS}\.{_DIGITS}(?:-({_PRERELEASE}(?:\.{_PRERELEASE})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?\Z"
)
_MAX_UINT64 = (1 << 64) - 1


def semantic_version(text: str) -> SemanticVersion:
    """Parse a semantic version, such as 12.4.0.

    Raises:
        CelError: It is not one.
    """
    match = _SEMVER.match(text)
    if match is None:
        raise CelError("not a semantic version such as 12.4.0")
    prerelease = tuple(map(_prerelease_key, match[4].split("."))) if match[4] else ()
    numbers = [int(number) for number in match.groups()[:3]]
    if max(*numbers, *(number for _, number, _ in prerelease)) > _MAX_UINT64:
        raise CelError("a number of the version is too large")
    return SemanticVersion(numbers[0], numbers[1], numbers[2], prerelease)


def _prerelease_key(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def normalize_version(text: str) -> str:
    """Return a version without "v" and leading zeros, and with three numbers.

    >>> normalize_version("v12.04")
    '12.4.0'
    """
    parts = [_strip_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and not {"+", "-"}.isdisjoint(parts[-1]):
        raise CelError("a short version cannot have a prerelease or build metadata")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _strip_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped and stripped[0] in "0123456789" else f"0{stripped}"
