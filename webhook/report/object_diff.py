"""Differences between an object and its patched form, for people.

The patches are Rightslice's own (`add` and `replace` only, RFC 6902), so they are applied here in a few lines; tests
compare the result with the `jsonpatch` package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from webhook.model.annotations import DECISION_ANNOTATION, ORIGINAL_ANNOTATION
from webhook.model.decisions import PatchOperation
from webhook.model.field_paths import FieldPath, format_path
from webhook.report.text import Paint, TextStyle, sanitize, without_style

RECORD_ANNOTATIONS = frozenset({DECISION_ANNOTATION, ORIGINAL_ANNOTATION})
MISSING = object()
"""The value of a field that does not exist."""

_REQUESTS = "requests"
_RULE_KEYS = frozenset({"key", "operator", "value", "values", "effect", "tolerationSeconds"})


class FieldChange(NamedTuple):
    """One field before and after; `MISSING` if it does not exist."""

    path: FieldPath
    before: Any
    after: Any


def apply_json_patch(data: Any, patch: Iterable[PatchOperation]) -> Any:
    """Return the patched object; the given one is not changed.

    Raises:
        LookupError: an operation points at nothing.
        ValueError: an operation is neither `add` nor `replace`.
    """
    for operation in patch:
        if operation["op"] not in ("add", "replace"):
            raise ValueError(f"cannot apply {operation['op']!r}")
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        data = _set_at(data, steps, operation["value"], insert=operation["op"] == "add")
    return data


def _set_at(data: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(data, list):
        at = len(data) if step == "-" else int(step)
        if insert and not rest and at <= len(data):
            return [*data[:at], value, *data[at:]]
        return [*data[:at], _set_at(data[at], rest, value, insert=insert), *data[at + 1 :]]
    if not isinstance(data, dict) or ((rest or not insert) and step not in data):
        raise LookupError(step)
    return {**data, step: _set_at(data.get(step), rest, value, insert=insert)}


def field_changes(before: Any, after: Any, path: FieldPath = ()) -> Iterator[FieldChange]:
    """Yield every field that differs, as deep as possible; a new object or list is one change.

    Fields keep the order of the objects, except that `limits` come before `requests`.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(dict.fromkeys([*before, *after]), key=_REQUESTS.__eq__):
            yield from field_changes(before.get(key, MISSING), after.get(key, MISSING), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for i in range(max(len(before), len(after))):
            yield from field_changes(_item_at(before, i), _item_at(after, i), (*path, i))
    elif before is MISSING:
        yield _deepest_addition(path, after)
    elif after is MISSING or before != after:
        yield FieldChange(path, before, after)


def _deepest_addition(path: FieldPath, value: Any) -> FieldChange:
    """Return the addition of a value; while the value has a single member, that member is the addition."""
    while isinstance(value, dict | list) and len(value) == 1 and not _is_flow_rule(value):
        step, value = next(iter(value.items() if isinstance(value, dict) else enumerate(value)))
        path = (*path, step)
    return FieldChange(path, MISSING, value)


def _item_at(items: Sequence[Any], i: int) -> Any:
    return items[i] if i < len(items) else MISSING


def diff_lines(before: Any, after: Any, paint: Paint = without_style, *, width: int = 0) -> list[str]:
    """Return one line per field: `+` is new, `~` is changed, `-` is gone.

    Args:
        width: Columns to fit into, 0 for any number. A new value that does not fit is split into its members.
    """
    return [
        _change_line(part, paint, width)
        for change in field_changes(before, after)
        for part in (_split_change(change, width) if width else [change])
    ]


def _split_change(change: FieldChange, width: int) -> Iterator[FieldChange]:
    path, before, value = change
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    fits = len(brief_value(value)) + len(format_path(path[-1:])) + len("+ spec…: ") <= width
    if before is not MISSING or fits or _is_flow_rule(value) or not members:
        yield change
        return
    for step, member in members:
        yield from _split_change(_deepest_addition((*path, step), member), width)


def _change_line(change: FieldChange, paint: Paint, width: int) -> str:
    if change.before is MISSING:
        return paint(_fit_line("+", change.path, brief_value(change.after), width), TextStyle.GOOD)
    if change.after is MISSING:
        return paint(_fit_line("-", change.path, brief_value(change.before), width), TextStyle.BAD)
    values = f"{brief_value(change.before)} → {brief_value(change.after)}"
    return paint(_fit_line("~", change.path, values, width), TextStyle.WARNING)


def _fit_line(mark: str, path: FieldPath, value: str, width: int) -> str:
    """Return the line; if it is too long, omit the middle of the path, then the end."""
    line = f"{mark} {sanitize(format_path(path))}: {value}"
    if not width or len(line) <= width:
        return line
    for shortened in _shortened_paths(path):
        line = f"{mark} {shortened}: {value}"
        if len(line) <= width:
            return line
    return f"{line[: width - 1]}…"


def _shortened_paths(path: FieldPath) -> Iterator[str]:
    """Yield the path with more and more of its middle omitted."""
    shortest = 2 if path and isinstance(path[-1], int) else 1
    for tail in range(len(path) - 2, shortest - 1, -1):
        for head in (2, 1):
            if head + tail < len(path):
                yield f"{sanitize(format_path(path[:head]))}…{sanitize(format_path(path[-tail:]))}"


def _is_flow_rule(value: Any) -> bool:
    """Return whether this is a toleration, or one expression of an affinity or a selector."""
    return isinstance(value, dict) and "operator" in value and _RULE_KEYS.issuperset(value)


def brief_value(value: Any) -> str:
    """Format a value on one line like YAML's flow style, quoted only if necessary.

    >>> brief_value({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    'nvidia.com/gpu Exists NoSchedule'
    """
    if _is_flow_rule(value):
        return " ".join(
            ",".join(map(brief_value, each)) if isinstance(each, list) else brief_value(each) for each in value.values()
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{sanitize(str(key))}: {brief_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief_value, value)) + "]"
    if isinstance(value, str):
        return sanitize(value) if value else '""'
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def object_without_records(data: Any, reference: Any) -> Any:
    """Return an object without the records in its annotations, except for those that the reference has too."""
    annotations = _object_annotations(data)
    if annotations is None:
        return data
    kept = _object_annotations(reference)
    rest = {key: value for key, value in annotations.items() if key not in RECORD_ANNOTATIONS or (kept and key in kept)}
    others = {key: value for key, value in data["metadata"].items() if key != "annotations"}
    return {**data, "metadata": {**others, "annotations": rest} if rest or kept is not None else others}


def _object_annotations(data: Any) -> dict[str, Any] | None:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else None
