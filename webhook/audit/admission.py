"""The pods of objects and workloads, as the webhook would admit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from webhook.engine.owned_pods import claims_of_first_pod, daemon_set_nodes, is_of_daemon_set, with_new_claims
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import KeepReason
from webhook.model.field_paths import format_path, map_at
from webhook.model.node_masks import bit_positions
from webhook.model.pods import Pod, parse_pod
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict

ANY_RUN = "29000000"
"""The end of the name of a CronJob's Job: minutes since 1970."""


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


class OwnedPod(NamedTuple):
    """Facts about a pod by the controller that creates it.

    Attributes:
        daemon_nodes: For a DaemonSet, mask of the nodes on which it creates the pod; else None.
        claims: The claims that it creates for the pod, by name: their templates. The webhook has not seen them yet.
    """

    daemon_nodes: int | None = None
    claims: Mapping[str, Any] = {}


class AdmittedPod(NamedTuple):
    """A pod of an object or workload, as the webhook would admit it.

    Attributes:
        replicas: Number of such pods; of a DaemonSet, one per eligible node, and at least 1.
        daemon_nodes: For a DaemonSet, mask of the nodes on which its controller creates a pod; else None.
        admitted: How many of them quotas admit, one after another.
        view: The cluster after these were created.
        admit_more: Admits some more in the given state of the cluster, as the webhook would.
        template: The path of its template, if its workload has others; else "".
    """

    checked: CheckResult
    pod: Pod
    replicas: int
    daemon_nodes: int | None
    admitted: int
    view: ClusterView
    admit_more: Callable[[ClusterView, int], AdmittedPod]
    template: str = ""


def admitted_pods(source: SourceObject, context: EvaluationContext) -> Iterator[AdmittedPod]:
    """Yield the pods of a valid object; none if it runs no pods."""
    created = _as_created_job(source)
    defaulted = with_admission_defaults(created, context)
    checked = evaluate_object(defaulted, context)
    if checked.verdict is CheckVerdict.SKIPPED:
        return
    request = build_admission_request(defaulted.data, context)
    if request.pod is not None:
        yield _admit_pod(OwnedPod(), defaulted, request, 1, context, checked.name)
        return
    if checked.decision.patch:  # its queue charges the changed templates, and its pods are made from them
        request = build_admission_request(apply_json_patch(checked.stored, checked.decision.patch), context)
    workload = checked.name if created is source else checked.name.removesuffix(f"-{ANY_RUN}")
    templates = list(pods_of_workload(request, context.policies, context.view))
    for template, pod_request, _ in templates:
        name = f"{workload.removesuffix('-*')}-*"
        pod_source = SourceObject(pod_request.load_object(), source.document, source.prefix)
        nodes = daemon_set_nodes(template.pod, context.view.fleet) if is_of_daemon_set(template) else None
        owned = OwnedPod(nodes, claims_of_first_pod(created.data, template))
        admitted = _admit_pod(owned, pod_source, pod_request, template.replicas, context, name)
        context = msgspec.structs.replace(context, view=admitted.view)
        yield admitted._replace(template=format_path(template.path)) if len(templates) > 1 else admitted


def _as_created_job(source: SourceObject) -> SourceObject:
    """Return the next Job of a CronJob, whose template may be changed for its queue; any other object as it is."""
    data = source.data
    if (data["apiVersion"], data["kind"]) != ("batch/v1", "CronJob"):
        return source
    metadata, job = map_at(data, "metadata"), map_at(data, "spec", "jobTemplate")
    name = metadata.get("name", "")
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": name, "controller": True}
    own = {key: value for key, value in metadata.items() if key == "namespace"}
    about = {**map_at(job, "metadata"), **own, "name": f"{name}-{ANY_RUN}", "ownerReferences": [owner]}
    created = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": map_at(job, "spec")}
    return SourceObject(created, source.document, (*source.prefix, "spec", "jobTemplate"))


def _admit_pod(
    owned: OwnedPod,
    source: SourceObject,
    request: AdmissionRequest,
    replicas: int,
    context: EvaluationContext,
    name: str,
) -> AdmittedPod:
    """Evaluate a pod and charge a number of replicas to quotas."""

    def admit_more(view: ClusterView, more: int) -> AdmittedPod:
        return _admit_pod(owned, source, request, more, msgspec.structs.replace(context, view=view), name)

    checked = evaluate_object(source, context, unknown_parts=request.unknown_parts)
    checked = msgspec.structs.replace(checked, name=name)
    pod = with_new_claims(parse_pod(apply_json_patch(checked.stored, checked.decision.patch)), owned.claims)
    admitted, view = _charge_quotas(request, checked, replicas, context)
    return AdmittedPod(checked, pod, replicas, owned.daemon_nodes, admitted, view, admit_more)


def _charge_quotas(
    request: AdmissionRequest, checked: CheckResult, replicas: int, context: EvaluationContext
) -> tuple[int, ClusterView]:
    """Return how many replicas of an evaluated pod quotas admit, and the view after these were created."""
    view, policies = context.view, context.policies
    if request.pod is None or not (view.quotas(request.namespace) or checked.decision.quota_charge):
        return 0 if checked.decision.denials else replicas, view
    decided = decide_replicas(request, request.pod, replicas, policies, view, context.usage, context.now)
    return decided.admitted, decided.charge(view)


def denial_codes(checked: CheckResult) -> tuple[str, ...]:
    """Return the codes for which the webhook would deny a pod; () if it would admit it."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def arriving_replicas(first: AdmittedPod) -> ArrivingReplicas:
    """Return the replicas of a pod, each admitted when it arrives; those of a DaemonSet are bound to their nodes."""

    def admit(view: ClusterView, count: int) -> ArrivingPod:
        admitted = first.admit_more(view, count)
        codes = denial_codes(admitted.checked)
        denial = "" if admitted.admitted else "rejected by a quota"
        denial = f"denied by the webhook: {', '.join(codes)}" if codes else denial
        view = view if denial else admitted.view
        keep_reason = admitted.checked.decision.keep_reason
        return ArrivingPod(admitted.pod, denial, view, admitted.admitted, keep_reason)

    nodes = tuple(bit_positions(first.daemon_nodes or 0))
    decision, namespace = first.checked.decision, first.checked.namespace
    varies = bool(decision.patch or decision.quota_charge or first.view.quotas(namespace))
    varies |= decision.keep_reason in (KeepReason.POD_AFFINITY, KeepReason.TOPOLOGY_SPREAD)  # placed pods may end it
    return ArrivingReplicas(first.replicas, admit, nodes, varies)
