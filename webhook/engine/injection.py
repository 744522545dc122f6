"""Hints of step 5: tolerations, node affinity, spread, runtime class and labels; what the user wrote stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from webhook.engine.claimed_gpus import MAX_NODES_TRIED, NO_CLAIMED_GPUS, can_serve_claims, nodes_with_devices
from webhook.engine.demand import exclusion_reason
from webhook.engine.feasible_nodes import FeasibleNodes, gpu_taints, is_large_enough
from webhook.engine.new_nodes import find_new_nodes
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.projected_pod import host_spread_constraint, project_feasible_nodes
from webhook.engine.quota.admission import charge_by_names, find_refused_claim, quotas_of_claims
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.dra.extended_resources import extended_resource_claim, served_resources
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.objects import Taint, is_gpu_taint, tolerates_all
from webhook.model.pod_resources import requested_amounts
from webhook.model.pods import NodeSelectorRequirement, Pod, Toleration
from webhook.policy.policy_set import InjectionRules, SpreadMode
from webhook.well_known import Json

WHOLE_GPU_WEIGHT = 100
"""The full scale: a GPU that does not suffice is worse than any other node."""

_HINT_FIELDS: dict[str, FieldPath] = {
    "tolerations": ("spec", "tolerations"),
    "nodeAffinity": ("spec", "affinity", "nodeAffinity"),
    "podAffinity": ("spec", "affinity", "podAffinity"),
    "runtimeClassName": ("spec", "runtimeClassName"),
    "topologySpreadConstraints": ("spec", "topologySpreadConstraints"),
    "labels": ("metadata", "labels"),
    "topology": ("metadata", "annotations", TOPOLOGY_ANNOTATION),
}
"""The field of each recorded change."""


def apply_injection(section: InjectionRules, mutation: PodMutation, context: GpuPodContext) -> list[PolicyFinding]:
    """Add the hints of an injection section; report what was added and what could not be."""
    before, candidates = len(mutation.changed), _candidate_nodes(mutation, context)
    findings: list[PolicyFinding] = []
    _add_tolerations(section, mutation, context, candidates & context.feasible.selected)
    if section.node_affinity or section.node_affinity_auto:
        findings += _add_node_affinity(section, mutation, context, candidates)
    if section.runtime_class_name:
        findings += _set_runtime_class(section, mutation)
    has_owner = bool(mutation.pod.metadata.owner_references)
    if section.spread is not SpreadMode.OFF and has_owner and not mutation.spread_constraints:
        constraint = host_spread_constraint(mutation.pod, required=section.spread is SpreadMode.REQUIRED)
        if constraint is not None:
            mutation.spread_constraints.append(constraint)
            mutation.record_change("topologySpreadConstraints")
    if section.labels:
        findings += _add_labels(section, mutation)
    if len(mutation.changed) > before:
        findings.append(report_additions(section.mode, mutation.changed[before:]))
    return findings


def inject_for_claims(section: InjectionRules, mutation: PodMutation, context: PodContext) -> list[PolicyFinding]:
    """Add tolerations and node affinity to a pod that gets its GPUs by claims and device classes alone."""
    before, view = len(mutation.changed), context.view
    published = max(0, nodes_with_devices(context.claimed, view, context.request.namespace))
    candidates = published & view.fleet.nodes_selected_by(context.pod.spec)
    findings: list[PolicyFinding] = []
    _add_tolerations(section, mutation, context, candidates, () if candidates else _taints_of_new_nodes(context))
    if section.node_affinity:
        feasible = FeasibleNodes(view, context.pod, tuple(mutation.tolerations))

        def are_enough(remaining: int, before: int) -> bool:
            return _serves_claims(context, remaining & feasible.nodes) and _admits_claim(context, before & ~remaining)

        findings += _require(section.node_affinity, mutation, feasible, candidates, are_enough, by_claim=True)
    if len(mutation.changed) > before:
        findings.append(report_additions(section.mode, mutation.changed[before:]))
    return findings


def _taints_of_new_nodes(context: PodContext) -> Iterator[Taint]:
    """Yield the GPU taints of the nodes with devices that a group may add for a pod."""
    new = find_new_nodes(context)
    publishing = union_masks(1 << index for index, group in enumerate(new.groups) if group.slices)
    yield from (taint for taint, nodes in gpu_taints(new.fleet) if nodes & publishing & new.allowed)


def _serves_claims(context: PodContext, nodes: int) -> bool:
    """Return whether a node of a mask could take the pod and all its claims if it were empty."""
    pod, view, amounts = context.pod, context.view, requested_amounts(context.pod)
    large = (1 << node for node in bit_positions(nodes) if is_large_enough(view.fleet.nodes[node], amounts))
    return can_serve_claims(pod, context.request.namespace, union_masks(islice(large, MAX_NODES_TRIED)), view)


def _admits_claim(context: PodContext, lost: int) -> bool:
    """Return whether quotas admit the claim that a pod needs without some nodes whose device plugins serve it."""
    view, pod, claims = context.view, context.pod, context.namespace.claims
    names = served_resources(pod, view.devices.class_by_resource)
    if not any(view.fleet.nodes_advertising(name) & lost for name in names):
        return True
    quotas = quotas_of_claims(context.namespace.quotas, claims.classes)
    needed = extended_resource_claim(pod, names, view.devices.class_by_resource)
    return find_refused_claim(pod, claims, quotas, needed, charge_by_names(pod, quotas)) is None


def _candidate_nodes(mutation: PodMutation, context: GpuPodContext) -> int:
    """Return the nodes of the chosen offers, else of the requested ones and of devices that serve their names."""
    fit, claimed, names = mutation.applied_choice, context.claimed, context.gpu_requests.totals.keys()
    if fit is not None:
        return union_masks([offer.nodes for offer in fit.offers]) & fit.selected
    if claimed is NO_CLAIMED_GPUS:
        return context.offer_nodes
    nodes = nodes_with_devices(claimed, context.view, context.request.namespace)
    return nodes if nodes >= 0 and names <= claimed.served else nodes & context.offer_nodes


def report_additions(mode: PolicyMode, added: list[str]) -> PolicyFinding:
    """Report what was added, as a note, or would be, as a warning; at its field, or at `spec` for several."""
    field = _HINT_FIELDS.get(added[0], ("spec",)) if len(added) == 1 else ("spec",)
    if mode is PolicyMode.ENFORCE:
        return PolicyFinding("GPU-I101", field, f"added {', '.join(added)}", at_most=PolicyMode.AUDIT)
    fix = "Write it in the pod, or ask the admin to enforce the policy."
    return PolicyFinding("GPU-I101", field, f"would add {', '.join(added)}", fix, PolicyMode.WARN)


def _add_tolerations(
    section: InjectionRules, mutation: PodMutation, context: PodContext, nodes: int, more: Iterable[Taint] = ()
) -> None:
    """Add the tolerations of a section, and automatic ones for the GPU taints of some nodes.

    Args:
        more: Further taints.
    """
    if not (section.tolerations_auto or section.tolerations):
        return
    present = (*mutation.pod.spec.tolerations, *mutation.tolerations)
    missing = [toleration for toleration in section.tolerations if not _is_covered(toleration, present)]
    if section.tolerations_auto:
        taints = [taint for taint, tainted in gpu_taints(context.view.fleet) if tainted & nodes]
        taints += more
        if mutation.applied_choice is not None and mutation.applied_choice.group:
            offers = mutation.applied_choice.offers
            taints += [each for offer in offers for each in offer.taints if is_gpu_taint(each.key, each.value)]
        for taint in dict.fromkeys(taints):
            if not tolerates_all(present, (taint,)):
                operator = "Equal" if taint.value else "Exists"
                missing.append(Toleration(key=taint.key, operator=operator, value=taint.value, effect=taint.effect))
    if missing:
        mutation.tolerations += missing
        mutation.record_change("tolerations")


def _is_covered(toleration: Toleration, present: tuple[Toleration, ...]) -> bool:
    if toleration in present:
        return True
    taint = Taint(toleration.key, toleration.value, toleration.effect)
    return bool(taint.key and taint.effect) and tolerates_all(present, (taint,))


def _add_node_affinity(
    section: InjectionRules, mutation: PodMutation, context: GpuPodContext, candidates: int
) -> tuple[PolicyFinding, ...]:
    """Add the node affinity of a section, and automatic one to pods that do not opt out and nothing else places."""
    expressions, count = section.node_affinity, context.gpu_requests.totals.get(WHOLE_GPU, 0)
    avoids_partial = section.node_affinity_auto and mutation.applied_choice is None and context.mixes_whole_and_partial
    may_be_too_small = count > 1 or context.declared_need.memory_mib is not None
    if avoids_partial and may_be_too_small and exclusion_reason(context) is None:
        excluded = exclude_partitioned(context, section.mode)
        if count > 1:
            expressions += excluded
        elif not all(is_already_required(mutation.pod, one) for one in excluded):
            prefer_nodes(excluded, WHOLE_GPU_WEIGHT, mutation)
    if not expressions:
        return ()
    by_claim = context.claimed is not NO_CLAIMED_GPUS and mutation.applied_choice is None

    def are_enough(remaining: int, before: int) -> bool:
        if mutation.applied_choice is not None:
            return bool(remaining)
        is_served = not by_claim or (_serves_claims(context, remaining) and _admits_claim(context, before & ~remaining))
        return is_served and context.leaves_suitable_node(remaining, before)

    return _require(expressions, mutation, context.feasible, candidates, are_enough, by_claim=by_claim)


def _require(
    expressions: tuple[NodeSelectorRequirement, ...],
    mutation: PodMutation,
    feasible: FeasibleNodes,
    candidates: int,
    are_enough: Callable[[int, int], bool],
    *,
    by_claim: bool,
) -> tuple[PolicyFinding, ...]:
    """Require expressions of the node, or say that this would leave none.

    Args:
        candidates: The nodes of the requested GPUs.
        are_enough: Tests the nodes that are left of these, and the nodes before.
        by_claim: True if claims serve the pod: where no node of theirs is known, nothing is required.
    """
    required = mutation.required_node_affinity
    missing = [one for one in expressions if one not in required and not is_already_required(mutation.pod, one)]
    if not missing:
        return ()
    nodes = candidates & feasible.matching_nodes(required)
    remaining = nodes & feasible.matching_nodes(missing)
    if (nodes or by_claim) and not are_enough(remaining, nodes):
        keys = ", ".join(one.key for one in missing)
        return (_hint_conflict(("spec", "affinity"), f"node affinity on {keys} would leave no node for this pod"),)
    required += missing
    mutation.record_change("nodeAffinity")
    return ()


def prefer_nodes(expressions: tuple[NodeSelectorRequirement, ...], weight: int, mutation: PodMutation) -> None:
    """Prefer nodes on which expressions hold, if the pod does not prefer them already."""
    preference = {"matchExpressions": [one.to_json() for one in expressions]}
    term: Json = {"weight": weight, "preference": preference}
    affinity = mutation.pod.spec.affinity.node_affinity if mutation.pod.spec.affinity else None
    own, wanted = affinity.preferred if affinity else (), set(expressions)
    if not expressions or term in mutation.preferred_node_affinity:
        return
    if not any(wanted <= set(each.preference.match_expressions) for each in own):
        mutation.preferred_node_affinity.append(term)
        mutation.record_change("nodeAffinity")


def is_already_required(pod: Pod, expression: NodeSelectorRequirement) -> bool:
    """Return whether every effective term of the pod's required node affinity has this expression.

    A required affinity without effective terms allows no node, so nothing can narrow it further.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return False
    return all(
        any(
            (present.key, present.operator) == (expression.key, expression.operator)
            and set(present.values) == set(expression.values)
            for present in term.match_expressions
        )
        for term in affinity.required.node_selector_terms
        if term.match_expressions or term.match_fields
    )


