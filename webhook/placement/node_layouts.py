"""MIG layouts by node: today's, from what the nodes advertise, and those of a plan, on the fewest nodes.

A node takes part if its cards are whole, or partitioned and not shared. Nodes advertise slices and not cards, so the
layout of each card is inferred: as many equal cards as its label tells, otherwise the fewest, equal if possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL, SHARED_MARK, parse_count
from webhook.model.offers import GpuOffer
from webhook.placement.devices import GPU_COUNT_LABEL
from webhook.placement.integer_program import IntegerProgram
from webhook.placement.layout_plan import (
    SHARE_FORMS,
    WHOLE_CARD,
    CardGroup,
    EqualNodes,
    is_shared,
    share_of,
    share_profile,
    shared_layout,
)
from webhook.placement.mig import MigGeometry, MigLayout, legal_layouts, mig_geometry

SPLIT_SECONDS = 5.0
"""Time to infer the layouts of one node."""


class NodeLayout(NamedTuple):
    """The cards of one node.

    Attributes:
        product: Their label.
        layouts: The layout of each card.
        kept_whole: Whole cards among them that pods hold and keep, or that a waiting pod needs.
        pods: Running pods with GPUs.
        fixed: True if no card may change.
    """

    node: str
    product: str
    layouts: tuple[MigLayout, ...]
    kept_whole: int = 0
    pods: int = 0
    fixed: bool = False

    @property
    def shared(self) -> MigLayout:
        """The layout of its shared cards, which are all equal; `WHOLE_CARD` if it has none."""
        return next(filter(is_shared, self.layouts), WHOLE_CARD)

    def planned_layouts(self) -> Counter[MigLayout]:
        """Return how many cards with each layout serve the demand: all but those that pods keep."""
        found = Counter(self.layouts)
        found[WHOLE_CARD] -= min(self.kept_whole, found[WHOLE_CARD])
        return +found

    def free_layouts(self) -> Counter[MigLayout]:
        """Return how many of them may change."""
        return Counter() if self.fixed else self.planned_layouts()


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
    if all(offer and _is_plannable(resource, offer, names) for resource, offer in offers.items()):
        return ""
    return "slices are not of the mixed strategy, or have media engines"


def _is_plannable(resource: str, offer: GpuOffer, profiles: Container[str]) -> bool:
    return offer.form is GpuForm.WHOLE if resource == WHOLE_GPU else offer.profile in profiles


def _node_layout(fleet: Fleet, index: int, *, sharing: bool) -> NodeLayout | None:
    node = fleet.nodes[index]
    label = node.labels.get(PRODUCT_LABEL, "")
    product = label[: -len(SHARED_MARK)] if sharing and label.lower().endswith(SHARED_MARK) else label
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
    return NodeLayout(node.name, product, (*partitioned, *layouts)) if partitioned or layouts else None


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
    """Return the fewest cards that have some slices together."""
    program, wanted = IntegerProgram(), dict(slices)
    usable = [layout for layout in sorted(legal) if layout and dict(layout).keys() <= wanted.keys()]
    cards = {layout: program.add_variable(sum(wanted.values())) for layout in usable}
    for profile, count in slices:
        terms = {cards[layout]: dict(layout)[profile] for layout in cards if profile in dict(layout)}
        program.require_sum(terms, count, count)
    single = {cards[(profile, 1),]: count for profile, count in slices}
    values = program.minimize([dict.fromkeys(cards.values(), 1)], single, SPLIT_SECONDS).values
    return tuple(layout for layout, index in cards.items() for _ in range(values[index]))


def card_groups(nodes: Iterable[NodeLayout]) -> list[CardGroup]:
    """Return the cards of nodes that serve the demand, by product and layout."""
    found, fixed = Counter[tuple[str, MigLayout]](), Counter[tuple[str, MigLayout]]()
    for node in nodes:
        each = {(node.product, layout): cards for layout, cards in node.planned_layouts().items()}
        found.update(each)
        fixed.update(each if node.fixed else {})
    return [CardGroup(*key, cards, fixed[key]) for key, cards in sorted(found.items())]


def equal_nodes(nodes: Iterable[NodeLayout]) -> list[EqualNodes]:
    """Return the nodes whose cards may all change, by product, number of cards and their shares today."""
    free = [node for node in nodes if not node.fixed and not node.kept_whole]
    kinds = Counter((node.product, len(node.layouts), node.shared) for node in free)
    return [EqualNodes(product, cards, number, shared) for (product, cards, shared), number in sorted(kinds.items())]


NO_SHARING: Mapping[tuple[EqualNodes, MigLayout], int] = {}


def assign_layouts(
    nodes: Iterable[NodeLayout],
    planned: Iterable[CardGroup],
    sharing: Mapping[tuple[EqualNodes, MigLayout], int] = NO_SHARING,
) -> list[NodeChange]:
    """Return the nodes that change, so that together they have the planned layouts.

    Nodes get shared cards first, those before that have some. Then idle nodes change first, then those that are
    partitioned already, then those with the most cards to change, so that few nodes change and sets of linked whole
    cards stay.
    """
    missing, nodes = Counter[tuple[str, MigLayout]](), list(nodes)
    for group in planned:
        missing[group.product, group.layout] += group.cards
    for group in card_groups(node for node in nodes if node.fixed):
        missing[group.product, group.layout] -= group.cards
    shared = _share_cards(nodes, sharing, missing)
    for group in card_groups(node for node in nodes if not node.fixed and node.node not in shared):
        missing[group.product, group.layout] -= group.cards
    changes = []
    for node in sorted(nodes, key=lambda node: _change_order(node, missing)):
        layouts = shared.get(node.node) or tuple(_new_layouts(node, missing))
        if Counter(layouts) != Counter(node.layouts):
            changes.append(NodeChange(node, layouts))
    return changes


def _share_cards(
    nodes: Sequence[NodeLayout],
    sharing: Mapping[tuple[EqualNodes, MigLayout], int],
    missing: Counter[tuple[str, MigLayout]],
) -> dict[str, tuple[MigLayout, ...]]:
    """Return the layouts of the nodes that have shared cards, and count them as no longer missing."""
    found: dict[str, tuple[MigLayout, ...]] = {}
    for group, layout in sorted(sharing, key=lambda key: key[0].shared != key[1]):
        alike = [node for node in nodes if node.node not in found and [group._replace(nodes=1)] == equal_nodes([node])]
        alike.sort(key=lambda node: (node.pods, _partitioned(node) == 0, node.node))
        for node in alike[: sharing[group, layout]]:
            found[node.node] = _layouts_with_shares(node, layout, missing)
            missing.subtract((node.product, each) for each in found[node.node])
    return found


def _partitioned(node: NodeLayout) -> int:
    return sum(layout != WHOLE_CARD for layout in node.layouts)


def _layouts_with_shares(
    node: NodeLayout, shared: MigLayout, missing: Mapping[tuple[str, MigLayout], int]
) -> tuple[MigLayout, ...]:
    """Return the layouts of a node with as many shared cards as are missing; the others are partitioned."""
    cards = min(len(node.layouts), missing[node.product, shared])
    left = Counter[MigLayout]()
    for (product, layout), count in missing.items():
        if product == node.product and layout != WHOLE_CARD and not is_shared(layout):
            left[layout] += max(0, count)
    kept = list((Counter(node.layouts) & left).elements())[: len(node.layouts) - cards]
    others = list((left - Counter(kept)).elements())[: len(node.layouts) - cards - len(kept)]
    return (*[shared] * cards, *kept, *others)


def _change_order(node: NodeLayout, missing: Counter[tuple[str, MigLayout]]) -> tuple[object, ...]:
    changing = sum(min(cards, max(0, -missing[node.product, layout])) for layout, cards in node.free_layouts().items())
    return node.pods, all(layout == WHOLE_CARD for layout in node.layouts), -changing, node.node


def _new_layouts(node: NodeLayout, missing: Counter[tuple[str, MigLayout]]) -> Iterator[MigLayout]:
    """Yield the new layout of each card, and count it as no longer missing."""
    free = node.free_layouts()
    for layout in node.layouts:
        if missing[node.product, layout] >= 0 or not free[layout]:
            yield layout
            continue
        free[layout] -= 1
        wanted = [
            (count, other) for (product, other), count in missing.items() if product == node.product and count > 0
        ]
        _, new = max(wanted)
        missing[node.product, layout] += 1
        missing[node.product, new] -= 1
        yield new
