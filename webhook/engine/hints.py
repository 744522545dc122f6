"""Step 6: what is added to a pod so that it reaches the nodes it asks for. Nothing the user wrote is changed."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.case import Case
from webhook.engine.reach import markers
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.engine.siblings import spread_over_hosts
from webhook.engine.wholecards import off_unfit_parts
from webhook.model.masks import union
from webhook.model.modes import Mode
from webhook.model.objects import Taint
from webhook.model.paths import Path
from webhook.model.pods import Pod, Requirement, Toleration
from webhook.model.records import TOPOLOGY
from webhook.model.taints import all_tolerated
from webhook.policy.compiled import Injection, Spread

WHITELIST = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
"""Namespace annotation of PodTolerationRestriction: an added toleration could get the pod refused."""

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
    if shape.fit is None:
        return case.offered
    return union([offer.nodes for offer in shape.fit.offers]) & shape.fit.selected


def _tolerating(taint: Taint) -> Toleration:
    if not taint.value:
        return Toleration(key=taint.key, operator="Exists", effect=taint.effect)
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _node_affinity(section: Injection, shape: Shape, case: Case) -> tuple[Remark, ...]:
    rules = section.node_affinity
    if section.node_affinity_auto and shape.fit is None:
        rules += off_unfit_parts(case, section.mode)
    if not rules:
        return ()
    missing = [rule for rule in rules if rule not in shape.required and not required_already(shape.pod, rule)]
    if not missing:
        return ()
    nodes = chosen_nodes(shape, case) & case.reach.narrowed(shape.required)
    left = nodes & case.reach.narrowed(missing)
    if nodes and not (left if shape.fit is not None else case.leaves_one(left, nodes)):
        keys = ", ".join(rule.key for rule in missing)
        return (_contradiction(("spec", "affinity"), f"node affinity on {keys} would leave no node for this pod"),)
    shape.required += missing
    shape.note("nodeAffinity")
    return ()


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
        who = "the pod" if shape.pod.spec.runtime_class_name else "another policy"
        yield _contradiction(("spec", "runtimeClassName"), f"runtimeClassName {wanted} ({who} names {have})")
        return
    shape.runtime_class_name = wanted
    shape.note("runtimeClassName")


def _labels(section: Injection, shape: Shape) -> Iterator[Remark]:
    have = shape.pod.metadata.labels
    for key, value in section.labels:
        if key not in have and key not in shape.labels:
            shape.labels[key] = value
            shape.note("labels")
        elif have.get(key, shape.labels.get(key)) != value:
            who = "the pod" if key in have else "another policy"
            yield _contradiction(("metadata", "labels", key), f"label {key}: {value} ({who} has another value)")


def _contradiction(path: tuple[str, ...], what: str) -> Remark:
    return Remark("GPU-I102", path, f"not added: {what}", at_most=Mode.WARN)


def _spread(section: Injection, shape: Shape) -> None:
    constraint = spread_over_hosts(shape.pod, required=section.spread is Spread.REQUIRED)
    if constraint is None or shape.spread:
        return
    shape.spread.append(constraint)
    shape.note("topologySpreadConstraints")
