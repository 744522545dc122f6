"""What the API server and LimitRanger add to a pod's amounts before anybody judges them.

Source: `pkg/apis/core/v1/defaults.go`, and the mutating step of `plugin/pkg/admission/limitranger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.containers import AmountItems, container_amounts, is_cacheable
from webhook.engine.containers import ContainerAmounts as ContainerAmounts
from webhook.engine.limitrange.pod_amounts import (
    LIMITS,
    REQUESTS,
    LimitsAndRequests,
    PodAmounts,
    named_resources,
    parse_amount_items,
    sum_containers,
)
from webhook.errors import QuantityError, ReviewError
from webhook.model.apimachinery import canonical_text
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, ResourceList
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements, parse_pod, without_nulls
from webhook.model.resource_names import is_huge_pages, is_pod_level_resource

Json = dict[str, Any]
MAX_CACHED_PODS = 512
"""Pods that are kept: those of one template come again and again."""


class DefaultedPod(NamedTuple):
    """What a pod holds after the pass: its containers, in order, and the pod itself; and the note."""

    containers: tuple[ResourceRequirements, ...]
    init_containers: tuple[ResourceRequirements, ...]
    pod_level: ResourceRequirements | None
    annotation: str


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
                init_containers=tuple(
                    [_fill_from_limit_range(holder, limit_range) for holder in holders.init_containers]
                ),
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


def _annotation_parts(
    holders: tuple[LimitsAndRequests, ...], limit_range: ParsedLimitRange, kind: str
) -> Iterable[str]:
    for holder in holders:
        for side, given in ((REQUESTS, limit_range.default_requests), (LIMITS, limit_range.default_limits)):
            names = sorted(given.keys() - holder.amounts(side).keys())
            if names:
                yield f"{', '.join(names)} {side.removesuffix('s')} for {kind} {holder.name}"


def default_pod(pod: Pod, ranges: NamespaceLimitRanges) -> Pod:
    """A pod with what it does not name and its namespace's LimitRanges give; itself where they give nothing.

    What is written keeps its notation.
    """
    filled = _find_defaults(pod, ranges)
    if filled is None:
        return pod
    spec, annotations = pod.spec, {**pod.metadata.annotations, LIMIT_RANGER_ANNOTATION: filled.annotation}
    spec = replace(
        spec,
        containers=_merge_each_container(spec.containers, filled.containers),
        init_containers=_merge_each_container(spec.init_containers, filled.init_containers),
        resources=_merge_requirements(spec.resources, filled.pod_level)
        if spec.resources and filled.pod_level
        else spec.resources,
    )
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec)


def default_pod_data(pod: Json, ranges: NamespaceLimitRanges) -> Json:
    """The same of plain data. What cannot be read comes back as it is: whoever judges it says why."""
    try:
        filled = _find_defaults(parse_pod(pod), ranges)
    except ReviewError:
        return pod
    if filled is None:
        return pod
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
    for kind, each in (("containers", filled.containers), ("initContainers", filled.init_containers)):
        if each:
            spec[kind] = [_merge_into_data(*pair) for pair in zip(without_nulls(spec[kind]), each, strict=True)]
    if filled.pod_level is not None:
        spec = _merge_into_data(spec, filled.pod_level)
    metadata["annotations"] = (metadata.get("annotations") or {}) | {LIMIT_RANGER_ANNOTATION: filled.annotation}
    return {**pod, "metadata": metadata, "spec": spec}


def _merge_each_container(
    containers: Iterable[Container], amounts: Iterable[ResourceRequirements]
) -> tuple[Container, ...]:
    pairs = zip(containers, amounts, strict=True)
    return tuple([replace(one, resources=_merge_requirements(one.resources, given)) for one, given in pairs])


def _merge_requirements(written: ResourceRequirements, given: ResourceRequirements) -> ResourceRequirements:
    return ResourceRequirements({**given.limits, **written.limits}, {**given.requests, **written.requests})


def _merge_into_data(holder: Json, given: ResourceRequirements) -> Json:
    """A container, or the pod's spec, with every amount that it holds."""
    written = without_nulls(holder.get("resources")) or {}
    sides = {"limits": given.limits, "requests": given.requests}
    amounts = {side: {**some, **written.get(side, {})} for side, some in sides.items() if some}
    return {**holder, "resources": {**written, **amounts}}


def _find_defaults(pod: Pod, ranges: NamespaceLimitRanges) -> DefaultedPod | None:
    """What becomes of a pod; None where nothing does."""
    spec, amounts = pod.spec, container_amounts(pod.spec)
    names = tuple([container.name for container in (*spec.containers, *spec.init_containers)])
    whole = (tuple(spec.resources.limits.items()), tuple(spec.resources.requests.items())) if spec.resources else None
    work_out = _compute_defaults if is_cacheable(amounts) else _compute_defaults.__wrapped__
    return work_out(ranges, names, amounts, whole)


@lru_cache(maxsize=MAX_CACHED_PODS)
def _compute_defaults(
    ranges: NamespaceLimitRanges,
    names: tuple[str, ...],
    amounts: ContainerAmounts,
    whole: tuple[AmountItems, AmountItems] | None,
) -> DefaultedPod | None:
    main, init = amounts
    try:
        each = tuple([_amounts_of_items(name, *one) for name, one in zip(names, (*main, *init), strict=True)])
        of_pod = None if whole is None else _amounts_of_items("", *whole)
    except QuantityError:
        return None
    holders = apply_request_defaults(PodAmounts(each[: len(main)], each[len(main) :], of_pod))
    note = limit_ranger_annotation(holders, ranges)
    if note is None:
        return None
    after = apply_limit_range_defaults(holders, ranges)
    of_pod = after.pod_level
    return DefaultedPod(
        tuple(map(_format_requirements, after.containers)),
        tuple(map(_format_requirements, after.init_containers)),
        None if of_pod is None else _format_requirements(of_pod),
        note,
    )


def _amounts_of_items(
    name: str, limits: AmountItems, requests: AmountItems, sidecar: bool = False
) -> LimitsAndRequests:
    return LimitsAndRequests((), name, parse_amount_items(limits), parse_amount_items(requests), sidecar)


def _format_requirements(after: LimitsAndRequests) -> ResourceRequirements:
    return ResourceRequirements(_format_amounts(after.limits), _format_amounts(after.requests))


def _format_amounts(amounts: ResourceList) -> dict[str, QuantityText]:
    return {name: canonical_text(amount) for name, amount in amounts.items()}
