"""Evaluates each pod of a cluster as if it were created now.

Each pod is evaluated on its own in the current cluster: its usage is subtracted from its quotas, and its GPUs still
count as allocated. The savings of several pods together can be lower where slices are few.

The GPUs of a bound pod are measured on its own node. A saving is less than that, for a pod that would be admitted,
including GPUs that a policy removes. A static pod saves nothing: no webhook can change it.

The webhook leaves no mark on a pod that it admits unchanged. So a pod counts as not evaluated if no webhook is called
for it (static pods, excluded namespaces), or if it would be changed or denied now and carries no record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import msgspec

from webhook.audit.adjusted_view import without_pod_usage
from webhook.audit.device_filter import describe_claimed_devices
from webhook.audit.evaluate import (
    POD,
    EvaluationContext,
    api_group,
    build_admission_request,
    evaluate_all,
    evaluate_object,
    is_stored,
    is_unknown_kind,
    with_admitted_claims,
    with_claims_of,
    written_namespace,
)
from webhook.audit.gpu_time import ClaimHolders, allocated_milli, bound_node
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.reach import reach_of_pod
from webhook.cache.stored_objects import FINISHED_PHASES
from webhook.engine.claim_review import stored_claim_findings
from webhook.engine.cuda import offers_sure_to_run
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import PodGpuRequests, declared_need_of, gpu_requests_of_pod
from webhook.engine.match import match_policies
from webhook.engine.pod_context import GpuPodContext
from webhook.errors import ReviewError, SourceLocation
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import DECISION_ANNOTATION, MIRROR_ANNOTATION, parse_decision_record
from webhook.model.claims import CLAIM_VERSIONS
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import CLAIMED, Decision, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import EvidenceSource, GpuForm, PolicyMode
from webhook.model.field_paths import map_at
from webhook.model.filters.inter_pod_affinity import NOT_EXCLUDED
from webhook.model.findings import Finding
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.node_labels import card_product
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, Toleration, parse_pod
from webhook.model.quantity import NANO
from webhook.model.quota_matching import quota_matches_pod
from webhook.model.workloads import workload_of
from webhook.policy.policy_set import PolicySet
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import (
    CheckResult,
    CheckVerdict,
    ClusterPodDetails,
    ContainerUsage,
    LocatedFinding,
    UnevaluatedReason,
    skipped_result,
)
from webhook.well_known import EXCLUDED_NAMESPACES

MeasureMilli = Callable[[Mapping[str, int]], int]
"""Converts units of resources to thousandths of a GPU on the pod's own node."""


PER_POD_KEYS = frozenset(
    {
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "k8s.v1.cni.cncf.io/network-status",
        "k8s.ovn.org/pod-networks",
        "cni.projectcalico.org/containerID",
        "cni.projectcalico.org/podIP",
        "cni.projectcalico.org/podIPs",
    }
)
"""Labels and annotations in which pods of one workload differ."""

_TOKEN_VOLUME = re.compile(rb'"kube-api-access-[a-z0-9]{5}"')
_TIE_WORDS = (
    b'"podAffinity"',
    b'"podAntiAffinity"',
    b'"topologySpreadConstraints"',
    b'"resourceClaims"',
    b'"hostPort"',
    b'"persistentVolumeClaim"',
)


