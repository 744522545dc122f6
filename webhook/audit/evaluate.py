"""Evaluates objects from files with the same `decide` that the webhook calls.

`decide` validates the patched pod, so one call returns what /mutate and /validate would answer one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from webhook.audit.adjusted_view import with_claim_objects
from webhook.audit.creation_charges import view_after_creation
from webhook.audit.object_files import (
    SkippedDocument,
    SourceObject,
    UnknownPods,
    describe_unknown_kind,
    find_unread_pods,
)
from webhook.audit.serving_runtimes import with_serving_runtimes
from webhook.audit.validation import (
    KUBERNETES_GROUPS,
    check_claim,
    check_counts,
    check_fields,
    check_pod,
    find_null_amounts,
    with_null_amounts,
)
from webhook.engine.claim_review import CLAIM_GROUP
from webhook.engine.decide import decide
from webhook.engine.templates import read_templates
from webhook.errors import ReviewError, SourceLocation, quote_text
from webhook.model.admission import AdmissionRequest
from webhook.model.claims import CLAIM_KINDS, with_requests_of_v1
from webhook.model.cluster_view import ClusterView
from webhook.model.codes import CODES
from webhook.model.decisions import NEEDS_NODES
from webhook.model.defaulting import default_object, default_pod_data
from webhook.model.field_paths import FieldPath, format_path, map_at
from webhook.model.findings import Finding
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, parse_pod, with_zero_amounts
from webhook.model.queues import DEFAULT_LOCAL_QUEUE, QUEUE_NAME_LABEL
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding, decision_verdict, skipped_result

POD, CRON_JOB = ("", "Pod"), ("batch", "CronJob")
CLAIMS = frozenset((CLAIM_GROUP, kind) for kind in CLAIM_KINDS)

POLICY_KEYS = {
    "GPU-S": "security.deny",
    "GPU-L2": "limits.limitRanges",
    "GPU-Q303": "quotas.shared",
    "GPU-Q304": "quotas.shared",
    "GPU-Q307": "quotas.shared",
    "GPU-Q": "limits.resourceQuotas",
    "GPU-C": "cuda.driver",
}
"""The policy field that reports a code, by the code's prefix, if it is more specific than the code's section."""


class EvaluationContext(msgspec.Struct, frozen=True):
    """The policies, cluster, usage and time that objects are evaluated against.

    Attributes:
        namespace: The namespace of objects that name none.
    """

    policies: PolicySet
    view: ClusterView
    now: datetime
    usage: UsageView = UsageView()
    namespace: str = DEFAULT_NAMESPACE
    user: str = ""


def evaluate_all(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext
) -> Iterator[CheckResult]:
    """Evaluate the objects of files, in order, with the claim templates, classes and serving runtimes among them.

    ResourceQuotas of the cluster are charged for new claims and pods before the next object is evaluated.
    """
    known_claims = context.view.all_claims.devices.claims
    documents = with_serving_runtimes(list(documents), context.namespace)
    context = with_admitted_claims(documents, context)
    for each in documents:
        if isinstance(each, SkippedDocument):
            yield skipped_result(each.location, each.reason, invalid=each.invalid)
        else:
            result = unreadable_result(each, context)
            result = result or evaluate_object(with_admission_defaults(each, context), context)
            nulls = list(_find_nulls(each, context))
            yield with_null_amounts(result, nulls, each) if nulls else result
            kind, claims = _group_kind(each), known_claims.get(result.namespace, ())
            if kind == POD or (kind in CLAIMS and result.name not in claims):
                context = _after_creation(result, context)


def with_claims_of(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext
) -> EvaluationContext:
    """Return the context with the claims, templates and classes among documents as they are written."""
    objects = (each.data for each in documents if isinstance(each, SourceObject))
    return _with_claim_objects(objects, context)


def with_admitted_claims(
    documents: Iterable[SourceObject | SkippedDocument], context: EvaluationContext
) -> EvaluationContext:
    """Return the context with the claims, templates and classes among documents as the webhook would admit them."""
    documents = list(documents)
    context = with_claims_of(documents, context)
    claims = [each for each in documents if isinstance(each, SourceObject) and _group_kind(each) in CLAIMS]
    return _with_claim_objects([_admitted_claim(each, context) for each in claims], context)


def _with_claim_objects(objects: Iterable[Mapping[str, Any]], context: EvaluationContext) -> EvaluationContext:
    view = with_claim_objects(context.view, objects, context.namespace)
    return context if view is context.view else msgspec.structs.replace(context, view=view)


def _admitted_claim(source: SourceObject, context: EvaluationContext) -> Mapping[str, Any]:
    """Return a claim or template after the changes of policies; one that was created before keeps its requests."""
    if is_stored(source.data) or unreadable_result(source, context) is not None:
        return source.data
    result = evaluate_object(source, context)
    return apply_json_patch(result.stored, result.decision.patch) if result.decision.patch else source.data


def _after_creation(result: CheckResult, context: EvaluationContext) -> EvaluationContext:
    """Return the context after a pod or a claim was created, if quotas and the webhook admit it."""
    is_counted = bool(context.view.quotas(result.namespace))
    if not is_counted or result.verdict is CheckVerdict.SKIPPED or result.decision.denials:
        return context
    request = build_admission_request(dict(result.stored), context)
    view = view_after_creation(request, result.decision, context.policies, context.view, context.usage, context.now)
    return context if view is context.view else msgspec.structs.replace(context, view=view)


def _find_nulls(source: SourceObject, context: EvaluationContext) -> Iterator[FieldPath]:
    """Yield the paths of the null amounts of an object's pods."""
    if _group_kind(source) == POD:
        yield from find_null_amounts(source.data.get("spec"))
        return
    try:
        request = build_admission_request(source.data, context)
    except ReviewError:
        return
    for template in read_templates(request, context.policies.workload_kinds):
        yield from map(template.field_path, find_null_amounts(template.data.get("spec")))


