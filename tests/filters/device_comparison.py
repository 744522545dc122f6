"""Our allocation of devices to pods on each node, and how it differs from the scheduler's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.builders import Json
from tests.example_cluster import view_of
from tests.filters.random_clusters import RandomCluster
from tests.filters.scheduler import SchedulerAnswer
from webhook.model.dra.allocator import AllocationOutcome, ChosenDevice, NodeAllocation
from webhook.model.dra.pod_devices import CANNOT_FIT, allocate_for_pod, resolve_claims
from webhook.model.dra.selector_cache import select_device
from webhook.model.pods import parse_pod
from webhook.model.quantity import parse_nano

COMPARED_PLUGINS = ("DynamicResources", "NodeResourcesFit")
TIMEOUT_MESSAGE = "timed out trying to allocate devices"
TIMED_OUT = ("timed out", "")


class DeviceDifference(NamedTuple):
    """A pod and a node about which we differ."""

    pod: str
    node: str
    scheduler: object
    ours: object


def our_allocations(cluster: RandomCluster) -> dict[str, dict[str, NodeAllocation]]:
    """Return what each pod would get on each node."""
    view = view_of(*cluster.objects)
    namespace = view.namespace_claims(cluster.pods[0]["metadata"]["namespace"])
    found: dict[str, dict[str, NodeAllocation]] = {}
    for pod in map(parse_pod, cluster.pods):
        needed = resolve_claims(pod, namespace, view.devices, view.fleet)
        found[pod.metadata.name] = {
            node.name: allocate_for_pod(pod, needed, i, view.devices, view.fleet, select_device)
            for i, node in enumerate(view.fleet.nodes)
        }
    return found


def find_device_differences(
    allocations: Mapping[str, Mapping[str, NodeAllocation]], answer: SchedulerAnswer
) -> Iterator[DeviceDifference]:
    """Yield where the scheduler and we allocate other devices, or reject a node or give up for another reason."""
    for pod, nodes in allocations.items():
        for node, ours in nodes.items():
            mine, scheduler = _our_result(ours), _their_result(answer.allocations[pod][node])
            if "NodeResourcesFit" in answer.rejections[pod].get(node, ()) and ours.reason == CANNOT_FIT:
                continue  # either plugin may report a resource that a node lacks
            if mine != scheduler and ours.outcome is not AllocationOutcome.UNKNOWN and scheduler != TIMED_OUT:
                yield DeviceDifference(pod, node, scheduler, mine)


def _our_result(ours: NodeAllocation) -> object:
    if ours.outcome is AllocationOutcome.ALLOCATED:
        return [[_our_device(each) for each in claim] for claim in ours.claims]
    return ours.outcome.value, ours.reason if ours.outcome is AllocationOutcome.REJECTED else ""


def _our_device(chosen: ChosenDevice) -> Json:
    consumed = {"consumed": dict(chosen.consumed)} if chosen.consumed else {}
    admin = {"admin": True} if chosen.admin_access else {}
    return {"request": chosen.request, "device": list(chosen.device), **consumed, **admin}


def _their_result(theirs: Json) -> object:
    if theirs.get("error"):
        return TIMED_OUT if TIMEOUT_MESSAGE in theirs["error"] else ("failed", "")
    if theirs.get("rejected"):
        return "rejected", theirs["rejected"]
    return [[_their_device(each) for each in claim] for claim in theirs["claims"] or []]


def _their_device(result: dict[str, Any]) -> Json:
    amounts = {name: parse_nano(amount) for name, amount in result.get("consumedCapacity", {}).items()}
    consumed = {"consumed": amounts} if amounts else {}
    admin = {"admin": True} if result.get("adminAccess") else {}
    device = [result["driver"], result["pool"], result["device"]]
    return {"request": result["request"], "device": device, **consumed, **admin}
