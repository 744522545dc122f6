"""GPUs that a LimitRange's defaults give to containers that request none: found, removed and reported."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.gpu_requests import PodGpuRequests, container_at, init_then_main_containers, sum_gpu_requests
from webhook.engine.limitrange.findings import first_rejection
from webhook.engine.limitrange.validation import predict_admission
from webhook.engine.pod_context import InjectedAmount, InjectedGpus
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import QuantityError
from webhook.model.apimachinery import compare_quantities
from webhook.model.defaulting import LIMIT_RANGER_ANNOTATION, DefaultRecord, read_limit_ranger_annotation
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_api_quantity
from webhook.model.pod_amounts import LIMITS, REQUESTS
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements
from webhook.model.quantity import parse_nano_or_none


def find_injected_gpus(pod: Pod, ranges: NamespaceLimitRanges) -> tuple[InjectedAmount, ...]:
    """Return every GPU amount above zero that LimitRanger set in a pod, or will set."""
    found: dict[tuple[FieldPath, str], InjectedAmount] = {}
    annotation = pod.metadata.annotations.get(LIMIT_RANGER_ANNOTATION, "") if ranges.gpu_defaults else ""
    recorded = read_limit_ranger_annotation(annotation)
    for name, limit_range in ranges.gpu_defaults:
        for path, container in init_then_main_containers(pod.spec):
            injected = _find_injected_amount(path, container, name, limit_range, recorded)
            if injected is not None:
                found.setdefault((path, name), injected)
    return tuple(found.values())


def remove_injected_gpus(pod: Pod, injected: tuple[InjectedAmount, ...], ranges: NamespaceLimitRanges) -> InjectedGpus:
    """Set injected GPUs to "0", in limits and requests, because LimitRanger would set a missing one again.

    If a LimitRange would reject the zeros, nothing changes.
    """
    limits: dict[FieldPath, dict[str, QuantityText]] = {}
    requests: dict[FieldPath, dict[str, QuantityText]] = {}
    for one in injected:
        resources = container_at(pod, one.path).resources
        limits.setdefault(one.path, dict(resources.limits))[one.resource] = "0"
        requests.setdefault(one.path, dict(resources.requests or resources.limits))[one.resource] = "0"
    try:
        changed = predict_admission(pod, ranges, limits, requests)
        if not changed.is_accepted and predict_admission(pod, ranges).is_accepted:
            return InjectedGpus(injected, kept_reason=first_rejection(changed))
    except QuantityError as error:
        return InjectedGpus(injected, kept_reason=str(error))
    return InjectedGpus(injected, removed=True, limits=limits, requests=requests)


def without_injected_gpus(gpu_requests: PodGpuRequests, injected: InjectedGpus) -> PodGpuRequests:
    """Return the GPU requests of the user, without those that LimitRanges inject."""
    own = tuple([one for one in gpu_requests.requests if not injected.contains(one.path, one.resource.name)])
    if len(own) == len(gpu_requests.requests):
        return gpu_requests
    return sum_gpu_requests(own, gpu_requests.unknown_resources, gpu_requests.errors, gpu_requests.other_resources)


def injected_gpu_violations(injected: InjectedGpus) -> Iterator[PolicyFinding]:
    """Report injected GPUs, and whether they were removed."""
    outcome = "; it is removed" if injected.removed else ""
    if injected.kept_reason:
        outcome = f"; it cannot be removed: {injected.kept_reason}"
    for one in injected.amounts:
        field = (*one.path, "resources", "limits", one.resource)
        message = (
            f"LimitRange {one.limit_range!r} adds {one.resource} to container {one.container}, "
            "which does not request it"
        )
        fix = "" if outcome else f'Write {one.resource}: "0" in its limits.'
        yield PolicyFinding("GPU-L202", field, message + outcome, fix, at_most=PolicyMode.WARN)


def _find_injected_amount(
    path: FieldPath,
    container: Container,
    name: str,
    limit_range: ParsedLimitRange,
    recorded: frozenset[DefaultRecord],
) -> InjectedAmount | None:
    resources = container.resources
    if name not in resources.limits and name not in resources.requests:
        return InjectedAmount(path, container.name, name, limit_range.name, present=False)
    is_recorded = any((side, name, container.name) in recorded for side in (LIMITS, REQUESTS))
    if is_recorded and _equals_limit_range_default(limit_range, resources, name):
        return InjectedAmount(path, container.name, name, limit_range.name, present=True)
    return None


def _equals_limit_range_default(limit_range: ParsedLimitRange, resources: ResourceRequirements, name: str) -> bool:
    """Return whether it is exactly the LimitRange's amount; the annotation alone could be forged."""
    amount = resources.limits.get(name, resources.requests.get(name, "0"))
    if not parse_nano_or_none(amount):
        return False
    sides = (limit_range.default_limits, limit_range.default_requests)
    return any(name in side and compare_quantities(side[name], parse_api_quantity(amount)) == 0 for side in sides)