class EqualPods:
    """Recognizes pods that get equal results: those of one workload with one specification, on equal nodes."""

    def __init__(self, context: EvaluationContext) -> None:
        matches = [policy.match for policy in context.policies.policies]
        reads = {path for match in matches for condition in match.conditions for path in condition.reads}
        self._fleet = context.view.fleet
        self._reads_one_pod = any(not _is_equal_field(path) for path in reads)
        reads_marks = any(match.labels for match in matches) or any(path[1:2] == ("metadata",) for path in reads)
        self._ignored = frozenset[str]() if reads_marks else PER_POD_KEYS

    def key(self, data: Mapping[str, Any]) -> Hashable | None:
        """Return a value that equal pods share; None for a pod whose result may depend on where the others are."""
        metadata, spec = map_at(data, "metadata"), map_at(data, "spec")
        owners = metadata.get("ownerReferences")
        if not owners or self._reads_one_pod:
            return None
        read = {key: value for key, value in spec.items() if key not in ("nodeName", "hostname")}
        marks = [self._shared_marks(map_at(metadata, field)) for field in ("labels", "annotations")]
        text = msgspec.json.encode([read, marks, owners])
        if any(word in text for word in _TIE_WORDS):
            return None
        return metadata.get("namespace"), self._node_kind(bound_node(data)), _TOKEN_VOLUME.sub(b"", text)

    def _shared_marks(self, marks: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in marks.items() if key not in self._ignored}

    def _node_kind(self, name: str) -> Hashable:
        """Return what a node has: nodes with the same offers are equal for a pod that runs there."""
        index = self._fleet.by_name.get(name)
        if index is None:
            return bool(name)
        return tuple([id(self._fleet.offer_on(resource, index)) for resource in self._fleet.nodes[index].gpus])


def _is_equal_field(path: Sequence[str]) -> bool:
    """Return whether a field that a match condition reads is the same in pods with one key."""
    variable, parent, field = (*path, "", "", "")[:3]
    if variable == "object":
        in_metadata = parent == "metadata" and field in ("labels", "annotations", "namespace")
        return in_metadata or (parent == "spec" and field not in ("", "nodeName", "hostname"))
    return variable == "namespaceObject" or (variable == "request" and parent not in ("", "name", "uid"))


def audit_pods(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext, *, equal_once: bool = False
) -> Iterator[CheckResult]:
    """Evaluate the active pods; invalid documents and unknown kinds with GPUs are returned as skipped.

    Args:
        equal_once: Whether equal pods are evaluated once. They get the result of the first, also in details of one pod.
    """
    unsized, holders = without_right_sizing(context.policies), ClaimHolders(context.view.all_claims, context.view.fleet)
    equal, known = EqualPods(context), dict[Hashable, CheckResult]()
    for each in documents:
        if isinstance(each, SkippedDocument):
            if each.invalid:
                yield skipped_result(each.location, each.reason, invalid=True)
        elif is_active_pod(each.data):
            key = equal.key(each.data) if equal_once else None
            if (found := known.get(key)) is None:
                found = audit_pod(each, context, unsized, holders)
                known |= {key: found} if key is not None else {}
            yield _result_of_equal_pod(found, each)
        elif not is_pod(each.data) and is_unknown_kind(each, context):
            yield evaluate_object(each, context)


def _result_of_equal_pod(result: CheckResult, source: SourceObject) -> CheckResult:
    name, node = map_at(source.data, "metadata").get("name"), bound_node(source.data)
    if result.pod_details is None or (name, node) == (result.name, result.node):
        return result
    return msgspec.structs.replace(result, location=source.locate(), name=str(name), node=node, stored=source.data)


def audit_claims(view: ClusterView) -> Iterator[CheckResult]:
    """Yield the claims that wait for devices, and the templates, with which something is wrong."""
    for kind, namespace, name, found in stored_claim_findings(view):
        place = SourceLocation(f"{kind.lower()}/{namespace}/{name}")
        findings = [
            Finding(one.code, PolicyMode.WARN, one.path, one.message, one.fix, reason=one.reason) for one in found
        ]
        located = tuple([LocatedFinding(one, place) for one in findings])
        decision = Decision(findings=tuple(findings), involves_gpus=True)
        if findings:
            yield CheckResult(place, CLAIM_VERSIONS[0], kind, namespace, name, CheckVerdict.WARNED, located, decision)


