"""Judge objects from files with the same `decide` that the webhook calls.

`decide` judges the shaped pod, so one call gives what /mutate and /validate would say one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.engine.decide import decide
from webhook.engine.templates import read_templates
from webhook.errors import ReviewError, SourceLocation
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.codes import CODES
from webhook.model.decisions import NEEDS_NODES, Decision
from webhook.model.defaulting import default_object, default_pod_data
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.findings import Finding
from webhook.model.pods import Pod, parse_pod
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding, decision_verdict, skipped_result

POD = ("", "Pod")
DEFAULT_NAMESPACE = "default"
"""The namespace of objects that name none."""
NOT_A_WORKLOAD = "not a workload: it runs no pods"


class EvaluationContext(msgspec.Struct, frozen=True):
    """What objects are judged against.

    Attributes:
        namespace: For objects that name none.
        user: Username that the requests are made in.
    """

    policies: PolicySet
    view: ClusterView
    now: datetime
    usage: UsageView = UsageView()
    namespace: str = DEFAULT_NAMESPACE
    user: str = ""


def evaluate_all(found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext) -> Iterator[CheckResult]:
    """Judge what was found in files, in its order."""
    for each in found:
        if isinstance(each, SkippedDocument):
            yield skipped_result(each.place, each.reason, invalid=each.broken)
        else:
            yield unreadable_result(each, world) or evaluate_object(with_limit_range_defaults(each, world), world)


def with_limit_range_defaults(entry: SourceObject, world: EvaluationContext) -> SourceObject:
    """An object of a file as it comes to the webhook: a pod has been through LimitRanger once."""
    if (api_group(entry.data["apiVersion"]), entry.data["kind"]) != POD:
        return entry
    ranges = world.view.ranges(written_namespace(entry.data) or world.namespace)
    return msgspec.structs.replace(entry, data=default_pod_data(entry.data, ranges)) if ranges else entry


def unreadable_result(entry: SourceObject, world: EvaluationContext) -> CheckResult | None:
    """What is said of an object whose pods cannot be read; None where they can, or where it runs none."""
    kind = (api_group(entry.data["apiVersion"]), entry.data["kind"])
    if kind != POD and kind not in world.policies.template_paths:
        return None
    try:
        request = build_admission_request(entry.data, world)
    except ReviewError as error:
        return _unreadable_object(entry, error)
    for each in read_templates(request, world.policies.template_paths.get(kind, ())):
        if each.error:
            return _unreadable_object(entry, ReviewError(f"{format_path(each.path)}: {each.error}", each.error_path))
    return _pod_without_containers(entry)


def _pod_without_containers(entry: SourceObject) -> CheckResult | None:
    """A Pod without containers, which no API server takes: a fault of the file, though no GPU is asked for."""
    spec = entry.data.get("spec")
    if (api_group(entry.data["apiVersion"]), entry.data["kind"]) != POD or not isinstance(spec, dict):
        return None
    containers = spec.get("containers")
    if containers is not None and (not isinstance(containers, list) or any(one is not None for one in containers)):
        return None
    sentence = "spec.containers: must have at least one container, found none. Write name and image of one"
    return _unreadable_object(entry, ReviewError(sentence, ("spec", "containers")))


def evaluate_object(entry: SourceObject, world: EvaluationContext, *, operation: str = "CREATE") -> CheckResult:
    """Judge one object as if it were created now."""
    group_kind = (api_group(entry.data["apiVersion"]), entry.data["kind"])
    if group_kind != POD and group_kind not in world.policies.template_paths:
        return _skip_non_workload(entry)
    try:
        request = build_admission_request(entry.data, world, operation)
    except ReviewError as error:
        return _unreadable_object(entry, error)
    decision = decide(request, world.policies, world.view, world.usage, world.now)
    nodeless = not world.view.fleet.nodes
    if nodeless:
        decision = without_node_findings(decision)
    if decision.denials:
        decision = msgspec.structs.replace(decision, gpu_milli_after=decision.gpu_milli_before)
    return msgspec.structs.replace(
        _skipped_result(entry),
        namespace=request.namespace,
        verdict=decision_verdict(decision),
        findings=tuple(_locate_finding(found, entry, world.policies) for found in decision.findings),
        decision=decision,
        stored=request.load_object(),
        without_nodes=nodeless,
    )


def build_admission_request(
    data: dict[str, Any], world: EvaluationContext, operation: str = "CREATE"
) -> AdmissionRequest:
    """Make the request that the API server would send.

    Raises:
        ReviewError: it says it is a Pod and is not one.
    """
    metadata = _object_metadata(data)
    namespace = written_namespace(data) or world.namespace
    stored = default_object(data, namespace)
    group, kind = api_group(data["apiVersion"]), data["kind"]
    return AdmissionRequest(
        operation=operation,
        group=group,
        kind=kind,
        namespace=namespace,
        name=_text_field(metadata, "name"),
        pod=_parse_pod(stored) if (group, kind) == POD else None,
        load_object=lambda: stored,
        user=world.user,
    )


def invalid_pod(entry: SourceObject) -> SkippedDocument | None:
    """What says that it is a Pod and is not one, as a fault of its file; None where it can be read."""
    try:
        _object_metadata(entry.data)
        _parse_pod(default_object(entry.data, written_namespace(entry.data)))
    except ReviewError as error:
        return SkippedDocument(entry.place(error.path), error.message, broken=True)
    return None


def _object_metadata(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise ReviewError("metadata must be a map", ("metadata",), about="object: ")
    return metadata or {}


def written_namespace(data: dict[str, Any]) -> str:
    """The namespace that an object names; "" where it names none."""
    metadata = data.get("metadata")
    return _text_field(metadata, "namespace") if isinstance(metadata, dict) else ""


def api_group(api_version: str) -> str:
    """The API group of an apiVersion; "" for core."""
    group, slash, _ = api_version.rpartition("/")
    return group if slash else ""


def _parse_pod(stored: dict[str, Any]) -> Pod:
    if not isinstance(stored.get("spec"), dict):
        raise ReviewError("spec: must be a map with containers", ("spec",), about="object: ")
    return parse_pod(stored)


def _text_field(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _skipped_result(entry: SourceObject) -> CheckResult:
    metadata = entry.data.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    generated = _text_field(named, "generateName")
    return CheckResult(
        place=entry.place(),
        api_version=entry.data["apiVersion"],
        kind=entry.data["kind"],
        namespace=_text_field(named, "namespace"),
        name=_text_field(named, "name") or (f"{generated}*" if generated else "(no name)"),
        verdict=CheckVerdict.SKIPPED,
    )


def _skip_non_workload(entry: SourceObject) -> CheckResult:
    if not _has_containers(entry.data):
        return msgspec.structs.replace(_skipped_result(entry), reason=NOT_A_WORKLOAD, quiet=True)
    kind = entry.data["kind"]
    reason = f"no policy says where a {kind} keeps its pod templates: name them in spec.match.templates"
    return msgspec.structs.replace(_skipped_result(entry), reason=reason)


def _has_containers(data: Any) -> bool:
    """True if a list under the key `containers` is anywhere in the object."""
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                return True
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return False


def _unreadable_object(entry: SourceObject, error: ReviewError) -> CheckResult:
    """An object that its kind's reader refuses."""
    return msgspec.structs.replace(
        _skipped_result(entry), place=entry.place(error.path), reason=error.message, invalid=True
    )


