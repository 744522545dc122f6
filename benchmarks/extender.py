"""Latency of the extender: /filter and /prioritize of a pod at 5,000 nodes, JSON included, while pods start and end.

    python -m benchmarks.extender [gangs | devices | gauges | device-gauges | large]

With `gangs` every second pod belongs to a gang of four to 64, in NVLink domains of 18 nodes, with nodes reserved for
the rest of the gang.

With `devices` pods ask for MIG devices by claim, on nodes that publish eight H100s with all that could be made of them;
claims have another part of each node.

With `gauges` and `device-gauges` it measures how long `/filter` waits while the gauges of capacity are computed: the
time that passes without CPU for the request, without and with a computation in turns.

With `large` it measures each verb on pods of 1.4 MB, the largest that etcd stores, one for each kind of padding in
`benchmarks.hostile_reviews`.

The measured process also handles the events of a cluster: between two pods, one pod or claim starts, one ends, and one
agent reports. Each figure is shown next to the time that Python's own `json` needs, in the same rounds, to read those
requests and write those answers. Exit code 1 if the 99th percentile of both answers exceeds 50 ms of one core, or
memory exceeds 400 MiB; with `devices` 150 ms and 512 MiB; with gauges if the 99th percentile of the wait exceeds 50 ms;
with `large` if a verb takes more than 100 ms.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks import hostile_reviews
from tests.device_builders import device_class, partitionable_gpus
from webhook.cache.inventory import NodeInventory
from webhook.extender.capacity_gauges import CapacityPoll
from webhook.extender.state import SchedulerState
from webhook.extender.verbs import handle_filter, handle_prioritize, handle_prioritize_claims
from webhook.model.claims import (
    ClaimAllocation,
    ClaimStatus,
    DeviceAllocation,
    DeviceAllocations,
    DeviceClass,
    ResourceClaim,
)
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import Node
from webhook.model.pods import Pod
from webhook.web.listener import freeze_and_tune_gc

NODES = 5000
PODS_WITHOUT_GPUS = 8
"""Per node, in addition to those with GPUs."""

ROUNDS = 600
MOST_MS, MOST_MIB = 50.0, 400
MOST_DEVICE_MS, MOST_DEVICE_MIB = 150.0, 512
MOST_LARGE_MS, LARGE_BYTES, LARGE_ROUNDS = 100.0, 1_400_000, 3
GAUGE_ROUNDS, REQUESTS_ALONE = 4, 60
BESIDE = "while gauges are computed"
MOST_CLAIMS = 16
"""Fewer than so many claims have devices of one node."""

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
DRIVER = "gpu.nvidia.com"
SEED = 42

CLIQUE, DOMAIN = "nvidia.com/gpu.clique", 18
GROUP = "scheduling.x-k8s.io/pod-group"

Json = dict[str, Any]
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CUBE = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}  # fmt: skip
KINDS: tuple[tuple[str, dict[tuple[int, int], int]], ...] = (
    ("Tesla-V100-SXM2-32GB", CUBE),
    ("NVIDIA-A100-80GB-PCIe", {(0, 1): 12, (2, 3): 12, (4, 5): 12, (6, 7): 12}),
    ("NVIDIA-H100-80GB-HBM3", {(i, j): 18 for j in range(8) for i in range(j)}),
    ("NVIDIA-A100-SXM4-80GB", {}),
)
"""Products and links by pair. The last is in MIG mode."""


def name_of(node: int) -> str:
    """Return a node name as long as those of clouds."""
    return f"ip-10-{node // 256}-{node % 256}-1.region-1.compute.internal"


def node_of(node: int, *, domains: bool) -> Json:
    """Return one node."""
    product, _ = KINDS[node % len(KINDS)]
    cut = node % len(KINDS) == len(KINDS) - 1
    units = {MIG: "28", "nvidia.com/mig-3g.40gb": "4"} if cut else {GPU: "8"}
    labels = {f"example.com/label-{i}": "some-value" for i in range(20)}
    labels |= {"kubernetes.io/hostname": name_of(node), "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8"}
    if domains:
        labels[CLIQUE] = f"0b2dcc5e-0f2e-4b5e-9a1c-{node // DOMAIN:012}.1"
    if cut:
        labels |= {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-1g.10gb.product": f"{product}-MIG-1g.10gb"}
    allocatable = {"cpu": "128", "memory": "1024Gi", "pods": "110", **units}
    return {"metadata": {"name": name_of(node), "labels": labels}, "status": {"allocatable": allocatable}}


def report_of(node: int, held: dict[int, str]) -> Json:
    """Return the report of the node's agent."""
    _, links = KINDS[node % len(KINDS)]
    cut = node % len(KINDS) == len(KINDS) - 1
    instances = [{"profile": "1g.10gb", "start": i, "pod": ""} for i in range(4)]
    instances += [{"profile": "3g.40gb", "start": 4, "pod": ""}]
    gpus = [
        {
            "index": i,
            "numaNode": i // 4,
            "mig": cut,
            "instances": instances if cut else [],
            "pods": [held[i]] if i in held else [],
            "links": [
                {"gpu": j, "nvlinks": links.get((min(i, j), max(i, j)), 0), "pciePath": "SYS"}
                for j in range(8)
                if j != i
            ],
        }
        for i in range(8)
    ]
    return {"metadata": {"name": name_of(node)}, "status": {"gpus": gpus, "nvlinkGeneration": 3}}