def evaluate_for_explain(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext
) -> Iterator[CheckResult]:
    """Evaluate the objects of files, with the devices that their claims would get once they are changed.

    Pods that were stored in a cluster are audited, because they already run. Claims and templates among the objects
    count as objects of the cluster.
    """
    documents = list(documents)
    unchanged, context = with_claims_of(documents, context), with_admitted_claims(documents, context)
    unsized, holders = without_right_sizing(context.policies), ClaimHolders(context.view.all_claims, context.view.fleet)
    results = [
        audit_pod(each, context, unsized, holders) if _is_running(each) else next(evaluate_all([each], context))
        for each in documents
    ]
    changed = list(map(_as_changed, documents, results))
    is_changed = any(after is not before for before, after in zip(documents, changed, strict=True))
    context_after = with_claims_of(changed, context) if is_changed else unchanged
    for before, after, result in zip(documents, changed, results, strict=True):
        known = {} if _is_running(before) else {"devices": _describe_change(before, after, unchanged, context_after)}
        yield msgspec.structs.replace(result, **known)


def _is_running(document: SourceObject | SkippedDocument) -> TypeGuard[SourceObject]:
    return isinstance(document, SourceObject) and is_pod(document.data) and is_stored(document.data)


def _as_changed(source: SourceObject | SkippedDocument, result: CheckResult) -> SourceObject | SkippedDocument:
    """Return an object that is new after the changes of policies."""
    if not isinstance(source, SourceObject) or _is_running(source) or not result.decision.patch:
        return source
    return msgspec.structs.replace(source, data=apply_json_patch(result.stored, result.decision.patch))


def _describe_change(
    before: SourceObject | SkippedDocument,
    after: SourceObject | SkippedDocument,
    context: EvaluationContext,
    context_after: EvaluationContext,
) -> tuple[str, ...]:
    """Return the devices of the claims of an object after it is changed, then those without the change if they differ.

    Args:
        before: The object.
        after: It after the changes of policies.
        context: The cluster with the claims and templates of the files.
        context_after: The cluster with these after the changes of policies.
    """
    if not isinstance(before, SourceObject) or not isinstance(after, SourceObject):
        return ()
    unchanged = describe_claimed_devices(before, context)
    if after is before and context_after is context:
        return unchanged
    found = describe_claimed_devices(after, context_after)
    return found if found == unchanged else (*found, *[f"without right-sizing: {line}" for line in unchanged])


_KEEP_REASONS = {reason.value: reason for reason in KeepReason}


def _keep_for(result: CheckResult, reason: KeepReason) -> CheckResult:
    """Return the result with this reason to keep the GPUs, unless it has the reason already."""
    outcome = result.decision.outcome
    if isinstance(outcome, KeepRequest) and outcome.reason is reason:
        return result
    decision = msgspec.structs.replace(result.decision, outcome=KeepRequest(reason))
    return msgspec.structs.replace(result, decision=decision)


class RecreatedPod(NamedTuple):
    """A pod of a cluster as if it were created again.

    Attributes:
        node: The name of the node to which it is bound; "" for none.
        measure: Measures units on that node.
        view: The cluster without the pod's usage.
        evaluate: Evaluates it in a context.
    """

    request: AdmissionRequest
    pod: Pod
    requests: PodGpuRequests
    node: str
    measure: MeasureMilli
    view: ClusterView
    evaluate: Callable[[EvaluationContext], CheckResult]


def _recreate_pod(source: SourceObject, context: EvaluationContext) -> RecreatedPod:
    """Read a stored pod as if it were created again.

    Raises:
        ReviewError: it cannot be read.
    """
    recreated, node, fleet = recreated_source(source), bound_node(source.data), context.view.fleet
    request = build_admission_request(recreated.data, context)
    pod = request.pod
    assert pod is not None
    view = without_pod_usage(context.view, request.namespace, pod, runs=bool(node))
    measure = partial(allocated_milli, node=node, fleet=fleet)
    evaluate = partial(evaluate_object, recreated, request=request)
    return RecreatedPod(request, pod, gpu_requests_of_pod(pod), node, measure, view, evaluate)


