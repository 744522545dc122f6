"""MIG layouts by node: today's, from what the nodes advertise, and those of a plan.

A node takes part if its cards are whole, or partitioned and not shared. Nodes advertise slices and not cards, so the
layout of each card is inferred: as many equal cards as its label tells, otherwise the fewest, equal if possible.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL, parse_count, without_shared_mark
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.placement.integer_program import IntegerProgram
from webhook.placement.labeled_gpus import GPU_COUNT_LABEL
from webhook.placement.layout_plan import (
    SHARE_FORMS,
    WHOLE_CARD,
    EqualNodes,
    LayoutPlan,
    UnitDemand,
    is_shared,
    share_of,
    share_profile,
    shared_layout,
)
from webhook.placement.mig import MigGeometry, MigLayout, legal_layouts, mig_geometry
from webhook.placement.topology import assumed_topology

SPLIT_SECONDS = 5.0
"""Time to infer the layouts of one node."""

MOST_LINKED_CARDS = 16
"""As many cards as NVLink connects in one node."""

COST_OF_A_SLOW_DRAIN = 100
"""So many nodes are drained rather than one whose budgets allow only some of its evictions at once."""


class DrainLimit(NamedTuple):
    """The limits of the drain of a node.

    Attributes:
        forbidden: Why a drain does not free all GPUs; "" if it does.
        waits: Whether a PodDisruptionBudget allows fewer evictions at once than the node has of its pods.
        unknown: Whether the budgets are not known.
    """

    forbidden: str = ""
    waits: bool = False
    unknown: bool = False


NO_DRAIN_LIMIT, UNKNOWN_DRAIN_LIMIT = DrainLimit(), DrainLimit(unknown=True)


class NodeLayout(NamedTuple):
    """The cards of one node.

    Attributes:
        product: Their label.
        layouts: The layout of each card.
        kept_whole: Whole cards among them that pods hold and keep, or that a waiting pod needs.
        pods: Running pods with GPUs.
        fixed: True if no card may change.
        bit: Its place in masks of nodes.
        drain: Whether its pods with GPUs can be evicted.
        nvlinks: NVLinks between two of its cards, as its agent reports them; None if it does not.
        cpu_milli, memory: Its allocatable CPU in millicores, and memory in bytes.
    """

    node: str
    product: str
    layouts: tuple[MigLayout, ...]
    kept_whole: int = 0
    pods: int = 0
    fixed: bool = False
    bit: int = 0
    drain: DrainLimit = NO_DRAIN_LIMIT
    nvlinks: int | None = None
    cpu_milli: int = 0
    memory: int = 0

    @property
    def shared(self) -> MigLayout:
        """The layout of its shared cards, which are all equal; `WHOLE_CARD` if it has none."""
        return next(filter(is_shared, self.layouts), WHOLE_CARD)

    @property
    def is_blocked(self) -> bool:
        """Whether it runs pods with GPUs, and it is not known that all of these can be evicted."""
        return self.pods > 0 and (self.drain.forbidden != "" or self.drain.unknown)

    def planned_layouts(self) -> Counter[MigLayout]:
        """Return how many cards with each layout serve the demand: all but those that pods keep."""
        found = Counter(self.layouts)
        found[WHOLE_CARD] -= min(self.kept_whole, found[WHOLE_CARD])
        return +found


class AdvertisedGpus(NamedTuple):
    """Units of one resource on a node: whole cards, slices, or shares of one of these.

    Attributes:
        profile: "" for a whole card.
        replicas: Shares of each card or slice; 1 if it is not shared.
    """

    resource: str
    units: int
    profile: str
    replicas: int


class UnplannedNode(NamedTuple):
    """A node with GPUs that does not take part, and why."""

    node: str
    product: str
    gpus: tuple[AdvertisedGpus, ...]
    reason: str


class NodeChange(NamedTuple):
    """A node whose cards get other layouts: today's and the new ones, card by card."""

    node: NodeLayout
    layouts: tuple[MigLayout, ...]


def node_layouts(fleet: Fleet, *, sharing: bool = False) -> dict[int, NodeLayout]:
    """Return today's layouts of the nodes that can be partitioned, by index.

    Args:
        sharing: Whether nodes count that are shared, or could only be shared.

    Raises:
        SolverError: The solver is not installed.
    """
    usable = (index for index, node in enumerate(fleet.nodes) if node.usable)
    found = ((index, _node_layout(fleet, index, sharing=sharing)) for index in usable)
    return {index: layout for index, layout in found if layout is not None}


