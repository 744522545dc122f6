"""GPUs of one node with links, states and pods; or of one machine without a cluster, with the sets pods would get."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from webhook.errors import abbreviate_names
from webhook.model.dra.device_allocations import AllocatedDevice
from webhook.model.dra.device_pools import DeviceId
from webhook.model.dra.gpu_devices import CardUsage
from webhook.model.dra.pool_kinds import PublishedCard
from webhook.model.fleet import FleetNode
from webhook.model.node_masks import bit_positions
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pods import Pod, pod_display_name
from webhook.model.quantity import format_mib
from webhook.placement.best_effort_policy import best_effort_policy
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import GpuTopology, TopologyConfidence
from webhook.report.capacity import (
    AGENT_DISAGREES,
    CAPACITY,
    NO_AGENT,
    UNKNOWN_CELL,
    UNKNOWN_CLAIMS,
    UNKNOWN_FREE,
    NodeCapacity,
    amount_beside_unknown,
    find_missing_gpus,
    missing_gpus_text,
)
from webhook.report.tables import Column, Table, gpu_column
from webhook.report.text import align_columns, sanitize


class GpuSet(msgspec.Struct, frozen=True):
    """GPUs of an idle machine for a pod of one size.

    Attributes:
        best: The best set for this pod and later ones.
        allocated: The set that NVIDIA's device plugin allocates; () if it fails.
        nvlink_connected: Whether NVLink connects every pair of the allocated ones.
    """

    best: tuple[int, ...]
    allocated: tuple[int, ...]
    nvlink_connected: bool


class NodePodGpus(msgspec.Struct, frozen=True):
    """GPUs allocated to a pod on a node, in units by resource name."""

    namespace: str
    name: str
    gpus: Mapping[str, int]


def gpu_pods_by_node(pods: Iterable[Pod]) -> dict[str, list[NodePodGpus]]:
    """Return the pods that hold GPUs of device plugins, by node."""
    found: defaultdict[str, list[NodePodGpus]] = defaultdict(list)
    for pod in pods:
        gpus = count_gpu_units(effective_requests(pod).items()) if pod.spec.node_name else {}
        if gpus:
            holder = NodePodGpus(pod.metadata.namespace or "default", pod_display_name(pod), gpus)
            found[pod.spec.node_name].append(holder)
    return dict(found)


class AllocatedDeviceRow(NamedTuple):
    """A device of ResourceSlices that a claim has, and the name of its card."""

    card: str
    device: AllocatedDevice


def allocated_device_rows(
    cards: Iterable[PublishedCard], allocated: Iterable[AllocatedDevice]
) -> list[AllocatedDeviceRow]:
    """Return the allocated devices of some cards, in the order of these."""
    by_device: defaultdict[DeviceId, list[AllocatedDevice]] = defaultdict(list)
    for each in allocated:
        by_device[each.id].append(each)
    return [
        AllocatedDeviceRow(card.name, each)
        for card in cards
        for name in card.usage.devices
        for each in by_device.get(DeviceId(*card.pool, name), ())
    ]


def node_lines(
    snapshot: SchedulingSnapshot,
    node: int,
    pods: Sequence[NodePodGpus],
    cards: Sequence[PublishedCard] = (),
    allocated: Iterable[AllocatedDevice] | None = (),
    *,
    wide: bool = False,
) -> list[str]:
    """Return each GPU of a node with its links and state, MIG instances, and the pods with GPUs.

    Args:
        snapshot: The nodes.
        node: Index of the node.
        pods: Pods that hold GPUs of the device plugin.
        cards: GPUs of ResourceSlices.
        allocated: Devices of these that claims have; None if claims may not be read.
        wide: Whether the table of these cards has all columns.
    """
    devices, topology = snapshot.devices[node], snapshot.devices[node].topology
    missing = None if cards else find_missing_gpus(snapshot.fleet.nodes[node])
    if missing:
        return [f"{sanitize(snapshot.fleet.nodes[node].name)}: {missing_gpus_text(missing)}", *_pod_lines(pods)]
    gpus = listed_gpus(snapshot, node)
    if cards and not gpus:
        return [*CARDS.to_lines(cards, wide=wide), *_allocated_lines(cards, allocated)]
    if not gpus:
        return [_unlisted_gpus_text(snapshot.fleet.nodes[node]), *_pod_lines(pods)]
    states = [gpu_state(snapshot, node, i) for i in gpus]
    cards_with_state = [(card, "free") for card in devices.mig_cards]
    cards_with_state += [(card, "unhealthy") for card in devices.unhealthy_mig_cards]
    partitions = [
        f"GPU{card.index}  {_mig_instances_text(card.used, card.idle, idle_state)}"
        for card, idle_state in sorted(cards_with_state, key=lambda each: each[0].index)
    ]
    notes = list(_link_notes(snapshot, node))
    if UNKNOWN_CELL in states:
        notes = [f"{UNKNOWN_CELL} {AGENT_DISAGREES if devices.whole_gpus else NO_AGENT}: {UNKNOWN_FREE}", *notes]
    return [*_link_matrix_lines(topology, "STATE", states), *partitions, *notes, *_pod_lines(pods)]


def _unlisted_gpus_text(node: FleetNode) -> str:
    """Return what is known about the GPUs of a node without labels that say how many it has."""
    units = ", ".join(f"{count} {sanitize(name)}" for name, count in node.gpus.items())
    known = f": advertises {units}; {NO_AGENT}, and no label says how many GPUs these are" if units else " has no GPUs"
    return f"{sanitize(node.name)}{known}"


def _link_notes(snapshot: SchedulingSnapshot, node: int) -> Iterator[str]:
    topology, partitioned = snapshot.devices[node].topology, partitioned_gpus_text(snapshot, node)
    confidence = topology.confidence
    if partitioned:
        yield f"{partitioned}."
    if count_partitioned_gpus(snapshot, node) == topology.gpu_count:
        return
    if confidence is TopologyConfidence.ASSUMED:
        yield "Links assumed from the product; no agent reports them."
    elif confidence is TopologyConfidence.UNKNOWN:
        yield "It is unknown how these GPUs are linked."


def listed_gpus(snapshot: SchedulingSnapshot, node: int) -> range:
    """Return the GPUs of device plugins that a node is known to have: none that only its labels state."""
    topology = snapshot.devices[node].topology
    is_reported = topology.confidence is TopologyConfidence.MEASURED
    return range(topology.gpu_count if is_reported or not find_missing_gpus(snapshot.fleet.nodes[node]) else 0)


def count_partitioned_gpus(snapshot: SchedulingSnapshot, node: int) -> int:
    """Return the GPUs in MIG mode: those that the agent reports, else those that are neither whole nor shared."""
    devices = snapshot.devices[node]
    if devices.topology.confidence is TopologyConfidence.MEASURED:
        return len(devices.mig_cards) + len(devices.unhealthy_mig_cards)
    units = snapshot.fleet.nodes[node].gpus.items()
    offers = [(offer, count) for name, count in units if (offer := snapshot.fleet.offer_on(name, node))]
    if not any(offer.profile for offer, _ in offers):
        return 0
    others = sum(-(-count // offer.replicas) for offer, count in offers if not offer.profile)
    return max(0, devices.topology.gpu_count - others)


def partitioned_gpus_text(snapshot: SchedulingSnapshot, node: int) -> str:
    """Return which GPUs of a node have no links because they are in MIG mode; "" for none."""
    partitioned, topology = count_partitioned_gpus(snapshot, node), snapshot.devices[node].topology
    if not partitioned:
        return ""
    if partitioned == topology.gpu_count:
        return "All its GPUs are in MIG mode, in which NVLink connects none"
    number = f"{partitioned} of its {topology.gpu_count} GPUs {'is' if partitioned == 1 else 'are'} in MIG mode"
    is_reported = topology.confidence is TopologyConfidence.MEASURED
    number, unknown = (number, "") if is_reported else (f"Up to {number}", "; no agent reports which")
    return f"{number}, in which NVLink connects none{unknown}"


def _allocated_lines(cards: Iterable[PublishedCard], allocated: Iterable[AllocatedDevice] | None) -> list[str]:
    if allocated is None:
        return [f"{UNKNOWN_CELL} {UNKNOWN_CLAIMS}"]
    rows = allocated_device_rows(cards, allocated)
    return ["", *ALLOCATED_DEVICES.to_lines(rows)] if rows else []


def _pod_lines(pods: Sequence[NodePodGpus]) -> Iterator[str]:
    for pod in pods:
        units = ", ".join(f"{count} {name}" for name, count in pod.gpus.items())
        yield f"{sanitize(pod.namespace)}/{sanitize(pod.name)}  {units}"


CARDS: Table[PublishedCard] = Table(
    (
        Column("card", lambda card: card.name, "Card", lambda card: "/".join((*card.pool, card.name))),
        Column("driver", lambda card: card.pool.driver),
        Column("pool", lambda card: card.pool.pool),
        Column("identity", lambda card: card.identity, "Identity", terminal=False),
        Column("product", lambda card: card.usage.product, "Product"),
        Column("memory", lambda card: _memory_cell(card.usage.memory_mib), "Memory"),
        Column(
            "devices",
            lambda card: list(card.usage.devices),
            "Devices",
            lambda card: str(len(card.usage.devices)),
            numeric=True,
        ),
        Column(
            "allocatedMilli",
            lambda card: card.usage.allocated_milli,
            "Allocated",
            lambda card: amount_beside_unknown(card.usage.allocated_milli, card.usage.unknown_milli),
            numeric=True,
        ),
        Column(
            "freeMilli",
            lambda card: card.usage.free_milli,
            "Free",
            lambda card: amount_beside_unknown(card.usage.free_milli, card.usage.unknown_milli),
            numeric=True,
        ),
        Column("fits", lambda card: dict(card.usage.fits), "Fits", lambda card: _fits_cell(card.usage)),
        Column("unknownMilli", lambda card: card.usage.unknown_milli),
    )
)
"""GPUs of ResourceSlices, with the number of devices that each is published as."""


def _profile_cell(row: AllocatedDeviceRow) -> str:
    return "unknown" if row.device.profile is None else row.device.profile or "whole card"


ALLOCATED_DEVICES: Table[AllocatedDeviceRow] = Table(
    (
        Column("device", lambda row: row.device.id.device, "Device", lambda row: "/".join(row.device.id)),
        Column("driver", lambda row: row.device.id.driver),
        Column("pool", lambda row: row.device.id.pool),
        Column("card", lambda row: row.card, "Card"),
        Column("profile", lambda row: row.device.profile, "Profile", _profile_cell),
        Column("memory", lambda row: _memory_cell(row.device.memory_mib), "Memory"),
        gpu_column("allocatedMilli", lambda row: row.device.milli, "Allocated"),
        Column("namespace", lambda row: row.device.namespace),
        Column(
            "claim", lambda row: row.device.claim, "Claim", lambda row: f"{row.device.namespace}/{row.device.claim}"
        ),
        Column(
            "pods",
            lambda row: list(row.device.pods),
            "Pods",
            lambda row: abbreviate_names(row.device.pods),
            empty="none",
        ),
    )
)
"""Devices of ResourceSlices and the claims that have them, with the pods for which these are reserved."""


def _memory_cell(memory_mib: int | None) -> str:
    return format_mib(memory_mib) if memory_mib else ""


def _fits_cell(card: CardUsage) -> str:
    if card.unknown_milli:
        return UNKNOWN_CELL
    return ", ".join(f"{count} x {profile}" for profile, count in card.fits.items())


def _link_matrix_lines(topology: GpuTopology, header: str = "", cells: Sequence[str] = ()) -> list[str]:
    """Return the links between all GPUs and their NUMA nodes, and the given cells as the last column."""
    gpus = range(topology.gpu_count)
    rows = []
    for i in gpus:
        numa = numa_node(topology, i)
        numa_cell = "-" if numa is None else str(numa)
        rows.append((f"GPU{i}", *(link_label(topology, i, j) for j in gpus), numa_cell, *cells[i : i + 1]))
    return align_columns([("", *(f"GPU{i}" for i in gpus), "NUMA", *([header] if cells else [])), *rows])


def node_document(
    snapshot: SchedulingSnapshot,
    node: int,
    capacity: NodeCapacity | None,
    pods: Sequence[NodePodGpus],
    cards: Sequence[PublishedCard] = (),
    allocated: Iterable[AllocatedDevice] | None = (),
) -> dict[str, Any]:
    """Return a node as plain data; one without GPUs has no capacity."""
    topology, gpus = snapshot.devices[node].topology, listed_gpus(snapshot, node)
    return {
        "node": CAPACITY.to_document(capacity) if capacity else {"name": snapshot.fleet.nodes[node].name, "gpus": 0},
        "linksFrom": topology.confidence.name.lower(),
        "gpus": [_gpu_document(topology, i) | {"state": gpu_state(snapshot, node, i)} for i in gpus],
        "cards": [
            {
                "index": card.index,
                "used": _mig_instance_documents(card.used),
                "idle": _mig_instance_documents(card.idle),
            }
            for card in snapshot.devices[node].mig_cards
        ],
        "publishedCards": [CARDS.to_document(card) for card in cards],
        "allocatedDevices": None if allocated is None else _allocated_documents(cards, allocated),
        "pods": [{"namespace": each.namespace, "name": each.name, "gpus": dict(each.gpus)} for each in pods],
    }


def _allocated_documents(cards: Iterable[PublishedCard], allocated: Iterable[AllocatedDevice]) -> list[dict[str, Any]]:
    return list(map(ALLOCATED_DEVICES.to_document, allocated_device_rows(cards, allocated)))


def _gpu_document(topology: GpuTopology, gpu: int) -> dict[str, Any]:
    links = [link_label(topology, gpu, other) for other in range(topology.gpu_count)]
    return {"index": gpu, "numaNode": numa_node(topology, gpu), "links": links}


def _mig_instance_documents(instances: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"profile": instance.profile, "start": instance.start} for instance in sorted(instances)]


def link_label(topology: GpuTopology, one: int, other: int) -> str:
    """Return the link between two GPUs as `nvidia-smi topo -m` prints it; "." if it is unknown."""
    if one == other:
        return "X"
    links, path = topology.count_nvlinks(one, other), topology.pcie_paths[one][other]
    return f"NV{links}" if links else path.name if path else "."


def gpu_state(snapshot: SchedulingSnapshot, node: int, gpu: int) -> str:
    """Return the pods of a GPU, or its state as far as it is known."""
    devices = snapshot.devices[node]
    pods = ", ".join(map(sanitize, devices.holders.get(gpu, ())))
    if devices.unhealthy >> gpu & 1:
        return f"{pods} (unhealthy)" if pods else "unhealthy"
    if pods:
        return pods
    if any(card.index == gpu for card in devices.mig_cards):
        return "partitioned, no instance in use"
    if devices.free is None:
        is_partitioned = count_partitioned_gpus(snapshot, node) == devices.topology.gpu_count
        return "partitioned" if is_partitioned else UNKNOWN_CELL
    if devices.withdrawn >> gpu & 1:
        return "not advertised"
    return "free" if devices.free >> gpu & 1 else "in use"


def numa_node(topology: GpuTopology, gpu: int) -> int | None:
    """Return the NUMA node of a GPU; None if it is unknown."""
    return topology.numa_nodes[gpu] if topology.numa_nodes[gpu] >= 0 else None


def _mig_instances_text(used: Iterable[Any], idle: Iterable[Any], idle_state: str) -> str:
    parts = [
        f"{instance.profile} at {instance.start} {state}"
        for state, instances in (("in use", used), (idle_state, idle))
        for instance in sorted(instances)
    ]
    return ", ".join(parts) or "not partitioned"


def gpu_sets_by_size(topology: GpuTopology) -> list[GpuSet]:
    """Return the sets that pods with one, two, three … GPUs would get."""
    sets, plugin = gpu_sets(topology), best_effort_policy(topology)
    every = (1 << topology.gpu_count) - 1
    rows = []
    for count in range(1, topology.gpu_count + 1):
        best, allocated = sets.optimal_set(every, count) or 0, plugin.predict_set(every, count) or 0
        connected = allocated > 0 and sets.is_nvlink_connected(allocated)
        rows.append(GpuSet(tuple(bit_positions(best)), tuple(bit_positions(allocated)), connected))
    return rows


def _connected_cell(row: GpuSet) -> str:
    return "" if len(row.best) == 1 or not row.allocated else "yes" if row.nvlink_connected else "no"


def gpu_list(gpus: Sequence[int]) -> str:
    """Return GPU indexes separated by commas."""
    return ",".join(map(str, gpus))


GPU_SETS = Table[GpuSet](
    (
        Column("", lambda row: len(row.best), "GPUs"),
        Column("allocated", lambda row: row.allocated, "Device-plugin", lambda row: gpu_list(row.allocated) or "fails"),
        Column("nvlinkConnected", lambda row: row.nvlink_connected, "NVLink-connected", _connected_cell),
        Column(
            "best",
            lambda row: row.best,
            "Best",
            lambda row: "same" if row.best == row.allocated else gpu_list(row.best),
        ),
    )
)


def machine_topology_lines(topology: GpuTopology) -> list[str]:
    """Return the links of every GPU, then a row for each size of pod."""
    return [*_link_matrix_lines(topology), "", *GPU_SETS.to_lines(gpu_sets_by_size(topology))]


def machine_topology_document(topology: GpuTopology) -> dict[str, Any]:
    """Return the links and the sets as plain data."""
    return {
        "gpus": [_gpu_document(topology, i) for i in range(topology.gpu_count)],
        "sets": list(map(GPU_SETS.to_document, gpu_sets_by_size(topology))),
    }