def pod_of(name: str, node: int | None, resource_name: str = "", count: int = 0, cpu: str = "500m") -> Json:
    """Return one pod."""
    requested = {"cpu": cpu, "memory": "1Gi"} | ({resource_name: str(count)} if count else {})
    resources = {"requests": requested, "limits": {resource_name: str(count)} if count else {}}
    spec = {"containers": [{"name": "main", "image": "registry.example.com/app:1", "resources": resources}]}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {"app": "some"}},
        "spec": spec | ({"nodeName": name_of(node)} if node is not None else {}),
        "status": {"phase": "Running" if node is not None else "Pending"},
    }


def fill(inventory: NodeInventory, rng: random.Random, *, domains: bool) -> list[Json]:
    """Write a cluster into an inventory; return the pods with GPUs."""
    for writer in (inventory.nodes, inventory.gpunodes, inventory.pods):
        writer.begin()
    tenants = []
    for node in range(NODES):
        inventory.nodes.upsert(msgspec.convert(node_of(node, domains=domains), Node))
        here = [] if node % 4 == 3 else rng.sample(range(8), rng.randrange(8))
        inventory.gpunodes.upsert(msgspec.convert(report_of(node, {i: f"team/p-{node}-{i}" for i in here}), GPUNode))
        tenants += [pod_of(f"p-{node}-{i}", node, GPU, 1) for i in here]
        for i in range(PODS_WITHOUT_GPUS):
            inventory.pods.upsert(msgspec.convert(pod_of(f"c-{node}-{i}", node), Pod))
    for pod in tenants:
        inventory.pods.upsert(msgspec.convert(pod, Pod))
    for writer in (inventory.nodes, inventory.gpunodes, inventory.pods):
        writer.swap()
    return tenants


def extender_requests(rng: random.Random, *, gangs: bool) -> Iterator[bytes]:
    """Return the request bodies of a scheduler: pods of many shapes, every node a candidate."""
    names = [name_of(node) for node in range(NODES)]
    turn = 0
    while True:
        turn += 1
        wanted, count = rng.choice([(GPU, 1), (GPU, 2), (GPU, 2), (GPU, 4), (GPU, 8), (MIG, 1)])
        pod = pod_of(f"new-{turn}", None, wanted, count, cpu=rng.choice(["1", "2", "4", "8", "6500m"]))
        if count == 2:
            said = f"nvlink={rng.choice(['required', 'preferred'])}"
            pod["metadata"]["annotations"] = {"rightslice.dev/topology": said}
        if gangs and turn % 2:
            size = rng.choice([4, 16, 64])
            pod["metadata"]["labels"][GROUP] = f"gang-{turn // 32}-{size}"
            pod["metadata"].setdefault("annotations", {})["rightslice.dev/gang-size"] = str(size)
        yield msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})