def unplanned_nodes(fleet: Fleet, planned: Container[int]) -> tuple[UnplannedNode, ...]:
    """Return the other nodes with GPUs, or with the label of their product.

    Args:
        planned: Indexes of the nodes whose layouts are planned.
    """
    unplanned = ((index, node) for index, node in enumerate(fleet.nodes) if index not in planned)
    others = (
        (index, node) for index, node in unplanned if node.gpus or node.implausible_gpus or PRODUCT_LABEL in node.labels
    )
    return tuple(
        UnplannedNode(
            node.name,
            node.labels.get(PRODUCT_LABEL, ""),
            tuple(_advertised_gpus(fleet, index)),
            _unplanned_reason(fleet, index) or "advertises no GPUs",
        )
        for index, node in others
    )


def _advertised_gpus(fleet: Fleet, index: int) -> Iterator[AdvertisedGpus]:
    for resource, units in sorted(fleet.nodes[index].gpus.items()):
        offer = fleet.offer_on(resource, index)
        yield AdvertisedGpus(resource, units, offer.profile if offer else "", offer.replicas if offer else 1)


def _unplanned_reason(fleet: Fleet, index: int) -> str:
    """Return why the layouts of a node with GPUs are not planned; "" if they are."""
    node = fleet.nodes[index]
    geometry = mig_geometry(node.labels.get(PRODUCT_LABEL, ""))
    if node.implausible_gpus and not node.gpus:
        return "reports more GPUs than any node can have"
    if not node.usable:
        return "cordoned" if node.cordoned else "not ready, or being reconfigured"
    if PRODUCT_LABEL not in node.labels:
        return f"has no label {PRODUCT_LABEL}"
    offers = {resource: fleet.offer_on(resource, index) for resource in node.gpus}
    if any(offer and offer.replicas > 1 for offer in offers.values()):
        return "GPUs are shared"
    if geometry is None:
        return "the product has no known MIG profiles"
    names = {profile.name for profile in geometry.profiles}
    others = [name for name, offer in offers.items() if not (offer and _is_plannable(name, offer, names))]
    if not others:
        return ""
    if WHOLE_GPU in others:
        return f"slices have the name {WHOLE_GPU} (single strategy)"
    return f"advertises {abbreviate_names(sorted(others))}: no profile of the product, or with media engines"


def _is_plannable(resource: str, offer: GpuOffer, profiles: Container[str]) -> bool:
    return offer.form is GpuForm.WHOLE if resource == WHOLE_GPU else offer.profile in profiles


def _node_layout(fleet: Fleet, index: int, *, sharing: bool) -> NodeLayout | None:
    node = fleet.nodes[index]
    label = node.labels.get(PRODUCT_LABEL, "")
    product = without_shared_mark(label) if sharing else label
    geometry, counts = mig_geometry(product), Counter[str]()
    if geometry is None and not (sharing and product):
        return None
    for resource, units in node.gpus.items():
        profile = _unit_profile(fleet.offer_on(resource, index), resource, geometry, sharing=sharing)
        if profile is None:
            return None
        counts[profile] += units
    slices = tuple(sorted((profile, units) for profile, units in counts.items() if profile and not share_of(profile)))
    layouts = [layout for profile, units in counts.items() for layout in _unsliced_cards(profile, units)]
    partitioned = split_slices(geometry, slices, _label_count(node) - len(layouts)) if geometry else ()
    cards = (*partitioned, *layouts)
    if not cards:
        return None
    return NodeLayout(node.name, product, cards, bit=index, cpu_milli=node.cpu_milli, memory=node.memory)


def _unit_profile(offer: GpuOffer | None, resource: str, geometry: MigGeometry | None, *, sharing: bool) -> str | None:
    """Return the profile of what a node advertises under a name, "" for whole cards; None if it cannot be planned."""
    if offer is None:
        return None
    if sharing and offer.form in SHARE_FORMS and not offer.profile:
        return share_profile(offer.form, offer.replicas)
    if offer.replicas > 1 or (offer.form is GpuForm.WHOLE) != (resource == WHOLE_GPU):
        return None
    if resource == WHOLE_GPU:
        return ""
    return offer.profile if geometry and offer.profile in {profile.name for profile in geometry.profiles} else None


