"""Compile and evaluate match conditions, which are CEL expressions.

The engine is Google's, so an expression means the same as in a ValidatingAdmissionPolicy, and `matches()` takes linear
time.
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
"""Fields to keep, level by level; None keeps everything below."""

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
"""The fields of the variables whose fields are the same for every pod."""

MAX_LOOP_DEPTH = 2
"""Nested loops: two over 300 containers are 90,000 steps, three would be 27 million."""

_ERROR_LOCATION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff]+")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_PATTERN_STATUS = re.compile(r"^[A-Z_]+: invalid regular expression: ")
_PATTERN_FIX = "a pattern with balanced brackets and without look-around or back-references, such as '^team-[0-9]+$'"
_CEL_ENV = cel.NewEnv(variables=dict.fromkeys(CEL_VARIABLES, cel.Type.DYN))


class ExpressionError(Exception):
    """An expression that does not compile, with what must hold and what to write."""

    def __init__(self, must: str, write: str) -> None:
        super().__init__(must)
        self.must = must
        self.write = write


def compile_match_condition(name: str, text: str) -> MatchCondition:
    """Compile one condition.

    Raises:
        ExpressionError: It is not CEL, reads unknown names, is not boolean, or contains an invalid pattern.
    """
    try:
        expression = _CEL_ENV.compile(text)
    except RuntimeError as error:
        raise ExpressionError(*_compile_error_message(str(error))) from None
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        kind = str(expression.return_type()).lower()
        raise ExpressionError(
            f"be true or false, found an expression of type {kind}", "a comparison, for example … == true"
        )
    serialized = expression.serialize()
    _check_regex_patterns(text, serialized)
    reads = find_fields_read(serialized)
    if reads.loop_depth > MAX_LOOP_DEPTH:
        raise ExpressionError(
            f"nest at most {MAX_LOOP_DEPTH} loops, found {reads.loop_depth}", "fewer nested all(), exists(), map()"
        )
    _check_known_fields(path for path in reads.fields if path[0] not in reads.loop_variables)
    fields = _fields_to_bind(reads.fields)

    def evaluate(variables: Mapping[str, Any]) -> bool:
        data = {variable: prune_object(variables.get(variable), tree) for variable, tree in fields.items()}
        return _evaluate_expression(expression, data)

    return MatchCondition(name, evaluate, frozenset(path for path in reads.fields if path[0] in CEL_VARIABLES))


def _check_regex_patterns(text: str, serialized: bytes) -> None:
    for pattern, offset in find_patterns(serialized):
        error = pattern_error(pattern)
        if error:
            before = text[:offset].split("\n")
            location = f"line {len(before)}, column {len(before[-1]) + 1}"
            reason = shorten_text(_NOT_PRINTABLE.sub(" ", _PATTERN_STATUS.sub("", error)), 120)
            must = f"use patterns in RE2 syntax, found {quote_text(pattern)} at {location} ({reason})"
            raise ExpressionError(must, _PATTERN_FIX)


def _check_known_fields(paths: Iterable[FieldPath]) -> None:
    """Check that the fields exist; an unknown field would fail on every pod.

    Raises:
        ExpressionError: A field does not exist.
    """
    for path in sorted(paths):
        tree = KNOWN_FIELDS.get(path[0])
        for index, name in enumerate(path[1:], 1):
            if tree is None:
                break
            if name not in tree:
                parent, known = ".".join(path[:index]), ", ".join(sorted(tree))
                raise ExpressionError(f"read existing fields, found {name!r} of {parent}", f"one of {known}")
            tree = tree[name]


def _compile_error_message(message: str) -> tuple[str, str]:
    match = _ERROR_LOCATION.search(message)
    line, column, error = match.groups() if match is not None else ("-1", "-1", message)
    error = shorten_text(_NOT_PRINTABLE.sub(" ", _STATUS.sub("", error)), 120)
    if line == "-1":
        return f"be valid CEL: {error}", "a shorter, simpler expression"
    variables = ", ".join(CEL_VARIABLES)
    return f"be valid CEL: line {line}, column {column}: {error}", f"an expression over {variables}"


def _fields_to_bind(paths: Iterable[FieldPath]) -> dict[str, FieldTree]:
    """Return the variables to bind, each with the fields to keep."""
    root: dict[str, Any] = {}
    # The longest first, so that a path replaces the longer paths below it.
    for path in sorted(paths, key=len, reverse=True):
        if path[0] in CEL_VARIABLES:
            tree = root
            for name in path[:-1]:
                tree = tree.setdefault(name, {})
            tree[path[-1]] = None
    return root


def prune_object(value: Any, tree: FieldTree) -> Any:
    """Keep only the given fields of an object; values that are not maps stay whole.

    >>> prune_object({"metadata": {"name": "a", "labels": {}}, "spec": {}}, {"metadata": {"name": None}})
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
        raise ConditionError(f"the result is {type(result).__name__}, not true or false")
    return result
