"""GPUs that a LimitRange's defaults give to containers that request none: found, removed and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from webhook.engine.gpu_requests import PodGpuRequests, container_at, init_then_main_containers, sum_gpu_requests
from webhook.engine.limitrange.default_sources import FirstPass
from webhook.engine.limitrange.findings import first_rejection
from webhook.engine.limitrange.validation import predict_admission
from webhook.engine.pod_context import InjectedAmount, InjectedGpus
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import QuantityError
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.model.pod_amounts import LIMITS, REQUESTS
from webhook.model.pod_resources import limit_or_request
from webhook.model.pods import Pod, QuantityText


def find_injected_gpus(
    pod: Pod, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]
) -> tuple[InjectedAmount, ...]:
    """Return every GPU amount above zero that LimitRanger set in a pod, or will set.

    Args:
        load_object: Returns the pod as plain data.
    """
    found: dict[tuple[FieldPath, str], InjectedAmount] = {}
    first_pass = FirstPass(pod, ranges, load_object)
    for name, limit_range in ranges.gpu_defaults:
        for path, container in init_then_main_containers(pod.spec):
            sides = [side for side in (LIMITS, REQUESTS) if name in container.resources.amounts(side)]
            sources = [first_pass.find_source(container, side, name) for side in sides]
            if not sides or (all(sources) and limit_or_request(container.resources, name)):
                source = sources[0] if sources else limit_range.name
                found.setdefault((path, name), InjectedAmount(path, container.name, name, source, bool(sides)))
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
    names = gpu_requests.unknown_resources, gpu_requests.other_resources, gpu_requests.extended_names
    return sum_gpu_requests(own, gpu_requests.errors, *names)


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
