"""A larger cluster for measurements: copies of the demo's nodes, each with the pods that run on it.

Run as a module, it prints what selecting nodes and asking for room cost.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.documents.reader import read_documents
from webhook.errors import SourceLocation
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Toleration
from webhook.model.quantity import format_nano, parse_nano

Json = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"

ROOM = 70
"""Times that nodes of `roomy` have what those of the demo have. One has 56 units; with more than 4,096 it counts
as having none."""


def demo_objects() -> list[Json]:
    """Return the objects of the shipped snapshot as plain data."""
    files = sorted((bundled_folder("examples") / "cluster").glob("*.yaml"))
    return [document.data for file in files for document in read_documents(file.read_bytes(), str(file), aliases=True)]


def grow(objects: Sequence[Json], nodes: int = 100) -> list[Json]:
    """Return the objects with nodes cloned in turn under new names, their pods with them, and quotas in proportion.

    Args:
        objects: Objects of a snapshot, as plain data.
        nodes: How many nodes there shall be; those that are there already count.
    """
    first = [item for item in objects if item["kind"] == "Node"]
    times = max(-(-nodes // len(first)), 1)
    grown = [_enlarged_quota(item, times) if item["kind"] == "ResourceQuota" else item for item in objects]
    turn = 0
    for place, node in enumerate(cycle(first)):
        if len(first) + place >= nodes:
            break
        turn = place // len(first) + 2
        old = node["metadata"]["name"]
        grown.append(_renamed_node(node, f"{old}-{turn}"))
        pods = (item for item in objects if item["kind"] == "Pod" and item["spec"].get("nodeName") == old)
        grown += [_moved_pod(pod, f"{old}-{turn}", turn) for pod in pods]
    return grown


def grown_view(nodes: int = 100) -> ClusterView:
    """Return the demo cluster with this many nodes."""
    return view_of_objects((item, SourceLocation("grown")) for item in grow(demo_objects(), nodes))


def roomy(objects: Sequence[Json], times: int = ROOM) -> list[Json]:
    """Return the objects with a multiple of what each node has: capacity for thousands of pods."""
    return [_enlarged(item, times) if item["kind"] == "Node" else item for item in objects]


def _enlarged(node: Json, times: int) -> Json:
    clone = copy.deepcopy(node)
    status, labels = clone["status"], clone["metadata"]["labels"]
    counts = [name for name in labels if name.startswith("nvidia.com/") and name.endswith(".count")]
    labels |= {name: str(int(labels[name]) * times) for name in counts}
    for amounts in (status["allocatable"], status.get("capacity", {})):
        units = [name for name in amounts if name.startswith("nvidia.com/") or name == "pods"]
        amounts |= {name: str(int(amounts[name]) * times) for name in units}
        amounts |= {
            name: format_nano(parse_nano(amounts[name]) * times) for name in ("cpu", "memory") if name in amounts
        }
    return clone


def _enlarged_quota(quota: Json, times: int) -> Json:
    if times == 1:
        return quota
    clone = copy.deepcopy(quota)
    for amounts in (clone["spec"]["hard"], *(clone.get("status", {}).get(part, {}) for part in ("hard", "used"))):
        amounts |= {name: format_nano(parse_nano(amount) * times) for name, amount in amounts.items()}
    return clone


def _renamed_node(node: Json, name: str) -> Json:
    clone = copy.deepcopy(node)
    clone["metadata"]["name"] = clone["metadata"]["labels"][HOSTNAME] = name
    return clone


def _moved_pod(pod: Json, node: str, turn: int) -> Json:
    clone = copy.deepcopy(pod)
    clone["metadata"]["name"] += f"-{turn}"
    clone["spec"]["nodeName"] = node
    return clone


def microseconds(work: Callable[[], object], rounds: int = 20_000) -> float:
    """Return the time of one call, the best of five runs."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        best = min(best, time.perf_counter() - start)
    return best / rounds * 1e6


def main() -> None:
    """Print the costs on a fleet of 100 nodes."""
    view = grown_view()
    fleet = view.fleet
    selector = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    products = NodeSelectorRequirement(
        "nvidia.com/gpu.product", "In", ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3")
    )
    memory = NodeSelectorRequirement("nvidia.com/gpu.memory", "Gt", ("40000",))
    terms = (NodeSelectorTerm((products,)),)
    tolerations = (Toleration("nvidia.com/gpu", "Exists"), Toleration("node.kubernetes.io/not-ready", "Exists"))
    slice_of = next(offer for offer in fleet.offers if offer.resource == "nvidia.com/mig-1g.10gb")
    busy = view
    for number in range(200):
        busy = busy.with_assumed(AssumedPod(str(number), slice_of.resource, slice_of.nodes, 1, 60.0), 0.0)

    def room(of: ClusterView) -> bool:
        return of.has_free_node(slice_of.resource, 1, slice_of.nodes, cpu_milli=4000, memory=16 << 30)

    measures: dict[str, Callable[[], object]] = {
        "select, no constraint": lambda: fleet.select_nodes({}, None),
        "select, one label": lambda: fleet.select_nodes(selector, None),
        "select, In two products": lambda: fleet.select_nodes({}, terms),
        "select, Gt": lambda: fleet.select_nodes({}, (NodeSelectorTerm((memory,)),)),
        "tolerated": lambda: fleet.tolerated_nodes(tolerations),
        "has_room": lambda: room(view),
        "has_room, 200 pods assumed": lambda: room(busy),
        "free": lambda: view.free_units(slice_of, fleet.all_nodes),
        "most": lambda: fleet.max_units("nvidia.com/gpu", fleet.all_nodes),
    }
    for name, work in measures.items():
        print(f"{name:32} {microseconds(work):7.2f} µs")

    ledger = [busy]

    def assume() -> None:
        number = len(ledger)
        ledger.append(
            ledger[-1].with_assumed(AssumedPod(f"n{number}", slice_of.resource, slice_of.nodes, 1, 60.0), 0.0)
        )

    print(f"{'assume':32} {microseconds(assume, 2000):7.2f} µs")


if __name__ == "__main__":
    main()
