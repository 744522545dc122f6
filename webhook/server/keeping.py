"""Bytes made of a decision, kept for the copies of a pod that get the very same one."""

from __future__ import annotations

from collections.abc import Callable

from webhook.model.decisions import Decision

MOST = 512
"""Texts that are kept; the oldest goes first."""

LARGEST = 8 * 1024
"""Bytes of the longest text that is kept."""

Made = Callable[[Decision, str], bytes]
"""Decision and policy digest to bytes."""


def kept(make: Made) -> Made:
    """Make the bytes of one decision once, as long as it is the same object: nothing is compared, nothing hashed."""
    made: dict[int, tuple[Decision, str, bytes]] = {}

    def give(decision: Decision, digest: str) -> bytes:
        found = made.get(id(decision))
        if found is not None and found[0] is decision and found[1] == digest:
            return found[2]
        text = make(decision, digest)
        if len(text) <= LARGEST:
            made.pop(id(decision), None)
            if len(made) >= MOST:
                del made[next(iter(made))]
            made[id(decision)] = (decision, digest, text)
        return text

    return give