def with_admission_defaults(source: SourceObject, context: EvaluationContext) -> SourceObject:
    """Return an object as the webhook receives it.

    LimitRanges and classes have given a pod their defaults once, and Kueue a workload its default queue.
    """
    namespace = written_namespace(source.data) or context.namespace
    if _group_kind(source) != POD:
        return _with_default_queue(source, namespace, context)
    ranges = context.view.ranges(namespace)
    data = with_zero_amounts(source.data)
    data = default_pod_data(data, ranges) if ranges else data
    return msgspec.structs.replace(source, data=context.view.pod_classes.add_to_data(data))


def _with_default_queue(source: SourceObject, namespace: str, context: EvaluationContext) -> SourceObject:
    """Return a workload with the LocalQueue `default` of its namespace if Kueue's webhook would label it so.

    It does so for each new workload that names no queue and has no owner; for the Jobs of a CronJob, their template.
    """
    is_cron_job, queues = _group_kind(source) == CRON_JOB, context.view.queues
    group, kind = ("batch", "Job") if is_cron_job else _group_kind(source)
    templates = context.policies.workload_kinds.get((group, kind))
    if templates is None or not (templates.queued and queues.may_default(namespace, group, kind)):
        return source
    path = ("spec", "jobTemplate", "metadata") if is_cron_job else ("metadata",)
    metadata = map_at(source.data, *path)
    labels = map_at(metadata, "labels")
    if QUEUE_NAME_LABEL in labels or metadata.get("ownerReferences") or is_stored(source.data):
        return source
    labeled = {**metadata, "labels": {**labels, QUEUE_NAME_LABEL: DEFAULT_LOCAL_QUEUE}}
    addition = {"op": "add", "path": "/" + "/".join(path), "value": labeled}
    return msgspec.structs.replace(source, data=apply_json_patch(source.data, [addition]))


def unreadable_result(source: SourceObject, context: EvaluationContext) -> CheckResult | None:
    """Return the error of an object whose pods cannot be read; None if they can, or if it has none."""
    kind = _group_kind(source)
    try:
        if kind in CLAIMS:
            check_claim(source.data)
            return None
    except ReviewError as error:
        return _invalid_result(source, error)
    if kind != POD and kind not in context.policies.workload_kinds:
        return _miswritten_kind(source, context)
    served = f"{kind[0]}/v1".removeprefix("/")
    if kind[0] in KUBERNETES_GROUPS and source.data["apiVersion"] != served:
        return _miswritten_result(source, "apiVersion", served, source.data["apiVersion"])
    try:
        request = build_admission_request(source.data, context)
        ranges = context.view.ranges(request.namespace)
        if request.pod is not None:
            check_pod(request.pod, source.data, ranges)
            check_fields(request.group, source.data)
        for each in read_templates(request, context.policies.workload_kinds):
            if each.error:
                return _invalid_result(source, ReviewError(f"{format_path(each.path)}: {each.error}", each.error_path))
            check_pod(each.pod, each.data, ranges.without_ranges(), each.field_path)
            check_fields(request.group, each.data, each.field_path)
            check_counts(source.data, each)
    except ReviewError as error:
        return _invalid_result(source, error)
    containers = source.data["spec"].get("containers") if kind == POD else ()
    if containers is None or (isinstance(containers, list) and all(one is None for one in containers)):
        sentence = "spec.containers: must have at least one container, found none. Write name and image of one"
        return _invalid_result(source, ReviewError(sentence, ("spec", "containers")))
    return None


