"""Kubernetes clusters for tests of placement: nodes, what their agents report, and pods on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.builders import Json, PodMaker, make_node, make_pod
from webhook.cache.placement_input import PlacementInput, build_placement_input
from webhook.cache.snapshot import collect_snapshot
from webhook.cache.snapshot_objects import RawObject
from webhook.errors import SourceLocation
from webhook.model.pods import parse_pod
from webhook.placement.nodes.pod_requirements import PodRequirements, pod_requirements
from webhook.placement.nodes.preemption import PreemptionPlan, find_preemption
from webhook.placement.nodes.ranking import NodeRanking, RankedNode
from webhook.placement.nodes.snapshot import SchedulingSnapshot

GPU = "nvidia.com/gpu"
BRIDGED = {(0, 1): 12, (2, 3): 12}
"""Four cards, two bridges."""

DGX1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""Eight V100, links by pair."""


def gpu_node(name: str, gpus: int = 4, product: str = "NVIDIA-A100-80GB-PCIe", **labels: str) -> Json:
    """Return a node with whole GPUs."""
    more = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return make_node(name, {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(gpus)} | more, **{GPU: gpus})


def shared_node(name: str = "n", cards: int = 1, replicas: int = 4, resource: str = f"{GPU}.shared") -> Json:
    """Return a node with time-sliced cards."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED",
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.count": str(cards),
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    return make_node(name, labels, **{resource: cards * replicas})


def gpu_node_report(
    name: str,
    gpus: int,
    links: Mapping[tuple[int, int], int],
    pods: Mapping[int, str] | None = None,
    mig_instances: Mapping[int, Sequence[tuple[str, int, str]]] | None = None,
    **status: Any,
) -> Json:
    """Return a GPUNode: links by pair, the pod on each GPU, and MIG instances as (profile, start, pod)."""
    devices = [
        {
            "index": i,
            "numaNode": 2 * i // gpus,
            "pods": [pods[i]] if pods and i in pods else [],
            "mig": bool(mig_instances and i in mig_instances),
            "instances": [{"profile": p, "start": s, "pod": pod} for p, s, pod in (mig_instances or {}).get(i, ())],
            "links": [
                {"gpu": j, "nvlinks": _count_links(links, i, j), "pciePath": "SYS"} for j in range(gpus) if j != i
            ],
        }
        for i in range(gpus)
    ]
    return {
        "apiVersion": "rightslice.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": name},
        "status": {"gpus": devices, "nvlinkGeneration": 3, **status},
    }


def with_gpu_conditions(report: Json, *gpus: int, **fields: Any) -> Json:
    """Return the report with fields of some GPUs changed; without fields, the GPUs are unhealthy."""
    for gpu in gpus:
        report["status"]["gpus"][gpu] |= fields or {"healthy": False}
    return report


def _count_links(links: Mapping[tuple[int, int], int], one: int, other: int) -> int:
    return links.get((min(one, other), max(one, other)), 0)


def running_gpu_pod(name: str, node: str, resource: str = GPU, count: int = 1, cpu: str = "1") -> Json:
    """Return a running pod that holds GPUs of a node."""
    return make_pod(name).requests(resource, str(count)).requests("cpu", cpu).spec(nodeName=node).build()


def placement_input(*objects: Json) -> PlacementInput:
    """Return the placement input of a cluster with these objects."""
    snapshot = collect_snapshot(RawObject(item, lambda _path: SourceLocation("test.yaml", 1, 1)) for item in objects)
    return build_placement_input(snapshot.view.fleet, snapshot.objects, snapshot.view.devices)


def requirements_of(pod: PodMaker, cluster: SchedulingSnapshot) -> PodRequirements:
    """Return the requirements of a pod."""
    return pod_requirements(parse_pod(pod.build()), cluster.fleet)


def preemption_plan(placement: PlacementInput, pod: PodMaker) -> PreemptionPlan | None:
    """Return the preemption plan for a pod that fits on no node."""
    parsed, nodes = parse_pod(pod.build()), placement.snapshot.fleet.nodes
    free = [placement.others.get(node.name, {}) for node in nodes]
    requirements = pod_requirements(parsed, placement.snapshot.fleet)
    return find_preemption(placement.snapshot, requirements, placement.pods, parsed, free, placement.tied_pods)


def ranked_nodes(placement: PlacementInput, pod: PodMaker, **how: Any) -> list[RankedNode]:
    """Return the nodes for a pod, the best first."""
    return NodeRanking(placement.snapshot, mix=placement.mix, profiles=placement.profiles).rank(
        requirements_of(pod, placement.snapshot), **how
    )


def ranked_names(placement: PlacementInput, pod: PodMaker, **how: Any) -> list[str]:
    """Return the names of the ranked nodes."""
    return [placement.snapshot.fleet.nodes[each.node].name for each in ranked_nodes(placement, pod, **how)]