def audit_pod(
    source: SourceObject, context: EvaluationContext, unsized: PolicySet, holders: ClaimHolders | None = None
) -> CheckResult:
    """Evaluate one pod.

    Args:
        unsized: The policies without right-sizing, for a pod that cannot be resized or would gain nothing.
        holders: Counts the claims of several pods once; None if this is the only one.
    """
    try:
        request, pod, requests, node, measure, view, evaluate = _recreate_pod(source, context)
    except ReviewError:
        return evaluate_object(recreated_source(source), context)
    context_without_pod = msgspec.structs.replace(context, view=view)
    result = _evaluate_resizing(evaluate, context_without_pod, unsized, measure)
    milli = measure(result.decision.requested_units)
    reach = reach_of_pod(request, result.decision, milli, context_without_pod).reach
    if reach is not None and reach.eligible and reach.outcome in _KEEP_REASONS and result.decision.keep_reason:
        result = _keep_for(result, _KEEP_REASONS[reach.outcome])  # the reason of its queue
    result = _measure_result(result, requests, measure)
    missed = missed_admission(source.data, request.namespace, result.decision)
    change = describe_admission_change(result.decision) if missed else ""
    if missed is UnevaluatedReason.STATIC:
        result = _keep_static(evaluate(_unsized(context_without_pod, unsized)), measure(requests.totals))
    holders = holders or ClaimHolders(context.view.all_claims, context.view.fleet)
    claimed = holders.claim_totals(lambda: parse_pod(source.data))
    result = _with_claimed_milli(result, claimed.milli)
    uses = container_uses(requests, request.namespace, pod, context, result.decision.outcome)
    find_nodes = _nodes_when_recreated if node else _nodes_for_waiting
    added = _injected_tolerations(context.policies, result.decision.policies)
    nodes = find_nodes(view, pod, added) if requests.totals else 0
    if not node and isinstance(result.decision.outcome, OfferChoice):
        nodes &= _nodes_sure_to_run(request, pod, context_without_pod)
    quotas = _names_of_quotas(view, request.namespace, pod) if requests.totals else ()
    accounted = _accounting_milli(pod) if requests.totals else 0
    saved = saved_at_admission(pod, requests, view) + claimed.saved_milli
    details = ClusterPodDetails(workload_of(pod), missed, change, uses, reach, nodes, quotas, accounted, saved)
    return msgspec.structs.replace(result, node=node, pod_details=details)


def compare_pod(
    source: SourceObject, contexts: Sequence[EvaluationContext], unsized: Sequence[PolicySet]
) -> list[CheckResult]:
    """Evaluate one pod in contexts that differ in their policies, without what an audit adds to a decision.

    Args:
        unsized: The policies of each context without right-sizing.
    """
    try:
        request, pod, requests, _, measure, view, evaluate = _recreate_pod(source, contexts[0])
    except ReviewError:
        return [evaluate_object(recreated_source(source), each) for each in contexts]
    details = ClusterPodDetails(workload_of(pod))
    results = []
    for each, without in zip(contexts, unsized, strict=True):
        alone = msgspec.structs.replace(each, view=view)
        result = _measure_result(_evaluate_resizing(evaluate, alone, without, measure), requests, measure)
        if missed_admission(source.data, request.namespace, result.decision) is UnevaluatedReason.STATIC:
            result = _keep_static(evaluate(_unsized(alone, without)), measure(requests.totals))
        results.append(msgspec.structs.replace(result, pod_details=details))
    return results


def _evaluate_resizing(
    evaluate: Callable[[EvaluationContext], CheckResult],
    context: EvaluationContext,
    unsized: PolicySet,
    measure: MeasureMilli,
) -> CheckResult:
    """Evaluate a pod; without right-sizing, if it has no more than it would get."""
    result = evaluate(context)
    fit = result.decision.outcome
    if isinstance(fit, OfferChoice) and fit.gpu_milli >= measure(result.decision.requested_units):
        return _keep_for(evaluate(_unsized(context, unsized)), KeepReason.NO_WHOLE_GPU)  # it has a share
    return result


