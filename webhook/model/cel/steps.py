"""Count the steps of an evaluation, so that no expression takes long.

A step of a loop counts the parts of its body, and a function that reads a long text or list counts its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from webhook.model.cel.cel_errors import StepLimitError
from webhook.model.cel.values import CelMap, CelValue, OptionalValue, is_list

STEP_LIMIT = 50_000

Frame = list[Any]
"""The steps that are left, and the values of variables by number."""

PATTERN_FUNCTIONS = frozenset({"matches", "find", "findAll"})

_STEPS = 0


def spend_steps(frame: Frame, steps: int) -> None:
    """Count steps.

    Raises:
        StepLimitError: None are left.
    """
    frame[_STEPS] -= steps
    if frame[_STEPS] < 0:
        raise StepLimitError("the expression takes too many steps to be evaluated here")


def spend_on_contents(frame: Frame, value: CelValue) -> None:
    """Count the elements of a list or map, and those of its elements."""
    if is_list(value):
        spend_steps(frame, 1 + len(value))
        for element in value:
            spend_on_contents(frame, element)
    elif isinstance(value, CelMap):
        spend_steps(frame, 1 + len(value))
        spend_on_contents(frame, tuple(entry for _, entry in value.items()))
    elif isinstance(value, OptionalValue) and value.present:
        spend_on_contents(frame, value.value)


def _charge_size(frame: Frame, *values: Any) -> None:
    spend_steps(frame, sum(_text_or_list_size(value) for value in values) // 64)


def _text_or_list_size(value: CelValue) -> int:
    return len(value) if isinstance(value, (str, bytes)) or is_list(value) else 0


def _charge_contents(frame: Frame, *values: Any) -> None:
    for value in values:
        spend_on_contents(frame, value)


def _charge_product(frame: Frame, *values: Any) -> None:
    """Count each pair of elements of two lists, or of one list with itself."""
    sizes = [len(value) for value in values if is_list(value)]
    spend_steps(frame, sizes[0] * sizes[-1] if sizes else 0)
    _charge_contents(frame, *values)


def _charge_replacement(frame: Frame, text: Any, old: Any, new: Any, *_: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        spend_steps(frame, (text.count(old) * len(new) + len(text)) // 64)


def _charge_join(frame: Frame, texts: Any, separator: Any = "") -> None:
    if is_list(texts):
        size = sum(_text_or_list_size(text) for text in texts) + len(texts) * _text_or_list_size(separator)
        spend_steps(frame, len(texts) + size // 64)


def _charge_split(frame: Frame, text: Any, *_: Any) -> None:
    spend_steps(frame, _text_or_list_size(text))


def _charge_pattern(frame: Frame, text: Any, pattern: Any, *_: Any) -> None:
    if isinstance(text, str) and isinstance(pattern, str):
        spend_steps(frame, 10 + pattern_weight(pattern) + 8 * len(text))


def _charge_parse(frame: Frame, text: Any, *_: Any) -> None:
    spend_steps(frame, 10 + _text_or_list_size(text))


def _charge_count(frame: Frame, count: Any) -> None:
    spend_steps(frame, count if type(count) is int and count > 0 else 0)


STEP_CHARGES: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("_+_", "contains", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii"), _charge_size),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "slice", "reverse", "flatten"), _charge_contents),
    **dict.fromkeys(("sort", "@sortByAssociatedKeys", "distinct", "optional.unwrap", "unwrapOpt"), _charge_product),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _charge_product),
    **dict.fromkeys(PATTERN_FUNCTIONS, _charge_pattern),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _charge_parse),
    "cel.@mapInsert": lambda frame, target, *_: spend_steps(frame, len(target) if isinstance(target, CelMap) else 0),
    "replace": _charge_replacement, "join": _charge_join, "split": _charge_split, "lists.range": _charge_count,
    "strings.quote": _charge_split,
}  # fmt: skip

_REPETITION = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


def pattern_weight(pattern: str) -> int:
    """Return the size of a regular expression with its repetitions multiplied out."""
    weight = 1 + len(pattern) // 4
    for match in _REPETITION.finditer(pattern):
        weight *= max(1, int(match[1][:6]), int((match[2] or "0")[:6]))
    return weight
