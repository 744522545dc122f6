"""Can two policies speak about one pod? No only where that is certain.

Namespaces, labels, operations and resources are compared by what they let in; match conditions are taken
to let everything in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from webhook.model.pods import Requirement
from webhook.policy import selectors
from webhook.policy.compiling import requirements_of
from webhook.policy.written.matching import WrittenMatch


def may_overlap(one: WrittenMatch, other: WrittenMatch) -> bool:
    """False where no object can match both."""
    return (
        bool(set(one.operations) & set(other.operations))
        and _resources_meet(one.resources, other.resources)
        and _namespaces_meet(one, other)
        and not contradict((*requirements_of(one.object_selector), *requirements_of(other.object_selector)))
        and not contradict((*requirements_of(one.namespace_selector), *requirements_of(other.namespace_selector)))
    )


def _resources_meet(one: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    return one is None or other is None or _globs_meet(one, other)


def _namespaces_meet(one: WrittenMatch, other: WrittenMatch) -> bool:
    ours, theirs = _reachable(one, other), _reachable(other, one)
    if ours is not None and theirs is not None:
        return _globs_meet(ours, theirs)
    return ours != () and theirs != ()


def _reachable(one: WrittenMatch, other: WrittenMatch) -> tuple[str, ...] | None:
    """One policy's namespace globs without those that either policy excludes; None: every namespace."""
    if one.namespaces is None:
        return None
    excluded = (*one.exclude_namespaces, *other.exclude_namespaces)
    return tuple(glob for glob in one.namespaces if not any(covers(wider, glob) for wider in excluded))


def _globs_meet(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    others = tuple(theirs)
    return any(globs_meet(one, other) for one in ours for other in others)


def covers(wider: str, narrower: str) -> bool:
    """True if every name of one glob is a name of the other; said of literals and equal globs only."""
    return wider in (narrower, "*") or (selectors.is_literal(narrower) and selectors.globs([wider])(narrower))


@lru_cache(maxsize=1024)
def globs_meet(one: str, other: str) -> bool:
    """True if some name matches both globs.

    >>> globs_meet("team-*", "*-dev"), globs_meet("team-*", "ml-?")
    (True, False)
    """
    reached = {0} | _skipped(other, 0)
    for character in one:
        reached = _step(character, other, reached)
    return len(other) in reached


def _step(character: str, other: str, reached: set[int]) -> set[int]:
    """Positions in `other` that one more character of the first glob can lead to."""
    if character == "*":
        return {after for position in reached for after in range(position, len(other) + 1)}
    following: set[int] = set()
    for position in reached:
        if position == len(other):
            continue
        facing = other[position]
        if facing == "*":
            following |= {position} | _skipped(other, position)
        elif facing == "?" or character in ("?", facing):
            following |= {position + 1} | _skipped(other, position + 1)
    return following


def _skipped(glob: str, position: int) -> set[int]:
    """Positions after a run of stars, each of which may stand for nothing."""
    found = set()
    while position < len(glob) and glob[position] == "*":
        position += 1
        found.add(position)
    return found


def contradict(requirements: Iterable[Requirement]) -> bool:
    """True if no set of labels can meet every requirement."""
    by_key: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        by_key.setdefault(requirement.key, []).append(requirement)
    return any(_no_value_fits(group) for group in by_key.values())


def _no_value_fits(group: list[Requirement]) -> bool:
    operators = {requirement.operator for requirement in group}
    if "DoesNotExist" in operators:
        return bool(operators & {"In", "Exists", "Gt", "Lt"})
    wanted = [set(requirement.values) for requirement in group if requirement.operator == "In"]
    if not wanted:
        return False
    refused = {value for one in group if one.operator == "NotIn" for value in one.values}
    return not set.intersection(*wanted) - refused
