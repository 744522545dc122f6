"""Step 6: what is added to a pod so that it reaches the nodes it asks for. Nothing the user wrote is changed."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.eligibility import exclusion_reason, unmodelled_constraint
from webhook.engine.feasible_nodes import gpu_taints
from webhook.engine.mutation import PodMutation
from webhook.engine.pod_context import PodContext
from webhook.engine.projected_pod import project_feasible_nodes
from webhook.engine.violations import Violation
from webhook.engine.workload_labels import host_spread_constraint
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.node_masks import union_masks
from webhook.model.objects import Taint
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorRequirement, Pod, Toleration
from webhook.model.taints import tolerates_all
from webhook.policy.policy_set import InjectionRules, SpreadMode

TOLERATIONS_WHITELIST = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
"""Namespace annotation of PodTolerationRestriction: an added toleration could get the pod refused."""

_HINT_FIELDS: dict[str, FieldPath] = {
    "tolerations": ("spec", "tolerations"),
    "nodeAffinity": ("spec", "affinity", "nodeAffinity"),
    "podAffinity": ("spec", "affinity", "podAffinity"),
    "runtimeClassName": ("spec", "runtimeClassName"),
    "topologySpreadConstraints": ("spec", "topologySpreadConstraints"),
    "labels": ("metadata", "labels"),
    "topology": ("metadata", "annotations", TOPOLOGY_ANNOTATION),
}
"""Where what an injection adds stands, by the word for it."""


def apply_injection(section: InjectionRules, shape: PodMutation, case: PodContext) -> list[Violation]:
    """Add what an injection section says. Returns what was added, and what could not be."""
    before = len(shape.changed)
    problems: list[Violation] = []
    if (section.tolerations_auto or section.tolerations) and TOLERATIONS_WHITELIST not in case.namespace_annotations:
        _add_tolerations(section, shape, case)
    if section.node_affinity or section.node_affinity_auto:
        problems += _add_node_affinity(section, shape, case)
    if section.runtime_class_name:
        problems += _set_runtime_class(section, shape)
    if section.spread is not SpreadMode.OFF:
        _add_spread_constraint(section, shape)
    if section.labels:
        problems += _add_labels(section, shape)
    if len(shape.changed) > before:
        problems.append(report_additions(section.mode, shape.changed[before:]))
    return problems


def report_additions(mode: PolicyMode, added: list[str]) -> Violation:
    """What was added, for the record; what would be, for the user. At the field, or what several have in common."""
    field = _HINT_FIELDS.get(added[0], ("spec",)) if len(added) == 1 else ("spec",)
    if mode is PolicyMode.ENFORCE:
        return Violation("GPU-I101", field, f"added {', '.join(added)}", at_most=PolicyMode.AUDIT)
    return Violation("GPU-I101", field, f"would add {', '.join(added)}", at_most=PolicyMode.WARN)


def _add_tolerations(section: InjectionRules, shape: PodMutation, case: PodContext) -> None:
    by_now = shape.all_tolerations()
    missing = [toleration for toleration in section.tolerations if not _is_tolerated(toleration, by_now)]
    if section.tolerations_auto:
        nodes = candidate_nodes(shape, case) & case.feasible.selected
        for taint, carrying in gpu_taints(case.view.fleet):
            if carrying & nodes and not tolerates_all(by_now, (taint,)):
                missing.append(_toleration_for_taint(taint))
    if missing:
        shape.tolerations += missing
        shape.record_change("tolerations")


def _is_tolerated(wanted: Toleration, have: tuple[Toleration, ...]) -> bool:
    """Is everything that a toleration covers covered already?"""
    if wanted in have:
        return True
    return bool(wanted.key and wanted.effect) and tolerates_all(have, (Taint(wanted.key, wanted.value, wanted.effect),))


def candidate_nodes(shape: PodMutation, case: PodContext) -> int:
    """Mask of the nodes the pod may come to stand on: those of the fit, else those that offer what it asks for."""
    if shape.fit is None:
        return case.offer_nodes
    return union_masks([offer.nodes for offer in shape.fit.offers]) & shape.fit.selected


def _toleration_for_taint(taint: Taint) -> Toleration:
    if not taint.value:
        return Toleration(key=taint.key, operator="Exists", effect=taint.effect)
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _add_node_affinity(section: InjectionRules, shape: PodMutation, case: PodContext) -> tuple[Violation, ...]:
    rules = section.node_affinity
    if section.node_affinity_auto and shape.fit is None:
        rules += exclude_partitioned(case, section.mode)
    if not rules:
        return ()
    missing = [
        rule for rule in rules if rule not in shape.required_node_affinity and not is_already_required(shape.pod, rule)
    ]
    if not missing:
        return ()
    nodes = candidate_nodes(shape, case) & case.feasible.matching_nodes(shape.required_node_affinity)
    left = nodes & case.feasible.matching_nodes(missing)
    if nodes and not (left if shape.fit is not None else case.leaves_suitable_node(left, nodes)):
        keys = ", ".join(rule.key for rule in missing)
        return (_hint_conflict(("spec", "affinity"), f"node affinity on {keys} would leave no node for this pod"),)
    shape.required_node_affinity += missing
    shape.record_change("nodeAffinity")
    return ()


def is_already_required(pod: Pod, rule: NodeSelectorRequirement) -> bool:
    """Does every term of the pod's required affinity that can match hold this expression?

    A required affinity that is there and has no term that can match allows no node: nothing narrows it further.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return False
    terms = affinity.required.node_selector_terms
    live = [term for term in terms if term.match_expressions or term.match_fields]
    return all(any(_same_requirement(rule, have) for have in term.match_expressions) for term in live)