def _miswritten_kind(source: SourceObject, context: EvaluationContext) -> CheckResult | None:
    """Return the error of a kind that is known in another case or group; None for any other kind."""
    group, kind = _group_kind(source)
    known = (POD, *CLAIMS, *context.policies.workload_kinds)
    meant = {each: name for each, name in known if name.casefold() == kind.casefold()}
    if group in meant:
        return _miswritten_result(source, "kind", meant[group], kind)
    groups = (*KUBERNETES_GROUPS, CLAIM_GROUP)
    served = next((each for each in groups if each in meant), None)
    if served is None or group.casefold() not in groups:
        return None
    return _miswritten_result(source, "apiVersion", f"{served}/v1".removeprefix("/"), source.data["apiVersion"])


def _miswritten_result(source: SourceObject, key: str, meant: str, found: str) -> CheckResult:
    sentence = f"{key}: must be {meant}, found {quote_text(found)}: the API server knows no such kind"
    return _invalid_result(source, ReviewError(f"{sentence}. Write {meant}", (key,)))


def evaluate_object(
    source: SourceObject,
    context: EvaluationContext,
    *,
    operation: str = "CREATE",
    unknown_parts: str = "",
    request: AdmissionRequest | None = None,
) -> CheckResult:
    """Evaluate one object as if it were created now.

    Args:
        unknown_parts: For a future pod of a workload: what of it is not known yet.
        request: The request that creates it, if that is built already.
    """
    try:
        request = request or build_admission_request(source.data, context, operation)
        request = msgspec.structs.replace(request, unknown_parts=unknown_parts) if unknown_parts else request
        unknown = find_unknown_pods(source, context)
    except ReviewError as error:
        return _invalid_result(source, error)
    if unknown is not None and _group_kind(source) not in context.policies.workload_kinds:
        return _unknown_result(source, unknown)
    decision = decide(request, context.policies, context.view, context.usage, context.now)
    if unknown is not None and not decision.findings:
        return _unknown_result(source, unknown)
    without_nodes = not context.view.fleet.nodes
    if without_nodes:
        findings = tuple(finding for finding in decision.findings if finding.reason not in NEEDS_NODES)
        decision = msgspec.structs.replace(decision, findings=findings)
    if decision.denials:
        decision = msgspec.structs.replace(decision, gpu_milli_after=decision.gpu_milli_before)
    return msgspec.structs.replace(
        _skipped_result(source),
        namespace=request.namespace,
        verdict=decision_verdict(decision),
        findings=tuple(
            LocatedFinding(
                finding,
                source.locate(_path_as_written(finding.path, source.data)),
                policy_place(finding, context.policies),
            )
            for finding in decision.findings
        ),
        decision=decision,
        stored=request.load_object(),
        without_nodes=without_nodes,
    )


def find_unknown_pods(source: SourceObject, context: EvaluationContext) -> UnknownPods | None:
    """Return why the pods of an object are not known, or that it has none; None if they are evaluated.

    Raises:
        ReviewError: it is an invalid Pod.
    """
    kind, kinds = _group_kind(source), context.policies.workload_kinds
    if kind == POD or kind in CLAIMS:
        return None
    if kind not in kinds:
        return describe_unknown_kind(source.data, kind[0])
    request = build_admission_request(source.data, context)
    return find_unread_pods(request, list(read_templates(request, kinds)), kinds)


