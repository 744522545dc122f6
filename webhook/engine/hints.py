"""Step 6: what is added to a pod so that it reaches the nodes it asks for. Nothing the user wrote is changed."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.case import Case
from webhook.engine.reach import Reach, is_marker
from webhook.engine.remarks import Remark
from webhook.engine.shape import Json, Shape
from webhook.model.modes import Mode
from webhook.model.objects import Taint
from webhook.model.offers import Offer
from webhook.model.pods import Pod, Requirement, Toleration
from webhook.model.taints import all_tolerated
from webhook.policy.compiled import Injection, Spread

WHITELIST = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
"""Namespace annotation of PodTolerationRestriction: an added toleration could get the pod refused."""

HOSTNAME = "kubernetes.io/hostname"

WORKLOAD_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
    "pod-template-hash",
    "controller-revision-hash",
)
"""Labels that controllers give to all pods of one workload, the widest first."""


def hint(section: Injection, shape: Shape, case: Case) -> list[Remark]:
    """Add what an injection section says. Returns what was added, and what could not be."""
    before = len(shape.changed)
    problems: list[Remark] = []
    if (section.tolerations_auto or section.tolerations) and WHITELIST not in case.namespace_notes:
        _tolerations(section, shape, case)
    if section.node_affinity:
        problems += _node_affinity(section, shape, case)
    if section.runtime_class_name:
        problems += _runtime_class(section, shape)
    if section.spread is not Spread.OFF:
        _spread(section, shape)
    if section.labels:
        problems += _labels(section, shape)
    added = shape.changed[before:]
    if added:
        words = "would add" if section.mode is not Mode.ENFORCE else "added"
        at_most = Mode.AUDIT if section.mode is Mode.ENFORCE else Mode.WARN
        problems.append(Remark("GPU-I101", ("spec",), f"{words} {', '.join(added)}", at_most=at_most))
    return problems


def _tolerations(section: Injection, shape: Shape, case: Case) -> None:
    wanted = list(section.tolerations)
    if section.tolerations_auto:
        wanted += [_tolerating(taint) for taint in _marker_taints(shape, case)]
    if not wanted:
        return
    by_now = shape.tolerations_by_now()
    missing = [toleration for toleration in wanted if not _have(toleration, by_now)]
    if missing:
        shape.tolerations += missing
        shape.note("tolerations")


def _have(wanted: Toleration, have: tuple[Toleration, ...]) -> bool:
    """Is everything that a toleration covers covered already?"""
    if wanted in have:
        return True
    return bool(wanted.key and wanted.effect) and all_tolerated(have, (Taint(wanted.key, wanted.value, wanted.effect),))


def _marker_taints(shape: Shape, case: Case) -> list[Taint]:
    found: list[Taint] = []
    for offer in chosen_offers(shape, case):
        found += [taint for taint in offer.taints if taint not in found and is_marker(taint.key, taint.value)]
    return found


def chosen_offers(shape: Shape, case: Case) -> tuple[Offer, ...]:
    """The offers the pod may come to stand on: those of the fit, else those of the names it asks for."""
    return shape.fit.offers if shape.fit is not None else case.offers


def _tolerating(taint: Taint) -> Toleration:
    if not taint.value:
        return Toleration(key=taint.key, operator="Exists", effect=taint.effect)
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _node_affinity(section: Injection, shape: Shape, case: Case) -> Iterator[Remark]:
    wanted = [rule for rule in section.node_affinity if rule not in shape.required]
    missing = [rule for rule in wanted if not required_already(shape.pod, rule)]
    if not missing:
        return
    offers = chosen_offers(shape, case)
    if offers and not _some_node_left(offers, missing, case.reach):
        keys = ", ".join(rule.key for rule in missing)
        yield _contradiction(("spec", "affinity"), f"node affinity on {keys} would leave no node for this pod")
        return
    shape.required += missing
    shape.note("nodeAffinity")


def _some_node_left(offers: tuple[Offer, ...], rules: list[Requirement], reach: Reach) -> bool:
    nodes = 0
    for offer in offers:
        nodes |= offer.nodes
    return bool(nodes & reach.narrowed(rules))


def required_already(pod: Pod, rule: Requirement) -> bool:
    """Does every term of the pod's required affinity that can match hold this expression?"""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    live = [term for term in terms if term.match_expressions or term.match_fields]
    if not terms:
        return False
    return all(any(_same(rule, have) for have in term.match_expressions) for term in live)


def _same(one: Requirement, other: Requirement) -> bool:
    return one.key == other.key and one.operator == other.operator and set(one.values) == set(other.values)


def _runtime_class(section: Injection, shape: Shape) -> Iterator[Remark]:
    wanted, have = section.runtime_class_name, shape.pod.spec.runtime_class_name or shape.runtime_class_name
    if wanted == have:
        return
    if have:
        yield _contradiction(("spec", "runtimeClassName"), f"runtimeClassName {wanted} (the pod names {have})")
        return
    shape.runtime_class_name = wanted
    shape.note("runtimeClassName")


def _labels(section: Injection, shape: Shape) -> Iterator[Remark]:
    have = shape.pod.metadata.labels
    for key, value in section.labels:
        if key not in have and key not in shape.labels:
            shape.labels[key] = value
            shape.note("labels")
        elif have.get(key, value) != value:
            yield _contradiction(("metadata", "labels", key), f"label {key}: {value} (the pod has another value)")


def _contradiction(path: tuple[str, ...], what: str) -> Remark:
    return Remark("GPU-I102", path, f"not added: {what}", at_most=Mode.WARN)


def workload_selector(pod: Pod) -> Json | None:
    """A label selector for all pods of the workload that a pod belongs to; None for a pod on its own."""
    if not any(owner.controller for owner in pod.metadata.owner_references):
        return None
    for key in WORKLOAD_LABELS:
        if key in pod.metadata.labels:
            return {"matchLabels": {key: pod.metadata.labels[key]}}
    return None


def _spread(section: Injection, shape: Shape) -> None:
    selector = workload_selector(shape.pod)
    if selector is None:
        return
    have = [constraint.topology_key for constraint in shape.pod.spec.topology_spread_constraints]
    if HOSTNAME in have or shape.spread:
        return
    unsatisfiable = "DoNotSchedule" if section.spread is Spread.REQUIRED else "ScheduleAnyway"
    shape.spread.append(
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": unsatisfiable,
            "labelSelector": selector,
        }
    )
    shape.note("topologySpreadConstraints")
