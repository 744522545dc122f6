"""What node labels alone can say about NVLink: expressions that hold only where so many GPUs are joined.

The agent keeps the size of its node's largest island in a label, unhealthy GPUs and broken links left out. Where it
runs, that decides, whatever the cards are: nodes that join later are judged by their own agent. Where no agent runs, a
product whose cards are wired with NVLink is told by its name (`model.products`).
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.model.fleet import Fleet
from webhook.model.masks import union_masks
from webhook.model.modes import GpuForm
from webhook.model.nodelabels import ISLAND_LABEL, PRODUCT_LABEL, SHARING_LABEL
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorTerm, NodeSelectorRequirement
from webhook.model.products import has_nvlink
from webhook.model.resources import WHOLE_GPU


class LinkedNodes(NamedTuple):
    """Nodes that can join GPUs, and what tells them from others.

    Attributes:
        nodes: Their mask; 0 where labels know of none.
        rules: Expressions that hold on these, and on no node where labels do not say so.
    """

    nodes: int
    rules: tuple[NodeSelectorRequirement, ...]


NO_LINKED_NODES = LinkedNodes(0, ())

NOT_SHARED = NodeSelectorRequirement(SHARING_LABEL, "NotIn", ("mps", "time-slicing"))
"""Holds too where nobody says how cards are shared. Where they are, the agent's label is still about whole cards."""

MAX_LINKED_GPUS = 256
"""GPUs of one node; beyond what any machine joins, labels are taken to know of none. Pods may ask for any number."""


def find_linked_nodes(count: int, nodes: int, fleet: Fleet) -> LinkedNodes:
    """The nodes of a mask on which NVLink joins so many whole GPUs pair by pair, as far as labels say.

    An agent's word is enough and better than a name. But terms cannot say "the agent's word, or else the name", so
    where names speak for nodes without an agent, it is the names, and no node whose agent says otherwise.
    """
    whole = [offer for offer in fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is GpuForm.WHOLE]
    wired = [offer for offer in whole if has_nvlink(offer.product)]
    large = nodes & fleet.nodes_with_units(WHOLE_GPU, count)
    if not large or count > MAX_LINKED_GPUS:
        return NO_LINKED_NODES
    if count < 2 or not fleet.nodes_with_label(ISLAND_LABEL):
        return _linked_by_product(wired, large, fleet)
    told = _linked_by_agent_label(count, large & union_masks(offer.nodes for offer in whole), fleet)
    small = NodeSelectorRequirement(ISLAND_LABEL, "NotIn", tuple(str(size) for size in range(1, count)))
    named = _linked_by_product(wired, large, fleet, small)
    return named if named.nodes & ~told.nodes else told


def _linked_by_agent_label(count: int, whole: int, fleet: Fleet) -> LinkedNodes:
    """The nodes of a mask whose agents say so. Shares of cards are ruled out, those of nodes to come too."""
    rules: tuple[NodeSelectorRequirement, ...] = (NodeSelectorRequirement(ISLAND_LABEL, "Gt", (str(count - 1),)), NOT_SHARED)
    left = fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=rules),))
    if left & fleet.partial_gpu_nodes and fleet.partial_gpu_products:
        rules += (NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", fleet.partial_gpu_products),)
    return LinkedNodes(left & whole, rules) if left & whole else NO_LINKED_NODES


def _linked_by_product(offers: list[GpuOffer], nodes: int, fleet: Fleet, *sizes: NodeSelectorRequirement) -> LinkedNodes:
    """The nodes of these offers on which expressions about the island hold."""
    nodes &= union_masks(offer.nodes for offer in offers)
    if sizes:
        nodes &= fleet.select_nodes({}, (NodeSelectorTerm(match_expressions=sizes),))
    products = tuple(dict.fromkeys(offer.product for offer in offers if offer.nodes & nodes))
    named = (NodeSelectorRequirement(PRODUCT_LABEL, "In", products),) if all(products) else ()
    return LinkedNodes(nodes, (*named, *sizes)) if nodes else NO_LINKED_NODES
