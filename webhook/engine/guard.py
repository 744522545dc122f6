"""Step 2 of a decision: find what bypasses GPU accounting and isolation.

Every bypass has a name, which a policy lists under `security.deny`. Containers of every kind are checked. On UPDATE
only new bypasses count, so that a running pod can still get labels, lose finalizers and end.

Sources: the device request paths of nvidia-container-toolkit, its CVEs, and known bypasses of other admission webhooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from webhook.engine.claimed_gpus import NO_CLAIMED_GPUS, ClaimedGpus
from webhook.engine.gpu_requests import PodGpuRequests, containers_of_every_kind, requests_gpu_share
from webhook.engine.guarding.annotations import (
    RECORD_ANNOTATIONS,
    find_changed_records,
    find_device_annotations,
    find_forged_records,
    is_kubelet_request,
)
from webhook.engine.guarding.bypasses import GPU_POD_BYPASSES, DetectedBypass, describe_bypass
from webhook.engine.guarding.environment import (
    EnvVarAtPath,
    find_driver_features,
    find_gpu_variables,
    find_legacy_images,
    find_unreadable_sources,
    find_variable_bypasses,
    has_gpu_env_prefix,
    implies_gpu_use,
)
from webhook.engine.guarding.host_access import (
    find_host_access,
    find_host_paths,
    find_shared_processes,
)
from webhook.engine.pod_context import InjectedAmount, PodContext
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.errors import quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.bounded_cache import request_cache
from webhook.model.claims import NO_CLAIMS, ClaimContext, DeviceClasses, gpu_classes_of_claim, may_hold_gpus
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, GpuResource, parse_gpu_resource
from webhook.model.pods import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from webhook.model.quantity import parse_whole_number

GPU_RUNTIME_CLASS_PREFIX = "nvidia"
"""nvidia, nvidia-cdi, nvidia-legacy, nvidia-experimental: the classes that the GPU operator creates."""

_DEVICE_PREFIXES = ("nvidia.com/", DEVICE_CLASS_PREFIX)


_SIGNS = frozenset(
    {
        "visibleDevicesEnv",
        "extraDevicesEnv",
        "cdiAnnotations",
        "deviceAnnotations",
        "fractionAnnotations",
        "containerDevicesMount",
        "resourceClaims",
    }
)
"""Bypasses that show that a pod without a request uses GPUs."""

_NOTHING: frozenset[str] = frozenset()


def guard_pod(context: PodContext) -> list[SectionFinding]:
    """Return every bypass in a pod that a policy denies."""
    violations: list[SectionFinding] = []
    pod, gpu_requests = context.pod, context.submitted_requests
    for policy_ref, section in context.policies.security:
        shares_processes = bool(gpu_requests.requests) and pod.spec.share_process_namespace
        bypasses = find_bypasses(
            context.request,
            pod,
            gpu_requests,
            shares_processes_on_shared_gpu=shares_processes
            and requests_gpu_share(gpu_requests.totals, context.view.fleet),
            claiming=context.namespace.claims,
            claimed=context.claimed,
            injected=context.limit_range_gpus.amounts,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypasses:
            violations += [(policy_ref, violation) for bypass, violation in bypasses if bypass in section.deny]
    return violations


def find_bypasses(
    request: AdmissionRequest,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    *,
    shares_processes_on_shared_gpu: bool,
    claiming: ClaimContext = NO_CLAIMS,
    claimed: ClaimedGpus = NO_CLAIMED_GPUS,
    injected: Sequence[InjectedAmount] = (),
    allowed_capabilities: frozenset[str] = _NOTHING,
    allowed_runtime_classes: frozenset[str] = _NOTHING,
) -> list[tuple[str, PolicyFinding]]:
    """Find every bypass in a pod.

    Args:
        request: The requester, the operation, and the old pod.
        pod: The pod, or a workload's template read as one.
        gpu_requests: Its GPU requests. Unknown NVIDIA resource names show that it is meant for GPUs; only a GPU request
            permits a GPU runtime class.
        shares_processes_on_shared_gpu: True if its containers share processes and it requests a time-sliced or
            MPS share.
        claiming: Claim templates and device classes: claims for other devices than GPUs are not reported.
        claimed: Its GPUs by claims and device classes, which count as GPU requests too if they are surely GPUs.
        injected: GPUs that LimitRanges inject into it.
        allowed_capabilities: Driver capabilities allowed besides compute and utility; "all" allows any.
        allowed_runtime_classes: GPU runtime classes allowed without a GPU request.

    Returns:
        Pairs of bypass name (see `guarding.bypasses`) and violation.
    """
    allowed = allowed_capabilities, allowed_runtime_classes
    rules = gpu_requests, shares_processes_on_shared_gpu, claiming, claimed, injected, *allowed
    old = request.old_pod if request.operation == "UPDATE" else None
    results = _scan_pod(request, pod, *rules)
    if old is not None:
        old_results = set(_scan_pod(request, old, *rules)) if results else set()
        results = [one for one in results if one not in old_results] + find_changed_records(old, pod)
    elif not pod.metadata.annotations.keys().isdisjoint(RECORD_ANNOTATIONS):
        results += find_forged_records(pod)
    if results and MIRROR_ANNOTATION in pod.metadata.annotations and is_kubelet_request(request):
        # A static pod already runs on its node.
        return [(name, msgspec.structs.replace(one, at_most=PolicyMode.AUDIT)) for name, one in results]
    return results


def _scan_pod(
    request: AdmissionRequest,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    shares_processes_on_shared_gpu: bool,
    claiming: ClaimContext,
    claimed: ClaimedGpus,
    injected: Sequence[InjectedAmount],
    capabilities: frozenset[str],
    classes: frozenset[str],
) -> list[DetectedBypass]:
    spec = pod.spec
    containers = containers_of_every_kind(spec)
    served = [path for path, one in containers if claimed.may_serve(one)] if claimed.classes else []
    variables = [one for path, each in containers if each.env for one in find_gpu_variables(path, each.env)]
    results = find_variable_bypasses(variables, capabilities) if variables else []
    if variables:
        surely = [path for path, one in containers if claimed.surely_serves(one)] if claimed.nvidia_resources else ()
        requesting = {*gpu_requests.containers, *surely}
        others = bool(gpu_requests.unknown_resources) or any(_describe_gpu_claims(spec.resource_claims, claiming))
        results += find_legacy_images(variables, requesting)
        results += find_driver_features(variables, requesting, others_may_use_gpus=others)
    several = [
        (path, one.resources)
        for path, one in containers
        if _may_be_unaccounted((*one.resources.limits, *one.resources.requests))
        or (claimed.classes and not claimed.classes.keys().isdisjoint(one.resources.limits))
    ]
    if spec.resource_claims or several:
        results += find_unaccounted_requests(spec.resource_claims, several, claiming, injected)
    results += find_host_paths(spec.volumes, containers)
    if pod.metadata.annotations:
        results += find_device_annotations(request, pod)
    if spec.runtime_class_name and not gpu_requests.requests and not claimed.surely_nvidia:
        results += find_gpu_runtime_class(spec, classes)
    if (
        not gpu_requests.requests
        and not gpu_requests.unknown_resources
        and not served
        and not _touches_gpus(spec, containers, variables, results)
    ):
        return [one for one in results if one[0] not in GPU_POD_BYPASSES]

    for path, container in containers:
        if container.env_from:
            results += find_unreadable_sources(path, container.env_from)
    requests = [one for name, one in results if name == "resourceClaims" and one.path[-1] in claimed.nvidia_resources]
    certain = len(requests) == len(results) and not gpu_requests.unknown_resources
    if certain and spec.init_containers and not spec.runtime_class_name.startswith(GPU_RUNTIME_CLASS_PREFIX):
        containers = _without_setup_containers(containers, {*gpu_requests.containers, *served}, variables)
    results += find_host_access(spec, containers)
    if spec.node_name and request.operation == "CREATE":
        results += find_preset_node(spec)
    return results + find_shared_processes(spec) if shares_processes_on_shared_gpu else results


def _touches_gpus(
    spec: PodSpec,
    containers: Sequence[tuple[FieldPath, Container]],
    variables: Sequence[EnvVarAtPath],
    results: Sequence[DetectedBypass],
) -> bool:
    if spec.runtime_class_name.startswith(GPU_RUNTIME_CLASS_PREFIX) or has_gpu_env_prefix(containers):
        return True
    if not results and not variables:
        return False
    return any(name in _SIGNS for name, _ in results) or any(implies_gpu_use(variable) for _, variable in variables)


def _without_setup_containers(
    containers: Sequence[tuple[FieldPath, Container]],
    requesting: Collection[FieldPath],
    variables: Sequence[EnvVarAtPath],
) -> list[tuple[FieldPath, Container]]:
    """Leave out init containers that neither request a GPU nor set a variable for one, and end before the others start.

    Each could be a pod of its own, whose privileges are not checked either.
    """
    using = {*requesting, *(path[:-2] for path, each in variables if implies_gpu_use(each))}
    return [
        (path, container)
        for path, container in containers
        if path[1] != "initContainers" or container.restart_policy == "Always" or path in using
    ]


def find_gpu_runtime_class(spec: PodSpec, allowed: frozenset[str]) -> list[DetectedBypass]:
    """Return the GPU runtime class of a pod without a GPU request."""
    name = spec.runtime_class_name
    if not name.startswith(GPU_RUNTIME_CLASS_PREFIX) or name in allowed:
        return []
    message = f"a pod without a GPU request must not name a GPU runtime class, found {quote_text(name)}"
    return [describe_bypass("runtimeClass", ("spec", "runtimeClassName"), message)]


def find_preset_node(spec: PodSpec) -> list[DetectedBypass]:
    """Return the node that a new pod sets itself, without the scheduler."""
    message = f"nodeName must not be set in a pod that uses GPUs, found {quote_text(spec.node_name)}"
    return [describe_bypass("nodeName", ("spec", "nodeName"), message)]


def find_unaccounted_requests(
    resource_claims: Sequence[PodResourceClaim],
    containers: Sequence[tuple[FieldPath, ResourceRequirements]],
    claiming: ClaimContext,
    injected: Sequence[InjectedAmount],
) -> list[DetectedBypass]:
    """Return claims for GPUs, device classes used as resources, and several kinds of GPU in one container.

    Args:
        containers: The resources of those containers that may have a request which is not counted, by path.
        injected: GPUs that LimitRanges inject.
    """
    results: list[DetectedBypass] = []
    if claims := list(_describe_gpu_claims(resource_claims, claiming)):
        listed = claims[0] if len(claims) == 1 else f"{len(claims)} resource claims, the first {claims[0]}"
        message = f"GPUs must be requested as nvidia.com resources, found {listed}"
        results.append(describe_bypass("resourceClaims", ("spec", "resourceClaims"), message))
    for path, resources in containers:
        results += _find_device_classes((*path, "resources"), resources, claiming.classes)
        results += _find_mixed_gpus((*path, "resources"), resources, [one for one in injected if one.path == path])
    return results


def _describe_gpu_claims(claims: Iterable[PodResourceClaim], claiming: ClaimContext) -> Iterator[str]:
    """Yield each claim that may get a GPU, and why.

    Claims by name are not resolved: until the pod is scheduled, another claim may take the name.
    """
    for claim in claims:
        template = claim.resource_claim_template_name
        known = claiming.templates.get(template)
        found = gpu_classes_of_claim(known, claiming.classes) if known is not None else None
        if found == []:
            continue
        name = f"the resource claim {quote_text(claim.name)}"
        if not template:
            yield f"{name}, which names no template"
        elif found is None:
            yield f"{name} of the template {quote_text(template)}, whose device classes are unknown"
        else:
            yield f"{name} of the device class {quote_text(found[0])}"


@request_cache(1024)
def _may_be_unaccounted(keys: tuple[str, ...]) -> bool:
    named = {name for name in keys if name.startswith(_DEVICE_PREFIXES)}
    return len(named) > 1 or any(name.startswith(DEVICE_CLASS_PREFIX) for name in named)


def _find_device_classes(
    path: FieldPath, resources: ResourceRequirements, classes: DeviceClasses
) -> list[DetectedBypass]:
    sides = (("requests", resources.requests), ("limits", resources.limits))
    named = {
        name: (*path, side, name)
        for side, amounts in sides
        for name, amount in amounts.items()
        if parse_whole_number(amount) != 0 and _may_be_gpu_of_class(name, classes)
    }
    return [
        describe_bypass(
            "resourceClaims",
            place,
            f"GPUs must be requested as nvidia.com resources, found {quote_text(name)}, a resource of a device class",
        )
        for name, place in named.items()
    ]


def _may_be_gpu_of_class(resource: str, classes: DeviceClasses) -> bool:
    """Return whether a device class may serve a resource with a GPU, and no device plugin of NVIDIA does."""
    if resource.startswith(DEVICE_CLASS_PREFIX):
        return may_hold_gpus(resource.removeprefix(DEVICE_CLASS_PREFIX), classes)
    if parse_gpu_resource(resource) is not None:
        return False
    serving = (name for name, spec in classes.items() if spec.extended_resource_name == resource)
    return any(may_hold_gpus(name, classes) for name in serving)


def _find_mixed_gpus(
    path: FieldPath, resources: ResourceRequirements, injected: Sequence[InjectedAmount]
) -> list[DetectedBypass]:
    amounts = resources.requests | resources.limits
    requested = {
        name: gpu
        for name in amounts
        if (gpu := parse_gpu_resource(name)) is not None and parse_whole_number(amounts[name]) != 0
    }
    if len({_gpu_kind(gpu) for gpu in requested.values()}) < 2:
        return []
    listed = quote_text(" and ".join(sorted(requested)), 120)
    message = f"a container must request one kind of GPU, found {listed}"
    involved = [one for one in injected if one.resource in requested]
    if not involved:
        return [describe_bypass("mixedGPURequests", path, message)]
    who = ", ".join(f"LimitRange {one.limit_range!r} adds {one.resource}" for one in involved)
    zeros = " and ".join(f'{one.resource}: "0"' for one in involved)
    return [
        describe_bypass("mixedGPURequests", path, f"{message}; {who}", f"Write {zeros} in its requests and limits.")
    ]


def _gpu_kind(gpu: GpuResource) -> str:
    if gpu.shared:
        return "share"
    return "slice" if gpu.mig else "whole"
