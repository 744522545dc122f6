"""Lint ResourceSlices: GPUs that are published twice, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.claims import DeviceClasses, DeviceSelector, required_driver
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.twice_published import DEVICE_PLUGIN, devices_published_twice
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions


class DeviceProblem(NamedTuple):
    """A problem with the devices of a cluster, and what to do."""

    summary: str
    advice: str


def find_device_problems(pools: DevicePools, classes: DeviceClasses, fleet: Fleet) -> Iterator[DeviceProblem]:
    """Yield the GPUs that are published twice, by who publishes them."""
    for (first, second), mask in devices_published_twice(pools, fleet).items():
        nodes = [fleet.nodes[index].name for index in bit_positions(mask)]
        if first == DEVICE_PLUGIN:
            yield _twice_by_plugin(second, nodes)
        else:
            yield _twice_by_drivers(first, second, nodes, classes)


def _twice_by_plugin(driver: str, nodes: Sequence[str]) -> DeviceProblem:
    summary = f"GPUs of {_count_nodes(nodes)} are published twice, by {DEVICE_PLUGIN} and by {driver}"
    advice = (
        f"a pod and a claim can get the same GPU: remove one of the two from {abbreviate_names(nodes)} "
        "(NVIDIA: label nvidia.com/gpu.deploy.device-plugin=false for the GPU operator's device plugin, or "
        "resources.gpus.enabled=false of the DRA driver's chart)"
    )
    return DeviceProblem(summary, advice)


def _twice_by_drivers(one: str, other: str, nodes: Sequence[str], classes: DeviceClasses) -> DeviceProblem:
    summary = f"devices of {_count_nodes(nodes)} are published twice, by {one} and by {other}"
    open_classes = sorted(name for name, spec in classes.items() if not any(map(_required, spec.selectors)))
    advice = f"two claims can get the same device: remove one of the drivers from {abbreviate_names(nodes)}"
    if open_classes:
        named = f"class{'es' if len(open_classes) > 1 else ''} {abbreviate_names(open_classes)}"
        advice = f"{advice}; {named} may take devices of both: write device.driver == '{one}' in a selector"
    return DeviceProblem(summary, advice)


def _count_nodes(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} nodes" if len(nodes) > 1 else "1 node"


def _required(selector: DeviceSelector) -> str:
    return required_driver(selector.cel.expression)
