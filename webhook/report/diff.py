"""What a patch does to an object: the shape it leads to, and the fields that changed, for people.

The patch is ours (`add` and `replace` only, RFC 6902), so it is applied here in a few lines; tests hold them
against the `jsonpatch` package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from webhook.model.decisions import Operation
from webhook.model.paths import Path, dotted
from webhook.model.records import DECISION, ORIGINAL
from webhook.report.words import Paint, Style, plain, shown

RECORDS = frozenset({DECISION, ORIGINAL})
_REQUESTS = "requests"
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
    """Every field that differs, the deepest that say it; an object or list that is new is one change.

    In the order of the objects, but limits stand before the requests that follow them.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(dict.fromkeys([*before, *after]), key=_REQUESTS.__eq__):
            yield from changes(before.get(key, MISSING), after.get(key, MISSING), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for i in range(max(len(before), len(after))):
            yield from changes(_at(before, i), _at(after, i), (*path, i))
    elif before is MISSING:
        yield Change(*_inwards(path, after))
    elif after is MISSING or before != after:
        yield Change(path, before, after)


def _inwards(path: Path, value: Any) -> tuple[Path, Any, Any]:
    """Follow what is new for as long as it holds one thing only."""
    while isinstance(value, dict | list) and len(value) == 1 and not _is_rule(value):
        step, value = next(iter(value.items() if isinstance(value, dict) else enumerate(value)))
        path = (*path, step)
    return path, MISSING, value


def _at(items: Sequence[Any], i: int) -> Any:
    return items[i] if i < len(items) else MISSING


def diff(before: Any, after: Any, paint: Paint = plain, *, width: int = 0) -> list[str]:
    """One line a field: `+` is new, `~` is changed, `-` is gone.

    Args:
        width: Columns to fit into; 0: any number. What is new and does not fit is told member by member.
    """
    found = changes(before, after)
    return [_line(each, paint, width) for change in found for each in (_parts(change, width) if width else [change])]


def _parts(change: Change, width: int) -> Iterator[Change]:
    """The change, or where it is a new object or list that does not fit, its members."""
    path, before, value = change
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    fits = len(brief(value)) + len(dotted(path[-1:])) + len("+ spec…: ") <= width
    if before is not MISSING or fits or _is_rule(value) or not members:
        yield change
        return
    for step, member in members:
        deeper, _, held = _inwards((*path, step), member)
        yield from _parts(Change(deeper, MISSING, held), width)


def _line(change: Change, paint: Paint, width: int) -> str:
    if change.before is MISSING:
        return paint(_fitted("+", change.path, brief(change.after), width), Style.GOOD)
    if change.after is MISSING:
        return paint(_fitted("-", change.path, brief(change.before), width), Style.BAD)
    return paint(_fitted("~", change.path, f"{brief(change.before)} → {brief(change.after)}", width), Style.WARNING)


def _fitted(mark: str, path: Path, value: str, width: int) -> str:
    """The line; where it is too long, with the middle of the path left out, and then cut at the end."""
    line = f"{mark} {shown(dotted(path))}: {value}"
    if not width or len(line) <= width:
        return line
    for where in _shortened(path):
        line = f"{mark} {where}: {value}"
        if len(line) <= width:
            return line
    return f"{line[: width - 1]}…"


def _shortened(path: Path) -> Iterator[str]:
    """The path with more and more of its middle left out."""
    shortest = 2 if path and isinstance(path[-1], int) else 1
    for tail in range(len(path) - 2, shortest - 1, -1):
        for head in (2, 1):
            if head + tail < len(path):
                yield f"{shown(dotted(path[:head]))}…{shown(dotted(path[-tail:]))}"


_RULE = frozenset({"key", "operator", "value", "values", "effect", "tolerationSeconds"})


def _is_rule(value: Any) -> bool:
    """A toleration, or one expression of an affinity or a selector."""
    return isinstance(value, dict) and "operator" in value and _RULE.issuperset(value)


def brief(value: Any) -> str:
    """A value on one line, as YAML's flow style shows it, quotes only where they are needed.

    >>> brief({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    'nvidia.com/gpu Exists NoSchedule'
    """
    if _is_rule(value):
        return " ".join(
            ",".join(map(brief, each)) if isinstance(each, list) else brief(each) for each in value.values()
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(str(key))}: {brief(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, str):
        return shown(value) if value else '""'
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def without_records(data: Any, wanted: Any) -> Any:
    """An object without the records that Rightslice left in its annotations, but for those that `wanted` has too."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return data
    kept = _annotations(wanted)
    rest = {key: value for key, value in annotations.items() if key not in RECORDS or (kept and key in kept)}
    others = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**data, "metadata": {**others, "annotations": rest} if rest or kept is not None else others}


def _annotations(data: Any) -> dict[str, Any] | None:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else None