def _unsized(context: EvaluationContext, unsized: PolicySet) -> EvaluationContext:
    return msgspec.structs.replace(context, policies=unsized)


def _keep_static(result: CheckResult, milli: int) -> CheckResult:
    """Return the result of a static pod, which keeps its GPUs whatever the findings are."""
    changes = {"outcome": KeepRequest(KeepReason.MIRROR), "applied": False, "patch": ()}
    kept = msgspec.structs.replace(result.decision, **changes, gpu_milli_before=milli, gpu_milli_after=milli)
    return msgspec.structs.replace(result, decision=kept)


def saved_at_admission(pod: Pod, requests: PodGpuRequests, view: ClusterView) -> int:
    """Return the thousandths of a GPU that right-sizing saved when a pod was created, by its decision record."""
    record = parse_decision_record(pod.metadata.annotations.get(DECISION_ANNOTATION, ""))
    if record is None:
        return 0
    units = requests.totals.get(record.resource, 0)
    if record.resource in view.devices.class_by_resource:
        units = effective_amount(pod, record.resource) // NANO
    return units * record.milli_saved_per_unit


def _names_of_quotas(view: ClusterView, namespace: str, pod: Pod) -> tuple[str, ...]:
    """Return the ResourceQuotas of a namespace that count a pod."""
    return tuple(quota.metadata.name for quota in view.quotas(namespace) if quota_matches_pod(quota, pod))


