"""Find requests that bypass GPU accounting or contradict themselves: runtime classes, nodes, claims, mixed GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from webhook.engine.guarding.bypasses import DetectedBypass, describe_bypass
from webhook.engine.limitrange.injected_gpus import InjectedAmount
from webhook.errors import quote_text
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, GpuResource, parse_gpu_resource
from webhook.model.pods import Container, PodSpec, ResourceRequirements
from webhook.model.quantity import parse_whole_number

GPU_RUNTIME_CLASS_PREFIX = "nvidia"
"""nvidia, nvidia-cdi, nvidia-legacy, nvidia-experimental: the classes that the GPU operator creates."""

_DEVICE_PREFIXES = ("nvidia.com/", DEVICE_CLASS_PREFIX)


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
    spec: PodSpec, containers: Sequence[tuple[FieldPath, Container]], injected: Sequence[InjectedAmount] = ()
) -> list[DetectedBypass]:
    """Return resource claims, device classes used as resources, and several kinds of GPU in one container.

    `injected` are GPUs that LimitRanges inject.
    """
    results: list[DetectedBypass] = []
    if spec.resource_claims:
        count = len(spec.resource_claims)
        listed = "a resource claim" if count == 1 else f"{count} resource claims"
        message = f"devices must be requested as nvidia.com resources, found {listed}"
        results.append(describe_bypass("resourceClaims", ("spec", "resourceClaims"), message))
    for path, container in containers:
        resources = container.resources
        if _may_be_unaccounted((*resources.limits, *resources.requests)):
            results += _find_device_classes((*path, "resources"), resources)
            results += _find_mixed_gpus((*path, "resources"), resources, [one for one in injected if one.path == path])
    return results


@lru_cache(maxsize=1024)
def _may_be_unaccounted(keys: tuple[str, ...]) -> bool:
    named = {name for name in keys if name.startswith(_DEVICE_PREFIXES)}
    return len(named) > 1 or any(name.startswith(DEVICE_CLASS_PREFIX) for name in named)


def _find_device_classes(path: FieldPath, resources: ResourceRequirements) -> list[DetectedBypass]:
    sides = (("requests", resources.requests), ("limits", resources.limits))
    named = {
        name: (*path, side, name) for side, amounts in sides for name in amounts if name.startswith(DEVICE_CLASS_PREFIX)
    }
    return [
        describe_bypass(
            "resourceClaims",
            place,
            f"devices must be requested as nvidia.com resources, found the device class {quote_text(name)}",
        )
        for name, place in named.items()
    ]


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
    who = ", ".join(f"LimitRange {one.limit_range} adds {one.resource}" for one in involved)
    zeros = " and ".join(f'{one.resource}: "0"' for one in involved)
    return [
        describe_bypass("mixedGPURequests", path, f"{message}; {who}", f"Write {zeros} in its requests and limits.")
    ]


def _gpu_kind(gpu: GpuResource) -> str:
    if gpu.shared:
        return "share"
    return "slice" if gpu.mig else "whole"
