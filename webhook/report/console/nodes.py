"""The pages Nodes: the list, and one node with every card, its MIG slots, shares, NVLinks and pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from webhook.model.dra.device_allocations import AllocatedDevice
from webhook.model.dra.pool_kinds import PublishedCard
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.offers import GpuOffer
from webhook.placement.mig import MigCard, MigPlacement
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import GpuTopology, TopologyConfidence
from webhook.report.capacity import CAPACITY_WIDE, UNKNOWN_CELL, NodeCapacity, amount_beside_unknown, capacity_notes
from webhook.report.console.page import NODES_ENTRY, render_console_page
from webhook.report.console.query import FilterField, PageQuery, node_address, page_address, workload_address
from webhook.report.console.rows import PageLink, sort_keys, table_markup, table_page
from webhook.report.console.state import ConsoleState
from webhook.report.layout_html import draw_instances, draw_shared_card, draw_whole_card
from webhook.report.node_topology import (
    ALLOCATED_DEVICES,
    CARDS,
    AllocatedDeviceRow,
    NodePodGpus,
    allocated_device_rows,
    count_partitioned_gpus,
    gpu_list,
    gpu_state,
    listed_gpus,
    numa_node,
    partitioned_gpus_text,
)
from webhook.report.tables import Column, Table
from webhook.report.text import pluralize, sanitize

MAX_NODE_PODS = 500
"""Pods of a node, and its allocated devices, that its page lists."""

MAX_POD_LINKS = 3
"""Pods of an allocated device that its row names: up to 256 may use one claim."""

ISLAND_SIZES = ("2", "4", "8")
UNHEALTHY = "unhealthy"

NODE_STATES: Mapping[str, tuple[str, Callable[[NodeCapacity], bool]]] = {
    "free": ("With free GPUs", lambda node: node.free_milli > 0),
    "fragmented": ("With fragmented GPUs", lambda node: node.fragmented_milli > 0),
    "unschedulable": ("With GPUs on unschedulable nodes", lambda node: node.unschedulable_node_milli > 0),
    "warning": ("With a warning, or GPUs that are not healthy", lambda node: bool(node.warning or node.health)),
    "missing": ("With GPUs in labels, and none allocatable", lambda node: node.missing_gpus > 0),
    "unknown": ("With unknown islands", lambda node: node.largest_island is None),
    "slices": ("With GPUs of ResourceSlices (DRA)", lambda node: node.from_slices),
}
"""Nodes that the filter `show` selects."""

NODE_FILTERS = (
    FilterField("q", "Name contains"),
    FilterField("product", "Product contains"),
    FilterField("island", "Free NVLink island", tuple((size, f"{size} GPUs or more") for size in ISLAND_SIZES)),
    FilterField("show", "Show", tuple((name, label) for name, (label, _) in NODE_STATES.items())),
)
NODE_KEY = (FilterField("name", "Name"),)
"""The parameter of the page of a node."""

NODE_COLUMNS = sort_keys(CAPACITY_WIDE)

CARD_LEGEND = (
    ("compute", "compute slice of an instance"),
    ("instance", "instance in use"),
    ("idle-instance", "free instance"),
    ("unhealthy-instance", "instance of an unhealthy GPU, not in use"),
    ("empty", "not in an instance"),
    ("shared", "share of a card"),
    ("used-whole", "whole card in use"),
    ("free-whole", "free whole card"),
    ("whole", "not partitioned"),
)
"""CSS class and meaning of each part of a drawn card."""


def nodes_page(state: ConsoleState, query: PageQuery, problem: str = "") -> str:
    """Return the list as HTML."""
    rows = [node for node in state.nodes if _is_selected(node, query)]
    page = table_page(
        CAPACITY_WIDE, rows, query, NODES_ENTRY.path, "node", {"Node": lambda node: node_address(node.name)}
    )
    context = {
        "page": page,
        "query": query,
        "fields": NODE_FILTERS,
        "path": NODES_ENTRY.path,
        "islands": [_island_link(state, size) for size in ISLAND_SIZES],
        "unknown": sum(_may_have_island(node, query) for node in state.nodes),
        "unknown_link": page_address(NODES_ENTRY.path, show="unknown"),
    }
    return render_console_page("nodes.html", state, NODES_ENTRY, context, problem=problem)


def _island_link(state: ConsoleState, size: str) -> PageLink:
    """Return the link to the nodes with a free NVLink island of at least this size, with their number."""
    number = sum(_has_island(node, int(size)) for node in state.nodes)
    unknown = sum(_may_have_island(node, PageQuery({"island": size})) for node in state.nodes)
    nodes = f"{pluralize(number, 'node')}{f', {unknown} unknown' if unknown else ''}"
    return PageLink(f"{size} GPUs or more: {nodes}", page_address(NODES_ENTRY.path, island=size))


def _is_selected(node: NodeCapacity, query: PageQuery) -> bool:
    return _is_selected_but_for_island(node, query) and _has_island(node, _least_island(query))


def _has_island(node: NodeCapacity, least: int) -> bool:
    """Return whether a node is known to have a free NVLink island of at least this size."""
    return (node.largest_island or 0) >= least


def _is_selected_but_for_island(node: NodeCapacity, query: PageQuery) -> bool:
    show = query.value("show")
    return (
        query.value("q").casefold() in node.name.casefold()
        and query.value("product").casefold() in node.product.casefold()
        and (not show or NODE_STATES[show][1](node))
    )


def _may_have_island(node: NodeCapacity, query: PageQuery) -> bool:
    """Return whether a node has enough free GPUs for the island of the query, and its islands are unknown."""
    enough = bool(_least_island(query)) and node.free_milli + node.unknown_milli >= _least_island(query) * CARD_MILLI
    return enough and node.largest_island is None and _is_selected_but_for_island(node, query)


def _least_island(query: PageQuery) -> int:
    return int(query.value("island") or 0)


class CardRow(NamedTuple):
    """A card of a node.

    Attributes:
        drawing: Its instances over its memory slots, or the whole card.
        instances: Each instance in words, with the pod that holds it.
        pods: The pods that hold it, or its state.
        health: What is wrong with it; "" for nothing.
        conditions: What the node's agent says about it, one sentence each.
        linked: The GPUs to which it has an NVLink, or that there are none or it is unknown.
        numa: Its NUMA node; "" if unknown.
    """

    number: int
    drawing: Markup
    instances: tuple[str, ...]
    pods: str
    health: str
    linked: str
    numa: str
    conditions: tuple[str, ...] = ()


class LinkSummary(NamedTuple):
    """The NVLinks between the GPUs of a node.

    Attributes:
        source: Who says how they are linked.
        connected: The sets of GPUs that are connected, directly or through others.
        largest_set: GPUs in the largest set in which every pair is connected; 0 if it is unknown.
        partitioned: Which of them are in MIG mode; "" for none.
        has_others: Whether some are not.
    """

    source: str
    connected: tuple[str, ...]
    largest_set: int
    partitioned: str
    has_others: bool


class OfferRow(NamedTuple):
    """Units of one resource name that a node advertises."""

    offer: GpuOffer
    units: int
    free: int


FORMS = {
    GpuForm.WHOLE: "whole card",
    GpuForm.MIG: "MIG slice",
    GpuForm.MPS: "MPS share",
    GpuForm.TIME_SLICING: "time-sliced share",
}

OFFERS = Table[OfferRow](
    (
        Column("", lambda row: row.offer.resource, "Resource"),
        Column("", lambda row: _form_cell(row.offer), "Form"),
        Column("", lambda row: row.offer.memory_mib, "Memory", lambda row: _memory_cell(row.offer), numeric=True),
        Column("", lambda row: row.units, "Units", numeric=True),
        Column("", lambda row: row.units - row.free, "Allocated", numeric=True),
        Column("", lambda row: row.free, "Free", numeric=True),
    )
)

NODE_PODS = Table[NodePodGpus](
    (
        Column("", lambda pod: pod.name, "Pod"),
        Column("", lambda pod: pod.namespace, "Namespace"),
        Column("", lambda pod: ", ".join(f"{count} x {name}" for name, count in pod.gpus.items()), "GPUs"),
    )
)


def _form_cell(offer: GpuOffer) -> str:
    shared = f", one of {offer.replicas}" if offer.replicas > 1 else ""
    return f"{FORMS[offer.form]}{shared}"


def _memory_cell(offer: GpuOffer) -> str:
    return f"{offer.memory_mib} MiB" if offer.memory_mib is not None else "unknown"


def node_page(
    state: ConsoleState,
    snapshot: SchedulingSnapshot,
    node: int,
    pods: Sequence[NodePodGpus],
    cards: Sequence[PublishedCard],
    allocated: Iterable[AllocatedDevice] | None = (),
    problem: str = "",
) -> str:
    """Return the page of one node as HTML.

    Args:
        node: Its position in the snapshot.
        pods: Pods that hold GPUs of the device plugin.
        cards: GPUs of ResourceSlices.
        allocated: Devices of these that claims have; None if claims may not be read.
    """
    name = snapshot.fleet.nodes[node].name
    capacity = next((each for each in state.nodes if each.name == name), None)
    cards_of_node = list(_card_rows(snapshot, node))
    drawn = "".join(each.drawing for each in cards_of_node)
    rows = allocated_device_rows(cards, allocated or ())
    context = {
        "name": name,
        "capacity": capacity,
        "allocated_gpus": amount_beside_unknown(capacity.allocated_milli, capacity.unknown_milli) if capacity else "",
        "free_gpus": amount_beside_unknown(capacity.free_milli, capacity.unknown_milli) if capacity else "",
        "advertises": capacity is not None and not (capacity.from_slices or capacity.missing_gpus),
        "island": _free_island_text(capacity),
        "notes": [_without_mark(note) for note in capacity_notes([capacity])] if capacity else [],
        "cards": cards_of_node,
        "legend": [(css, label) for css, label in CARD_LEGEND if f'class="{css}"' in drawn],
        "links": _link_summary(snapshot, node) if listed_gpus(snapshot, node) else None,
        "offers": table_markup(OFFERS, list(_offer_rows(snapshot, node)), "resource"),
        "published": table_markup(CARDS, cards, "card") if cards else "",
        "allocated": _allocated_markup(state, rows[:MAX_NODE_PODS]) if rows else "",
        "knows_claims": allocated is not None,
        "hidden_allocated": max(0, len(rows) - MAX_NODE_PODS),
        "pods": _pods_markup(state, pods[:MAX_NODE_PODS]) if pods else "",
        "hidden_pods": max(0, len(pods) - MAX_NODE_PODS),
    }
    return render_console_page("node.html", state, NODES_ENTRY, context, problem=problem)


def _pods_markup(state: ConsoleState, pods: Sequence[NodePodGpus]) -> Markup:
    return table_markup(NODE_PODS, pods, "pod", {"Pod": lambda pod: _pod_address(state, pod.namespace, pod.name)})


def _allocated_markup(state: ConsoleState, devices: Sequence[AllocatedDeviceRow]) -> Markup:
    def link_pods(row: AllocatedDeviceRow) -> list[PageLink]:
        namespace, pods = row.device.namespace, row.device.pods
        links = [PageLink(pod, _pod_address(state, namespace, pod)) for pod in pods[:MAX_POD_LINKS]]
        hidden = len(pods) - MAX_POD_LINKS
        return [*links, PageLink(f"and {hidden} more", "")] if hidden > 0 else links

    return table_markup(ALLOCATED_DEVICES, devices, "allocated device", {"Pods": link_pods})


def _pod_address(state: ConsoleState, namespace: str, pod: str) -> str:
    """Return the address of the page of a pod's workload; "" if it has none."""
    workload = state.workload_of_pod.get((namespace, pod), "")
    return workload_address(namespace, workload) if workload else ""


