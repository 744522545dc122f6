"""MIG layouts by node: today's, from what the nodes advertise, and those of a plan, on the fewest nodes.

A node takes part if its cards are whole, or partitioned and not shared. Nodes advertise slices and not cards, so the
layout of each card is inferred: as many equal cards as possible, otherwise the fewest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL, parse_count
from webhook.placement.devices import GPU_COUNT_LABEL
from webhook.placement.integer_program import IntegerProgram
from webhook.placement.layout_plan import WHOLE_CARD, CardGroup
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

    def planned_layouts(self) -> Counter[MigLayout]:
        """Return how many cards with each layout serve the demand: all but those that pods keep."""
        found = Counter(self.layouts)
        found[WHOLE_CARD] -= min(self.kept_whole, found[WHOLE_CARD])
        return +found

    def free_layouts(self) -> Counter[MigLayout]:
        """Return how many of them may change."""
        return Counter() if self.fixed else self.planned_layouts()


class NodeChange(NamedTuple):
    """A node whose cards get other layouts: today's and the new ones, card by card."""

    node: NodeLayout
    layouts: tuple[MigLayout, ...]


def node_layouts(fleet: Fleet) -> dict[int, NodeLayout]:
    """Return today's layouts of the nodes that can be partitioned, by index.

    Raises:
        SolverError: The solver is not installed.
    """
    found = ((index, _node_layout(fleet, index)) for index, node in enumerate(fleet.nodes) if node.usable)
    return {index: layout for index, layout in found if layout is not None}


def _node_layout(fleet: Fleet, index: int) -> NodeLayout | None:
    node = fleet.nodes[index]
    product = node.labels.get(PRODUCT_LABEL, "")
    geometry, slices = mig_geometry(product), dict[str, int]()
    if geometry is None:
        return None
    names = {profile.name for profile in geometry.profiles}
    for resource, units in node.gpus.items():
        offer = fleet.offer_on(resource, index)
        if offer is None or offer.replicas > 1 or (offer.form is GpuForm.WHOLE) != (resource == WHOLE_GPU):
            return None
        if resource != WHOLE_GPU:
            if offer.profile not in names:
                return None
            slices[offer.profile] = units
    whole = node.gpus.get(WHOLE_GPU, 0)
    partitioned: tuple[MigLayout, ...] = split_slices(
        geometry, tuple(sorted(slices.items())), _label_count(node) - whole
    )
    if not whole + len(partitioned):
        return None
    return NodeLayout(node.name, product, (*partitioned, *[WHOLE_CARD] * whole))


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
    legal, common = legal_layouts(geometry), math.gcd(*(count for _, count in slices))
    for number in (cards, *range(1, common + 1)):
        if number > 0 and not common % number:
            each = tuple((profile, count // number) for profile, count in slices)
            if each in legal:
                return tuple([each] * number)
    return _split_unequally(legal, slices)


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


def assign_layouts(nodes: Iterable[NodeLayout], planned: Iterable[CardGroup]) -> list[NodeChange]:
    """Return the nodes that change, so that together they have the planned layouts.

    Idle nodes change first, then those that are partitioned already, then those with the most cards to change, so that
    few nodes change and sets of linked whole cards stay.
    """
    missing, nodes = Counter[tuple[str, MigLayout]](), list(nodes)
    for group in planned:
        missing[group.product, group.layout] += group.cards
    for group in card_groups(nodes):
        missing[group.product, group.layout] -= group.cards
    changes = []
    for node in sorted(nodes, key=lambda node: _change_order(node, missing)):
        layouts = tuple(_new_layouts(node, missing))
        if Counter(layouts) != Counter(node.layouts):
            changes.append(NodeChange(node, layouts))
    return changes


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