def _unsliced_cards(profile: str, units: int) -> list[MigLayout]:
    """Return the layouts of the cards that have some units, if they are not partitioned."""
    share = share_of(profile)
    if share:
        return [shared_layout(profile)] * (units // share[1])
    return [] if profile else [WHOLE_CARD] * units


def _label_count(node: FleetNode) -> int:
    return parse_count(node.labels.get(GPU_COUNT_LABEL)) or 0


@lru_cache(maxsize=1024)
def split_slices(geometry: MigGeometry, slices: MigLayout, cards: int) -> tuple[MigLayout, ...]:
    """Return the layouts of the cards that have some slices of a product together.

    Args:
        cards: The number of partitioned cards; 0 or less if it is unknown.
    """
    if not slices:
        return ()
    legal = legal_layouts(geometry)
    if equal := _split_equally(legal, slices, cards):
        return equal
    fewest = _split_unequally(legal, slices)
    return _split_equally(legal, slices, len(fewest)) or fewest


def _split_equally(legal: Container[MigLayout], slices: MigLayout, cards: int) -> tuple[MigLayout, ...]:
    """Return equal cards that have some slices together; none if that is not possible."""
    if cards <= 0 or any(count % cards for _, count in slices):
        return ()
    each = tuple((profile, count // cards) for profile, count in slices)
    return (each,) * cards if each in legal else ()


def _split_unequally(legal: Iterable[MigLayout], slices: MigLayout) -> tuple[MigLayout, ...]:
    """Return the fewest cards that have some slices together, each with as few different ones as possible."""
    program, wanted = IntegerProgram(), dict(slices)
    usable = [layout for layout in sorted(legal) if layout and dict(layout).keys() <= wanted.keys()]
    cards = {layout: program.add_variable(sum(wanted.values())) for layout in usable}
    for profile, count in slices:
        terms = {cards[layout]: dict(layout)[profile] for layout in cards if profile in dict(layout)}
        program.require_sum(terms, count, count)
    single = {cards[(profile, 1),]: count for profile, count in slices}
    objectives = [dict.fromkeys(cards.values(), 1), {index: len(layout) for layout, index in cards.items()}]
    values = program.minimize(objectives, single, SPLIT_SECONDS).values
    return tuple(layout for layout, index in cards.items() for _ in range(values[index]))


def nodes_by_product(nodes: Iterable[NodeLayout]) -> Counter[str]:
    """Return the mask of the nodes with each product."""
    found = Counter[str]()
    for node in nodes:
        found[node.product] |= 1 << node.bit
    return found


def group_nodes(
    nodes: Iterable[NodeLayout], demands: Iterable[UnitDemand]
) -> list[tuple[EqualNodes, list[NodeLayout]]]:
    """Return the nodes with cards that serve the demand, equal ones together, those first that should change last."""
    nodes = sorted(nodes, key=lambda node: (-node.pods, node.node))
    classes = _node_classes([node.bit for node in nodes], {each.nodes for each in demands})
    groups: defaultdict[EqualNodes, list[NodeLayout]] = defaultdict(list)
    for node in nodes:
        cards = tuple(sorted(node.planned_layouts().elements()))
        kept = len(node.layouts) - len(cards)
        drain = (COST_OF_A_SLOW_DRAIN if node.drain.waits else 1) if node.pods else 0
        links = 1 + node.nvlinks if node.nvlinks is not None else _link_value(node.product, len(node.layouts))
        group = EqualNodes(node.product, cards, 0, classes[node.bit], kept, node.fixed, drain, links)
        if cards:
            groups[group].append(node)
    return [(group._replace(nodes=len(equal)), equal) for group, equal in sorted(groups.items())]


def _node_classes(indexes: Iterable[int], masks: Iterable[int]) -> dict[int, int]:
    """Return for each node the first one that is in the same masks."""
    every, first = union_masks(1 << index for index in indexes), dict[tuple[int, ...], int]()
    parts = [part for mask in masks if (part := mask & every) != every]
    containing = defaultdict[int, list[int]](list)
    for number, part in enumerate(parts):
        for index in bit_positions(part):
            containing[index].append(number)
    return {index: first.setdefault(tuple(containing[index]), index) for index in bit_positions(every)}


@lru_cache(maxsize=1024)
def _link_value(product: str, cards: int) -> int:
    """Return the value of two whole cards on one node: more if NVLink connects cards of the product."""
    return 1 + assumed_topology(product, min(cards, MOST_LINKED_CARDS)).mean_nvlinks


def assign_layouts(groups: Iterable[tuple[EqualNodes, Sequence[NodeLayout]]], plan: LayoutPlan) -> list[NodeChange]:
    """Return the nodes that change, those with the fewest pods first, then those that change alike together."""
    changes = []
    for (_, nodes), layouts in zip(groups, plan.layouts, strict=True):
        for node, cards in zip(nodes, layouts, strict=True):
            new = Counter(cards) + Counter(node.layouts) - node.planned_layouts()
            if new != Counter(node.layouts):
                changes.append(NodeChange(node, _align(node.layouts, new)))
    return sorted(changes, key=_change_order)


def _change_order(change: NodeChange) -> tuple[object, ...]:
    node = change.node
    return node.pods, node.product, sorted(node.layouts), sorted(change.layouts), node.node


def _align(today: Sequence[MigLayout], new: Counter[MigLayout]) -> tuple[MigLayout, ...]:
    """Return new layouts in the order of the cards, so that most keep theirs."""
    left, kept = Counter(new), list[bool]()
    for layout in today:
        kept.append(left[layout] > 0)
        left[layout] -= kept[-1]
    others = iter(sorted((+left).elements()))
    return tuple(layout if stays else next(others) for layout, stays in zip(today, kept, strict=True))