def _without_mark(note: str) -> str:
    """Return a note without the mark of the cell that it explains in a table: the page of a node has none."""
    text = note.removeprefix(f"{UNKNOWN_CELL} ")
    return f"{text[:1].upper()}{text[1:]}" if text != note else note


def _free_island_text(capacity: NodeCapacity | None) -> str:
    if capacity is None or capacity.largest_island is None:
        return "unknown"
    return pluralize(capacity.largest_island, "GPU") if capacity.largest_island else "none"


def _no_links_text(topology: GpuTopology) -> str:
    return "unknown" if topology.confidence is TopologyConfidence.UNKNOWN else "none"


def _links_text(topology: GpuTopology) -> str:
    if topology.confidence is TopologyConfidence.MEASURED:
        return "as the node's agent reports them"
    if topology.confidence is TopologyConfidence.ASSUMED:
        return "assumed from the product, as no agent reports them"
    return "unknown"


def _link_summary(snapshot: SchedulingSnapshot, node: int) -> LinkSummary:
    topology, partitioned = snapshot.devices[node].topology, count_partitioned_gpus(snapshot, node)
    gpus, sets, connected = topology.gpu_count, gpu_sets(topology), nvlink_components(topology)
    largest = sets.largest_island((1 << gpus) - 1)
    if partitioned and topology.confidence is not TopologyConfidence.MEASURED:
        others = gpus - partitioned
        connected, largest = [], others if others and sets.are_all_connected(others) else 0
    return LinkSummary(
        _links_text(topology),
        tuple(gpu_list(each) for each in connected if len(each) > 1),
        largest if largest > 1 else 0,
        partitioned_gpus_text(snapshot, node),
        partitioned < gpus,
    )


