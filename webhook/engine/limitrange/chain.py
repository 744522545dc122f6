"""What the API server makes of a pod's amounts, from the manifest to the verdict.

In its order: the API's defaults, LimitRanger's defaults, our change, both defaults once more (any change by a webhook
makes all of the mutating pass run again), the API's rules, LimitRanger's bounds. Quota comes after all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.engine.containers import Changes
from webhook.engine.limitrange.apirules import Broken, broken_rules
from webhook.engine.limitrange.bounds import Refusal, refusals
from webhook.engine.limitrange.defaulting import ranged, stored
from webhook.engine.limitrange.holding import Holders, holders_of
from webhook.model.pods import Pod
from webhook.model.ranges import Range

UNCHANGED: Changes = {}


class Verdict(NamedTuple):
    """What becomes of a pod.

    Attributes:
        holders: Its amounts once everything is in.
        broken: Rules of the API that they break (answered with 422, and LimitRanger is not asked).
        refused: What LimitRanger refuses (answered with 403).
    """

    holders: Holders
    broken: list[Broken]
    refused: list[Refusal]

    @property
    def passes(self) -> bool:
        """Does the API server take it, quota apart?"""
        return not self.broken and not self.refused


class Chain(NamedTuple):
    """One pod, twice: as it would be without us, and in our shape."""

    original: Verdict
    shaped: Verdict


def chain(pod: Pod, limits: Changes, requests: Changes, ranges: Sequence[Range]) -> Chain:
    """Follow a pod and its shape to their verdicts.

    Args:
        pod: The pod as written, or as a webhook sees it: defaults that are in already are not put in twice.
        limits: Our new limits of containers, by path; whole maps.
        requests: Our new requests, likewise.
        ranges: The namespace's LimitRanges, in the order in which LimitRanger takes them.

    Raises:
        QuantityError: an amount is no quantity: the API server refuses to read it.
    """
    original = verdict(pod, ranges)
    return Chain(original, verdict(pod, ranges, limits, requests) if limits or requests else original)


def verdict(pod: Pod, ranges: Sequence[Range], limits: Changes = UNCHANGED, requests: Changes = UNCHANGED) -> Verdict:
    """What becomes of a pod, some containers' amounts changed by a webhook. See `chain`."""
    holders = arrived(pod, ranges, limits, requests)
    return Verdict(holders, broken_rules(holders), refusals(holders, ranges))


def arrived(pod: Pod, ranges: Sequence[Range], limits: Changes = UNCHANGED, requests: Changes = UNCHANGED) -> Holders:
    """The amounts once the API's defaults and LimitRanger's are in: what a webhook sees of a pod."""
    return ranged(stored(holders_of(pod, limits, requests)), ranges)