def events(inventory: NodeInventory, tenants: list[Json], rng: random.Random) -> Callable[[], None]:
    """Apply the events between two pods: one starts, one ends, and an agent reports."""

    def happen() -> None:
        inventory.pods.remove(msgspec.convert(tenants.pop(rng.randrange(len(tenants))), Pod))
        node = 4 * rng.randrange(NODES // 4)
        tenants.append(pod_of(f"e-{rng.random()}", node, GPU, 1))
        inventory.pods.upsert(msgspec.convert(tenants[-1], Pod))
        other = rng.randrange(NODES)
        inventory.gpunodes.upsert(msgspec.convert(report_of(other, {}), GPUNode))

    return happen


def claim_for(name: str, profile: str, pool: str = "", device: str = "") -> ResourceClaim:
    """Return a claim for a MIG device; with a device, allocated."""
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{profile}'"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "mig", "selectors": [selector]}}
    found = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
    status = {"allocation": {"devices": {"results": [found]}}} if device else {}
    metadata = {"name": name, "namespace": name.partition("-")[0], "uid": f"uid-{name}"}
    claim = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": status}
    return msgspec.convert(claim, ResourceClaim)


def fill_devices(inventory: NodeInventory, rng: random.Random) -> list[ResourceClaim]:
    """Write nodes with cards that can be partitioned, and claims that have slices of them; return the claims."""
    devices, claims = inventory.devices, []
    stores = (inventory.nodes, inventory.pods, inventory.device_classes, devices.slices, devices.claims)
    for writer in stores:
        writer.begin()
    of_mig = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"
    inventory.device_classes.upsert(msgspec.convert(device_class("mig", of_mig), DeviceClass))
    for node in range(NODES):
        made = node_of(node, domains=False)
        made["status"]["allocatable"] = {"cpu": "128", "memory": "1024Gi", "pods": "110"}
        inventory.nodes.upsert(msgspec.convert(made, Node))
        for each in partitionable_gpus(name_of(node), 8):
            devices.slices.upsert(msgspec.convert(each, ResourceSlice))
        for place in rng.sample(range(8 * 7), rng.randrange(MOST_CLAIMS)):
            device = f"gpu-{place // 7}-mig-1g10gb-1-{place % 7}"
            claims.append(claim_for(f"team{node % 100}-{node}-{place}", "1g.10gb", name_of(node), device))
            devices.claims.upsert(claims[-1])
    for writer in stores:
        writer.swap()
    return claims


def measure_devices(rng: random.Random) -> int:
    """Measure pods with claims, print, and check the limits."""
    standing = SchedulerState(NodeInventory())
    claims, store = fill_devices(standing.inventory, rng), standing.inventory.devices.claims
    print(f"{NODES * 9} ResourceSlices, {len(claims)} claims with devices")
    start = time.process_time()
    asyncio.run(standing.rebuild_index())
    made = (time.process_time() - start) * 1000
    gc.collect()
    gc.freeze()
    names, both, plain, taken = [name_of(node) for node in range(NODES)], [], [], []
    for turn in range(ROUNDS):
        claim, pod = claim_for(f"new-{turn}", rng.choice(PROFILES)), pod_of(f"new-{turn}", None)
        pod["metadata"]["namespace"], pod["spec"]["resourceClaims"] = (
            "new",
            [{"name": "g", "resourceClaimName": f"new-{turn}"}],
        )
        taken.append(timed(store.upsert, claim)[0] + timed(store.remove, claims.pop(rng.randrange(len(claims))))[0])
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})
        first, answer = timed(handle_filter, standing, body, float(turn))
        second, again = timed(handle_prioritize, standing, body, float(turn))
        both.append(first + second)
        plain.append(timed(_json_alone, body, answer.body, again.body)[0])
        best = max(json.loads(again.body), key=lambda each: each["Score"])["Host"]
        taken[-1] += timed(store.upsert, allocated_there(standing, claim, msgspec.convert(pod, Pod), best))[0]
    return _tell(made, taken, both, plain, MOST_DEVICE_MS, MOST_DEVICE_MIB)


def measure_gauges(rng: random.Random, *, devices: bool) -> int:
    """Measure how long `/filter` waits beside the computation of gauges, print, and check the limit."""
    state = SchedulerState(NodeInventory())
    if devices:
        fill_devices(state.inventory, rng)
    else:
        fill(state.inventory, rng, domains=False)
    asyncio.run(state.rebuild_index())
    freeze_and_tune_gc()
    waits = asyncio.run(_wait_beside_gauges(state, extender_requests(rng, gangs=False)))
    print(f"{NODES} nodes; milliseconds that /filter waits")
    for name, values in waits.items():
        places = "   ".join(f"p{part} {percentile(values, part):6.2f}" for part in (50, 90, 99))
        print(f"  {name:<24} {len(values):6} requests   {places}   longest {max(values):6.2f}")
    return int(percentile(waits[BESIDE], 99) > MOST_MS)


def measure_large_pods(rng: random.Random) -> int:
    """Measure each verb on pods of every kind of padding, print the slowest, and check the limit."""
    state = SchedulerState(NodeInventory())
    fill(state.inventory, rng, domains=False)
    asyncio.run(state.rebuild_index())
    freeze_and_tune_gc()
    slowest = {kind: _slowest_verb(state, kind) for kind in hostile_reviews.KINDS}
    print(f"{NODES} nodes, pods of {LARGE_BYTES / 1e6} MB; milliseconds of CPU of the slowest verb")
    for kind in sorted(slowest, key=lambda each: -slowest[each])[:10]:
        print(f"  {kind:<32} {slowest[kind]:6.1f}")
    return int(max(slowest.values()) > MOST_LARGE_MS)