def _set_runtime_class(section: InjectionRules, mutation: PodMutation) -> Iterator[PolicyFinding]:
    wanted, own = section.runtime_class_name, mutation.pod.spec.runtime_class_name
    present = own or mutation.runtime_class_name
    if not present:
        mutation.runtime_class_name = wanted
        mutation.record_change("runtimeClassName")
    elif present != wanted:
        source = "the pod" if own else "another policy"
        yield _hint_conflict(("spec", "runtimeClassName"), f"runtimeClassName {wanted} ({source} sets {present})")


def _add_labels(section: InjectionRules, mutation: PodMutation) -> Iterator[PolicyFinding]:
    own = mutation.pod.metadata.labels
    for key, value in section.labels:
        if key not in own and key not in mutation.labels:
            mutation.labels[key] = value
            mutation.record_change("labels")
        elif own.get(key, mutation.labels.get(key)) != value:
            source = "the pod" if key in own else "another policy"
            yield _hint_conflict(("metadata", "labels", key), f"label {key}: {value} ({source} sets another value)")


def _hint_conflict(path: tuple[str, ...], hint: str) -> PolicyFinding:
    return PolicyFinding("GPU-I102", path, f"not added: {hint}", at_most=PolicyMode.WARN)


def exclude_partitioned(context: GpuPodContext, mode: PolicyMode) -> tuple[NodeSelectorRequirement, ...]:
    """Return the expressions that exclude nodes whose partial GPUs do not suffice for a request for whole cards.

    Partial GPUs do not suffice for a request for several GPUs, which have to communicate, nor for a larger declared
    need. Several GPUs are never served by parts: the expressions are required where a remaining node is large enough. A
    pod with one GPU must not wait because of it, whatever is free when it is scheduled: it is only preferred.

    Args:
        mode: Mode of the section that adds it.
    """
    fleet, need, count = context.view.fleet, context.declared_need.memory_mib, context.gpu_requests.totals[WHOLE_GPU]
    products = fleet.partial_gpu_products
    if products and count == 1:
        partial = [offer for offer in context.offers if offer.form is not GpuForm.WHOLE] if need is not None else []
        products = tuple(
            sorted({each.product for each in partial if each.memory_mib and each.memory_mib < (need or 0)})
        )
    expressions: tuple[NodeSelectorRequirement, ...] = ()
    if products:
        expressions = (NodeSelectorRequirement(PRODUCT_LABEL, "NotIn", products),)
    if count == 1:
        return expressions
    if not expressions:
        expressions = tuple([NodeSelectorRequirement(key, "DoesNotExist") for key in fleet.partial_gpu_labels])
    feasible = project_feasible_nodes(context, mode)
    remaining = feasible.matching_nodes(expressions) & feasible.tolerated
    return expressions if expressions and context.fits_empty_node(feasible.amounts(), remaining) else ()
