"""What node labels alone can say about NVLink: expressions that hold only where so many GPUs are joined.

The agent keeps the size of its node's largest island in a label, unhealthy GPUs and broken links left out. Where it
runs, that decides, whatever the cards are: nodes that join later are judged by their own agent. Where no agent runs, a
product whose cards are wired with NVLink is told by its name (`model.products`).
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.model.fleet import Fleet
from webhook.model.masks import union
from webhook.model.modes import Form
from webhook.model.nodelabels import ISLAND, PRODUCT, SHARING
from webhook.model.offers import Offer
from webhook.model.pods import NodeSelectorTerm, Requirement
from webhook.model.products import nvlinked
from webhook.model.resources import WHOLE_GPU


class Linked(NamedTuple):
    """Nodes that can join GPUs, and what tells them from others.

    Attributes:
        nodes: Their mask; 0 where labels know of none.
        rules: Expressions that hold on these, and on no node where labels do not say so.
    """

    nodes: int
    rules: tuple[Requirement, ...]


NOWHERE = Linked(0, ())

NO_SHARES = Requirement(SHARING, "NotIn", ("mps", "time-slicing"))
"""Holds too where nobody says how cards are shared. Where they are, the agent's label is still about whole cards."""

MOST_JOINED = 256
"""GPUs of one node; beyond what any machine joins, labels are taken to know of none. Pods may ask for any number."""


def linked(count: int, nodes: int, fleet: Fleet) -> Linked:
    """The nodes of a mask on which NVLink joins so many whole GPUs pair by pair, as far as labels say.

    An agent's word is enough and better than a name. But terms cannot say "the agent's word, or else the name", so
    where names speak for nodes without an agent, it is the names, and no node whose agent says otherwise.
    """
    whole = [offer for offer in fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is Form.WHOLE]
    wired = [offer for offer in whole if nvlinked(offer.product)]
    large = nodes & fleet.with_units(WHOLE_GPU, count)
    if not large or count > MOST_JOINED:
        return NOWHERE
    if count < 2 or not fleet.carrying_label(ISLAND):
        return _that_hold(wired, large, fleet)
    told = _told(count, large & union(offer.nodes for offer in whole), fleet)
    small = Requirement(ISLAND, "NotIn", tuple(str(size) for size in range(1, count)))
    named = _that_hold(wired, large, fleet, small)
    return named if named.nodes & ~told.nodes else told


def _told(count: int, whole: int, fleet: Fleet) -> Linked:
    """The nodes of a mask whose agents say so. Shares of cards are ruled out, those of nodes to come too."""
    rules: tuple[Requirement, ...] = (Requirement(ISLAND, "Gt", (str(count - 1),)), NO_SHARES)
    left = fleet.select({}, (NodeSelectorTerm(match_expressions=rules),))
    if left & fleet.parts and fleet.part_products:
        rules += (Requirement(PRODUCT, "NotIn", fleet.part_products),)
    return Linked(left & whole, rules) if left & whole else NOWHERE


def _that_hold(offers: list[Offer], nodes: int, fleet: Fleet, *sizes: Requirement) -> Linked:
    """The nodes of these offers on which expressions about the island hold."""
    nodes &= union(offer.nodes for offer in offers)
    if sizes:
        nodes &= fleet.select({}, (NodeSelectorTerm(match_expressions=sizes),))
    products = tuple(dict.fromkeys(offer.product for offer in offers if offer.nodes & nodes))
    named = (Requirement(PRODUCT, "In", products),) if all(products) else ()
    return Linked(nodes, (*named, *sizes)) if nodes else NOWHERE
