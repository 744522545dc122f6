"""What the API server makes of a pod's amounts, from the manifest to the verdict.

In its order: the API's defaults, LimitRanger's defaults, our change, both defaults once more (any change by a webhook
makes all of the mutating pass run again), the API's rules, LimitRanger's bounds. Quota comes after all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.engine.containers import ResourceChanges
from webhook.engine.limitrange.apirules import InvalidAmount, find_invalid_amounts
from webhook.engine.limitrange.bounds import LimitRangeRefusal, predict_limit_range_refusals
from webhook.engine.limitrange.defaulting import apply_limit_range_defaults, apply_request_defaults
from webhook.engine.limitrange.holding import PodAmounts, read_pod_amounts
from webhook.model.pods import Pod
from webhook.model.ranges import ParsedLimitRange

UNCHANGED: ResourceChanges = {}


class PredictedAdmission(NamedTuple):
    """What becomes of a pod.

    Attributes:
        holders: Its amounts once everything is in.
        broken: Rules of the API that they break (answered with 422, and LimitRanger is not asked).
        refused: What LimitRanger refuses (answered with 403).
    """

    amounts: PodAmounts
    invalid: list[InvalidAmount]
    refusals: list[LimitRangeRefusal]

    @property
    def is_accepted(self) -> bool:
        """Does the API server take it, quota apart?"""
        return not self.invalid and not self.refusals


class AdmissionComparison(NamedTuple):
    """One pod, twice: as it would be without us, and in our shape."""

    original: PredictedAdmission
    changed: PredictedAdmission


def compare_admission(pod: Pod, limits: ResourceChanges, requests: ResourceChanges, ranges: Sequence[ParsedLimitRange]) -> AdmissionComparison:
    """Follow a pod and its shape to their verdicts.

    Args:
        pod: The pod as written, or as a webhook sees it: defaults that are in already are not put in twice.
        limits: Our new limits of containers, by path; whole maps.
        requests: Our new requests, likewise.
        ranges: The namespace's LimitRanges, in the order in which LimitRanger takes them.

    Raises:
        QuantityError: an amount is no quantity: the API server refuses to read it.
    """
    original = predict_admission(pod, ranges)
    return AdmissionComparison(original, predict_admission(pod, ranges, limits, requests) if limits or requests else original)


def predict_admission(pod: Pod, ranges: Sequence[ParsedLimitRange], limits: ResourceChanges = UNCHANGED, requests: ResourceChanges = UNCHANGED) -> PredictedAdmission:
    """What becomes of a pod, some containers' amounts changed by a webhook. See `compare_admission`."""
    holders = apply_defaults(pod, ranges, limits, requests)
    return PredictedAdmission(holders, find_invalid_amounts(holders), predict_limit_range_refusals(holders, ranges))


def apply_defaults(pod: Pod, ranges: Sequence[ParsedLimitRange], limits: ResourceChanges = UNCHANGED, requests: ResourceChanges = UNCHANGED) -> PodAmounts:
    """The amounts once the API's defaults and LimitRanger's are in: what a webhook sees of a pod."""
    return apply_limit_range_defaults(apply_request_defaults(read_pod_amounts(pod, limits, requests)), ranges)
