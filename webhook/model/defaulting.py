"""Apply the API server's defaults, up to the point where it validates a pod.

In its order:

* API defaults: a missing request becomes the limit, and pod-level resources are completed; on the host network, a host
  port becomes the container port. An item of a LimitRange gets its default from `max`, and its default request from the
  default or from `min`: so `max: {nvidia.com/gpu: 4}` alone gives four GPUs to every container that names none.
* LimitRanger, in its first pass before the webhooks: each LimitRange sets what a container does not name; "0" is named.
* Both again after any change by a webhook.
* Since Kubernetes 1.37, pod-level resources are completed only now, when all containers are known, limits included.

`default_object` and `default_limit_range` apply them to objects from files, `default_pod` and `default_pod_data` to a
pod that LimitRanger has not seen, and `apply_defaults` to the amounts of a pod, before or after Rightslice's change.

Sources: `pkg/apis/core/v1/defaults.go`, the mutating step of `plugin/pkg/admission/limitranger`, and
`DefaultPodLevelResources` of `pkg/api/pod/util.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from webhook.errors import QuantityError, ReviewError
from webhook.model.apimachinery import canonical_text, compare_quantities, round_to_milli
from webhook.model.bounded_cache import request_cache
from webhook.model.limit_ranges import (
    CONTAINER,
    NO_LIMIT_RANGES,
    NamespaceLimitRanges,
    ParsedLimitRange,
    ResourceList,
)
from webhook.model.objects import LimitRange, LimitRangeItem
from webhook.model.pod_amounts import (
    LIMITS,
    NO_CHANGES,
    REQUESTS,
    AmountItems,
    ContainerAmounts,
    LimitsAndRequests,
    PodAmounts,
    ResourceChanges,
    container_amounts,
    named_resources,
    parse_container_amounts,
    read_pod_amounts,
    sum_containers,
)
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements, parse_pod, without_nulls
from webhook.model.resource_names import is_huge_pages, is_pod_level_resource
from webhook.well_known import Json

Value = TypeVar("Value")

MAX_CACHED_PODS = 512
"""Pods of one template are defaulted again and again."""

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""LimitRanger's record of what it set. Anyone may write it."""

MAX_LIMIT_RANGER_ANNOTATION = 64 * 1024
"""Longest annotation that is read, in characters: enough for 500 containers. Longer ones record nothing."""

DefaultRecord = tuple[str, str, str]
"""One amount of a container: "limits" or "requests", the resource, and the container's name."""

LIMIT_RANGER_PREFIX = "LimitRanger plugin set: "
_SIDES = (LIMITS, REQUESTS)
_CONTAINER_LISTS = ("containers", "initContainers")
_NAME_KEY = 'k:{"name":"'
"""Start of the key of a container in `managedFields`, before its name."""


class DefaultedPod(NamedTuple):
    """The amounts of a pod after the first pass.

    Attributes:
        annotation: LimitRanger's.
        written: The amounts that the pod had before.
    """

    containers: tuple[ResourceRequirements, ...]
    init_containers: tuple[ResourceRequirements, ...]
    pod_level: ResourceRequirements | None
    annotation: str
    written: frozenset[DefaultRecord]


def default_object(data: Json, namespace: str) -> Json:
    """Return an object of a file with its namespace and, for a Pod, the API defaults; pod templates get none."""
    metadata = data.get("metadata")
    stored = {**data, "metadata": {**(metadata if isinstance(metadata, dict) else {}), "namespace": namespace}}
    spec = data.get("spec")
    if data.get("kind") != "Pod" or not isinstance(spec, dict):
        return stored
    on_host = spec.get("hostNetwork") is True
    lists = {
        key: [_default_container_requests(_default_host_ports(each) if on_host else each) for each in spec[key]]
        for key in _CONTAINER_LISTS
        if isinstance(spec.get(key), list)
    }
    return stored | {"spec": {**spec, **lists}}


def default_limit_range(limit_range: LimitRange) -> LimitRange:
    """Return a LimitRange with the API defaults of its items."""
    items: list[LimitRangeItem] = []
    for item in limit_range.spec.limits:
        if item.type == CONTAINER:
            default, request = limit_range_item_defaults(item.max, item.min, item.default, item.default_request)
            item = replace(item, default=default, default_request=request)
        items.append(item)
    return replace(limit_range, spec=replace(limit_range.spec, limits=tuple(items)))