def _slowest_verb(state: SchedulerState, kind: str) -> float:
    """Return the median milliseconds of the slowest verb; each round has other texts."""
    pods = [hostile_reviews.hostile_object(kind, f"t{turn}", LARGE_BYTES) for turn in range(LARGE_ROUNDS)]
    names = [name_of(node) for node in range(NODES)]
    bodies = [msgspec.json.encode({"Pod": pod, "NodeNames": names}) for pod in pods if pod["kind"] == "Pod"]
    verbs = (handle_filter, handle_prioritize, handle_prioritize_claims)
    return max(
        [percentile([timed(verb, state, body, 0.0)[0] for body in bodies], 50) for verb in verbs if bodies] or [0]
    )


async def _wait_beside_gauges(state: SchedulerState, bodies: Iterator[bytes]) -> dict[str, list[float]]:
    """Return how long requests wait without a computation of gauges, and during one, in turns."""
    waits: dict[str, list[float]] = {"alone": [], BESIDE: []}
    for _ in range(GAUGE_ROUNDS):
        for _ in range(REQUESTS_ALONE):
            await asyncio.sleep(0)
            waits["alone"].append(_waited(state, next(bodies)))
        computation = asyncio.create_task(CapacityPoll(state, time.monotonic).refresh_if_due())
        await asyncio.sleep(0)
        while not computation.done():
            waits[BESIDE].append(_waited(state, next(bodies)))
            await asyncio.sleep(0)
    return waits


def _waited(state: SchedulerState, body: bytes) -> float:
    """Return the milliseconds that passed in `/filter` without CPU of this thread."""
    start, before = time.perf_counter(), time.thread_time()
    handle_filter(state, body, 0.0)
    return (time.perf_counter() - start - (time.thread_time() - before)) * 1000


def allocated_there(standing: SchedulerState, claim: ResourceClaim, pod: Pod, node: str) -> ResourceClaim:
    """Return a pod's claim as the scheduler allocates it on a node."""
    needed = standing.devices.find_needed(pod, standing.fleet, 0.0)
    assert needed is not None
    ((found,),) = needed.find_on_node(standing.fleet.by_name[node], standing.fleet).claims
    result = DeviceAllocation("gpu", *found.device)
    return replace(claim, status=ClaimStatus(ClaimAllocation(DeviceAllocations((result,)))))


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Milliseconds of this process's CPU, and what came of it."""
    start = time.process_time()
    done = work(*arguments)
    return (time.process_time() - start) * 1000, done


def percentile(values: list[float], part: float) -> float:
    """Return the value that this percentage does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part / 100))]


def main(mode: str) -> int:
    """Measure, print, and check the limits."""
    rng, gangs = random.Random(SEED), mode == "gangs"
    if mode == "devices":
        return measure_devices(rng)
    if mode == "large":
        return measure_large_pods(rng)
    if mode.endswith("gauges"):
        return measure_gauges(rng, devices=mode == "device-gauges")
    standing = SchedulerState(NodeInventory())
    tenants = fill(standing.inventory, rng, domains=gangs)
    start = time.process_time()
    asyncio.run(standing.rebuild_index())
    made = (time.process_time() - start) * 1000
    gc.collect()
    gc.freeze()
    happen, bodies = events(standing.inventory, tenants, rng), extender_requests(rng, gangs=gangs)
    both, plain, taken = [], [], []
    for turn in range(ROUNDS):
        happen()
        taken.append(timed(standing.refresh, float(turn))[0])
        body = next(bodies)
        first, answer = timed(handle_filter, standing, body, float(turn))
        left = json.loads(answer.body)["NodeNames"]
        second, again = 0.0, answer
        if len(left) > 1:
            rest = msgspec.json.encode({**json.loads(body), "NodeNames": left})
            second, again = timed(handle_prioritize, standing, rest, float(turn))
        both.append(first + second)
        plain.append(timed(_json_alone, body, answer.body, again.body)[0])
    return _tell(made, taken, both, plain, MOST_MS, MOST_MIB)


def _json_alone(body: bytes, *answers: bytes) -> None:
    """Two requests read and two answers written by the standard library."""
    for answer in answers:
        json.loads(body)
        json.dumps(json.loads(answer))


def _tell(
    made: float, taken: list[float], both: list[float], plain: list[float], most_ms: float, most_mib: float
) -> int:
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio = percentile(both, 50) / percentile(plain, 50)
    print(f"{NODES} nodes, {ROUNDS} pods, seed {SEED}; milliseconds of CPU")
    print(f"  /filter and /prioritize   median {percentile(both, 50):6.2f}   p99 {percentile(both, 99):6.2f}")
    print(f"  JSON decoding and encoding median {percentile(plain, 50):6.2f}   ratio of the medians {ratio:.2f}")
    print(f"  applying the events       median {percentile(taken, 50):6.2f}   p99 {percentile(taken, 99):6.2f}")
    print(f"  index of all nodes        {made:.0f}")
    print(f"  peak memory               {mib:.0f} MiB")
    return 0 if percentile(both, 99) <= most_ms and mib <= most_mib else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