def _locate_finding(found: Finding, entry: SourceObject, policies: PolicySet) -> LocatedFinding:
    return LocatedFinding(found, entry.place(_path_as_written(found.path, entry.data)), policy_place(found, policies))


def _path_as_written(path: FieldPath, data: Any) -> FieldPath:
    """The field as the file has it: a request that the API server filled in stands under limits."""
    if "requests" not in path or _path_exists(path, data):
        return path
    return tuple("limits" if step == "requests" else step for step in path)


def _path_exists(path: FieldPath, data: Any) -> bool:
    for step in path:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return False
    return True


POLICY_KEYS = {
    "GPU-S": "security.deny",
    "GPU-L2": "limits.limitRanges",
    "GPU-Q303": "quotas.shared",
    "GPU-Q304": "quotas.shared",
    "GPU-Q": "limits.resourceQuotas",
    "GPU-C": "cuda.driver",
}
"""The key of a policy that speaks, where it is finer than its section, by the first letters of a code."""


def policy_place(found: Finding, policies: PolicySet) -> SourceLocation | None:
    """Where the words stand that a policy speaks by: a key, its section, or the policy."""
    policy = next((each for each in policies.policies if each.name == found.policy), None)
    if policy is None:
        return None
    section = CODES[found.code].section if found.code in CODES else ""
    key = next((key for letters, key in POLICY_KEYS.items() if found.code.startswith(letters)), section)
    return policy.section_locations.get(key) or policy.section_locations.get(section, policy.location)


def without_node_findings(decision: Decision) -> Decision:
    """The decision without findings that blame a cluster of which no node is known."""
    findings = tuple(f for f in decision.findings if f.reason not in NEEDS_NODES)
    return msgspec.structs.replace(decision, findings=findings)