def limit_range_item_defaults(
    maximum: Mapping[str, Value],
    minimum: Mapping[str, Value],
    default: Mapping[str, Value],
    default_request: Mapping[str, Value],
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the stored `default` and `defaultRequest` of an item of type Container; max is the default of default."""
    limits = {**maximum, **default}
    return limits, {**minimum, **limits, **default_request}


def apply_defaults(
    pod: Pod,
    ranges: NamespaceLimitRanges = NO_LIMIT_RANGES,
    limits: ResourceChanges = NO_CHANGES,
    requests: ResourceChanges = NO_CHANGES,
) -> PodAmounts:
    """Return a pod's amounts after all defaulting steps, some containers' amounts changed by a webhook.

    Defaults that are already set are not set twice.

    Raises:
        QuantityError: an amount is not a quantity, so the API server rejects the pod.
    """
    amounts = read_pod_amounts(pod, limits, requests)
    amounts = apply_limit_range_defaults(apply_request_defaults(amounts, ranges), ranges)
    if amounts.pod_level is None or not ranges.before_pod_level:
        return amounts
    return amounts._replace(pod_level=_complete_pod_level(amounts, amounts.pod_level))


def apply_request_defaults(amounts: PodAmounts, ranges: NamespaceLimitRanges = NO_LIMIT_RANGES) -> PodAmounts:
    """Set missing requests to the limits, in containers and at pod level, and round amounts to thousandths.

    Args:
        ranges: If pod-level resources are completed after them, these are only rounded here.
    """
    after = amounts._replace(
        containers=tuple([_default_requests(holder) for holder in amounts.containers]),
        init_containers=tuple([_default_requests(holder) for holder in amounts.init_containers]),
    )
    whole = after.pod_level
    if whole is None:
        return after
    return PodAmounts(
        tuple(map(_round_amounts, after.containers)),
        tuple(map(_round_amounts, after.init_containers)),
        _round_amounts(whole if ranges.before_pod_level else _default_pod_level(after, whole)),
    )


def apply_limit_range_defaults(amounts: PodAmounts, ranges: Iterable[ParsedLimitRange]) -> PodAmounts:
    """Set what containers do not name, from each LimitRange in turn."""
    for limit_range in ranges:
        if limit_range.default_limits or limit_range.default_requests:
            amounts = amounts._replace(
                containers=tuple([_fill_from_limit_range(one, limit_range) for one in amounts.containers]),
                init_containers=tuple([_fill_from_limit_range(one, limit_range) for one in amounts.init_containers]),
            )
    return amounts


def limit_ranger_annotation(amounts: PodAmounts, ranges: Sequence[ParsedLimitRange]) -> str | None:
    """Return LimitRanger's annotation, which records the last LimitRange that sets anything; None if none does."""
    annotation = None
    for limit_range in ranges:
        parts = [
            *_annotation_parts(amounts.containers, limit_range, "container"),
            *_annotation_parts(amounts.init_containers, limit_range, "init container"),
        ]
        annotation = LIMIT_RANGER_PREFIX + "; ".join(parts) if parts else annotation
        amounts = apply_limit_range_defaults(amounts, (limit_range,))
    return annotation


def read_limit_ranger_annotation(annotation: str) -> frozenset[DefaultRecord]:
    """Read "LimitRanger plugin set: a, b request for container X; a limit for init container Y"."""
    recorded: set[DefaultRecord] = set()
    if not annotation or len(annotation) > MAX_LIMIT_RANGER_ANNOTATION:
        return frozenset()
    for part in annotation.removeprefix(LIMIT_RANGER_PREFIX).split("; "):
        names, _, where = part.partition(" for ")
        resources, _, side = names.rpartition(" ")
        container = where.rpartition(" ")[2]
        recorded.update([(f"{side}s", name, container) for name in resources.split(", ") if name])
    return frozenset(recorded)


def read_managed_amounts(metadata: Json) -> frozenset[DefaultRecord] | None:
    """Return the amounts that clients wrote; None without `managedFields`, for example in a file.

    The API server computes `managedFields` after its own defaults and before LimitRanger's.
    """
    entries = metadata.get("managedFields")
    if not isinstance(entries, list) or not entries:
        return None
    specs = [_member(_member(entry, "fieldsV1"), "f:spec") for entry in entries]
    containers = [pair for spec in specs for kind in _CONTAINER_LISTS for pair in _member(spec, f"f:{kind}").items()]
    return frozenset(
        (side, field.removeprefix("f:"), key.removeprefix(_NAME_KEY).removesuffix('"}'))
        for key, container in containers
        for side in _SIDES
        for field in _member(_member(container, "f:resources"), f"f:{side}")
        if field.startswith("f:")
    )


def default_pod(pod: Pod, ranges: NamespaceLimitRanges) -> Pod:
    """Return a pod after the first pass; the pod itself if no LimitRange sets anything.

    Written amounts keep their notation.
    """
    defaulted = _find_defaults(pod, ranges)
    if defaulted is None:
        return pod
    spec, annotations = pod.spec, {**pod.metadata.annotations, LIMIT_RANGER_ANNOTATION: defaulted.annotation}
    resources = spec.resources
    if resources and defaulted.pod_level:
        resources = _merge_requirements(resources, defaulted.pod_level)
    spec = replace(
        spec,
        containers=_merge_each_container(spec.containers, defaulted.containers),
        init_containers=_merge_each_container(spec.init_containers, defaulted.init_containers),
        resources=resources,
    )
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec)