def _accounting_milli(pod: Pod) -> int:
    """Return the units of the accounting resource that a pod requests, rounded up."""
    return -(-effective_amount(pod, ACCOUNTING_RESOURCE) // NANO)


def _injected_tolerations(policies: PolicySet, names: Container[str]) -> tuple[Toleration, ...]:
    """Return the tolerations that some policies add to each pod, also in audit and warn mode."""
    sections = (policy.injection for policy in policies.policies if policy.name in names)
    return tuple(toleration for section in sections if section for toleration in section.tolerations)


def _nodes_for_waiting(view: ClusterView, pod: Pod, added: tuple[Toleration, ...]) -> int:
    """Return the mask of the nodes that a pod may use, resources aside, with cards of the memory that it declares."""
    offers, need = view.fleet.offers, declared_need_of(pod, view.fleet).memory_mib or 0
    whole = (each for each in offers if each.form is GpuForm.WHOLE)
    small = {card_product(each.product) for each in whole if (each.memory_mib or need) < need}
    too_small = union_masks(each.nodes for each in offers if card_product(each.product) in small)
    nodes = _with_reachable_volumes(FeasibleNodes(view, pod, added, tolerate_gpu_taints=True)) & ~too_small
    return nodes or _unusable_nodes(view, pod, added) & ~too_small


def _unusable_nodes(view: ClusterView, pod: Pod, added: tuple[Toleration, ...]) -> int:
    """Return the mask of the nodes with GPUs that a pod could use if they were not cordoned, and ready."""
    feasible = FeasibleNodes(view, pod, added, tolerate_gpu_taints=True)
    with_gpus = union_masks(map(view.fleet.nodes_advertising, view.fleet.resources()))
    return feasible.selected & feasible.tolerated_when_usable & with_gpus & ~view.fleet.usable_nodes


def _nodes_sure_to_run(request: AdmissionRequest, pod: Pod, context: EvaluationContext) -> int:
    """Return the mask of the nodes whose slices and shares, if they have any, are sure to run the images of a pod."""
    matched, _ = match_policies(request, pod, context.policies, context.view, context.usage)
    if not isinstance(matched, GpuPodContext):
        return -1
    parts = tuple(offer for offer in context.view.fleet.offers if offer.form is not GpuForm.WHOLE)
    sure = offers_sure_to_run(matched, parts, matched.feasible)
    return ~union_masks(offer.nodes for offer in parts) | union_masks(offer.nodes for offer in sure)


def _nodes_when_recreated(view: ClusterView, pod: Pod, added: tuple[Toleration, ...]) -> int:
    """Return the mask of the nodes that selectors, affinity, taints and volumes allow, whatever other pods do."""
    return _with_reachable_volumes(FeasibleNodes(view, pod, added, tolerate_gpu_taints=True, exclusion=NOT_EXCLUDED))


def _with_reachable_volumes(feasible: FeasibleNodes) -> int:
    """Return the mask of the feasible nodes that reach the volumes of a pod's bound claims."""
    return feasible.nodes & feasible.volumes.lasting_nodes if feasible.pod.spec.volumes else feasible.nodes


def _with_claimed_milli(result: CheckResult, milli: int) -> CheckResult:
    """Add the GPUs of a pod's claims, which it keeps."""
    if not milli:
        return result
    decision = result.decision
    before, after = decision.gpu_milli_before + milli, decision.gpu_milli_after + milli
    without_gpus = (KeepReason.NO_GPU_REQUEST, KeepReason.UNKNOWN_CLAIM)
    is_kept = isinstance(decision.outcome, KeepRequest) and decision.outcome.reason in without_gpus
    outcome = CLAIMED if is_kept else decision.outcome
    changes = {"gpu_milli_before": before, "gpu_milli_after": after, "outcome": outcome, "involves_gpus": True}
    return msgspec.structs.replace(result, decision=msgspec.structs.replace(decision, **changes))


def _measure_result(result: CheckResult, requests: PodGpuRequests, measure: MeasureMilli) -> CheckResult:
    """Replace the amounts of a decision by those on the pod's own node."""
    decision = result.decision
    fit = decision.outcome if not decision.denials else None
    kept = measure(requests.totals if decision.denials else decision.requested_units)
    resized = fit.gpu_milli if isinstance(fit, OfferChoice) else kept
    after, audit_saved = (resized, 0) if decision.applied else (kept, kept - resized)
    decision = msgspec.structs.replace(decision, gpu_milli_before=measure(requests.totals), gpu_milli_after=after)
    return msgspec.structs.replace(result, decision=decision, gpu_milli_audit_saved=audit_saved)


def without_right_sizing(policies: PolicySet) -> PolicySet:
    """Return the policies without their right-sizing sections."""
    unsized = (msgspec.structs.replace(policy, right_sizing=None) for policy in policies.policies)
    return PolicySet(unsized, policies.exemptions, policies.workload_kinds)


def is_pod(data: dict[str, Any]) -> bool:
    """Return whether an object is a Pod."""
    return (api_group(data["apiVersion"]), data["kind"]) == POD


def is_active_pod(data: dict[str, Any]) -> bool:
    """Return whether an object is a Pod that has not ended."""
    return is_pod(data) and map_at(data, "status").get("phase") not in FINISHED_PHASES


def deduplicate_pods(documents: Sequence[SourceObject | SkippedDocument]) -> list[SourceObject | SkippedDocument]:
    """Return the documents with the last copy of each pod, as in a snapshot. Overlapping dumps contain copies."""
    last = {key: position for position, each in enumerate(documents) if (key := document_pod_key(each))}
    return [each for position, each in enumerate(documents) if last.get(document_pod_key(each), position) == position]


def document_pod_key(document: SourceObject | SkippedDocument) -> tuple[str, ...]:
    """Return namespace and name of a pod; () for an unnamed pod and for everything else."""
    if not isinstance(document, SourceObject) or not is_pod(document.data):
        return ()
    name = map_at(document.data, "metadata").get("name")
    return (written_namespace(document.data) or DEFAULT_NAMESPACE, name) if isinstance(name, str) and name else ()


def recreated_source(source: SourceObject) -> SourceObject:
    """Return a pod as if it were created again, at its place in a file."""
    return msgspec.structs.replace(source, data=as_recreated(source.data))


def as_recreated(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod without what the cluster added: uid, node, status, and the kubelet's annotations."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return pod
    return _without_key(pod, "status") | {
        "spec": _without_key(spec, "nodeName"),
        "metadata": without_kubelet_annotations(_without_key(metadata, "uid")),
    }


def _without_key(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


KUBELET_CONFIG_PREFIX = "kubernetes.io/config."
"""Prefix of the kubelet's annotations on static pods."""


def container_uses(
    requests: PodGpuRequests,
    namespace: str,
    pod: Pod,
    context: EvaluationContext,
    outcome: OfferChoice | KeepRequest,
) -> tuple[ContainerUsage, ...]:
    """Return the GPU request and observed usage of each container.

    Args:
        outcome: The offer that the pod would get, or why it keeps its request.
    """
    recommended_mib = None
    if isinstance(outcome, OfferChoice) and outcome.need.evidence is EvidenceSource.OBSERVED:
        recommended_mib = outcome.need.memory_mib
    workload, uses = workload_of(pod), []
    for request in requests.requests:
        use = ContainerUsage(request.container.name, request.resource.name, request.count)
        usage = context.usage.find(namespace, workload, request.container.name)
        if usage is not None:
            use = msgspec.structs.replace(
                use,
                memory_mib=usage.memory_mib,
                compute_milli=usage.compute_milli,
                samples=usage.samples,
                preallocates=usage.preallocates,
                idle=usage.is_idle(context.now.timestamp()) and pod.metadata.name in usage.idle_pods,
                risk_ppm=usage.risk_ppm(recommended_mib) if recommended_mib and usage.sizes_mib else None,
            )
        uses.append(use)
    return tuple(uses)


def missed_admission(pod: Mapping[str, Any], namespace: str, decision: Decision) -> UnevaluatedReason | None:
    """Return why a pod was not evaluated at admission; None if it was, or if that is unknown.

    Args:
        decision: The decision if it were created now.
    """
    if not decision.involves_gpus:
        return None
    annotations = map_at(pod, "metadata", "annotations")
    if MIRROR_ANNOTATION in annotations:
        return UnevaluatedReason.STATIC
    if namespace in EXCLUDED_NAMESPACES:
        return UnevaluatedReason.EXCLUDED
    changes = decision.patch or decision.denials
    return UnevaluatedReason.UNRECORDED if changes and DECISION_ANNOTATION not in annotations else None


def describe_admission_change(decision: Decision) -> str:
    """Describe what the webhook would have done with a pod."""
    if decision.denials:
        return f"denied: {', '.join(dict.fromkeys(found.code for found in decision.denials))}"
    fields = dict.fromkeys(_patched_field(operation["path"]) for operation in decision.patch)
    fields.pop("", None)
    return f"changed: {', '.join(fields)}" if fields else "admitted unchanged"


def _patched_field(pointer: str) -> str:
    """Return the part of a pod that an operation changes; "" for our records."""
    steps = pointer.split("/")[1:]
    if steps[0] == "metadata":
        return "labels" if "labels" in steps else ""
    return "resources" if "resources" in steps else steps[1] if len(steps) > 1 else steps[0]


def without_kubelet_annotations(metadata: Any) -> Any:
    """Return the metadata of a static pod without the annotations that the kubelet adds."""
    annotations = map_at(metadata, "annotations")
    if MIRROR_ANNOTATION not in annotations:
        return metadata
    kept = {key: value for key, value in annotations.items() if not str(key).startswith(KUBELET_CONFIG_PREFIX)}
    return metadata | {"annotations": kept}


def created_since(
    documents: Iterable[SourceObject | SkippedDocument], moment: datetime | None
) -> Iterator[SourceObject | SkippedDocument]:
    """Yield what was created at or after this time; objects without a creation time are included."""
    for each in documents:
        created = creation_time(each.data) if isinstance(each, SourceObject) and moment is not None else None
        if moment is None or created is None or created >= moment:
            yield each


def creation_time(data: Mapping[str, Any]) -> datetime | None:
    """Return the creation time of an object; None if it has none, or an invalid one."""
    text = map_at(data, "metadata").get("creationTimestamp")
    try:
        moment = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
