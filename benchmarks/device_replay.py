"""Replay the default openb list with GPUs requested by claims, on a real scheduler: `make bench-dra`.

The cluster and the list are those of the trace, thinned: every SCALE-th node of each kind and every SCALE-th pod with
GPUs. Nodes publish their GPUs as NVIDIA's driver does: model G3 of the trace as H100s with every MIG device that could
be made of them, G2 as A10s, the others as themselves. The memory that a pod needs is its part of a GPU in the trace, of
an A10. Pods arrive in the order of the trace and do not end; those that do not fit wait.

*Untouched*, a claim is for whole GPUs with the memory that the pod needs. *Ours* is that claim, with the need declared,
as the webhook changes it. With *extender*, the extender ranks the nodes for the scheduler. The best possible is a
bound, not a schedule: it splits pods with several GPUs, ignores CPU and memory of nodes, and packs memory slices
without holes.

    python -m benchmarks.device_replay [--scale N] [--most-gpus N] [--traces FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.cluster.nodes import add_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_extender import serve_extender
from tests.controlplane.build import control_plane, wanted_version
from tests.device_builders import H100, MEMORY_SLICES, NVIDIA, card, device_class, partitionable_gpus, resource_slice
from tests.engine.test_fit import sizing
from tests.example_cluster import apply_patch, review, view_of
from webhook.cache.traces import read_trace_nodes, read_trace_pods
from webhook.manifests.scheduler_config import claims_entry
from webhook.placement.capacity import EmptyNode, PodDemand

SCALE = 16
MOST_GPUS = 8
"""GPUs of the largest pods of the trace."""

OTHER_COUNTERS = 2
"""Counters of a device besides its memory slices: memory and multiprocessors."""

MARKS = (60, 100)
"""Percent of the pods after which the cluster is looked at."""

PRODUCTS = {
    "P100": ("Tesla P100-PCIE-16GB", 16_276),
    "T4": ("Tesla T4", 15_360),
    "V100M16": ("Tesla V100-SXM2-16GB", 16_384),
    "V100M32": ("Tesla V100-SXM2-32GB", 32_768),
    "A10": ("NVIDIA A10", 23_028),
    "G2": ("NVIDIA A10", 23_028),
    "G3": (H100, 81_559),
}
"""Product and memory in MiB by model of the trace."""

PARTITIONABLE = "G3"
NEEDED_OF = 23_028
"""MiB of a card; a pod of the trace needs a share of them."""

API = "/apis/resource.k8s.io/v1"
NAMESPACE = "replay"
GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
CLASSES = [
    device_class(name, f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == '{kind}'")
    for name, kind in ((GPU, "gpu"), (MIG, "mig"))
]
Shape = Callable[[Json], Json]
"""What becomes of a claim at admission."""


class Trace(NamedTuple):
    """A part of the trace: nodes, and pods with GPUs."""

    nodes: Sequence[EmptyNode]
    pods: Sequence[PodDemand]


class Result(NamedTuple):
    """The cluster after some pods have arrived.

    Attributes:
        arrived: Pods that have arrived.
        placed: Those of them that have a node.
        gpus: GPUs that those request.
        needed: MiB that those need.
        allocated: MiB of the devices that they have.
        whole: H100s without any allocation.
    """

    arrived: int
    placed: int
    gpus: int
    needed: int
    allocated: int
    whole: int

    @property
    def ratio(self) -> float:
        """Return the allocated memory relative to what is needed."""
        return self.allocated / self.needed


def thinned(folder: Path, scale: int, most_gpus: int = MOST_GPUS) -> Trace:
    """Return every scale-th node of each kind, and every scale-th pod with GPUs, without those that have too many."""
    nodes = sorted(read_trace_nodes(folder / "openb_node_list_gpu_node.csv.gz"), key=_kind)
    kept = [node for _, some in groupby(nodes, key=_kind) for node in list(some)[scale // 2 :: scale]]
    pods = [pod for pod in read_trace_pods(folder / "openb_pod_list_default.csv.gz") if pod.gpus]
    return Trace(kept, [pod for pod in pods[::scale] if pod.gpus <= most_gpus])


def _kind(node: EmptyNode) -> tuple[str, int]:
    return node.model, node.gpus


def needed_memory(pod: PodDemand) -> int:
    """Return the MiB that a pod needs on each of its GPUs."""
    return ceil(pod.gpu_milli * NEEDED_OF / 1000)


def claim_of(pod: PodDemand, name: str) -> Json:
    """Return the claim of a pod: whole GPUs with the memory that it needs."""
    needed = f"{needed_memory(pod)}Mi"
    bound = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity('{needed}')) >= 0"
    exactly = {"deviceClassName": GPU, "count": pod.gpus, "allocationMode": "ExactCount"}
    request = {"name": "gpu", "exactly": exactly | {"selectors": [{"cel": {"expression": bound}}]}}
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {"rightslice.dev/gpu-memory": needed}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return about | {"spec": {"devices": {"requests": [request]}}}


def untouched(_objects: Sequence[Json]) -> Shape:
    """Return what leaves claims as they are."""
    return lambda claim: claim


def right_sized(objects: Sequence[Json]) -> Shape:
    """Return what changes claims as the webhook does in a cluster of these objects, with right-sizing enforced."""
    view = view_of(make_namespace(NAMESPACE), *objects).with_api_minor(36)
    return lambda claim: apply_patch(claim, review(claim, sizing(), view=view))


class Arm(NamedTuple):
    """A way to play the trace.

    Attributes:
        shape: Returns what becomes of claims in a cluster of some objects.
        is_ranked: Whether the scheduler calls the extender.
    """

    shape: Callable[[Sequence[Json]], Shape]
    is_ranked: bool = False


ARMS: Mapping[str, Arm] = {
    "untouched": Arm(untouched),
    "untouched, extender": Arm(untouched, is_ranked=True),
    "ours": Arm(right_sized),
    "ours, extender": Arm(right_sized, is_ranked=True),
}


def published(node: EmptyNode) -> list[Json]:
    """Return the slices of a node."""
    product, memory = PRODUCTS[node.model]
    if node.model == PARTITIONABLE:
        return partitionable_gpus(node.name, node.gpus)
    cards = [card(f"gpu-{i}", product, f"GPU-{node.name}-{i}", i, f"{memory}Mi") for i in range(node.gpus)]
    return [resource_slice(f"{node.name}-{NVIDIA}", NVIDIA, node.name, nodeName=node.name, devices=cards)]


def replay(trace: Trace, arm: Arm) -> Iterator[Result]:
    """Play the pods into a new cluster, and yield what it is like at each mark."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(Plane(control_plane(wanted_version()), folder))
        nodes, slices = [_node(node) for node in trace.nodes], [one for node in trace.nodes for one in published(node)]
        shape = arm.shape([*nodes, *slices, *CLASSES])
        _publish(plane, nodes, slices)
        if arm.is_ranked:
            _, entry = stack.enter_context(serve_extender(plane, folder))
            shared = {key: entry[key] for key in ("tlsConfig", "httpTimeout")}
            ranks = claims_entry(entry["urlPrefix"]) | shared
            stack.enter_context(plane.scheduler_with(extenders=[ranks]))
        memory = {
            _device_key(each["spec"]["pool"]["name"], one["name"]): _mebibytes(one) for each, one in _devices(slices)
        }
        begin = 0
        for end in (len(trace.pods) * mark // 100 for mark in MARKS):
            for index in range(begin, end):
                _create(plane, f"pod-{index:04}", trace.pods[index], shape)
            begin = end
            placed = eventually(partial(_settled, plane, end), within=3600)
            yield _result(plane, trace, end, placed, memory)


def _publish(plane: Plane, nodes: Iterable[Json], slices: Iterable[Json]) -> None:
    add_nodes(plane, nodes)
    plane.add_namespace(NAMESPACE)
    for each in CLASSES:
        plane.api.create(f"{API}/deviceclasses", each)
    for each in slices:
        plane.api.create(f"{API}/resourceslices", each)


def _node(node: EmptyNode) -> Json:
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": str(node.memory), "pods": "250"}
    made = make_node(node.name)
    made["status"] |= {"allocatable": amounts, "capacity": amounts, "nodeInfo": {"kubeletVersion": "v1.36.3"}}
    return made


def _devices(slices: Iterable[Json]) -> Iterator[tuple[Json, Json]]:
    return ((each, device) for each in slices for device in each["spec"].get("devices", ()))


def _device_key(pool: str, device: str) -> str:
    return f"{pool}/{device}"


def _mebibytes(device: Json) -> int:
    return int(device["capacity"]["memory"]["value"].removesuffix("Mi"))


def _create(plane: Plane, name: str, pod: PodDemand, shape: Shape) -> None:
    plane.api.create(f"{API}/namespaces/{NAMESPACE}/resourceclaims", shape(claim_of(pod, name)))
    maker = make_pod(name).namespace(NAMESPACE).spec(resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    maker.requests("cpu", f"{pod.cpu_milli}m").requests("memory", str(pod.memory))
    maker.main["resources"]["claims"] = [{"name": "gpu"}]
    plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", maker.build())


def _settled(plane: Plane, count: int) -> dict[str, bool]:
    """Return whether each pod has a node; {} while the scheduler has not tried all of them."""
    pods = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert len(pods) == count
    placed = {pod["metadata"]["name"]: bool(pod["spec"].get("nodeName")) for pod in pods}
    is_tried = [placed[pod["metadata"]["name"]] or pod["status"].get("conditions") for pod in pods]
    return placed if all(is_tried) else {}


def _result(plane: Plane, trace: Trace, end: int, placed: Mapping[str, bool], memory: Mapping[str, int]) -> Result:
    claims = plane.api.get(f"{API}/namespaces/{NAMESPACE}/resourceclaims")["items"]
    results = [each for claim in claims for each in _allocation(claim)]
    used = {_card_of(each["pool"], each["device"]) for each in results}
    large = {
        _card_of(node.name, f"gpu-{i}") for node in trace.nodes if node.model == PARTITIONABLE for i in range(node.gpus)
    }
    pods = [pod for i, pod in enumerate(trace.pods[:end]) if placed[f"pod-{i:04}"]]
    needed, gpus = sum(needed_memory(pod) * pod.gpus for pod in pods), sum(pod.gpus for pod in pods)
    allocated = sum(memory[_device_key(each["pool"], each["device"])] for each in results)
    return Result(end, len(pods), gpus, needed, allocated, len(large - used))


def _allocation(claim: Json) -> Sequence[Json]:
    found: Sequence[Json] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return found


def _card_of(pool: str, device: str) -> str:
    """Return the card of a device: gpu-0-mig-1g10gb-1-3 is a part of gpu-0.

    >>> _card_of("node", "gpu-0-mig-1g10gb-1-3"), _card_of("node", "gpu-0")
    ('node/gpu-0', 'node/gpu-0')
    """
    return _device_key(pool, "-".join(device.split("-")[:2]))


def bound(trace: Trace, end: int) -> Result:
    """Return a bound on what any schedule can reach: most pods, least memory, most H100s left."""
    pods = trace.pods[:end]
    needs = sorted((needed_memory(pod) for pod in pods for _ in range(pod.gpus)), reverse=True)
    cards = Counter({memory: 0 for _, memory in PRODUCTS.values()})
    for node in trace.nodes:
        cards[PRODUCTS[node.model][1]] += node.gpus
    large = cards.pop(PRODUCTS[PARTITIONABLE][1])
    slices = sum(_on_large(needs, cards))
    missing = max(0, ceil((slices - large * MEMORY_SLICES) / MEMORY_SLICES))
    sizes = sorted({*cards, *_slices_by_memory()})
    allocated = sum(next(size for size in sizes if size >= need) for need in needs)
    whole = max(0, large - ceil(slices / MEMORY_SLICES))
    return Result(end, end - missing, len(needs) - missing, sum(needs), allocated, whole)


def _slices_by_memory() -> Mapping[int, int]:
    """Return the memory slices of an H100's devices by their memory in MiB, in rising order."""
    devices = [device for _, device in _devices(partitionable_gpus("any"))]
    slices = {_mebibytes(each): len(each["consumesCounters"][0]["counters"]) - OTHER_COUNTERS for each in devices}
    return dict(sorted(slices.items()))


def _on_large(needs: Iterable[int], cards: Mapping[int, int]) -> Iterator[int]:
    """Yield the memory slices for each need that finds no other card, the needs in falling order.

    Larger needs take more slices, and a card that fits a need fits all smaller ones, so giving the cards to the largest
    needs leaves the fewest slices.
    """
    used, slices_by_memory = 0, _slices_by_memory()
    for need in needs:
        if used < sum(count for memory, count in cards.items() if memory >= need):
            used += 1
        else:
            yield next(slices for memory, slices in slices_by_memory.items() if memory >= need)


def report(rows: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Yield a table for each mark; the ratios are to the first row."""
    for index, mark in enumerate(MARKS):
        (_, first), *_ = rows.items()
        yield f"{first[index].arrived} pods have arrived, {mark} % of them all"
        yield "| | pods placed | relative | their GPUs | GPU memory allocated over needed | relative | H100s left |"
        yield "|---" * 7 + "|"
        for name, results in rows.items():
            row, base = results[index], first[index]
            relative = f"{row.placed / base.placed:.3f}", f"{row.ratio / base.ratio:.3f}"
            cells = name, row.placed, relative[0], row.gpus, f"{row.ratio:.3f}", relative[1], row.whole
            yield f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces/openb"), help="folder of the openb lists")
    parser.add_argument("--scale", type=int, default=SCALE, help=f"one of how many nodes and pods (default: {SCALE})")
    parser.add_argument(
        "--most-gpus", type=int, default=MOST_GPUS, help="leave out pods with more GPUs (default: none)"
    )
    flags = parser.parse_args()
    if not flags.traces.is_dir():
        print(f"Skipped: there is no folder {flags.traces} with the openb lists. Pass it with --traces.")
        return 0
    trace = thinned(flags.traces, flags.scale, flags.most_gpus)
    gpus = Counter({PRODUCTS[node.model][0]: 0 for node in trace.nodes})
    for node in trace.nodes:
        gpus[PRODUCTS[node.model][0]] += node.gpus
    print(
        f"{len(trace.nodes)} nodes with {', '.join(f'{n} {name}' for name, n in gpus.items())}; {len(trace.pods)} pods"
    )
    rows: dict[str, Any] = {name: list(replay(trace, arm)) for name, arm in ARMS.items()}
    rows["best possible"] = [bound(trace, row.arrived) for row in rows["untouched"]]
    print("\n".join(report(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