def nvlink_components(topology: GpuTopology) -> list[tuple[int, ...]]:
    """Return the sets of GPUs that NVLinks connect, directly or through others."""
    left, components = set(range(topology.gpu_count)), []
    while left:
        component, edge = set(), {min(left)}
        while edge:
            component |= edge
            edge = {j for i in edge for j in left - component if topology.count_nvlinks(i, j)}
        components.append(tuple(sorted(component)))
        left -= component
    return components


def _card_rows(snapshot: SchedulingSnapshot, node: int) -> Iterator[CardRow]:
    """Yield the cards that are known: all with an agent, else those of a node whose cards are equal."""
    devices, product = snapshot.devices[node], snapshot.fleet.nodes[node].labels.get(PRODUCT_LABEL, "")
    topology, every = devices.topology, (*devices.mig_cards, *devices.unhealthy_mig_cards)
    mig_cards = {card.index: card for card in every}
    equal = _offer_of_equal_cards(snapshot, node)
    if devices.free is None and not mig_cards and equal is None:
        return
    gpus = range(topology.gpu_count)
    for i in gpus:
        card, numa = mig_cards.get(i), numa_node(topology, i)
        health = _health_text(snapshot, node, i)
        linked = gpu_list([j for j in gpus if j != i and topology.count_nvlinks(i, j)]) or _no_links_text(topology)
        yield CardRow(
            i,
            _draw_partitions(product, card, health) if card else _draw_unpartitioned(snapshot, node, i, equal),
            _instance_lines(card, devices.instance_holders, health) if card else (),
            _holders_text(snapshot, node, i),
            health,
            linked,
            "" if numa is None else str(numa),
            tuple(map(sanitize, devices.conditions.get(i, ()))),
        )
    yield from (_unlinked_card(product, card) for i, card in sorted(mig_cards.items()) if i >= topology.gpu_count)


