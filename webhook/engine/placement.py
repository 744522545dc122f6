"""Step 5, will it run: what would only fail later, in the scheduler or in the kubelet.

Every remark names the nearest thing that exists. Nothing here is more than a warning where a new node could
still make it good, because an autoscaler may bring one. Nothing is said of a name that a DeviceClass has too: the
scheduler may take devices by a claim, on nodes that advertise none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import lru_cache

from webhook.engine.asking import Ask
from webhook.engine.case import Case
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.engine.wholecards import part_is_too_small
from webhook.model.fleet import Fleet
from webhook.model.modes import Form, Mode
from webhook.model.nodelabels import PRODUCT
from webhook.model.objects import Taint
from webhook.model.offers import Offer
from webhook.model.paths import Path
from webhook.model.pods import NodeSelectorTerm, Pod, PodSpec
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.model.taints import all_tolerated

REQUIRED_AFFINITY: Path = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def obstacles(case: Case, shape: Shape) -> list[Remark]:
    """Everything that stands between a pod and the GPUs it asks for."""
    if not case.view.fleet.nodes:
        return []
    by_claim = case.view.classes.values()
    found: list[Remark] = []
    for ask in case.asked.asks:
        if ask.count and ask.resource.name not in by_claim:
            _of_ask(ask, case, shape, found)
    return found


def _of_ask(ask: Ask, case: Case, shape: Shape, found: list[Remark]) -> None:
    name, fleet, reach = ask.resource.name, case.view.fleet, case.reach
    advertising = fleet.advertising(name)
    field = (*ask.path, "resources", "limits", name)
    if not advertising:
        found.append(_nowhere(name, fleet, field))
        return
    if not advertising & reach.selected:
        found.append(_ruled_out(name, case.pod, fleet))
        return
    total = case.asked.totals[name]
    if total > 1 and total > (most := fleet.most(name, advertising & reach.selected)):
        found.append(_too_many(field, total, most, everywhere=fleet.most(name, advertising)))
        return
    if not advertising & reach.selected & reach.tolerated:
        found.append(_not_tolerated(name, case.offers, case.pod))
    if ask.count > 1:
        able = (fleet.with_units(name, total) & reach.selected & reach.tolerated) or reach.selected
        found += _several_shares(
            ask, [each for each in case.offers if each.resource == name and each.nodes & able], field
        )
    if name == WHOLE_GPU and case.whole_or_part:
        found += _parts(case, shape, field)


def _too_many(field: Path, total: int, most: int, *, everywhere: int) -> Remark:
    message = f"must be at most {most}, the most on one node that this pod may use (found {total} in the pod)"
    elsewhere = f" Other nodes have up to {everywhere}." if everywhere >= total else ""
    return Remark("GPU-T202", field, message, f"Ask for at most {most}.{elsewhere}", at_most=Mode.WARN)


def _nowhere(name: str, fleet: Fleet, field: Path) -> Remark:
    near = nearest(name, tuple(fleet.by_resource))
    fix = f"Nearest in this cluster: {', '.join(near)}." if near else "No node of this cluster has GPUs."
    return Remark("GPU-T201", field, "must be offered by a node of this cluster", fix, at_most=Mode.WARN)


@lru_cache(maxsize=1024)
def nearest(name: str, existing: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three resource names that come closest: profiles of similar size first."""
    wanted = gpu_resource(name)
    slices = wanted.slices if wanted and wanted.mig else 7

    def distance(other: str) -> tuple[int, str]:
        known = gpu_resource(other)
        return (abs((known.slices if known and known.mig else 7) - slices), other)

    return tuple(sorted(existing, key=distance)[:3])


def _ruled_out(name: str, pod: Pod, fleet: Fleet) -> Remark:
    products = _products(fleet)[name]
    asked, path = _product_asked(pod)
    if asked and _known(fleet).isdisjoint(asked):
        message = f"{PRODUCT} must be a product of this cluster (found {', '.join(asked)[:120]})"
        near = _alike(asked[0][:63], products)
        return Remark("GPU-T203", path, message, f"Write one of {', '.join(near)}.", at_most=Mode.WARN)
    message = f"nodeSelector and affinity leave no node that offers {name}"
    fix = f"{name} is offered by {', '.join(products[:5]) or 'nodes without a product label'}."
    return Remark("GPU-T204", _narrowest(name, pod, fleet), message, fix, at_most=Mode.WARN)


