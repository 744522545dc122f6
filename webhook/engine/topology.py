"""Step 6, topology: what node labels alone can say about NVLink. The placement core knows more; it comes later.

A product whose cards are wired with NVLink is told by its name (`model.products`). Several nodes that form one
NVLink domain share a label value, by default `nvidia.com/gpu.clique`.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.asking import Ask, Asked
from webhook.engine.hints import added_remark, required_already, workload_selector
from webhook.engine.reach import Reach
from webhook.engine.remarks import Remark
from webhook.engine.shape import Json, Shape
from webhook.model.modes import Form, Mode
from webhook.model.nodelabels import PRODUCT
from webhook.model.offers import Offer
from webhook.model.pods import Pod, Requirement
from webhook.model.products import nvlinked
from webhook.model.resources import WHOLE_GPU
from webhook.policy.compiled import NVLink, Topology

WEIGHT = 50
"""Half of the scale: nearness to other GPUs should not silence what the user prefers."""


def locality(section: Topology, shape: Shape, asked: Asked, reach: Reach) -> list[Remark]:
    """Steer pods whose GPUs talk to each other to nodes that link them."""
    whole = [ask for ask in asked.asks if ask.resource.name == WHOLE_GPU]
    largest = max(whole, key=lambda ask: ask.count, default=None)
    if section.nvlink is NVLink.IGNORED or largest is None or largest.count < section.when_gpus_at_least:
        return []
    before = len(shape.changed)
    remarks = list(_linked_nodes(section, shape, largest, reach))
    _domain(section, shape)
    added = shape.changed[before:]
    return [*remarks, added_remark(section.mode, added)] if added else remarks


def _linked_nodes(section: Topology, shape: Shape, ask: Ask, reach: Reach) -> Iterator[Remark]:
    whole = [offer for offer in reach.view.fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is Form.WHOLE]
    linked = [offer for offer in whole if nvlinked(offer.product) and _fits(offer, ask.count, reach)]
    if not whole or (len(linked) == len(whole) and linked):
        return
    if not linked:
        if section.nvlink is NVLink.REQUIRED:
            yield _no_links(ask, [offer for offer in whole if nvlinked(offer.product)], reach)
        return
    rule = Requirement(PRODUCT, "In", tuple(dict.fromkeys(offer.product for offer in linked)))
    if section.nvlink is NVLink.REQUIRED and not required_already(shape.pod, rule):
        shape.required.append(rule)
        shape.note("nodeAffinity")
    elif section.nvlink is NVLink.PREFERRED and not _preferred_already(shape.pod, rule):
        shape.preferred.append(_wish(rule))
        shape.note("nodeAffinity")


def _fits(offer: Offer, count: int, reach: Reach) -> bool:
    """Is there a node with this offer that is selected and large enough?"""
    nodes = offer.nodes & reach.selected & reach.tolerated
    return bool(nodes) and reach.view.fleet.most(WHOLE_GPU, nodes) >= count


def _no_links(ask: Ask, linked: list[Offer], reach: Reach) -> Remark:
    most = max((reach.view.fleet.most(WHOLE_GPU, offer.nodes) for offer in linked), default=0)
    fix = f"Ask for at most {most} GPUs." if most else "Ask the admin for nvlink: preferred."
    message = f"{ask.count} GPUs must be linked by NVLink, and no node that this pod may use links so many"
    field = (*ask.path, "resources", "limits", WHOLE_GPU)
    return Remark("GPU-T301", field, message, fix, at_most=Mode.WARN)


def _wish(rule: Requirement) -> Json:
    expression = {"key": rule.key, "operator": rule.operator, "values": list(rule.values)}
    return {"weight": WEIGHT, "preference": {"matchExpressions": [expression]}}


def _preferred_already(pod: Pod, rule: Requirement) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return any(rule in wish.preference.match_expressions for wish in (affinity.preferred if affinity else ()))


def _domain(section: Topology, shape: Shape) -> None:
    """Keep the pods of one workload in one NVLink domain, where they can be."""
    selector = workload_selector(shape.pod) if section.multi_node_domain else None
    if selector is None:
        return
    term = {"topologyKey": section.multi_node_domain, "labelSelector": selector}
    wish = {"weight": WEIGHT, "podAffinityTerm": term}
    affinity = shape.pod.spec.affinity.pod_affinity if shape.pod.spec.affinity else None
    if wish not in (affinity.preferred if affinity else ()) and wish not in shape.near:
        shape.near.append(wish)
        shape.note("podAffinity")
