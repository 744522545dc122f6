"""The pods of objects and workloads, as the webhook would admit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from webhook.audit.simulation import ArrivingPod
from webhook.engine.decide import decide_replicas
from webhook.engine.templates import invalid_counts
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError, quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.pods import Pod, Volume, parse_pod
from webhook.placement.nodes.pod_requirements import PodRequirements, daemon_set_nodes, daemon_set_pod
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
        request = build_admission_request(source.data, context)
        unknown = find_unknown_pods(source, context)
    except ReviewError:
        return None
    if unknown is not None and not unknown.quiet:
        return SkippedDocument(source.locate(unknown.path), unknown.reason)
    for template, _, _ in pods_of_workload(request, context.policies, context.view):
        for path, value in invalid_counts(source.data, template):
            must = f"must be a whole number, 0 or more, found {quote_text(value)}"
            return SkippedDocument(source.locate(path), f"{format_path(path)}: {must}. Write a number", invalid=True)
    return None


class AdmittedPod(NamedTuple):
    """A pod of an object or workload, as the webhook would admit it.

    Attributes:
        checked: The result of its evaluation.
        replicas: Number of such pods; of a DaemonSet, one per eligible node, and at least 1.
        daemon: It belongs to a DaemonSet.
        admitted: How many of them quotas admit, one after another.
        view: The cluster after these were created.
    """

    checked: CheckResult
    pod: Pod
    replicas: int
    daemon: bool
    admitted: int
    view: ClusterView


def admitted_pods(source: SourceObject, context: EvaluationContext) -> Iterator[AdmittedPod]:
    """Yield the pods of a valid object; none if it runs no pods."""
    checked = evaluate_object(with_admission_defaults(source, context), context)
    if checked.verdict is CheckVerdict.SKIPPED:
        return
    if checked.kind == "Pod":
        pod = parse_pod(apply_json_patch(checked.stored, checked.decision.patch))
        request = build_admission_request(with_admission_defaults(source, context).data, context)
        yield AdmittedPod(checked, pod, 1, False, *_charge_quotas(request, checked, 1, context))
        return
    workload = build_admission_request(source.data, context)
    for template, request, _ in pods_of_workload(workload, context.policies, context.view):
        result = evaluate_object(SourceObject(request.load_object(), source.document, source.prefix), context)
        pod = parse_pod(apply_json_patch(result.stored, result.decision.patch))
        pod = _with_claim_volumes(pod, source.data, template.path)
        result = msgspec.structs.replace(result, name=f"{checked.name.removesuffix('-*')}-*")
        if checked.kind == "DaemonSet":
            pod = daemon_set_pod(pod, host_network=result.stored["spec"].get("hostNetwork") is True)
        daemon = checked.kind == "DaemonSet"
        replicas = max(1, daemon_set_nodes(pod, context.view.fleet).bit_count()) if daemon else template.replicas
        admitted = AdmittedPod(result, pod, replicas, daemon, *_charge_quotas(request, result, replicas, context))
        context = msgspec.structs.replace(context, view=admitted.view)
        yield admitted


def _charge_quotas(
    request: AdmissionRequest, checked: CheckResult, replicas: int, context: EvaluationContext
) -> tuple[int, ClusterView]:
    """Return how many replicas of an evaluated pod quotas admit, and the view after these were created."""
    view, policies = context.view, context.policies
    if request.pod is None or not (view.quotas(request.namespace) or checked.decision.quota_charge):
        return 0 if checked.decision.denials else replicas, view
    decided = decide_replicas(request, request.pod, replicas, policies, view, context.usage, context.now)
    return decided.admitted, decided.view


def _with_claim_volumes(pod: Pod, workload: Mapping[str, Any], template: FieldPath) -> Pod:
    """Return a pod with the volumes that its controller adds for volumeClaimTemplates."""
    parent: Any = workload
    for step in template[:-1]:
        parent = parent[step]
    claims = parent.get("volumeClaimTemplates") if isinstance(parent, dict) else None
    if not isinstance(claims, list) or not claims:
        return pod
    volumes = (*pod.spec.volumes, *(Volume(persistent_volume_claim={"claimName": ""}) for _ in claims))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))


def denial_codes(checked: CheckResult) -> tuple[str, ...]:
    """Return the codes for which the webhook would deny a pod; () if it would admit it."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def arriving_replicas(admitted: AdmittedPod, required: PodRequirements, fleet: Fleet) -> list[ArrivingPod]:
    """Return the replicas of a pod; each pod of a DaemonSet is bound to its own node."""
    codes = denial_codes(admitted.checked)
    denial = f"denied by the webhook: {', '.join(codes)}" if codes else "rejected by a quota"
    nodes = list(bit_positions(daemon_set_nodes(admitted.pod, fleet))) if admitted.daemon else []
    daemons = [msgspec.structs.replace(required, selected_nodes=1 << node) for node in nodes]
    pods = daemons or [required] * admitted.replicas
    return [ArrivingPod(pod, "" if number < admitted.admitted else denial) for number, pod in enumerate(pods)]
