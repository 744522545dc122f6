"""Match conditions: CEL expressions, compiled once and asked about each object.

The engine is Google's own, so an expression means what it means in a ValidatingAdmissionPolicy, and
`matches()` runs in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cel_expr_python import cel

from webhook.errors import quote_text, shorten_text
from webhook.policy.cel_syntax import FieldPath, find_fields_read, find_patterns, pattern_error
from webhook.policy.policy_set import ConditionError, MatchCondition

FieldTree = dict[str, "FieldTree"] | None
"""Members to keep, level by level; None: everything below."""

CEL_VARIABLES: Final = ("object", "oldObject", "request", "namespaceObject")
_KIND: FieldTree = dict.fromkeys(("group", "version", "kind"))
_RESOURCE: FieldTree = dict.fromkeys(("group", "version", "resource"))
KNOWN_FIELDS: Final[dict[str, FieldTree]] = {
    "request": {
        **dict.fromkeys(("uid", "operation", "namespace", "name", "subResource", "requestSubResource", "dryRun")),
        **dict.fromkeys(("kind", "requestKind"), _KIND),
        **dict.fromkeys(("resource", "requestResource"), _RESOURCE),
        "userInfo": dict.fromkeys(("username", "uid", "groups")),
    },
    "namespaceObject": {"metadata": dict.fromkeys(("name", "labels", "annotations"))},
}
"""The fields of the variables that have the same ones for every pod."""

MAX_LOOP_DEPTH = 2
"""Loops inside one another: two over 300 containers are 90 000 steps, three would be 27 million."""

_ERROR_LOCATION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff]+")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_PATTERN_STATUS = re.compile(r"^[A-Z_]+: invalid regular expression: ")
_PATTERN_FIX = "a pattern with its brackets closed, without look-around and back-references, such as '^team-[0-9]+$'"
_CEL_ENV = cel.NewEnv(variables=dict.fromkeys(CEL_VARIABLES, cel.Type.DYN))


class ExpressionError(Exception):
    """An expression that does not compile; the arguments say what must hold and what to write."""

    def __init__(self, must: str, write: str) -> None:
        super().__init__(must)
        self.must = must
        self.write = write


def compile_match_condition(name: str, text: str) -> MatchCondition:
    """Compile one condition.

    Raises:
        ExpressionError: it is not CEL, reads unknown names, cannot be true or false, or holds a broken pattern.
    """
    try:
        expression = _CEL_ENV.compile(text)
    except RuntimeError as error:
        raise ExpressionError(*_compile_error_message(str(error))) from None
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        kind = str(expression.return_type()).lower()
        raise ExpressionError(f"be true or false, this gives {kind}", "a comparison, for example … == true")
    serialized = expression.serialize()
    _check_regex_patterns(text, serialized)
    read = find_fields_read(serialized)
    if read.loop_depth > MAX_LOOP_DEPTH:
        raise ExpressionError(
            f"nest at most {MAX_LOOP_DEPTH} loops, found {read.loop_depth}", "fewer of all(), exists(), map()"
        )
    _check_known_fields(member for member in read.fields if member[0] not in read.loop_variables)
    needed = _fields_to_bind(read.fields)

    def holds(variables: Mapping[str, Any]) -> bool:
        data = {variable: prune_object(variables.get(variable), tree) for variable, tree in needed.items()}
        return _evaluate_expression(expression, data)

    return MatchCondition(name, holds)


def _check_regex_patterns(text: str, serialized: bytes) -> None:
    for pattern, offset in find_patterns(serialized):
        fault = pattern_error(pattern)
        if fault:
            before = text[:offset].split("\n")
            place = f"line {len(before)}, column {len(before[-1]) + 1}"
            why = shorten_text(_NOT_PRINTABLE.sub(" ", _PATTERN_STATUS.sub("", fault)), 120)
            must = f"match with patterns of RE2's syntax, found {quote_text(pattern)} at {place} of it ({why})"
            raise ExpressionError(must, _PATTERN_FIX)


def _check_known_fields(members: Iterable[FieldPath]) -> None:
    """A field that never is there would fail on every pod.

    Raises:
        ExpressionError: one of the members is such a field.
    """
    for member in sorted(members):
        tree = KNOWN_FIELDS.get(member[0])
        for index, name in enumerate(member[1:], 1):
            if tree is None:
                break
            if name not in tree:
                about, known = ".".join(member[:index]), ", ".join(sorted(tree))
                raise ExpressionError(f"read fields that there are, found {name!r} of {about}", f"one of {known}")
            tree = tree[name]


def _compile_error_message(message: str) -> tuple[str, str]:
    found = _ERROR_LOCATION.search(message)
    line, column, fault = found.groups() if found is not None else ("-1", "-1", message)
    fault = shorten_text(_NOT_PRINTABLE.sub(" ", _STATUS.sub("", fault)), 120)
    if line == "-1":
        return f"be CEL: {fault}", "a shorter, simpler expression"
    known = ", ".join(CEL_VARIABLES)
    return f"be CEL, at line {line}, column {column} of it: {fault}", f"an expression over {known}"


def _fields_to_bind(members: Iterable[FieldPath]) -> dict[str, FieldTree]:
    """The variables that are read, each with what is read from it."""
    root: dict[str, FieldTree] = {}
    for member in sorted(members, key=len, reverse=True):
        if member[0] in CEL_VARIABLES:
            _add_field(root, member)
    return root


def _add_field(tree: dict[str, FieldTree], member: FieldPath) -> None:
    first, *rest = member
    below = tree.get(first, {})
    if not rest or below is None:
        tree[first] = None
        return
    tree[first] = below
    _add_field(below, tuple(rest))


def prune_object(value: Any, tree: FieldTree) -> Any:
    """The part of an object that holds the members of a tree; whatever is no map stays as it is.

    >>> pruned({"metadata": {"name": "a", "labels": {}}, "spec": {}}, {"metadata": {"name": None}})
    {'metadata': {'name': 'a'}}
    """
    if tree is None or not isinstance(value, dict):
        return value
    return {key: prune_object(value[key], below) for key, below in tree.items() if key in value}


def _evaluate_expression(expression: Any, data: dict[str, Any]) -> bool:
    try:
        value = expression.eval(data=data)
    except (RuntimeError, TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise ConditionError(shorten_text(str(error), 200)) from error
    result = value.plain_value()
    if value.type() == cel.Type.ERROR:
        raise ConditionError(shorten_text(_STATUS.sub("", str(result)), 200))
    if not isinstance(result, bool):
        raise ConditionError(f"it gives {type(result).__name__}, not true or false")
    return result
