"""Match conditions: CEL expressions, compiled once and asked about each object.

The engine is Google's own, so an expression means what it means in a ValidatingAdmissionPolicy, and
`matches()` runs in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cel_expr_python import cel

from webhook.errors import quoted, shorten
from webhook.policy.compiled import Condition, ConditionError
from webhook.policy.members import Member, reading
from webhook.policy.patterns import fault_of, patterns

Tree = dict[str, "Tree"] | None
"""Members to keep, level by level; None: everything below."""

VARIABLES: Final = ("object", "oldObject", "request", "namespaceObject")
_KIND: Tree = dict.fromkeys(("group", "version", "kind"))
_RESOURCE: Tree = dict.fromkeys(("group", "version", "resource"))
FIELDS: Final[dict[str, Tree]] = {
    "request": {
        **dict.fromkeys(("uid", "operation", "namespace", "name", "subResource", "requestSubResource", "dryRun")),
        **dict.fromkeys(("kind", "requestKind"), _KIND),
        **dict.fromkeys(("resource", "requestResource"), _RESOURCE),
        "userInfo": dict.fromkeys(("username", "uid", "groups")),
    },
    "namespaceObject": {"metadata": dict.fromkeys(("name", "labels", "annotations"))},
}
"""The fields of the variables that have the same ones for every pod."""

MAX_LOOPS = 2
"""Loops inside one another: two over 300 containers are 90 000 steps, three would be 27 million."""

_PLACE = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff]+")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_PATTERN_STATUS = re.compile(r"^[A-Z_]+: invalid regular expression: ")
_PATTERN_FIX = "a pattern with its brackets closed, without look-around and back-references, such as '^team-[0-9]+$'"
_env = cel.NewEnv(variables=dict.fromkeys(VARIABLES, cel.Type.DYN))


class ExpressionError(Exception):
    """An expression that does not compile; the arguments say what must hold and what to write."""

    def __init__(self, must: str, write: str) -> None:
        super().__init__(must)
        self.must = must
        self.write = write


def compile_condition(name: str, text: str) -> Condition:
    """Compile one condition.

    Raises:
        ExpressionError: it is not CEL, reads unknown names, cannot be true or false, or holds a broken pattern.
    """
    try:
        expression = _env.compile(text)
    except RuntimeError as error:
        raise ExpressionError(*_complaint(str(error))) from None
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        kind = str(expression.return_type()).lower()
        raise ExpressionError(f"be true or false, this gives {kind}", "a comparison, for example … == true")
    serialized = expression.serialize()
    _check_patterns(text, serialized)
    read = reading(serialized)
    if read.loops > MAX_LOOPS:
        raise ExpressionError(f"nest at most {MAX_LOOPS} loops, found {read.loops}", "fewer of all(), exists(), map()")
    _check_fields(member for member in read.members if member[0] not in read.made)
    needed = _needed(read.members)

    def holds(variables: Mapping[str, Any]) -> bool:
        data = {variable: pruned(variables.get(variable), tree) for variable, tree in needed.items()}
        return _evaluate(expression, data)

    return Condition(name, holds)


def _check_patterns(text: str, serialized: bytes) -> None:
    for pattern, offset in patterns(serialized):
        fault = fault_of(pattern)
        if fault:
            before = text[:offset].split("\n")
            place = f"line {len(before)}, column {len(before[-1]) + 1}"
            why = shorten(_NOT_PRINTABLE.sub(" ", _PATTERN_STATUS.sub("", fault)), 120)
            must = f"match with patterns of RE2's syntax, found {quoted(pattern)} at {place} of it ({why})"
            raise ExpressionError(must, _PATTERN_FIX)


def _check_fields(members: Iterable[Member]) -> None:
    """A field that never is there would fail on every pod.

    Raises:
        ExpressionError: one of the members is such a field.
    """
    for member in sorted(members):
        tree = FIELDS.get(member[0])
        for index, name in enumerate(member[1:], 1):
            if tree is None:
                break
            if name not in tree:
                about, known = ".".join(member[:index]), ", ".join(sorted(tree))
                raise ExpressionError(f"read fields that there are, found {name!r} of {about}", f"one of {known}")
            tree = tree[name]


def _complaint(message: str) -> tuple[str, str]:
    found = _PLACE.search(message)
    line, column, fault = found.groups() if found is not None else ("-1", "-1", message)
    fault = shorten(_NOT_PRINTABLE.sub(" ", _STATUS.sub("", fault)), 120)
    if line == "-1":
        return f"be CEL: {fault}", "a shorter, simpler expression"
    known = ", ".join(VARIABLES)
    return f"be CEL, at line {line}, column {column} of it: {fault}", f"an expression over {known}"


def _needed(members: Iterable[Member]) -> dict[str, Tree]:
    """The variables that are read, each with what is read from it."""
    root: dict[str, Tree] = {}
    for member in sorted(members, key=len, reverse=True):
        if member[0] in VARIABLES:
            _plant(root, member)
    return root


def _plant(tree: dict[str, Tree], member: Member) -> None:
    first, *rest = member
    below = tree.get(first, {})
    if not rest or below is None:
        tree[first] = None
        return
    tree[first] = below
    _plant(below, tuple(rest))


def pruned(value: Any, tree: Tree) -> Any:
    """The part of an object that holds the members of a tree; whatever is no map stays as it is.

    >>> pruned({"metadata": {"name": "a", "labels": {}}, "spec": {}}, {"metadata": {"name": None}})
    {'metadata': {'name': 'a'}}
    """
    if tree is None or not isinstance(value, dict):
        return value
    return {key: pruned(value[key], below) for key, below in tree.items() if key in value}


def _evaluate(expression: Any, data: dict[str, Any]) -> bool:
    try:
        value = expression.eval(data=data)
    except (RuntimeError, TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise ConditionError(shorten(str(error), 200)) from error
    result = value.plain_value()
    if value.type() == cel.Type.ERROR:
        raise ConditionError(shorten(_STATUS.sub("", str(result)), 200))
    if not isinstance(result, bool):
        raise ConditionError(f"it gives {type(result).__name__}, not true or false")
    return result