def default_pod_data(pod: Json, ranges: NamespaceLimitRanges) -> Json:
    """Return a pod after the first pass, as plain data with the API server's `managedFields` of its amounts.

    An unreadable pod is returned as it is; its evaluation reports why.
    """
    try:
        defaulted = _find_defaults(parse_pod(pod), ranges)
    except ReviewError:
        return pod
    if defaulted is None:
        return pod
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod["spec"])
    for kind, each in zip(_CONTAINER_LISTS, (defaulted.containers, defaulted.init_containers), strict=True):
        if each:
            spec[kind] = [_merge_into_data(*pair) for pair in zip(without_nulls(spec[kind]), each, strict=True)]
    if defaulted.pod_level is not None:
        spec = _merge_into_data(spec, defaulted.pod_level)
    metadata["annotations"] = (metadata.get("annotations") or {}) | {LIMIT_RANGER_ANNOTATION: defaulted.annotation}
    metadata.setdefault("managedFields", [_managed_fields(defaulted.written)])
    return {**pod, "metadata": metadata, "spec": spec}


def _member(data: Any, key: str) -> Json:
    """Return the map at a key; an empty one if there is none."""
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _default_container_requests(container: Any) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return container
    resources: Json = container["resources"]
    limits, requests = resources.get("limits"), resources.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _default_host_ports(container: Any) -> Any:
    ports = container.get("ports") if isinstance(container, dict) else None
    if not isinstance(ports, list):
        return container
    defaulted = [
        {**port, "hostPort": port.get("hostPort") or port["containerPort"]}
        if isinstance(port, dict) and port.get("containerPort")
        else port
        for port in ports
    ]
    return {**container, "ports": defaulted}


def _default_requests(holder: LimitsAndRequests) -> LimitsAndRequests:
    if holder.limits.keys() <= holder.requests.keys():
        return holder
    return holder._replace(requests=holder.limits | holder.requests)


def _default_pod_level(amounts: PodAmounts, whole: LimitsAndRequests) -> LimitsAndRequests:
    """Set huge page limits to those of the containers, requests to those of the containers, then to the limits."""
    if not whole.limits and not whole.requests:
        return whole
    limits, requests = dict(whole.limits), dict(whole.requests)
    _sum_huge_page_limits(limits, requests, amounts)
    if not limits:
        return whole
    _sum_requests(requests, amounts)
    for name, amount in limits.items():
        if is_pod_level_resource(name):
            requests.setdefault(name, amount)
    return whole._replace(limits=limits, requests=requests)


def _complete_pod_level(amounts: PodAmounts, whole: LimitsAndRequests) -> LimitsAndRequests:
    """Complete pod-level resources from all containers, as since Kubernetes 1.37: also without a limit, and limits too.

    A limit is added where every container has one.
    """
    if not whole.limits and not whole.requests:
        return whole
    limits, requests = dict(whole.limits), dict(whole.requests)
    _sum_huge_page_limits(limits, requests, amounts)
    _sum_requests(requests, amounts)
    requests = {name: amount for name, amount in limits.items() if is_pod_level_resource(name)} | requests
    for name, request in requests.items():
        limited = all(name in container.limits for container in amounts.all_containers)
        if is_pod_level_resource(name) and name not in limits and limited:
            _set_container_sum(limits, name, amounts, LIMITS)
            if name in limits and compare_quantities(request, limits[name]) > 0:
                limits[name] = request
    return whole._replace(limits=limits, requests=requests)


def _round_amounts(holder: LimitsAndRequests) -> LimitsAndRequests:
    limits, requests = (
        {name: round_to_milli(amount) for name, amount in side.items()} for side in (holder.limits, holder.requests)
    )
    return holder._replace(limits=limits, requests=requests)


def _sum_huge_page_limits(limits: ResourceList, requests: ResourceList, amounts: PodAmounts) -> None:
    """Set the pod-level limits of huge pages that are not set to those of the containers."""
    for name in named_resources(amounts, LIMITS):
        if is_huge_pages(name) and name not in requests and name not in limits:
            _set_container_sum(limits, name, amounts, LIMITS)


