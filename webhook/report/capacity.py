"""What is free: a row a node, the total first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL, STRATEGY_LABEL, parse_count
from webhook.model.node_masks import bit_positions
from webhook.model.offers import GpuOffer
from webhook.placement.devices import GPU_COUNT_LABEL
from webhook.placement.fragmentation.strategies import FgdScorer
from webhook.placement.fragmentation.workload_mix import WorkloadMix
from webhook.placement.mig import CARD_MILLI, MigCard, MigGeometry, count_instances, mig_geometry, occupied_units
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import MAX_ISLAND_GPUS
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, sanitize, without_style

HEAD = ("NODE", "PRODUCT", "GPUS", "USED", "FREE", "ISLAND", "MIG-FITS", "SPLIT-UP", "STATE")
UNKNOWN_CELL = "?"
AGENT_DISAGREES = "its agent reports more free GPUs than its Node has"


class NodeCapacity(msgspec.Struct, frozen=True):
    """What one node has, or all of them together under the name "*".

    Attributes:
        gpus: Physical GPUs.
        used_milli: Thousandths of GPUs that pods hold.
        free_milli: Thousandths that are free, on nodes that take pods.
        closed_milli: Thousandths that nobody holds, on nodes that take no pods: cordoned, not ready, being changed, or
            with as many pods as they take.
        usable: False of a node that takes no pods.
        island: Most free GPUs that NVLink joins pair by pair; None where it is not known which are free.
        fits: Free instances by MIG profile, the largest profile first.
        split_milli: Free thousandths that a pod of the mix with whole GPUs or shares cannot use, on average.
        remark: What the node, or its agent, says that cannot be; "" for nothing.
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
    schedulable: bool = True

    @property
    def total_milli(self) -> int:
        """All that it has, held or not."""
        return self.allocated_milli + self.free_milli + self.unschedulable_milli


def node_capacities(cluster: SchedulingSnapshot, mix: WorkloadMix) -> list[NodeCapacity]:
    """The nodes with GPUs, in the cluster's order."""
    rooms = cluster.free_arrays()
    split = -FgdScorer(cluster.capacity, mix.with_gpus()).node_values(rooms.rows(np.arange(len(cluster.fleet.nodes))))
    found = [
        i
        for i, node in enumerate(cluster.fleet.nodes)
        if node.gpus or node.implausible_gpus or cluster.devices[i].mig_cards
    ]
    every = [(i, _node_capacity(cluster, i, round(float(split[i])))) for i in found]
    return [_unschedulable_capacity(stock) if _is_unschedulable_node(cluster, i) else stock for i, stock in every]


def _is_unschedulable_node(cluster: SchedulingSnapshot, node: int) -> bool:
    return cluster.free[node].full or not cluster.fleet.nodes[node].usable


def _unschedulable_capacity(stock: NodeCapacity) -> NodeCapacity:
    closed = stock.unschedulable_milli + stock.free_milli
    return structs.replace(
        stock,
        free_milli=0,
        unschedulable_milli=closed,
        largest_island=0,
        mig_fits=(),
        fragmented_milli=0,
        schedulable=False,
    )


def total_capacity(every: Sequence[NodeCapacity]) -> NodeCapacity:
    """All of them together."""
    fits: dict[str, int] = {}
    for stock in every:
        for profile, count in stock.mig_fits:
            fits[profile] = fits.get(profile, 0) + count
    return NodeCapacity(
        name="*",
        product="*",
        installed_gpus=sum(stock.installed_gpus for stock in every),
        allocated_milli=sum(stock.allocated_milli for stock in every),
        free_milli=sum(stock.free_milli for stock in every),
        largest_island=max(
            (stock.largest_island for stock in every if stock.largest_island is not None), default=None if every else 0
        ),
        mig_fits=tuple(sorted(fits.items(), key=lambda item: -_profile_slices(item[0]))),
        fragmented_milli=sum(stock.fragmented_milli for stock in every),
        unschedulable_milli=sum(stock.unschedulable_milli for stock in every),
    )