def _offer_of_equal_cards(snapshot: SchedulingSnapshot, node: int) -> GpuOffer | None:
    """Return the only form of whole cards or shares that a node advertises; None for any other node."""
    rows = list(_offer_rows(snapshot, node))
    return rows[0].offer if len(rows) == 1 and not rows[0].offer.profile else None


def _draw_unpartitioned(snapshot: SchedulingSnapshot, node: int, gpu: int, equal: GpuOffer | None) -> Markup:
    """Draw the shares of a card, or the whole card, by whether it is known to be in use."""
    if equal is not None and equal.replicas > 1:
        return draw_shared_card(equal.replicas, _form_cell(equal))
    state, held = _holders_text(snapshot, node, gpu), gpu in snapshot.devices[node].holders
    known = {"free": "free-whole", "in use": "used-whole"}
    return draw_whole_card("whole card", "used-whole" if held else known.get(state, "whole"))


def _holders_text(snapshot: SchedulingSnapshot, node: int, gpu: int) -> str:
    """Return the pods of a card, or its state; without an agent only what is true of all cards is known."""
    state, rows = gpu_state(snapshot, node, gpu), list(_offer_rows(snapshot, node))
    if state != UNKNOWN_CELL:
        return state
    if all(row.free == row.units for row in rows):
        return "free"
    return "in use" if all(row.free == 0 for row in rows) else _unknown_holder_text(rows)