def _sum_requests(requests: ResourceList, amounts: PodAmounts) -> None:
    """Set the pod-level requests that are not set, except huge pages, to those of the containers."""
    for name in named_resources(amounts, REQUESTS):
        if is_pod_level_resource(name) and not is_huge_pages(name) and name not in requests:
            _set_container_sum(requests, name, amounts, REQUESTS)


def _set_container_sum(target: ResourceList, name: str, amounts: PodAmounts, side: str) -> None:
    amount = sum_containers(amounts, name, side)
    if amount is not None:
        target[name] = amount


def _fill_from_limit_range(holder: LimitsAndRequests, limit_range: ParsedLimitRange) -> LimitsAndRequests:
    limits, requests = holder.limits, holder.requests
    if limit_range.default_limits.keys() <= limits.keys() and limit_range.default_requests.keys() <= requests.keys():
        return holder
    return holder._replace(limits=limit_range.default_limits | limits, requests=limit_range.default_requests | requests)


def _annotation_parts(
    holders: tuple[LimitsAndRequests, ...], limit_range: ParsedLimitRange, kind: str
) -> Iterable[str]:
    for holder in holders:
        for side, defaults in ((REQUESTS, limit_range.default_requests), (LIMITS, limit_range.default_limits)):
            names = sorted(defaults.keys() - holder.amounts(side).keys())
            if names:
                yield f"{', '.join(names)} {side.removesuffix('s')} for {kind} {holder.name}"


def _merge_each_container(
    containers: Iterable[Container], defaults: Iterable[ResourceRequirements]
) -> tuple[Container, ...]:
    pairs = zip(containers, defaults, strict=True)
    return tuple([replace(one, resources=_merge_requirements(one.resources, default)) for one, default in pairs])


def _merge_requirements(written: ResourceRequirements, defaults: ResourceRequirements) -> ResourceRequirements:
    limits, requests = {**defaults.limits, **written.limits}, {**defaults.requests, **written.requests}
    return replace(written, limits=limits, requests=requests)


def _merge_into_data(holder: Json, defaults: ResourceRequirements) -> Json:
    written = without_nulls(holder.get("resources")) or {}
    sides = {LIMITS: defaults.limits, REQUESTS: defaults.requests}
    amounts = {side: {**some, **written.get(side, {})} for side, some in sides.items() if some}
    return {**holder, "resources": {**written, **amounts}}


def _find_defaults(pod: Pod, ranges: NamespaceLimitRanges) -> DefaultedPod | None:
    spec, amounts = pod.spec, container_amounts(pod.spec)
    names = tuple([container.name for container in (*spec.containers, *spec.init_containers)])
    whole = (tuple(spec.resources.limits.items()), tuple(spec.resources.requests.items())) if spec.resources else None
    return _compute_defaults(ranges, names, amounts, whole)


@request_cache(MAX_CACHED_PODS)
def _compute_defaults(
    ranges: NamespaceLimitRanges,
    names: tuple[str, ...],
    containers: ContainerAmounts,
    whole: tuple[AmountItems, AmountItems] | None,
) -> DefaultedPod | None:
    """Return the outcome of the first pass; None if no LimitRange sets anything, or an amount is not a quantity."""
    try:
        amounts = parse_container_amounts(containers, names, whole)
    except QuantityError:
        return None
    amounts = apply_request_defaults(amounts, ranges)
    annotation = limit_ranger_annotation(amounts, ranges)
    if annotation is None:
        return None
    after = apply_limit_range_defaults(amounts, ranges)
    return DefaultedPod(
        tuple(map(_format_requirements, after.containers)),
        tuple(map(_format_requirements, after.init_containers)),
        None if after.pod_level is None else _format_requirements(after.pod_level),
        annotation,
        frozenset(
            (side, name, one.name) for one in amounts.all_containers for side in _SIDES for name in one.amounts(side)
        ),
    )


def _managed_fields(written: frozenset[DefaultRecord]) -> Json:
    """Return the entry of `managedFields` for amounts."""
    containers: Json = {}
    for side, name, container in sorted(written):
        resources = containers.setdefault(f'{_NAME_KEY}{container}"}}', {"f:resources": {}})["f:resources"]
        resources.setdefault(f"f:{side}", {})[f"f:{name}"] = {}
    return {"fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:containers": containers}}}


def _format_requirements(amounts: LimitsAndRequests) -> ResourceRequirements:
    return ResourceRequirements(_format_amounts(amounts.limits), _format_amounts(amounts.requests))


def _format_amounts(amounts: ResourceList) -> dict[str, QuantityText]:
    return {name: canonical_text(amount) for name, amount in amounts.items()}
