"""Step 5, will it run: what would only fail later, in the scheduler or in the kubelet.

Every remark names the nearest thing that exists. Nothing here is more than a warning where a new node could
still make it good, because an autoscaler may bring one. Nothing is said of a name that a DeviceClass has too: the
scheduler may take devices by a claim, on nodes that advertise none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import lru_cache

from webhook.engine.gpu_requests import GpuRequest
from webhook.engine.hints import is_partial_gpu_too_small
from webhook.engine.mutation import PodMutation
from webhook.engine.pod_context import PodContext
from webhook.engine.violations import Violation
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.objects import Taint
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorTerm, Pod, PodSpec
from webhook.model.taints import tolerates_all

REQUIRED_AFFINITY: FieldPath = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def node_fit_violations(case: PodContext, shape: PodMutation) -> list[Violation]:
    """Everything that stands between a pod and the GPUs it asks for."""
    if not case.view.fleet.nodes:
        return []
    by_claim = case.view.classes.values()
    found: list[Violation] = []
    for ask in case.gpu_requests.requests:
        if ask.count and ask.resource.name not in by_claim:
            _check_gpu_request(ask, case, shape, found)
    return found


def _check_gpu_request(ask: GpuRequest, case: PodContext, shape: PodMutation, found: list[Violation]) -> None:
    name, fleet, reach = ask.resource.name, case.view.fleet, case.feasible
    advertising = fleet.nodes_advertising(name)
    field = (*ask.path, "resources", "limits", name)
    if not advertising:
        found.append(_not_offered(name, fleet, field))
        return
    if not advertising & reach.selected:
        found.append(_excluded_by_selectors(name, case.pod, fleet))
        return
    total = case.gpu_requests.totals[name]
    if total > 1 and total > (most := fleet.max_units(name, advertising & reach.selected)):
        found.append(_too_many_gpus(field, total, most, everywhere=fleet.max_units(name, advertising)))
        return
    if not advertising & reach.selected & reach.tolerated:
        found.append(_untolerated_taint(name, case.offers, case.pod))
    if ask.count > 1:
        able = (fleet.nodes_with_units(name, total) & reach.selected & reach.tolerated) or reach.selected
        found += _multiple_shares(
            ask, [each for each in case.offers if each.resource == name and each.nodes & able], field
        )
    if name == WHOLE_GPU and case.mixes_whole_and_partial:
        found += _partial_gpu_violation(case, shape, field)


def _too_many_gpus(field: FieldPath, total: int, most: int, *, everywhere: int) -> Violation:
    message = f"must be at most {most}, the most on one node that this pod may use (found {total} in the pod)"
    elsewhere = f" Other nodes have up to {everywhere}." if everywhere >= total else ""
    return Violation("GPU-T202", field, message, f"Ask for at most {most}.{elsewhere}", at_most=PolicyMode.WARN)


def _not_offered(name: str, fleet: Fleet, field: FieldPath) -> Violation:
    near = nearest_resources(name, tuple(fleet.by_resource))
    fix = f"Nearest in this cluster: {', '.join(near)}." if near else "No node of this cluster has GPUs."
    return Violation("GPU-T201", field, "must be offered by a node of this cluster", fix, at_most=PolicyMode.WARN)


@lru_cache(maxsize=1024)
def nearest_resources(name: str, existing: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three resource names that come closest: profiles of similar size first."""
    wanted = parse_gpu_resource(name)
    slices = wanted.slices if wanted and wanted.mig else 7

    def distance(other: str) -> tuple[int, str]:
        known = parse_gpu_resource(other)
        return (abs((known.slices if known and known.mig else 7) - slices), other)

    return tuple(sorted(existing, key=distance)[:3])


def _excluded_by_selectors(name: str, pod: Pod, fleet: Fleet) -> Violation:
    products = _products_by_resource(fleet)[name]
    asked, path = _required_products(pod)
    if asked and _known_products(fleet).isdisjoint(asked):
        message = f"{PRODUCT_LABEL} must be a product of this cluster (found {', '.join(asked)[:120]})"
        near = _similar_products(asked[0][:63], products)
        return Violation("GPU-T203", path, message, f"Write one of {', '.join(near)}.", at_most=PolicyMode.WARN)
    message = f"nodeSelector and affinity leave no node that offers {name}"
    fix = f"{name} is offered by {', '.join(products[:5]) or 'nodes without a product label'}."
    return Violation("GPU-T204", _narrowest_field(name, pod, fleet), message, fix, at_most=PolicyMode.WARN)


