"""What the API server and LimitRanger add to a pod's amounts before anybody judges them.

Source: `pkg/apis/core/v1/defaults.go`, and the mutating step of `plugin/pkg/admission/limitranger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, LimitsAndRequests, PodAmounts, sum_containers, named_resources
from webhook.model.ranges import ResourceList, ParsedLimitRange
from webhook.model.resource_names import is_pod_level_resource, is_huge_pages

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""The annotation in which LimitRanger says what it put in. Anyone may write it."""

LIMIT_RANGER_PREFIX = "LimitRanger plugin set: "


def apply_request_defaults(holders: PodAmounts) -> PodAmounts:
    """The API's own defaults: a request that is not written is its limit, in containers and in the pod as a whole."""
    after = holders._replace(
        containers=_default_requests_of_each(holders.containers),
        init_containers=_default_requests_of_each(holders.init_containers),
    )
    return after if after.pod_level is None else after._replace(pod_level=_default_pod_level(after, after.pod_level))


def _default_requests_of_each(holders: tuple[LimitsAndRequests, ...]) -> tuple[LimitsAndRequests, ...]:
    return tuple([_default_requests(holder) for holder in holders])


def _default_requests(holder: LimitsAndRequests) -> LimitsAndRequests:
    if holder.limits.keys() <= holder.requests.keys():
        return holder
    return holder._replace(requests=holder.limits | holder.requests)


def _default_pod_level(holders: PodAmounts, whole: LimitsAndRequests) -> LimitsAndRequests:
    """Limits of huge pages follow those of the containers; then requests the containers', then the limits."""
    if not whole.limits and not whole.requests:
        return whole
    limits, requests = dict(whole.limits), dict(whole.requests)
    for name in named_resources(holders, LIMITS):
        if is_huge_pages(name) and name not in requests and name not in limits:
            _set_container_sum(limits, name, holders, LIMITS)
    if not limits:
        return whole
    for name in named_resources(holders, REQUESTS):
        if is_pod_level_resource(name) and not is_huge_pages(name) and name not in requests:
            _set_container_sum(requests, name, holders, REQUESTS)
    for name, amount in limits.items():
        if is_pod_level_resource(name):
            requests.setdefault(name, amount)
    return whole._replace(limits=limits, requests=requests)


def _set_container_sum(amounts: ResourceList, name: str, holders: PodAmounts, side: str) -> None:
    amount = sum_containers(holders, name, side)
    if amount is not None:
        amounts[name] = amount


def apply_limit_range_defaults(holders: PodAmounts, ranges: Iterable[ParsedLimitRange]) -> PodAmounts:
    """LimitRanger's mutating step: each LimitRange in turn gives what no container names. "0" is a name."""
    for limit_range in ranges:
        if limit_range.default_limits or limit_range.default_requests:
            holders = holders._replace(
                containers=tuple([_fill_from_limit_range(holder, limit_range) for holder in holders.containers]),
                init_containers=tuple([_fill_from_limit_range(holder, limit_range) for holder in holders.init_containers]),
            )
    return holders


def _fill_from_limit_range(holder: LimitsAndRequests, limit_range: ParsedLimitRange) -> LimitsAndRequests:
    limits, requests = holder.limits, holder.requests
    if limit_range.default_limits.keys() <= limits.keys() and limit_range.default_requests.keys() <= requests.keys():
        return holder
    return holder._replace(limits=limit_range.default_limits | limits, requests=limit_range.default_requests | requests)


def limit_ranger_annotation(holders: PodAmounts, ranges: Sequence[ParsedLimitRange]) -> str | None:
    """The annotation that LimitRanger leaves on a pod in this order of LimitRanges: what the last one set.

    None where none sets anything.
    """
    note = None
    for limit_range in ranges:
        parts = [
            *_annotation_parts(holders.containers, limit_range, "container"),
            *_annotation_parts(holders.init_containers, limit_range, "init container"),
        ]
        note = LIMIT_RANGER_PREFIX + "; ".join(parts) if parts else note
        holders = apply_limit_range_defaults(holders, (limit_range,))
    return note


def _annotation_parts(holders: tuple[LimitsAndRequests, ...], limit_range: ParsedLimitRange, kind: str) -> Iterable[str]:
    for holder in holders:
        for side, given in ((REQUESTS, limit_range.default_requests), (LIMITS, limit_range.default_limits)):
            names = sorted(given.keys() - holder.amounts(side).keys())
            if names:
                yield f"{', '.join(names)} {side.removesuffix('s')} for {kind} {holder.name}"