def is_unknown_kind(source: SourceObject, context: EvaluationContext) -> bool:
    """Return whether an object of a kind that is not known names GPUs."""
    kind = _group_kind(source)
    return (
        kind != POD
        and kind not in CLAIMS
        and kind not in context.policies.workload_kinds
        and not describe_unknown_kind(source.data, kind[0]).quiet
    )


def _unknown_result(source: SourceObject, unknown: UnknownPods) -> CheckResult:
    place = source.locate(unknown.path)
    return msgspec.structs.replace(_skipped_result(source), location=place, reason=unknown.reason, quiet=unknown.quiet)


def build_admission_request(
    data: dict[str, Any], context: EvaluationContext, operation: str = "CREATE"
) -> AdmissionRequest:
    """Build the request that the API server would send. Raises ReviewError for an invalid Pod."""
    metadata = _object_metadata(data)
    namespace = written_namespace(data) or context.namespace
    stored = with_requests_of_v1(default_object(data, namespace))
    group, kind = api_group(data["apiVersion"]), data["kind"]
    return AdmissionRequest(
        operation=operation,
        group=group,
        kind=kind,
        namespace=namespace,
        name=_text_field(metadata, "name"),
        pod=_parse_pod(stored) if (group, kind) == POD else None,
        load_object=lambda: stored,
        user=context.user,
    )


def invalid_object(source: SourceObject) -> SkippedDocument | None:
    """Return the error of a Pod, a claim or a template of claims that cannot be read; None if it can."""
    kind = _group_kind(source)
    try:
        _object_metadata(source.data)
        if kind in CLAIMS:
            check_claim(source.data)
        elif kind == POD:
            check_pod(_parse_pod(default_object(source.data, written_namespace(source.data))), source.data)
    except ReviewError as error:
        return SkippedDocument(source.locate(error.path), error.message, invalid=True)
    return None


def _object_metadata(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise ReviewError("metadata must be a map", ("metadata",), about="object: ")
    return metadata or {}


def _parse_pod(stored: dict[str, Any]) -> Pod:
    if not isinstance(stored.get("spec"), dict):
        raise ReviewError("spec: must be a map with containers", ("spec",), about="object: ")
    return parse_pod(stored)


def is_stored(data: dict[str, Any]) -> bool:
    """Return whether an object was stored by an API server, which assigns a uid."""
    return bool(map_at(data, "metadata").get("uid"))


def written_namespace(data: dict[str, Any]) -> str:
    """Return the namespace that an object names; "" if it names none."""
    return _text_field(map_at(data, "metadata"), "namespace")


def api_group(api_version: str) -> str:
    """Return the API group of an apiVersion; "" for core."""
    group, slash, _ = api_version.rpartition("/")
    return group if slash else ""


def _group_kind(source: SourceObject) -> tuple[str, str]:
    return api_group(source.data["apiVersion"]), source.data["kind"]


def _text_field(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _skipped_result(source: SourceObject) -> CheckResult:
    metadata = map_at(source.data, "metadata")
    generate_name = _text_field(metadata, "generateName")
    return CheckResult(
        location=source.locate(),
        api_version=source.data["apiVersion"],
        kind=source.data["kind"],
        namespace=_text_field(metadata, "namespace"),
        name=_text_field(metadata, "name") or (f"{generate_name}*" if generate_name else "(no name)"),
        verdict=CheckVerdict.SKIPPED,
    )


def _invalid_result(source: SourceObject, error: ReviewError) -> CheckResult:
    place = source.locate(_path_as_written(error.path, source.data))
    return msgspec.structs.replace(_skipped_result(source), location=place, reason=error.message, invalid=True)


def _path_as_written(path: FieldPath, data: Any) -> FieldPath:
    """Return the path in the file: requests that the API server copied from limits are written there."""
    if "requests" not in path:
        return path
    try:
        for step in path:
            data = data[step]
    except (LookupError, TypeError):
        return tuple("limits" if step == "requests" else step for step in path)
    return path


def policy_place(finding: Finding, policies: PolicySet) -> SourceLocation | None:
    """Return the position of the policy field that reports a finding, or of its section or policy."""
    policy = next((each for each in policies.policies if each.name == finding.policy), None)
    if policy is None:
        return None
    section = CODES[finding.code].section if finding.code in CODES else ""
    key = next((key for prefix, key in POLICY_KEYS.items() if finding.code.startswith(prefix)), section)
    return policy.section_locations.get(key) or policy.section_locations.get(section, policy.location)