def _narrowest_field(name: str, pod: Pod, fleet: Fleet) -> FieldPath:
    """The field that leaves no node with a resource by itself; where none does, the last that narrows."""
    selector, advertising = pod.spec.node_selector, fleet.nodes_advertising(name)
    for key, value in selector.items():
        if not fleet.select_nodes({key: value}, None) & advertising:
            return ("spec", "nodeSelector", key)
    if not fleet.select_nodes(selector, None) & advertising or not _required_terms(pod.spec):
        return ("spec", "nodeSelector")
    return REQUIRED_AFFINITY


@lru_cache(maxsize=4)
def _known_products(fleet: Fleet) -> frozenset[str]:
    return frozenset(fleet.products_of_nodes(fleet.all_nodes))


@lru_cache(maxsize=4)
def _products_by_resource(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """The products that are offered, by resource name."""
    named = ((name, [offer.product for offer in offers]) for name, offers in fleet.by_resource.items())
    return {name: tuple(filter(None, dict.fromkeys(products))) for name, products in named}


@lru_cache(maxsize=1024)
def _similar_products(product: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """The five whose names come closest."""
    return tuple(sorted(others, key=lambda one: -SequenceMatcher(None, one, product).ratio())[:5])


def _required_products(pod: Pod) -> tuple[tuple[str, ...], FieldPath]:
    """Products that the pod pins itself to, and where it says so first."""
    spec = pod.spec
    if PRODUCT_LABEL in spec.node_selector:
        return (spec.node_selector[PRODUCT_LABEL],), ("spec", "nodeSelector", PRODUCT_LABEL)
    found = [
        (rule.values, (*REQUIRED_AFFINITY, "nodeSelectorTerms", i, "matchExpressions", j, "values"))
        for i, term in enumerate(_required_terms(spec))
        for j, rule in enumerate(term.match_expressions)
        if rule.key == PRODUCT_LABEL and rule.operator == "In"
    ]
    if not found:
        return (), ()
    return tuple(dict.fromkeys(value for values, _ in found for value in values)), found[0][1]


def _required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...]:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else ()


def _untolerated_taint(name: str, offers: tuple[GpuOffer, ...], pod: Pod) -> Violation:
    in_the_way = (
        taint for offer in offers for taint in offer.taints if not tolerates_all(pod.spec.tolerations, (taint,))
    )
    taint = next(in_the_way, Taint(key="(unknown)"))
    text = f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
    message = f"the taint {text} of the nodes that offer {name} must be tolerated"
    return Violation("GPU-T205", ("spec", "tolerations"), message, f"Tolerate {text}.", at_most=PolicyMode.WARN)


def _multiple_shares(ask: GpuRequest, offers: list[GpuOffer], field: FieldPath) -> Iterator[Violation]:
    if not offers or any(offer.replicas == 1 for offer in offers):
        return
    if all(offer.form is GpuForm.MPS for offer in offers):
        message = f"must be at most 1 in a container, because the kubelet refuses more MPS shares (found {ask.count})"
        yield Violation("GPU-T102", field, message, "Ask for 1, or for a whole GPU.")
    else:
        message = f"{ask.count} time-sliced shares may be turns on one card, and some nodes refuse more than 1"
        yield Violation("GPU-T101", field, message, "Ask for 1, or for whole GPUs.", at_most=PolicyMode.WARN)


def _partial_gpu_violation(case: PodContext, shape: PodMutation, field: FieldPath) -> Iterator[Violation]:
    """A plain nvidia.com/gpu can be a slice on nodes with MIG strategy single, or an unrenamed share."""
    if any(rule.key == PRODUCT_LABEL and rule.operator == "NotIn" for rule in shape.required_node_affinity):
        return
    products = ", ".join(case.view.fleet.partial_gpu_products) or "no product label of their own"
    message = f"may be a part of a card on nodes with {products}"
    fix = f"Add a node affinity on {PRODUCT_LABEL} to be sure of whole cards."
    yield Violation(
        "GPU-T302", field, message, fix, at_most=PolicyMode.WARN if is_partial_gpu_too_small(case) else PolicyMode.AUDIT
    )
