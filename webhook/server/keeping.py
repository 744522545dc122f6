"""Bytes made of a decision, kept for the copies of a pod that get the very same one."""

from __future__ import annotations

from collections.abc import Callable

from webhook.model.decisions import Decision

CACHE_ENTRIES = 512
"""Texts that are kept; the oldest goes first."""

MAX_CACHED_BYTES = 8 * 1024
"""Bytes of the longest text that is kept."""

DecisionRenderer = Callable[[Decision, str], bytes]
"""Decision and policy digest to bytes."""


def cache_by_decision(make: DecisionRenderer) -> DecisionRenderer:
    """Make the bytes of one decision once, as long as it is the same object: nothing is compared, nothing hashed."""
    made: dict[int, tuple[Decision, str, bytes]] = {}

    def give(decision: Decision, digest: str) -> bytes:
        found = made.get(id(decision))
        if found is not None and found[0] is decision and found[1] == digest:
            return found[2]
        text = make(decision, digest)
        if len(text) <= MAX_CACHED_BYTES:
            made.pop(id(decision), None)
            if len(made) >= CACHE_ENTRIES:
                del made[next(iter(made))]
            made[id(decision)] = (decision, digest, text)
        return text

    return give
