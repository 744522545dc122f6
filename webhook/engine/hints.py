"""Step 6: what is added to a pod so that it reaches the nodes it asks for. Nothing the user wrote is changed."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.case import Case
from webhook.engine.reach import markers
from webhook.engine.remarks import Remark
from webhook.engine.shape import Json, Shape
from webhook.model.masks import union
from webhook.model.modes import Form, Mode
from webhook.model.nodelabels import PRODUCT
from webhook.model.objects import Taint
from webhook.model.paths import Path
from webhook.model.pods import Pod, Requirement, Toleration
from webhook.model.records import TOPOLOGY
from webhook.model.resources import WHOLE_GPU
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

_FIELDS: dict[str, Path] = {
    "tolerations": ("spec", "tolerations"),
    "nodeAffinity": ("spec", "affinity", "nodeAffinity"),
    "podAffinity": ("spec", "affinity", "podAffinity"),
    "runtimeClassName": ("spec", "runtimeClassName"),
    "topologySpreadConstraints": ("spec", "topologySpreadConstraints"),
    "labels": ("metadata", "labels"),
    "topology": ("metadata", "annotations", TOPOLOGY),
}
"""Where what an injection adds stands, by the word for it."""


def hint(section: Injection, shape: Shape, case: Case) -> list[Remark]:
    """Add what an injection section says. Returns what was added, and what could not be."""
    before = len(shape.changed)
    problems: list[Remark] = []
    if (section.tolerations_auto or section.tolerations) and WHITELIST not in case.namespace_notes:
        _tolerations(section, shape, case)
    if section.node_affinity or section.node_affinity_auto:
        problems += _node_affinity(section, shape, case)
    if section.runtime_class_name:
        problems += _runtime_class(section, shape)
    if section.spread is not Spread.OFF:
        _spread(section, shape)
    if section.labels:
        problems += _labels(section, shape)
    if len(shape.changed) > before:
        problems.append(added_remark(section.mode, shape.changed[before:]))
    return problems


def added_remark(mode: Mode, added: list[str]) -> Remark:
    """What was added, for the record; what would be, for the user. At the field, or what several have in common."""
    field = _FIELDS.get(added[0], ("spec",)) if len(added) == 1 else ("spec",)
    if mode is Mode.ENFORCE:
        return Remark("GPU-I101", field, f"added {', '.join(added)}", at_most=Mode.AUDIT)
    return Remark("GPU-I101", field, f"would add {', '.join(added)}", at_most=Mode.WARN)


def _tolerations(section: Injection, shape: Shape, case: Case) -> None:
    by_now = shape.tolerations_by_now()
    missing = [toleration for toleration in section.tolerations if not _have(toleration, by_now)]
    if section.tolerations_auto:
        nodes = chosen_nodes(shape, case) & case.reach.selected
        for taint, carrying in markers(case.view.fleet):
            if carrying & nodes and not all_tolerated(by_now, (taint,)):
                missing.append(_tolerating(taint))
    if missing:
        shape.tolerations += missing
        shape.note("tolerations")


def _have(wanted: Toleration, have: tuple[Toleration, ...]) -> bool:
    """Is everything that a toleration covers covered already?"""
    if wanted in have:
        return True
    return bool(wanted.key and wanted.effect) and all_tolerated(have, (Taint(wanted.key, wanted.value, wanted.effect),))


def chosen_nodes(shape: Shape, case: Case) -> int:
    """Mask of the nodes the pod may come to stand on: those of the fit, else those that offer what it asks for."""
    return union([offer.nodes for offer in shape.fit.offers]) if shape.fit is not None else case.offered


def _tolerating(taint: Taint) -> Toleration:
    if not taint.value:
        return Toleration(key=taint.key, operator="Exists", effect=taint.effect)
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _node_affinity(section: Injection, shape: Shape, case: Case) -> tuple[Remark, ...]:
    rules = section.node_affinity + (_whole_cards(shape, case) if section.node_affinity_auto else ())
    if not rules:
        return ()
    missing = [rule for rule in rules if rule not in shape.required and not required_already(shape.pod, rule)]
    if not missing:
        return ()
    nodes = chosen_nodes(shape, case) & case.reach.narrowed(shape.required)
    if nodes and not nodes & case.reach.narrowed(missing):
        keys = ", ".join(rule.key for rule in missing)
        return (_contradiction(("spec", "affinity"), f"node affinity on {keys} would leave no node for this pod"),)
    shape.required += missing
    shape.note("nodeAffinity")
    return ()


def _whole_cards(shape: Shape, case: Case) -> tuple[Requirement, ...]:
    """What keeps a request for whole cards off nodes where the same name is a slice or a share.

    Only where it matters: several GPUs that are to work together, or a need that a part would not cover. And only
    where a node with whole cards would still take the pod.
    """
    if shape.fit is not None or not case.whole_or_part:
        return ()
    fleet, count = case.view.fleet, case.asked.totals[WHOLE_GPU]
    if (count == 1 and not part_is_too_small(case)) or not fleet.part_products:
        return ()
    if fleet.most(WHOLE_GPU, case.reach.nodes & ~fleet.parts) < count:
        return ()
    return (Requirement(PRODUCT, "NotIn", fleet.part_products),)


def part_is_too_small(case: Case) -> bool:
    """Does the pod declare a need that some part it may get would not cover?"""
    need = case.declared.memory_mib
    if need is None:
        return False
    parts = [offer for offer in case.offers if offer.form is not Form.WHOLE]
    return any(offer.memory_mib is None or offer.memory_mib < need for offer in parts)


def required_already(pod: Pod, rule: Requirement) -> bool:
    """Does every term of the pod's required affinity that can match hold this expression?

    A required affinity that is there and has no term that can match allows no node: nothing narrows it further.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return False
    terms = affinity.required.node_selector_terms
    live = [term for term in terms if term.match_expressions or term.match_fields]
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


def workload_label(pod: Pod) -> str:
    """The label that all pods of the workload carry that a pod belongs to; "" for a pod on its own."""
    owners = pod.metadata.owner_references
    if not owners or not any(owner.controller for owner in owners):
        return ""
    return next((key for key in WORKLOAD_LABELS if key in pod.metadata.labels), "")


def workload_selector(pod: Pod) -> Json | None:
    """A label selector for all pods of the workload that a pod belongs to; None for a pod on its own."""
    key = workload_label(pod)
    return {"matchLabels": {key: pod.metadata.labels[key]}} if key else None


def _spread(section: Injection, shape: Shape) -> None:
    constraint = spread_over_hosts(shape.pod, required=section.spread is Spread.REQUIRED)
    if constraint is None or shape.spread:
        return
    shape.spread.append(constraint)
    shape.note("topologySpreadConstraints")


def spread_over_hosts(pod: Pod, *, required: bool) -> Json | None:
    """What spreads the pods of one workload; None for a pod on its own, and where the user spreads them already."""
    selector = workload_selector(pod)
    if selector is None or any(have.topology_key == HOSTNAME for have in pod.spec.topology_spread_constraints):
        return None
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
        "labelSelector": selector,
    }