def _unknown_holder_text(rows: Sequence[OfferRow]) -> str:
    """Return how many units of the node are free, if only the node agent could say which cards have them."""
    if len(rows) != 1:
        return "unknown whether it is free, without the node agent"
    [row] = rows
    unit = "shares" if row.offer.replicas > 1 else "GPUs"
    return f"{row.free} of {row.units} {unit} of the node are free; which is unknown without the node agent"


def _unlinked_card(product: str, card: MigCard) -> CardRow:
    state = "in use" if card.used else "partitioned, no instance in use"
    return CardRow(card.index, _draw_partitions(product, card), _instance_lines(card, {}), state, "", "none", "")


def _draw_partitions(product: str, card: MigCard, health: str = "") -> Markup:
    idle = "unhealthy-instance" if health == UNHEALTHY else "idle-instance"
    placed = [(each, "instance") for each in sorted(card.used)] + [(each, idle) for each in sorted(card.idle)]
    return draw_instances(product, placed, ", ".join(_instance_lines(card, {}, health)))


def _instance_lines(
    card: MigCard, holders: Mapping[tuple[int, MigPlacement], str], health: str = ""
) -> tuple[str, ...]:
    """Return each instance with the pod that holds it, by its first memory slot."""
    idle = "not in use, as the GPU is unhealthy" if health == UNHEALTHY else "free"
    words = {each: holders.get((card.index, each), "in use") for each in card.used} | dict.fromkeys(card.idle, idle)
    placed = sorted(words, key=lambda each: (each.start, each.profile))
    lines = tuple(f"{each.profile} at {each.start}: {sanitize(words[each])}" for each in placed)
    return lines or ("in MIG mode, without an instance",)


def _health_text(snapshot: SchedulingSnapshot, node: int, gpu: int) -> str:
    devices = snapshot.devices[node]
    masks = {UNHEALTHY: devices.unhealthy, "degraded": devices.degraded, "not advertised": devices.withdrawn}
    return next((word for word, mask in masks.items() if mask >> gpu & 1), "")


def _offer_rows(snapshot: SchedulingSnapshot, node: int) -> Iterator[OfferRow]:
    for resource, units in snapshot.fleet.nodes[node].gpus.items():
        offer = snapshot.fleet.offer_on(resource, node)
        if offer is not None:
            yield OfferRow(offer, units, units - snapshot.used_units(node, resource))
