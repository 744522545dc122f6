"""JSONPath templates as kubectl writes them: text, and paths in braces, evaluated on plain data.

`{range .items[*]}{.name}{"\\n"}{end}` repeats a part; `$` and `@` both are the current value, as in kubectl.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from webhook.errors import JsonPathError

Step = Callable[[list[Any]], list[Any]]
"""Returns what a part of a path finds in some values."""

QUOTED = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_PART = re.compile(rf"\{{((?:{QUOTED}|[^{{}}\"'])*)\}}|([^{{]+)", re.DOTALL)
_TOKEN = re.compile(
    rf"""(?P<space>[\s@$]+)
    |(?P<deep>\.\.)
    |(?P<text>{QUOTED})
    |\[\?\((?P<filter>(?:{QUOTED}|[^)"'])*)\)\]
    |\[(?P<subscript>[^\]]*)\]
    |(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?)
    |\.(?P<field>(?:\\.|[^\s.,\[\]$@{{}}\\])*)
    |(?P<name>\w+)""",
    re.VERBOSE,
)
_COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)\Z", re.DOTALL)
_SLICE = re.compile(r"(-?\d*)(?::(-?\d*))?(?::(\d*))?\Z", re.ASCII)
_RELAXED = re.compile(r"\{\.?([^{}]+)\}\Z|\.?([^{}]+)\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MAX_PLAIN_FLOAT = 1e21
"""From here on, Go writes an exponent."""


class Repeated(NamedTuple):
    """The parts between `{range PATH}` and `{end}`."""

    steps: tuple[Step, ...]
    parts: list[Part]


Part = str | tuple[Step, ...] | Repeated
"""Text, a path, or a repeated part of a template."""


def render_template(template: str, data: Any) -> str:
    """Return what `kubectl -o jsonpath=TEMPLATE` would print for this data.

    >>> render_template('{.a} {.b[?(@.x=="y")].n}', {"a": 1, "b": [{"x": "y", "n": True}]})
    '1 true'

    Raises:
        JsonPathError: The template is invalid, or does not fit the data.
    """
    return "".join(_render(parse_template(template), data))


def values_at_path(path: str, data: Any) -> list[Any]:
    """Return the values at a path, which may be written without braces and without its first dot.

    Raises:
        JsonPathError: The path is invalid, or does not fit the data.
    """
    return _apply_steps(parse_path(path), [data])


def parse_path(path: str) -> tuple[Step, ...]:
    """Return the steps of one path, as --sort-by takes it."""
    found = _RELAXED.match(path)
    if found is None:
        raise JsonPathError(f"must be one path, found {path!r}. Write .name or {{.name}}")
    return _parse_steps(f".{found[1] or found[2]}")


def parse_template(template: str) -> list[Part]:
    """Return the parts of a template.

    Raises:
        JsonPathError: It is invalid.
    """
    parts: list[Part] = []
    open_parts, position = [parts], 0
    while position < len(template):
        found = _PART.match(template, position)
        if found is None:
            raise JsonPathError(f"a brace is not closed, found {template[position:]!r}. Write {{.name}}")
        position = found.end()
        _add_part(open_parts, found[1], found[2])
    return parts


def _add_part(open_parts: list[list[Part]], path: str | None, text: str) -> None:
    """Add text, a path, or the begin or end of a repeated part."""
    current = open_parts[-1]
    if path is None:
        current.append(text)
    elif path.strip() == "end":
        if len(open_parts) == 1:
            raise JsonPathError("{end} ends a {range PATH}, found none before it. Leave it out")
        open_parts.pop()
    elif re.match(r"\s*range\b", path):
        repeated = Repeated(_parse_steps(path.strip().removeprefix("range")), [])
        current.append(repeated)
        open_parts.append(repeated.parts)
    else:
        current.append(_parse_steps(path))


def _parse_steps(path: str) -> tuple[Step, ...]:
    steps, position = list[Step](), 0
    while position < len(path):
        found = _TOKEN.match(path, position)
        if found is None or found.lastgroup == "name":
            must = "must be a path such as .items[*].name, or text in quotes"
            raise JsonPathError(f"{must}, found {path[position:]!r}")
        position = found.end()
        kind, text = found.lastgroup, found[found.lastgroup or 0]
        if kind == "deep" and re.match(r"\w", path[position:]):
            position -= 1  # the second dot also starts the name
        if kind != "space":
            steps.append(_STEPS[str(kind)](text))
    return tuple(steps)


def _constant(value: Any) -> Step:
    return lambda _: [value]


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])


def _number(text: str) -> Step:
    return _constant(float(text) if "." in text else int(text))


def _parse_field(name: str) -> Step:
    name = name.replace("\\", "")
    if name == "*":
        return lambda values: [each for value in values for each in _members_of_value(value)]
    if not name:
        return lambda values: values
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _members_of_value(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return value if isinstance(value, list) else ()


def _descend(_: str) -> Step:
    return lambda values: [each for value in values for each in _containers(value)]


def _containers(value: Any) -> Iterator[Any]:
    """Yield a map or list, and then those in it."""
    members = _members_of_value(value)
    if members:
        yield value
    for each in members:
        yield from _containers(each)


def _parse_subscript(text: str) -> Step:
    text = text.strip()
    if "," in text:
        unions = [_parse_subscript(each) for each in text.split(",")]
        return lambda values: [each for union in unions for each in union(values)]
    if len(text) > 1 and text[0] == text[-1] == "'":
        steps = _parse_steps(f".{text[1:-1]}")
        return lambda values: _apply_steps(steps, values)
    if text == "*":
        text = ":"
    found = _SLICE.match(text)
    if found is None or not text:
        raise JsonPathError(f"[] must contain a number, a range START:END:STEP, * or 'NAME', found {text!r}")
    return _parse_slice(found[1], found[2], found[3])


def _parse_slice(first: str, last: str | None, step: str | None) -> Step:
    every = int(step or 1)
    if not every:
        raise JsonPathError("the step of a range must be above 0, found 0")

    def slice_of(value: list[Any]) -> list[Any]:
        length = len(value)
        start = int(first or 0) + (length if first.startswith("-") else 0)
        end = start + 1 if last is None else int(last or length) + (length if last.startswith("-") else 0)
        if start == end:
            return []
        if not 0 <= start < length or not start < end <= length:
            raise JsonPathError(f"an index must be within the list of {length}, found {text_of(first)}")
        return value[start:end:every]

    def text_of(index: str) -> str:
        return index if last is None else f"{index}:{last}"

    return lambda values: [each for value in values if value is not None for each in slice_of(_list(value))]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise JsonPathError(f"[] needs a list, found {_format_value(value)[:40]}. Write .name for a field of a map")
    return value


def _parse_filter(text: str) -> Step:
    compared = _COMPARISON.match(text)
    if compared is None:
        present = _parse_steps(text)
        return lambda values: [one for value in values for one in _list(value) if _apply_steps(present, [one])]
    compare = _OPERATORS.get(compared[2])
    if compare is None:
        raise JsonPathError(f"must be one of {', '.join(_OPERATORS)} in a filter, found {compared[2]}")
    left, right = _parse_steps(compared[1]), _parse_filter_value(compared[3])
    return lambda values: [
        one for value in values for one in _list(value) if _comparison_holds(compare, left, right, one)
    ]


def _parse_filter_value(text: str) -> tuple[Step, ...]:
    words = {"true": True, "false": False}
    return (_constant(words[text.strip()]),) if text.strip() in words else _parse_steps(text)


def _comparison_holds(
    compare: Callable[[Any, Any], bool], left: tuple[Step, ...], right: tuple[Step, ...], value: Any
) -> bool:
    lefts, rights = _apply_steps(left, [value]), _apply_steps(right, [value])
    if not lefts or not rights:
        return False
    if len(lefts) > 1 or len(rights) > 1:
        raise JsonPathError("a filter must compare one value with one, found several. Write .name without *")
    try:
        return compare(lefts[0], rights[0])
    except TypeError:
        raise JsonPathError(
            f"a filter must compare values of one type, found {_format_value(lefts[0])} and {_format_value(rights[0])}"
        ) from None


_STEPS: dict[str, Callable[[str], Step]] = {
    "text": lambda text: _constant(_unquote(text)),
    "number": _number,
    "field": _parse_field,
    "deep": _descend,
    "subscript": _parse_subscript,
    "filter": _parse_filter,
}


def _apply_steps(steps: Iterable[Step], values: list[Any]) -> list[Any]:
    for step in steps:
        values = step(values)
    return values


def _render(parts: Iterable[Part], value: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Repeated):
            for each in _apply_steps(part.steps, [value]):
                yield from _render(part.parts, each)
        else:
            yield " ".join(map(_format_value, _apply_steps(part, [value])))


def _format_value(value: Any) -> str:
    """Return a value as Go prints it; lists and maps as JSON, in the order of their keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < MAX_PLAIN_FLOAT else repr(value)
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text.translate(_HTML_ESCAPES) if isinstance(value, dict | list) else text


_HTML_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}