def _narrowest(name: str, pod: Pod, fleet: Fleet) -> Path:
    """The field that leaves no node with a resource by itself; where none does, the last that narrows."""
    selector, advertising = pod.spec.node_selector, fleet.advertising(name)
    for key, value in selector.items():
        if not fleet.select({key: value}, None) & advertising:
            return ("spec", "nodeSelector", key)
    if not fleet.select(selector, None) & advertising or not _required_terms(pod.spec):
        return ("spec", "nodeSelector")
    return REQUIRED_AFFINITY


@lru_cache(maxsize=4)
def _known(fleet: Fleet) -> frozenset[str]:
    return frozenset(fleet.products(fleet.everyone))


@lru_cache(maxsize=4)
def _products(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """The products that are offered, by resource name."""
    named = ((name, [offer.product for offer in offers]) for name, offers in fleet.by_resource.items())
    return {name: tuple(filter(None, dict.fromkeys(products))) for name, products in named}


@lru_cache(maxsize=1024)
def _alike(product: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """The five whose names come closest."""
    return tuple(sorted(others, key=lambda one: -SequenceMatcher(None, one, product).ratio())[:5])


def _product_asked(pod: Pod) -> tuple[tuple[str, ...], Path]:
    """Products that the pod pins itself to, and where it says so first."""
    spec = pod.spec
    if PRODUCT in spec.node_selector:
        return (spec.node_selector[PRODUCT],), ("spec", "nodeSelector", PRODUCT)
    found = [
        (rule.values, (*REQUIRED_AFFINITY, "nodeSelectorTerms", i, "matchExpressions", j, "values"))
        for i, term in enumerate(_required_terms(spec))
        for j, rule in enumerate(term.match_expressions)
        if rule.key == PRODUCT and rule.operator == "In"
    ]
    if not found:
        return (), ()
    return tuple(dict.fromkeys(value for values, _ in found for value in values)), found[0][1]


def _required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...]:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else ()


def _not_tolerated(name: str, offers: tuple[Offer, ...], pod: Pod) -> Remark:
    in_the_way = (
        taint for offer in offers for taint in offer.taints if not all_tolerated(pod.spec.tolerations, (taint,))
    )
    taint = next(in_the_way, Taint(key="(unknown)"))
    text = f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
    message = f"the taint {text} of the nodes that offer {name} must be tolerated"
    return Remark("GPU-T205", ("spec", "tolerations"), message, f"Tolerate {text}.", at_most=Mode.WARN)


def _several_shares(ask: Ask, offers: list[Offer], field: Path) -> Iterator[Remark]:
    if not offers or any(offer.replicas == 1 for offer in offers):
        return
    if all(offer.form is Form.MPS for offer in offers):
        message = f"must be at most 1 in a container, because the kubelet refuses more MPS shares (found {ask.count})"
        yield Remark("GPU-T102", field, message, "Ask for 1, or for a whole GPU.")
    else:
        message = f"{ask.count} time-sliced shares may be turns on one card, and some nodes refuse more than 1"
        yield Remark("GPU-T101", field, message, "Ask for 1, or for whole GPUs.", at_most=Mode.WARN)


def _parts(case: Case, shape: Shape, field: Path) -> Iterator[Remark]:
    """A plain nvidia.com/gpu can be a slice on nodes with MIG strategy single, or an unrenamed share."""
    if any(rule.key == PRODUCT and rule.operator == "NotIn" for rule in shape.required):
        return
    products = ", ".join(case.view.fleet.part_products) or "no product label of their own"
    message = f"may be a part of a card on nodes with {products}"
    fix = f"Add a node affinity on {PRODUCT} to be sure of whole cards."
    yield Remark("GPU-T302", field, message, fix, at_most=Mode.WARN if part_is_too_small(case) else Mode.AUDIT)
