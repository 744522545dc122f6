"""The result of `capacity`: installed, allocated, free and fragmented GPUs by node, the total first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from webhook.errors import abbreviate_names
from webhook.model.dra.device_pools import NodePool, PoolId
from webhook.model.dra.device_view import NO_DEVICES, DeviceView
from webhook.model.dra.gpu_devices import GPU_DRIVERS
from webhook.model.dra.pool_kinds import NodeCards, cards_by_node
from webhook.model.enums import GpuForm
from webhook.model.fleet import FleetNode
from webhook.model.gpu_resources import CARD_MILLI, WHOLE_GPU, parse_gpu_resource
from webhook.model.node_groups import NodeGroup
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.node_masks import bit_positions
from webhook.model.offers import GpuOffer
from webhook.placement.devices import NodeDevices
from webhook.placement.fragmentation.strategies import FgdScorer
from webhook.placement.fragmentation.workload_mix import WorkloadMix
from webhook.placement.labeled_gpus import GPU_COUNT_LABEL, LabeledGpus, labeled_gpus, labeled_or_cloud_gpus
from webhook.placement.mig import MigCard, MigGeometry, count_instances, mig_geometry, occupied_units
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import MAX_ISLAND_GPUS
from webhook.report.tables import Column, Table, gpu_column
from webhook.report.text import format_gpus, pluralize, sanitize

UNKNOWN_CELL = "?"
NO_AGENT = "no agent runs on the node"
UNKNOWN_FREE = "it is unknown which of its GPUs are free"
UNKNOWN_CLAIMS = "resource claims cannot be read: it is unknown which GPUs of ResourceSlices are free"
ADVERTISED_TWICE = (
    "its GPUs are in ResourceSlices too, which are not counted: pods with claims may get a GPU that another pod has"
)
AGENT_DISAGREES = "its agent reports more free GPUs than the Node has"


class NodeCapacity(msgspec.Struct, frozen=True):
    """GPUs of one node, or of all nodes together under the name "*".

    Attributes:
        installed_gpus: Physical GPUs.
        free_milli: Free thousandths on nodes that take pods.
        largest_island: Free GPUs in the largest set in which NVLink connects every pair; None if it is unknown which
            are free.
        mig_fits: Free instances by MIG profile, the largest profile first.
        fragmented_milli: Free thousandths that a pod of the mix with whole GPUs or shares cannot use, on average.
        warning: What the node or its agent reports that is impossible; "" for nothing.
        unschedulable_milli: Unallocated thousandths on nodes that take no pods: cordoned, not ready, being
            reconfigured, or full of pods; and of tainted devices on other nodes.
        tainted_milli: The part of `unschedulable_milli` that is on nodes that take pods: of tainted devices.
        schedulable: Whether the node takes pods.
        from_slices: True if its GPUs are those of ResourceSlices.
        note: Which of its GPUs other nodes share and do not count; "" for none.
        health: How many of its GPUs are unhealthy or degraded, by its agent; "" for none.
        missing_gpus: GPUs that its labels state while none is allocatable; they do not count as installed.
        missing_slices: What its labels state instead of these GPUs where slices have their name; "" for nothing.
        unused_part_milli: What pods do not use of its partitioned and shared cards, on nodes that take pods.
        unknown_milli: Thousandths of which it is unknown whether claims have them.
    """

    name: str
    product: str
    installed_gpus: int
    allocated_milli: int
    free_milli: int
    largest_island: int | None
    mig_fits: tuple[tuple[str, int], ...]
    fragmented_milli: int
    warning: str = ""
    unschedulable_milli: int = 0
    tainted_milli: int = 0
    schedulable: bool = True
    from_slices: bool = False
    note: str = ""
    health: str = ""
    missing_gpus: int = 0
    missing_slices: str = ""
    unused_part_milli: int = 0
    unknown_milli: int = 0

    @property
    def product_text(self) -> str:
        """The product, or why it is unknown: labels name it, or the devices of ResourceSlices."""
        return self.product or ("product not published" if self.from_slices else "product not labeled")

    @property
    def total_milli(self) -> int:
        """Allocatable thousandths, allocated or not."""
        return self.allocated_milli + self.free_milli + self.unschedulable_milli + self.unknown_milli

    @property
    def unschedulable_node_milli(self) -> int:
        """Unallocated thousandths on nodes that take no pods."""
        return self.unschedulable_milli - self.tainted_milli


def node_capacities(
    snapshot: SchedulingSnapshot, mix: WorkloadMix, devices: DeviceView = NO_DEVICES
) -> list[NodeCapacity]:
    """Return the capacity of each node with GPUs, in the cluster's order.

    Args:
        snapshot: The nodes, with the GPUs that device plugins advertise.
        mix: The mix of pods.
        devices: The GPUs of ResourceSlices.
    """
    nodes = snapshot.fleet.nodes
    rows = snapshot.free_arrays().rows(np.arange(len(nodes)))
    fragmented = -FgdScorer(snapshot.capacity, mix.with_gpus()).node_values(rows)
    cards = cards_by_node(devices, _usable_nodes_first(snapshot)) if devices.pools else {}
    capacities = []
    for i, node in enumerate(nodes):
        of_slices = slice_capacity(node, snapshot.free[i].full, cards[i], nodes) if i in cards else None
        if node.gpus or node.implausible_gpus or snapshot.devices[i].mig_cards:
            capacity = _node_capacity(snapshot, i, round(float(fragmented[i])))
            capacities.append(_advertised_twice(capacity, of_slices) if of_slices else capacity)
        elif of_slices is not None:
            capacities.append(of_slices)
        elif missing := find_missing_gpus(node):
            capacities.append(_capacity_without_gpus(node, missing))
    return capacities


def find_missing_gpus(node: FleetNode) -> LabeledGpus | None:
    """Return the GPUs that the labels of a node state, if it has none to allocate; None if it has."""
    if node.gpus or node.implausible_gpus:
        return None
    stated = labeled_or_cloud_gpus(node.labels)
    return stated if stated.units else None


def missing_gpus_text(missing: LabeledGpus) -> str:
    """Return what is known about a node whose labels state GPUs of which none is allocatable.

    >>> missing_gpus_text(LabeledGpus(8))
    'its labels state 8 GPUs, and none is allocatable: the device plugin does not run, or the node is being prepared'
    """
    gpus = pluralize(missing.cards, "GPU")
    stated = f"{_slices_text(missing)} of {gpus}" if missing.profile else gpus
    return (
        f"its labels state {stated}, and none is allocatable: the device plugin does not run, or the node is being "
        "prepared"
    )


def _slices_text(missing: LabeledGpus) -> str:
    return f"{pluralize(missing.units, 'slice')} {missing.profile}" if missing.profile else ""


def _capacity_without_gpus(node: FleetNode, missing: LabeledGpus) -> NodeCapacity:
    return NodeCapacity(
        name=node.name,
        product=_short_product(node),
        installed_gpus=0,
        allocated_milli=0,
        free_milli=0,
        largest_island=0,
        mig_fits=(),
        fragmented_milli=0,
        warning=missing_gpus_text(missing),
        schedulable=node.usable,
        missing_gpus=min(missing.cards, MAX_ISLAND_GPUS),
        missing_slices=_slices_text(missing),
    )


def _short_product(node: FleetNode) -> str:
    return node.labels.get(PRODUCT_LABEL, "").removeprefix("NVIDIA-")


def _advertised_twice(capacity: NodeCapacity, of_slices: NodeCapacity) -> NodeCapacity:
    """Return the capacity of a node by its device plugin, with the product that its ResourceSlices say."""
    return structs.replace(capacity, product=capacity.product or of_slices.product, warning=ADVERTISED_TWICE)


def _usable_nodes_first(snapshot: SchedulingSnapshot) -> list[int]:
    """Return the nodes in an order in which the first is the best to count GPUs on that several nodes share."""
    nodes, free = snapshot.fleet.nodes, snapshot.free
    return sorted(range(len(nodes)), key=lambda i: (bool(nodes[i].gpus), not nodes[i].usable or free[i].full))


def slice_capacity(
    node: FleetNode, full: bool, published: NodeCards, nodes: Sequence[FleetNode]
) -> NodeCapacity | None:
    """Return the capacity of a node by its ResourceSlices; None if they have no GPUs and no pool is unusable."""
    cards = published.cards
    warnings = [_pool_warning(pool) for pool in published.unusable if pool.id.driver in GPU_DRIVERS]
    if not cards and not warnings:
        return None
    fits: Counter[str] = Counter()
    for card in cards:
        fits.update(card.fits)
    schedulable = node.usable and not full
    free, tainted = sum(card.free_milli for card in cards), sum(card.tainted_milli for card in cards)
    unknown = sum(card.unknown_milli for card in cards)
    return NodeCapacity(
        name=node.name,
        product=", ".join(dict.fromkeys(card.product.removeprefix("NVIDIA-") for card in cards if card.product)),
        installed_gpus=len(cards),
        allocated_milli=sum(card.allocated_milli for card in cards),
        free_milli=free if schedulable else 0,
        largest_island=None if schedulable and (free or unknown) else 0,
        mig_fits=_largest_profile_first(fits) if schedulable else (),
        fragmented_milli=0,
        warning="; ".join(warnings),
        unschedulable_milli=tainted + (0 if schedulable else free),
        tainted_milli=tainted if schedulable else 0,
        schedulable=schedulable,
        from_slices=True,
        note=_sharing_note(published.sharing, nodes),
        unknown_milli=unknown,
    )


def _sharing_note(sharing: Mapping[PoolId, int], nodes: Sequence[FleetNode]) -> str:
    """Return with which nodes a node shares GPUs that count on it alone."""
    notes = []
    for pool, mask in sharing.items():
        names = abbreviate_names([nodes[position].name for position in bit_positions(mask)])
        notes.append(f"shares the GPUs of pool {'/'.join(pool)} with {names}: they count here only")
    return "; ".join(notes)


def _pool_warning(pool: NodePool) -> str:
    """Return why no device of an unusable pool can be allocated."""
    name = "/".join(pool.id)
    if pool.incomplete:
        return f"ResourceSlices of pool {name} are missing: the scheduler uses none of it"
    return f"pool {name} is invalid, {pool.invalid}: the scheduler uses none of it"


def total_capacity(nodes: Sequence[NodeCapacity]) -> NodeCapacity:
    """Sum up nodes."""
    fits: Counter[str] = Counter()
    for node in nodes:
        fits.update(dict(node.mig_fits))
    islands = [node.largest_island for node in nodes]
    largest = max((island or 0 for island in islands), default=0)
    summed = (
        "installed_gpus", "allocated_milli", "free_milli", "fragmented_milli", "unschedulable_milli", "tainted_milli",
        "missing_gpus", "unused_part_milli", "unknown_milli",
    )  # fmt: skip
    return NodeCapacity(
        name="*",
        product="*",
        largest_island=None if None in islands and not largest else largest,
        mig_fits=_largest_profile_first(fits),
        **{field: sum(getattr(node, field) for node in nodes) for field in summed},
    )


def _node_capacity(snapshot: SchedulingSnapshot, index: int, fragmented: int) -> NodeCapacity:
    node, left = snapshot.fleet.nodes[index], snapshot.free[index]
    offers = [offer for resource in node.gpus if (offer := snapshot.fleet.offer_on(resource, index))]
    geometry = mig_geometry(node.labels.get(PRODUCT_LABEL, ""))
    cards = snapshot.devices[index].mig_cards
    unpartitioned = sum(_unpartitioned_milli(geometry, card) for card in cards) if geometry else 0
    free = unpartitioned + sum(left.gpus.get(offer.resource, 0) * offer.gpu_milli for offer in offers)
    total = unpartitioned + sum(node.gpus[offer.resource] * offer.gpu_milli for offer in offers)
    capacity = NodeCapacity(
        name=node.name,
        product=_short_product(node),
        installed_gpus=_count_installed_gpus(node.labels, total),
        allocated_milli=sum(snapshot.used_units(index, offer.resource) * offer.gpu_milli for offer in offers),
        free_milli=free,
        largest_island=_largest_free_island(snapshot, index),
        mig_fits=_free_mig_instances(snapshot, index, offers),
        fragmented_milli=min(fragmented, free),
        warning="; ".join(_capacity_warnings(snapshot, index)),
        unschedulable_milli=sum(left.stranded.get(offer.resource, 0) * offer.gpu_milli for offer in offers),
        health=_health_text(snapshot.devices[index]),
        unused_part_milli=_unused_part_milli(snapshot, index, offers, total),
    )
    if node.usable and not left.full:
        return capacity
    return structs.replace(
        capacity,
        free_milli=0,
        unschedulable_milli=capacity.unschedulable_milli + free,
        largest_island=0,
        mig_fits=(),
        fragmented_milli=0,
        schedulable=False,
        unused_part_milli=0,
    )


def _unused_part_milli(snapshot: SchedulingSnapshot, index: int, offers: Iterable[GpuOffer], total_milli: int) -> int:
    """Return what pods do not use of the partitioned and shared cards of a node, whose layouts can be planned."""
    node, parts = snapshot.fleet.nodes[index], [offer for offer in offers if _is_part(offer)]
    if not parts:
        return 0
    whole = sum(node.gpus[offer.resource] * offer.gpu_milli for offer in offers if not _is_part(offer))
    used = sum(snapshot.used_units(index, offer.resource) * offer.gpu_milli for offer in parts)
    return max(0, CARD_MILLI * _count_installed_gpus(node.labels, total_milli) - whole - used)


def _is_part(offer: GpuOffer) -> bool:
    """Return whether an offer is a part of a card that a plan can change: slices named as whole GPUs stay."""
    return offer.form is not GpuForm.WHOLE and (offer.form is not GpuForm.MIG or offer.resource != WHOLE_GPU)


def _unpartitioned_milli(geometry: MigGeometry, card: MigCard) -> int:
    """Return the thousandths of a card that further instances could use."""
    instances = card.used | card.idle
    if not any(count_instances(geometry, occupied_units(geometry, instances)).values()):
        return 0
    profiles = [geometry.profile(instance.profile) for instance in instances]
    return max(0, CARD_MILLI - sum(profile.milli for profile in profiles if profile))


def _capacity_warnings(snapshot: SchedulingSnapshot, index: int) -> Iterator[str]:
    node, devices = snapshot.fleet.nodes[index], snapshot.devices[index]
    for resource, units in node.implausible_gpus.items():
        yield f"reports {units} {resource}, more than any node can have: ignored"
    if labeled_gpus(node.labels).cards > MAX_ISLAND_GPUS:
        count = node.labels[GPU_COUNT_LABEL]
        yield f"label {GPU_COUNT_LABEL} is {count}, more than any node can have: allocatable GPUs are counted instead"
    if node.name in snapshot.report_errors:
        yield f"its agent's report cannot be used: {snapshot.report_errors[node.name]}"
    if devices.allocatable_unhealthy and snapshot.whole_gpus(index)[1]:
        gpus = ", ".join(map(str, bit_positions(devices.allocatable_unhealthy)))
        yield f"unhealthy GPUs that count as free: {gpus}"
    if devices.whole_gpus and devices.free is None:
        yield f"{UNKNOWN_FREE}: {AGENT_DISAGREES}"
    if devices.message:
        yield f"its agent's report is incomplete: {devices.message}"


def _health_text(devices: NodeDevices) -> str:
    unhealthy, degraded = devices.unhealthy.bit_count(), (devices.degraded & ~devices.unhealthy).bit_count()
    counts = {"unhealthy": unhealthy, "degraded": degraded}
    return ", ".join(f"{pluralize(count, 'GPU')} {word}" for word, count in counts.items() if count)


def _count_installed_gpus(labels: Mapping[str, str], total_milli: int) -> int:
    """Return the physical GPUs; if labels do not say how many, those that the offers add up to."""
    count = labeled_gpus(labels).cards
    return count if 0 < count <= MAX_ISLAND_GPUS else round(total_milli / 1000)


def _largest_free_island(snapshot: SchedulingSnapshot, index: int) -> int | None:
    free = snapshot.whole_gpus(index)[1]
    devices = snapshot.devices[index]
    if not free:
        return 0
    sets = gpu_sets(devices.topology)
    if devices.free is not None:
        return sets.largest_island(devices.free & ~devices.unhealthy)
    return free if free <= devices.topology.gpu_count and sets.are_all_connected(free) else None


def _free_mig_instances(
    snapshot: SchedulingSnapshot, index: int, offers: Iterable[GpuOffer]
) -> tuple[tuple[str, int], ...]:
    """Return free instances by profile: those that exist, and those that cards could still be partitioned into."""
    free = snapshot.free[index].gpus
    counts = Counter({offer.profile: free.get(offer.resource, 0) for offer in offers if offer.form is GpuForm.MIG})
    geometry = mig_geometry(snapshot.fleet.nodes[index].labels.get(PRODUCT_LABEL, ""))
    if geometry:
        for card in snapshot.devices[index].mig_cards:
            counts.update(count_instances(geometry, occupied_units(geometry, card.used | card.idle)))
    return _largest_profile_first(counts)


def _largest_profile_first(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(((name, count) for name, count in counts.items() if count), key=_profile_slices, reverse=True))


def _profile_slices(fit: tuple[str, int]) -> int:
    resource = parse_gpu_resource(f"nvidia.com/mig-{fit[0].replace('+', '.')}")
    return resource.slices if resource else 0


def amount_beside_unknown(milli: int, unknown_milli: int) -> str:
    """Return GPUs, to which some may be added of which it is unknown whether they are free.

    >>> amount_beside_unknown(3000, 0), amount_beside_unknown(3000, 8000), amount_beside_unknown(0, 8000)
    ('3', '3 + ?', '?')
    """
    known = format_gpus(milli)
    return known if not unknown_milli else f"{known} + {UNKNOWN_CELL}" if milli else UNKNOWN_CELL


def _allocated_cell(node: NodeCapacity) -> str:
    """Return the allocated GPUs and their rounded share."""
    allocated, total = node.allocated_milli, node.total_milli
    if node.unknown_milli:
        return amount_beside_unknown(allocated, node.unknown_milli)
    return f"{format_gpus(allocated)} ({(200 * allocated + total) // (2 * total)}%)" if total else ""


def _free_cell(node: NodeCapacity) -> str:
    return amount_beside_unknown(node.free_milli, node.unknown_milli)


def _island_cell(node: NodeCapacity) -> str:
    return UNKNOWN_CELL if node.largest_island is None else str(node.largest_island or "")


def _state_cell(node: NodeCapacity) -> str:
    stated = node.missing_slices or pluralize(node.missing_gpus, "GPU")
    missing = f"{stated} not allocatable" if node.missing_gpus else ""
    return ", ".join(filter(None, (_scheduling_state(node), missing, node.health, "warning" if node.warning else "")))


def _scheduling_state(node: NodeCapacity) -> str:
    if not node.schedulable:
        unused = f", {format_gpus(node.unschedulable_milli)} unused" if node.unschedulable_milli else ""
        return f"unschedulable{unused}"
    parts = {
        "on unschedulable nodes": node.unschedulable_node_milli,
        "on tainted devices": node.tainted_milli,
    }
    return ", ".join(f"{format_gpus(milli)} unused {where}" for where, milli in parts.items() if milli)


def capacity_columns(*, wide: bool = False) -> Table[NodeCapacity]:
    """Return the columns; `wide` lists every MIG profile that fits, with its count."""

    def mig_cell(node: NodeCapacity) -> str:
        if wide:
            return ", ".join(f"{count} x {profile}" for profile, count in node.mig_fits)
        return node.mig_fits[0][0] if node.mig_fits else ""

    return Table(
        (
            Column("name", lambda node: node.name, "Node"),
            Column("product", lambda node: node.product, "Product"),
            Column("gpus", lambda node: node.installed_gpus, "GPUs", numeric=True),
            Column("allocatedMilli", lambda node: node.allocated_milli, "Allocated", _allocated_cell, numeric=True),
            Column("freeMilli", lambda node: node.free_milli, "Free", _free_cell, numeric=True),
            Column("largestIsland", lambda node: node.largest_island, "Island", _island_cell, numeric=True),
            Column("migFits", lambda node: dict(node.mig_fits), "MIG-fits", mig_cell),
            gpu_column("fragmentedMilli", lambda node: node.fragmented_milli, "Fragmented"),
            Column("", _state_cell, "State"),
            Column("unschedulableMilli", lambda node: node.unschedulable_milli),
            Column("taintedMilli", lambda node: node.tainted_milli),
            Column("schedulable", lambda node: node.schedulable),
            Column("fromSlices", lambda node: node.from_slices),
            Column("missingGpus", lambda node: node.missing_gpus),
            Column("unknownMilli", lambda node: node.unknown_milli),
        )
    )


CAPACITY = capacity_columns()


CAPACITY_WIDE = capacity_columns(wide=True)


def capacity_table(nodes: Sequence[NodeCapacity]) -> list[str]:
    """Return the table: the total, then one row per node, then warnings."""
    return [*CAPACITY.to_lines([total_capacity(nodes), *nodes]), *capacity_notes(nodes)]


def capacity_notes(nodes: Sequence[NodeCapacity]) -> list[str]:
    """Return what the cells do not say, and warnings."""
    lines = []
    unknown = [node for node in nodes if node.largest_island is None and not node.warning]
    if not all(node.from_slices for node in unknown):
        lines.append(f"{UNKNOWN_CELL} {NO_AGENT}: {UNKNOWN_FREE}")
    if any(node.unknown_milli for node in nodes):
        lines.append(f"{UNKNOWN_CELL} {UNKNOWN_CLAIMS}")
    if any(node.from_slices for node in unknown):
        lines.append(f"{UNKNOWN_CELL} ResourceSlices do not say which GPUs NVLink connects")
    texts = ((node.name, text) for node in nodes for text in (node.note, node.warning) if text)
    return lines + [f"{sanitize(name)}: {sanitize(text)}" for name, text in texts]


def group_notes(groups: Iterable[NodeGroup]) -> list[str]:
    """Return what a new node of each group without nodes would have, and why none will be created."""
    lines = []
    for group in groups:
        offered = [f"{units} {name}" for name, units in group.gpus.items()]
        has = " and ".join([*offered, *(["GPUs of ResourceSlices"] if group.slices else [])])
        cannot = f"; it cannot grow: {group.blocker}" if group.blocker else ""
        lines.append(sanitize(f"node group {group.name} has no node; a new one would have {has}{cannot}"))
    return lines


def capacity_document(nodes: Sequence[NodeCapacity], groups: Iterable[NodeGroup] = ()) -> dict[str, Any]:
    """Return the total, the nodes and the groups without nodes as plain data."""
    return {
        "total": CAPACITY.to_document(total_capacity(nodes)),
        "nodes": [CAPACITY.to_document(node) for node in nodes],
        "groupsWithoutNodes": [
            {"name": each.name, "gpusOfNewNode": each.gpus, "blocker": each.blocker} for each in groups
        ],
    }
