"""Requests that go past the GPU accounting, or contradict themselves: classes, nodes, claims, mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from webhook.engine.guarding.bypasses import Found, found
from webhook.engine.limitrange import Given
from webhook.errors import quoted
from webhook.model.paths import Path
from webhook.model.pods import Container, PodSpec, Resources
from webhook.model.quantity import whole
from webhook.model.resources import DEVICE_CLASS_PREFIX, GpuResource, gpu_resource

GPU_CLASS_START = "nvidia"
"""nvidia, nvidia-cdi, nvidia-legacy, nvidia-experimental: the classes that the GPU operator makes."""

_STARTS = ("nvidia.com/", DEVICE_CLASS_PREFIX)


def runtime_class(spec: PodSpec, allowed: frozenset[str]) -> list[Found]:
    """A GPU runtime class; for pods without a GPU request."""
    name = spec.runtime_class_name
    if not name.startswith(GPU_CLASS_START) or name in allowed:
        return []
    message = f"a pod without a GPU request must not name a GPU runtime class, found {quoted(name)}"
    return [found("runtimeClass", ("spec", "runtimeClassName"), message)]


def preset_node(spec: PodSpec) -> list[Found]:
    """A node chosen past the scheduler; for CREATE of a pod that names one."""
    message = f"nodeName must be left to the scheduler in a pod that touches GPUs, found {quoted(spec.node_name)}"
    return [found("nodeName", ("spec", "nodeName"), message)]


def odd_requests(
    spec: PodSpec, containers: Sequence[tuple[Path, Container]], given: Sequence[Given] = ()
) -> list[Found]:
    """Resource claims, extended resources that stand for one, and several kinds of GPU in one container.

    Args:
        given: GPUs that LimitRanges put in.
    """
    results: list[Found] = []
    if spec.resource_claims:
        count = len(spec.resource_claims)
        listed = "a resource claim" if count == 1 else f"{count} resource claims"
        message = f"devices must be asked for as nvidia.com resources, found {listed}"
        results.append(found("resourceClaims", ("spec", "resourceClaims"), message))
    for path, container in containers:
        resources = container.resources
        if _is_odd((*resources.limits, *resources.requests)):
            results += _device_classes((*path, "resources"), resources)
            results += _mixed((*path, "resources"), resources, [one for one in given if one.path == path])
    return results


@lru_cache(maxsize=1024)
def _is_odd(keys: tuple[str, ...]) -> bool:
    """Do the keys of limits and requests name a device class, or several devices?"""
    named = {name for name in keys if name.startswith(_STARTS)}
    return len(named) > 1 or any(name.startswith(DEVICE_CLASS_PREFIX) for name in named)


def _device_classes(path: Path, resources: Resources) -> list[Found]:
    sides = (("requests", resources.requests), ("limits", resources.limits))
    named = {
        name: (*path, side, name) for side, amounts in sides for name in amounts if name.startswith(DEVICE_CLASS_PREFIX)
    }
    return [
        found(
            "resourceClaims",
            place,
            f"devices must be asked for as nvidia.com resources, found the device class {quoted(name)}",
        )
        for name, place in named.items()
    ]


def _mixed(path: Path, resources: Resources, given: Sequence[Given]) -> list[Found]:
    amounts = resources.requests | resources.limits
    asked = {name: gpu for name in amounts if (gpu := gpu_resource(name)) is not None and whole(amounts[name]) != 0}
    if len({_kind(gpu) for gpu in asked.values()}) < 2:
        return []
    listed = quoted(" and ".join(sorted(asked)), 120)
    message = f"a container must ask for one kind of GPU, found {listed}"
    put_in = [one for one in given if one.resource in asked]
    if not put_in:
        return [found("mixedGPURequests", path, message)]
    who = ", ".join(f"{one.resource} is put in by LimitRange {one.range}" for one in put_in)
    zeros = " and ".join(f'{one.resource}: "0"' for one in put_in)
    return [found("mixedGPURequests", path, f"{message}; {who}", f"Write {zeros} in its requests and limits.")]


def _kind(gpu: GpuResource) -> str:
    if gpu.shared:
        return "share"
    return "slice" if gpu.mig else "whole"
