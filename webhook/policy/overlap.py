"""Can two policies speak about one pod? No only where that is certain.

Namespaces, labels, operations and resources are compared by what they let in; match conditions are taken
to let everything in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from webhook.model.pods import NodeSelectorRequirement
from webhook.policy import selectors
from webhook.policy.compiling import selector_requirements
from webhook.policy.written.matching import MatchSpec


def may_overlap(one: MatchSpec, other: MatchSpec) -> bool:
    """False where no object can match both."""
    return (
        bool(set(one.operations) & set(other.operations))
        and _resources_overlap(one.resources, other.resources)
        and _namespaces_overlap(one, other)
        and not requirements_conflict((*selector_requirements(one.object_selector), *selector_requirements(other.object_selector)))
        and not requirements_conflict((*selector_requirements(one.namespace_selector), *selector_requirements(other.namespace_selector)))
    )


def _resources_overlap(one: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    return one is None or other is None or _any_globs_overlap(one, other)


def _namespaces_overlap(one: MatchSpec, other: MatchSpec) -> bool:
    ours, theirs = _remaining_namespaces(one, other), _remaining_namespaces(other, one)
    if ours is not None and theirs is not None:
        return _any_globs_overlap(ours, theirs)
    return ours != () and theirs != ()


def _remaining_namespaces(one: MatchSpec, other: MatchSpec) -> tuple[str, ...] | None:
    """One policy's namespace globs without those that either policy excludes; None: every namespace."""
    if one.namespaces is None:
        return None
    excluded = (*one.exclude_namespaces, *other.exclude_namespaces)
    return tuple(glob for glob in one.namespaces if not any(glob_covers(wider, glob) for wider in excluded))


def _any_globs_overlap(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    others = tuple(theirs)
    return any(globs_overlap(one, other) for one in ours for other in others)


def glob_covers(wider: str, narrower: str) -> bool:
    """True if every name of one glob is a name of the other; said of literals and equal globs only."""
    return wider in (narrower, "*") or (selectors.is_literal(narrower) and selectors.glob_matcher([wider])(narrower))


@lru_cache(maxsize=1024)
def globs_overlap(one: str, other: str) -> bool:
    """True if some name matches both globs.

    >>> globs_meet("team-*", "*-dev"), globs_meet("team-*", "ml-?")
    (True, False)
    """
    reached = {0} | _positions_after_stars(other, 0)
    for character in one:
        reached = _advance_positions(character, other, reached)
    return len(other) in reached


def _advance_positions(character: str, other: str, reached: set[int]) -> set[int]:
    """Positions in `other` that one more character of the first glob can lead to."""
    if character == "*":
        return {after for position in reached for after in range(position, len(other) + 1)}
    following: set[int] = set()
    for position in reached:
        if position == len(other):
            continue
        facing = other[position]
        if facing == "*":
            following |= {position} | _positions_after_stars(other, position)
        elif facing == "?" or character in ("?", facing):
            following |= {position + 1} | _positions_after_stars(other, position + 1)
    return following


def _positions_after_stars(glob: str, position: int) -> set[int]:
    """Positions after a run of stars, each of which may stand for nothing."""
    found = set()
    while position < len(glob) and glob[position] == "*":
        position += 1
        found.add(position)
    return found


def requirements_conflict(requirements: Iterable[NodeSelectorRequirement]) -> bool:
    """True if no set of labels can meet every requirement."""
    by_key: dict[str, list[NodeSelectorRequirement]] = {}
    for requirement in requirements:
        by_key.setdefault(requirement.key, []).append(requirement)
    return any(_no_value_possible(group) for group in by_key.values())


def _no_value_possible(group: list[NodeSelectorRequirement]) -> bool:
    operators = {requirement.operator for requirement in group}
    if "DoesNotExist" in operators:
        return bool(operators & {"In", "Exists", "Gt", "Lt"})
    wanted = [set(requirement.values) for requirement in group if requirement.operator == "In"]
    if not wanted:
        return False
    refused = {value for one in group if one.operator == "NotIn" for value in one.values}
    return not set.intersection(*wanted) - refused