def _node_capacity(cluster: SchedulingSnapshot, node: int, split: int) -> NodeCapacity:
    known, room = cluster.fleet.nodes[node], cluster.free[node]
    offers = [offer for resource in known.gpus if (offer := cluster.offer(node, resource))]
    uncut = _unpartitioned_milli(cluster, node)
    free = uncut + sum(room.gpus.get(offer.resource, 0) * offer.gpu_milli for offer in offers)
    stranded = sum(room.stranded.get(offer.resource, 0) * offer.gpu_milli for offer in offers)
    whole = uncut + sum(known.gpus[offer.resource] * offer.gpu_milli for offer in offers)
    return NodeCapacity(
        name=known.name,
        product=known.labels.get(PRODUCT_LABEL, "").removeprefix("NVIDIA-"),
        installed_gpus=_count_installed_gpus(known.labels, whole),
        allocated_milli=sum(cluster.used_units(node, offer.resource) * offer.gpu_milli for offer in offers),
        free_milli=free,
        largest_island=_largest_free_island(cluster, node),
        mig_fits=_free_mig_instances(cluster, node, offers),
        fragmented_milli=min(split, free),
        warning="; ".join(_capacity_warnings(cluster, node)),
        unschedulable_milli=stranded,
    )


def _unpartitioned_milli(cluster: SchedulingSnapshot, node: int) -> int:
    """Thousandths of MIG cards of which another instance can be cut."""
    known = mig_geometry(cluster.fleet.nodes[node].labels.get(PRODUCT_LABEL, ""))
    return sum(_unpartitioned_card_milli(known, card) for card in cluster.devices[node].mig_cards) if known else 0


def _unpartitioned_card_milli(known: MigGeometry, card: MigCard) -> int:
    """The same of one card: what no instance takes."""
    cut = card.used | card.idle
    if not any(count_instances(known, occupied_units(known, cut)).values()):
        return 0
    profiles = [known.profile(one.profile) for one in cut]
    return max(0, CARD_MILLI - sum(profile.milli for profile in profiles if profile))


def _capacity_warnings(cluster: SchedulingSnapshot, number: int) -> Iterator[str]:
    node, devices = cluster.fleet.nodes[number], cluster.devices[number]
    for resource, units in node.implausible_gpus.items():
        yield f"says it has {units} {resource}, more than any node can have: counts as none"
    if _labelled_gpu_count(node.labels) > MAX_ISLAND_GPUS:
        yield (
            f"its label {GPU_COUNT_LABEL} says {node.labels[GPU_COUNT_LABEL]}, more than "
            f"any node can have: what it gives out is counted"
        )
    if node.name in cluster.report_errors:
        yield f"its agent's report cannot be used: {cluster.report_errors[node.name]}"
    if devices.allocatable_unhealthy and cluster.whole_gpus(number)[1]:
        yield (
            f"GPUs that are ill and counted as free: "
            f"{', '.join(map(str, bit_positions(devices.allocatable_unhealthy)))}"
        )
    if devices.whole_gpus and devices.free is None:
        yield f"which of its GPUs are free is not known: {AGENT_DISAGREES}"


def _count_installed_gpus(labels: Mapping[str, str], whole: int) -> int:
    """GPUs that are built in. With MIG strategy single the label counts slices, so what is offered is added up."""
    counted = _labelled_gpu_count(labels)
    return counted if 0 < counted <= MAX_ISLAND_GPUS else round(whole / 1000)


def _labelled_gpu_count(labels: Mapping[str, str]) -> int:
    """GPUs as a label counts them; 0 where none does."""
    return (parse_count(labels.get(GPU_COUNT_LABEL)) or 0) if labels.get(STRATEGY_LABEL) != "single" else 0


