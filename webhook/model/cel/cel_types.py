"""Static types of CEL expressions, and which type can be assigned to which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class CelType(NamedTuple):
    """A type: its kind, its name if it is an object or a type parameter, and its parameters."""

    kind: str
    name: str = ""
    parameters: tuple[CelType, ...] = ()


BOOL = CelType("bool")
BYTES = CelType("bytes")
DOUBLE = CelType("double")
INT = CelType("int")
NULL = CelType("null_type")
STRING = CelType("string")
UINT = CelType("uint")
DURATION = CelType("google.protobuf.Duration")
TIMESTAMP = CelType("google.protobuf.Timestamp")
DYN = CelType("dyn")
ANY = CelType("any")
ERROR = CelType("error")

OPTIONAL_NAME = "optional_type"

_NULLABLE = frozenset({"opaque", "object", "any", DURATION.kind, TIMESTAMP.kind})
_COMPOSITE = frozenset({"opaque", "list", "map", "type"})


def list_of(element: CelType) -> CelType:
    """Return the type of lists of a type."""
    return CelType("list", "", (element,))


def map_of(key: CelType, value: CelType) -> CelType:
    """Return the type of maps."""
    return CelType("map", "", (key, value))


def object_type(name: str) -> CelType:
    """Return the type of objects of a name."""
    return CelType("object", name)


def optional_of(value: CelType) -> CelType:
    """Return the type of optional values of a type."""
    return CelType("opaque", OPTIONAL_NAME, (value,))


def type_of(value: CelType) -> CelType:
    """Return the type of the type of a value."""
    return CelType("type", "", (value,))


def type_parameter(name: str) -> CelType:
    """Return a type that stands for any other."""
    return CelType("parameter", name)


def is_dynamic(one: CelType) -> bool:
    """Return whether values of a type may have any type at run time."""
    return one.kind in ("dyn", "any")


def unwrap_optional(one: CelType) -> tuple[CelType, bool]:
    """Return the type inside an optional type, and whether it was one."""
    if one.kind == "opaque" and one.name == OPTIONAL_NAME:
        return one.parameters[0], True
    return one, False


def are_equivalent(one: CelType, other: CelType) -> bool:
    """Return whether two types are equal but for the names of their parameters."""
    if one.kind != other.kind or len(one.parameters) != len(other.parameters):
        return False
    if one.kind != "parameter" and one.name != other.name:
        return False
    return all(map(are_equivalent, one.parameters, other.parameters))


def describe_type(one: CelType) -> str:
    """Return a type as error messages name it.

    >>> describe_type(list_of(INT))
    'list(int)'
    """
    name = one.name or one.kind
    return f"{name}({', '.join(map(describe_type, one.parameters))})" if one.parameters else name


class TypeBindings:
    """The types that type parameters stand for, as far as they are known."""

    def __init__(self) -> None:
        self._bound: dict[str, CelType] = {}
        self._changes: list[tuple[str, CelType | None]] = []

    def bind(self, parameter: CelType, value: CelType) -> None:
        """Let a type parameter stand for a type."""
        self._changes.append((parameter.name, self._bound.get(parameter.name)))
        self._bound[parameter.name] = value

    def substitute(self, one: CelType, *, to_dyn: bool = False) -> CelType:
        """Return a type with its parameters replaced; with `to_dyn`, unknown ones by dyn."""
        while one.kind == "parameter":
            bound = self._bound.get(one.name)
            if bound is None:
                return DYN if to_dyn else one
            one = bound
        if one.kind not in _COMPOSITE or not one.parameters:
            return one
        return CelType(one.kind, one.name, tuple(self.substitute(each, to_dyn=to_dyn) for each in one.parameters))

    def is_assignable(self, target: CelType, source: CelType) -> bool:
        """Return whether a type can be assigned to another, and keep what that says about type parameters."""
        return self.are_assignable((target,), (source,))

    def are_assignable(self, targets: Sequence[CelType], sources: Sequence[CelType]) -> bool:
        """Return whether all types can be assigned, and keep what that says about type parameters."""
        self._changes.clear()
        if self._assign_all(targets, sources):
            return True
        for name, before in reversed(self._changes):
            if before is None:
                del self._bound[name]
            else:
                self._bound[name] = before
        return False

    def _assign_all(self, targets: Sequence[CelType], sources: Sequence[CelType]) -> bool:
        return len(targets) == len(sources) and all(map(self._assign, targets, sources))

    def _assign(self, target: CelType, source: CelType) -> bool:
        if source.kind == "parameter":
            valid, was_bound = self._bind_checked(target, source)
            if valid or was_bound:
                return valid
        if target.kind == "parameter":
            return self._bind_checked(source, target)[0]
        kinds = target.kind, source.kind
        if not _DYNAMIC_OR_ERROR.isdisjoint(kinds):
            return True
        if NULL.kind in kinds:
            other = source if target.kind == NULL.kind else target
            return other.kind in _NULLABLE or other.kind == NULL.kind
        if target.kind != source.kind:
            return False
        if target.kind == "type":
            return True
        return target.name == source.name and self._assign_all(target.parameters, source.parameters)

    def _bind_checked(self, value: CelType, parameter: CelType) -> tuple[bool, bool]:
        """Return whether a parameter can stand for a type, and whether it stood for one before."""
        if value == parameter:
            return True, True
        bound = self._bound.get(parameter.name)
        if bound is None:
            if not self._is_free_of(parameter, value):
                return False, False
            self.bind(parameter, value)
            return True, False
        if value == bound:
            return True, True
        if not self._assign(value, bound):
            return False, True
        general = most_general(value, bound)
        if self._is_free_of(parameter, general):
            self.bind(parameter, general)
        return True, True

    def _is_free_of(self, parameter: CelType, within: CelType) -> bool:
        """Return whether a parameter does not occur in a type."""
        if parameter == within:
            return False
        if within.kind == "parameter":
            bound = self._bound.get(within.name)
            return bound is None or self._is_free_of(parameter, bound)
        return all(self._is_free_of(parameter, each) for each in within.parameters)


_DYNAMIC_OR_ERROR = frozenset({"dyn", "any", "error"})


def most_general(one: CelType, other: CelType) -> CelType:
    """Return the less specific of two types; one must be assignable to the other."""
    return one if _is_equal_or_less_specific(one, other) else other


def _is_equal_or_less_specific(one: CelType, other: CelType) -> bool:
    if is_dynamic(one) or one.kind == "parameter":
        return True
    if is_dynamic(other) or other.kind == "parameter" or one.kind != other.kind:
        return False
    if one.kind == "type":
        return True
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return False
    return all(map(_is_equal_or_less_specific, one.parameters, other.parameters))
