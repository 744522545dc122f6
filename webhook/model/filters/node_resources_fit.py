"""NodeResourcesFit: requests for other resources than CPU, memory and GPUs, and the pod limit of nodes.

A request of zero always fits. A resource that a node does not advertise fits no other request. The scheduler's
configuration may ignore resources (`ignoredResources`); it is not known, so none is ignored.

Source: the NodeResourcesFit plugin of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.pod_resources import effective_requests, is_other_resource
from webhook.model.pods import Pod
from webhook.model.quantity import NANO, format_nano

PODS_RESOURCE = "pods"

Amounts = Mapping[str, int]
"""Nano-units by resource."""


def other_requests(pod: Pod) -> dict[str, int]:
    """Return requests for other resources than CPU, memory and GPUs."""
    return {
        name: amount
        for name, amount in effective_requests(pod).items()
        if name == ACCOUNTING_RESOURCE or is_other_resource(name)
    }


def requests_of_plugins(requested: Amounts, offered: Amounts, served: Collection[str]) -> Amounts:
    """Return requests without those that device classes serve on a node: of the names that it offers none of."""
    return {name: amount for name, amount in requested.items() if name not in served or offered.get(name, 0) > 0}


def find_shortages(requested: Amounts, free: Amounts) -> Iterator[tuple[str, str]]:
    """Yield each resource that a node lacks, with the free and the requested amount."""
    for name, amount in requested.items():
        if amount > max(0, free.get(name, 0)):
            detail = f"offers no {name}"
            if name in free:
                detail = f"{format_nano(max(0, free[name]))} {name} free, {format_nano(amount)} requested"
            yield name, detail


def count_fitting_pods(requested: Amounts, free: Amounts, most: int) -> int:
    """Return how many such pods fit, at most `most`. The node's pod limit counts, if known."""
    each = {**requested, PODS_RESOURCE: NANO} if PODS_RESOURCE in free else requested
    return min([most, *(max(0, free.get(name, 0)) // amount for name, amount in each.items() if amount > 0)])
