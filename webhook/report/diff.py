"""What a patch does to an object: the shape it leads to, and the fields that changed, for people.

The patch is ours (`add` and `replace` only, RFC 6902), so it is applied here in a few lines; tests hold them
against the `jsonpatch` package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from webhook.model.decisions import Operation
from webhook.model.paths import Path, dotted
from webhook.report.words import Paint, Style, plain, shown

MISSING = object()
"""What stands for a field that is not there."""


class Change(NamedTuple):
    """One field before and after; `MISSING` where it was not there."""

    path: Path
    before: Any
    after: Any


def apply(data: Any, patch: Iterable[Operation]) -> Any:
    """Give the patched object; the one given stays as it is.

    Raises:
        LookupError: an operation points at nothing.
        ValueError: an operation is neither `add` nor `replace`.
    """
    for operation in patch:
        if operation["op"] not in ("add", "replace"):
            raise ValueError(f"cannot apply {operation['op']!r}")
        data = _put(data, steps(operation["path"]), operation["value"], insert=operation["op"] == "add")
    return data


def steps(pointer: str) -> list[str]:
    """Read a JSON pointer (RFC 6901)."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _put(data: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(data, list):
        return _put_in_list(data, step, rest, value, insert=insert)
    if not isinstance(data, dict) or ((rest or not insert) and step not in data):
        raise LookupError(step)
    return {**data, step: _put(data.get(step), rest, value, insert=insert)}


def _put_in_list(data: list[Any], step: str, rest: list[str], value: Any, *, insert: bool) -> list[Any]:
    at = len(data) if step == "-" else int(step)
    if insert and not rest and at <= len(data):
        return [*data[:at], value, *data[at:]]
    return [*data[:at], _put(data[at], rest, value, insert=insert), *data[at + 1 :]]


def changes(before: Any, after: Any, path: Path = ()) -> Iterator[Change]:
    """Every field that differs, the deepest that say it; an object or list that is new is one change."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from changes(before.get(key, MISSING), after.get(key, MISSING), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for i in range(max(len(before), len(after))):
            yield from changes(_at(before, i), _at(after, i), (*path, i))
    elif before is MISSING or after is MISSING or before != after:
        yield Change(path, before, after)


def _at(items: Sequence[Any], i: int) -> Any:
    return items[i] if i < len(items) else MISSING


def diff(before: Any, after: Any, paint: Paint = plain) -> list[str]:
    """One line a field: `+` is new, `~` is changed, `-` is gone."""
    return [_line(change, paint) for change in changes(before, after)]


def _line(change: Change, paint: Paint) -> str:
    where = shown(dotted(change.path))
    if change.before is MISSING:
        return paint(f"+ {where}: {brief(change.after)}", Style.GOOD)
    if change.after is MISSING:
        return paint(f"- {where}: {brief(change.before)}", Style.BAD)
    return paint(f"~ {where}: {brief(change.before)} → {brief(change.after)}", Style.WARNING)


def brief(value: Any) -> str:
    """A value on one line, as YAML's flow style shows it, quotes only where they are needed."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(str(key))}: {brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, str):
        return shown(value) if value else '""'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
