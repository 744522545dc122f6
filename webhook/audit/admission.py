"""The pods of objects and workloads, as the webhook would admit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from webhook.audit.evaluate import (
    EvaluationContext,
    build_admission_request,
    evaluate_object,
    find_unknown_pods,
    unreadable_result,
    with_admission_defaults,
)
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.simulation import ArrivingPod, ArrivingReplicas
from webhook.engine.decide import decide_replicas
from webhook.engine.templates import PodTemplate
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import FieldPath
from webhook.model.filters.node_ports import held_ports
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.pods import Pod, Volume, parse_pod
from webhook.placement.nodes.pod_requirements import daemon_set_nodes, daemon_set_pod, pod_requirements
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict


def reject_unplaceable(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext
) -> Iterator[SourceObject | SkippedDocument]:
    """Replace objects whose pods or replica counts are invalid or unknown by the reason."""
    for each in documents:
        yield _unplaceable_reason(each, context) or each if isinstance(each, SourceObject) else each


def _unplaceable_reason(source: SourceObject, context: EvaluationContext) -> SkippedDocument | None:
    if invalid := unreadable_result(source, context):
        return SkippedDocument(invalid.location, f"{invalid.title}: {invalid.reason}", invalid=True)
    try:
        unknown = find_unknown_pods(source, context)
    except ReviewError:
        return None
    if unknown is not None and not unknown.quiet:
        return SkippedDocument(source.locate(unknown.path), unknown.reason)
    return None


class AdmittedPod(NamedTuple):
    """A pod of an object or workload, as the webhook would admit it.

    Attributes:
        replicas: Number of such pods; of a DaemonSet, one per eligible node, and at least 1.
        admitted: How many of them quotas admit, one after another.
        view: The cluster after these were created.
        admit_more: Admits some more in the given state of the cluster, as the webhook would.
    """

    checked: CheckResult
    pod: Pod
    replicas: int
    daemon: bool
    admitted: int
    view: ClusterView
    admit_more: Callable[[ClusterView, int], AdmittedPod]


def admitted_pods(source: SourceObject, context: EvaluationContext) -> Iterator[AdmittedPod]:
    """Yield the pods of a valid object; none if it runs no pods."""
    defaulted = with_admission_defaults(source, context)
    checked = evaluate_object(defaulted, context)
    if checked.verdict is CheckVerdict.SKIPPED:
        return
    request = build_admission_request(defaulted.data, context)
    if request.pod is not None:
        yield _admit_pod(parse_pod, defaulted, request, 1, context, checked.name)
        return
    for template, pod_request, _ in pods_of_workload(request, context.policies, context.view):
        name = f"{checked.name.removesuffix('-*')}-*"
        pod_source = SourceObject(pod_request.load_object(), source.document, source.prefix)
        complete = partial(_complete_pod, source.data, template)
        replicas = None if template.owner.kind == "DaemonSet" else template.replicas
        admitted = _admit_pod(complete, pod_source, pod_request, replicas, context, name)
        context = msgspec.structs.replace(context, view=admitted.view)
        yield admitted


def _admit_pod(
    complete: Callable[[Any], Pod],
    source: SourceObject,
    request: AdmissionRequest,
    count: int | None,
    context: EvaluationContext,
    name: str,
) -> AdmittedPod:
    """Evaluate a pod and charge a number of replicas to quotas; None for a DaemonSet, which has one on each node."""

    def admit_more(view: ClusterView, more: int) -> AdmittedPod:
        return _admit_pod(complete, source, request, more, msgspec.structs.replace(context, view=view), name)

    checked = evaluate_object(source, context, unknown_parts=request.unknown_parts)
    checked = msgspec.structs.replace(checked, name=name)
    pod = complete(apply_json_patch(checked.stored, checked.decision.patch))
    replicas = max(1, daemon_set_nodes(pod, context.view.fleet).bit_count()) if count is None else count
    admitted, view = _charge_quotas(request, checked, replicas, context)
    return AdmittedPod(checked, pod, replicas, count is None, admitted, view, admit_more)


def _complete_pod(workload: Mapping[str, Any], template: PodTemplate, data: Any) -> Pod:
    """Return an admitted pod of a template with what its controller adds."""
    pod = _with_claim_volumes(parse_pod(data), workload, template.path)
    if template.owner.kind != "DaemonSet":
        return pod
    return daemon_set_pod(pod, host_network=data["spec"].get("hostNetwork") is True)


def _charge_quotas(
    request: AdmissionRequest, checked: CheckResult, replicas: int, context: EvaluationContext
) -> tuple[int, ClusterView]:
    """Return how many replicas of an evaluated pod quotas admit, and the view after these were created."""
    view, policies = context.view, context.policies
    if request.pod is None or not (view.quotas(request.namespace) or checked.decision.quota_charge):
        return 0 if checked.decision.denials else replicas, view
    decided = decide_replicas(request, request.pod, replicas, policies, view, context.usage, context.now)
    return decided.admitted, decided.charge(view)


def _with_claim_volumes(pod: Pod, workload: Mapping[str, Any], template: FieldPath) -> Pod:
    """Return a pod with the volumes that its controller adds for volumeClaimTemplates."""
    parent: Any = workload
    for step in template[:-1]:
        parent = parent[step]
    claims = parent.get("volumeClaimTemplates") if isinstance(parent, dict) else None
    if not isinstance(claims, list) or not claims:
        return pod
    volumes = (*pod.spec.volumes, *(Volume(ephemeral={"volumeClaimTemplate": claim}) for claim in claims))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))


def denial_codes(checked: CheckResult) -> tuple[str, ...]:
    """Return the codes for which the webhook would deny a pod; () if it would admit it."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def arriving_replicas(first: AdmittedPod, fleet: Fleet) -> ArrivingReplicas:
    """Return the replicas of a pod, each admitted when it arrives; those of a DaemonSet are bound to their nodes."""

    def admit(view: ClusterView, count: int) -> ArrivingPod:
        admitted = first.admit_more(view, count)
        codes = denial_codes(admitted.checked)
        denial = "" if admitted.admitted else "rejected by a quota"
        denial = f"denied by the webhook: {', '.join(codes)}" if codes else denial
        view = view if denial else admitted.view
        keep_reason = admitted.checked.decision.keep_reason
        required, ports = pod_requirements(admitted.pod, fleet), held_ports(admitted.pod)
        return ArrivingPod(required, denial, view, admitted.admitted, keep_reason, ports)

    nodes = tuple(bit_positions(daemon_set_nodes(first.pod, fleet))) if first.daemon else ()
    decision, namespace = first.checked.decision, first.checked.namespace
    varies = bool(decision.patch or decision.quota_charge or first.view.quotas(namespace))
    return ArrivingReplicas(first.replicas, admit, nodes, varies)