def _same_requirement(one: NodeSelectorRequirement, other: NodeSelectorRequirement) -> bool:
    return one.key == other.key and one.operator == other.operator and set(one.values) == set(other.values)


def _set_runtime_class(section: InjectionRules, shape: PodMutation) -> Iterator[Violation]:
    wanted, have = section.runtime_class_name, shape.pod.spec.runtime_class_name or shape.runtime_class_name
    if wanted == have:
        return
    if have:
        who = "the pod" if shape.pod.spec.runtime_class_name else "another policy"
        yield _hint_conflict(("spec", "runtimeClassName"), f"runtimeClassName {wanted} ({who} names {have})")
        return
    shape.runtime_class_name = wanted
    shape.record_change("runtimeClassName")


def _add_labels(section: InjectionRules, shape: PodMutation) -> Iterator[Violation]:
    have = shape.pod.metadata.labels
    for key, value in section.labels:
        if key not in have and key not in shape.labels:
            shape.labels[key] = value
            shape.record_change("labels")
        elif have.get(key, shape.labels.get(key)) != value:
            who = "the pod" if key in have else "another policy"
            yield _hint_conflict(("metadata", "labels", key), f"label {key}: {value} ({who} has another value)")


def _hint_conflict(path: tuple[str, ...], what: str) -> Violation:
    return Violation("GPU-I102", path, f"not added: {what}", at_most=PolicyMode.WARN)


def _add_spread_constraint(section: InjectionRules, shape: PodMutation) -> None:
    constraint = host_spread_constraint(shape.pod, required=section.spread is SpreadMode.REQUIRED)
    if constraint is None or shape.spread_constraints:
        return
    shape.spread_constraints.append(constraint)
    shape.record_change("topologySpreadConstraints")


def exclude_partitioned(case: PodContext, mode: PolicyMode) -> tuple[NodeSelectorRequirement, ...]:
    """What keeps a request for whole cards off the products whose parts would not do for it; () where nothing may.

    Parts do not do for several GPUs, which are to work together, nor for a declared need that they do not cover. The
    pod must not wait for it: it is required only where a node that is left has room now, and of no pod that keeps what
    it asks for by its user's word, or that others place.

    Args:
        mode: That of the section that would add it.
    """
    products = _insufficient_products(case) if case.mixes_whole_and_partial else ()
    if not products or exclusion_reason(case) is not None or not case.view.current:
        return ()
    rule = NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", products)
    return (rule,) if _has_free_whole_gpus(case, mode, rule) else ()


def _insufficient_products(case: PodContext) -> tuple[str, ...]:
    """Products of the parts that would not do; () where a part may have the product of a whole card."""
    fleet = case.view.fleet
    if not fleet.partial_gpu_products or case.gpu_requests.totals[WHOLE_GPU] > 1:
        return fleet.partial_gpu_products
    need = case.declared_need.memory_mib
    if need is None:
        return ()
    return tuple(sorted({part.product for part in _partial_offers(case) if part.memory_mib and part.memory_mib < need}))


def _partial_offers(case: PodContext) -> list[GpuOffer]:
    return [offer for offer in case.offers if offer.form is not GpuForm.WHOLE]


def _has_free_whole_gpus(case: PodContext, mode: PolicyMode, rule: NodeSelectorRequirement) -> bool:
    reach = project_feasible_nodes(case, mode)
    if unmodelled_constraint(reach.pod):
        return False
    return reach.has_free_node(
        WHOLE_GPU, case.gpu_requests.totals[WHOLE_GPU], reach.nodes & reach.matching_nodes((rule,))
    )


def is_partial_gpu_too_small(case: PodContext) -> bool:
    """Does the pod declare a need that some part it may get would not cover, or is not known to?"""
    need = case.declared_need.memory_mib
    if need is None:
        return False
    return any(part.memory_mib is None or part.memory_mib < need for part in _partial_offers(case))
