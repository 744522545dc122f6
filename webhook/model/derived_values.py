"""Values derived from an immutable object: computed once, kept on the object, and freed together with it.

A cache of the module would keep objects that were replaced, such as the nodes or policies of an hour ago, with all that
they refer to. No derived value may refer to its object: such a cycle would stay until the next garbage collection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, TypeVarTuple

from webhook.model.bounded_cache import BoundedCache

DerivedValues = dict[Callable[..., Any], dict[tuple[object, ...], Any]]
"""Results of functions of one object, by their other arguments."""


class DerivedValuesOwner(Protocol):
    """An immutable object that keeps what is derived from it."""

    derived: DerivedValues


Owner = TypeVar("Owner", bound=DerivedValuesOwner)
Value = TypeVar("Value")
Others = TypeVarTuple("Others")


def derived_value(
    max_entries: int = 1, *, of_requests: bool = False
) -> Callable[[Callable[[Owner, *Others], Value]], Callable[[Owner, *Others], Value]]:
    """Keep the results of a function on its first argument, those of the last few other arguments, none of them named.

    Args:
        of_requests: True if the other arguments come from requests: see `bounded_cache`.
    """

    def decorate(function: Callable[[Owner, *Others], Value]) -> Callable[[Owner, *Others], Value]:
        @wraps(function)
        def derive(owner: Owner, /, *others: *Others) -> Value:
            try:
                value: Value = owner.derived[function][others]
            except KeyError:
                value = function(owner, *others)
                results = owner.derived.setdefault(function, BoundedCache(max_entries) if of_requests else {})
                if len(results) >= max_entries:
                    results.pop(next(iter(results)), None)
                results[others] = value
            return value

        return derive

    return decorate