def _largest_free_island(cluster: SchedulingSnapshot, node: int) -> int | None:
    free = cluster.whole_gpus(node)[1]
    devices = cluster.devices[node]
    if not free:
        return 0
    sets = gpu_sets(devices.topology)
    if devices.free is not None:
        return sets.largest_island(devices.free & ~devices.unhealthy)
    return free if free <= devices.topology.gpu_count and sets.are_all_joined(free) else None


def _free_mig_instances(
    cluster: SchedulingSnapshot, node: int, offers: Iterable[GpuOffer]
) -> tuple[tuple[str, int], ...]:
    """Free instances by profile: those that are cut, and of cards that are known, those that still could be."""
    room = cluster.free[node].gpus
    counts = {offer.profile: room.get(offer.resource, 0) for offer in offers if offer.form is GpuForm.MIG}
    known = mig_geometry(cluster.fleet.nodes[node].labels.get(PRODUCT_LABEL, ""))
    for card in cluster.devices[node].mig_cards:
        more = count_instances(known, occupied_units(known, card.used | card.idle)) if known else {}
        counts |= {name: counts.get(name, 0) + count for name, count in more.items()}
    free = [(profile, count) for profile, count in counts.items() if count]
    return tuple(sorted(free, key=lambda item: -_profile_slices(item[0])))


def _profile_slices(profile: str) -> int:
    known = parse_gpu_resource(f"nvidia.com/mig-{profile.replace('+', '.')}")
    return known.slices if known else 0


def capacity_table(every: Sequence[NodeCapacity], paint: Paint = without_style, *, wide: bool = False) -> list[str]:
    """The total, then a row a node."""
    head, *rows = align_columns([HEAD, *(_capacity_row(stock, wide=wide) for stock in [total_capacity(every), *every])])
    notes = ["? no agent runs there: which of its GPUs are free is not known"] if _has_unknown_gpus(every) else []
    notes += [f"{sanitize(stock.name)}: {sanitize(stock.warning)}" for stock in every if stock.warning]
    return [paint(head, TextStyle.STRONG), *rows, *notes]


def _has_unknown_gpus(every: Iterable[NodeCapacity]) -> bool:
    return any(stock.largest_island is None and not stock.warning for stock in every)


def _capacity_row(stock: NodeCapacity, *, wide: bool) -> tuple[str, ...]:
    whole = stock.total_milli
    cells = (
        stock.name,
        stock.product,
        str(stock.installed_gpus),
        f"{format_gpus(stock.allocated_milli)} ({100 * stock.allocated_milli // whole}%)" if whole else "",
        format_gpus(stock.free_milli),
        UNKNOWN_CELL if stock.largest_island is None else str(stock.largest_island or ""),
        ", ".join(
            f"{count} x {profile}" if wide else profile for profile, count in stock.mig_fits[: None if wide else 1]
        ),
        format_gpus(stock.fragmented_milli),
        _capacity_state(stock),
    )
    return tuple(sanitize(cell) or "-" for cell in cells)


def _capacity_state(stock: NodeCapacity) -> str:
    """What of a node, or of all of them, is out of reach."""
    idle = f"{format_gpus(stock.unschedulable_milli)} idle" if stock.unschedulable_milli else ""
    if stock.schedulable:
        return f"{idle} on nodes that take no pods" if idle else ""
    return f"takes no pods, {idle}" if idle else "takes no pods"


def capacity_document(every: Sequence[NodeCapacity]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "total": node_capacity_document(total_capacity(every)),
        "nodes": [node_capacity_document(stock) for stock in every],
    }


def node_capacity_document(stock: NodeCapacity) -> dict[str, Any]:
    """One node, or the total, as plain data."""
    return {
        "name": stock.name,
        "product": stock.product,
        "gpus": stock.installed_gpus,
        "usedMilli": stock.allocated_milli,
        "freeMilli": stock.free_milli,
        "largestIsland": stock.largest_island,
        "migFits": dict(stock.mig_fits),
        "splitUpMilli": stock.fragmented_milli,
        "closedMilli": stock.unschedulable_milli,
        "takesPods": stock.schedulable,
    }
