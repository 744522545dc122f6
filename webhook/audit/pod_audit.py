"""Judge every pod of a snapshot as if it were created again now.

Each pod is taken by itself, in the cluster as it stands: its own use is taken out of its quotas, and its GPUs
still count as in use. What all pods would come to together is less where slices are few.

What a bound pod holds is priced by its own node. A pod that would get no less than it holds already stays as it
is; a saving is only what is less, of a pod that would be let in: GPUs that a policy takes out again among it. A
static pod saves nothing: its node runs it by a file of its own, which no webhook changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from webhook.audit.adjusted_view import without_pod_usage
from webhook.audit.evaluate import (
    DEFAULT_NAMESPACE,
    POD,
    EvaluationContext,
    api_group,
    build_admission_request,
    evaluate_all,
    evaluate_object,
    written_namespace,
)
from webhook.audit.gpu_time import allocated_milli, bound_node
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.stored_pods import (
    container_uses,
    describe_admission_change,
    missed_admission,
    without_kubelet_annotations,
)
from webhook.cache.stored_objects import FINISHED_PHASES
from webhook.engine.gpu_requests import PodGpuRequests, gpu_requests_of_pod
from webhook.errors import ReviewError
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice
from webhook.model.workloads import workload_of
from webhook.policy.policy_set import PolicySet
from webhook.report.results import CheckResult, ClusterPodDetails, UnevaluatedReason, skipped_result

GpuPrice = Callable[[Mapping[str, int]], int]
"""Thousandths of a GPU that units of resources take on the pod's own node."""


def audit_pods(found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext) -> Iterator[CheckResult]:
    """Judge the pods among what was found; faults in files come out as skipped, other objects do not."""
    unsized = without_right_sizing(world.policies)
    for each in found:
        if isinstance(each, SkippedDocument):
            if each.broken:
                yield skipped_result(each.place, each.reason, invalid=True)
        elif is_active_pod(each.data):
            yield audit_pod(each, world, unsized)


def evaluate_for_explain(
    found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext
) -> Iterator[CheckResult]:
    """Judge what was found in files. Pods that a cluster has stored are judged as an audit does: they run already."""
    unsized = without_right_sizing(world.policies)
    for each in found:
        if isinstance(each, SourceObject) and is_pod(each.data) and is_stored(each.data):
            yield audit_pod(each, world, unsized)
        else:
            yield from evaluate_all([each], world)


def audit_pod(entry: SourceObject, world: EvaluationContext, unsized: PolicySet) -> CheckResult:
    """Judge one pod.

    Args:
        unsized: The world's policies without right-sizing, for a pod that would gain nothing by it, or cannot.
    """
    again = msgspec.structs.replace(entry, data=as_recreated(entry.data))
    try:
        request = build_admission_request(again.data, world)
    except ReviewError:
        return evaluate_object(again, world)
    assert request.pod is not None
    asked = gpu_requests_of_pod(request.pod)
    node = bound_node(entry.data)
    view = without_pod_usage(world.view, request.namespace, request.pod, runs=bool(node))
    vacated = msgspec.structs.replace(world, view=view)
    price = partial(allocated_milli, node=node, fleet=world.view.fleet)
    result = evaluate_object(again, vacated)
    if not _fit_saves_gpus(result.decision, price):
        result = evaluate_object(again, msgspec.structs.replace(vacated, policies=unsized))
    priced = _price_result(result, asked, price)
    missed = missed_admission(entry.data, request.namespace, priced.decision)
    becomes = describe_admission_change(priced.decision) if missed else ""
    if missed is UnevaluatedReason.STATIC:
        priced = _keep_static_pod(
            evaluate_object(again, msgspec.structs.replace(vacated, policies=unsized)), price(asked.totals)
        )
    uses = container_uses(asked, request.namespace, request.pod, world, priced.decision.outcome)
    standing = ClusterPodDetails(workload_of(request.pod), missed, becomes, uses)
    return msgspec.structs.replace(priced, node=node, pod_details=standing)


def _fit_saves_gpus(decision: Decision, price: GpuPrice) -> bool:
    """Is what right-sizing has for the pod less than what is left of it? True where it has nothing for it."""
    fit = decision.outcome
    return not isinstance(fit, OfferChoice) or fit.gpu_milli < price(decision.remaining_units)


def _price_result(result: CheckResult, asked: PodGpuRequests, price: GpuPrice) -> CheckResult:
    decision = result.decision
    fit = decision.outcome if not decision.denials else None
    left = price(asked.totals if decision.denials else decision.remaining_units)
    becomes = fit.gpu_milli if isinstance(fit, OfferChoice) else left
    after, on_trial = (becomes, 0) if decision.applied else (left, left - becomes)
    decision = msgspec.structs.replace(decision, gpu_milli_before=price(asked.totals), gpu_milli_after=after)
    return msgspec.structs.replace(result, decision=decision, gpu_milli_audit_saved=on_trial)


def _keep_static_pod(static: CheckResult, held: int) -> CheckResult:
    """A static pod keeps what it holds, in thousandths of a GPU, whatever is found in it."""
    changes = {"outcome": KeepRequest(KeepReason.MIRROR), "applied": False, "patch": ()}
    decision = msgspec.structs.replace(static.decision, **changes, gpu_milli_before=held, gpu_milli_after=held)
    return msgspec.structs.replace(static, decision=decision)


def without_right_sizing(policies: PolicySet) -> PolicySet:
    """The policies without their right-sizing sections."""
    unsized = (msgspec.structs.replace(policy, right_sizing=None) for policy in policies.policies)
    return PolicySet(unsized, policies.exemptions, policies.template_paths)


def is_pod(data: dict[str, Any]) -> bool:
    """Is this object a Pod?"""
    return (api_group(data["apiVersion"]), data["kind"]) == POD


def is_active_pod(data: dict[str, Any]) -> bool:
    """Is this object a Pod that has not ended?"""
    return is_pod(data) and pod_phase(data) not in FINISHED_PHASES


def deduplicate_pods(found: Sequence[SourceObject | SkippedDocument]) -> list[SourceObject | SkippedDocument]:
    """The same with each pod once, as dumps that overlap hold one twice: the later one counts, as in a snapshot."""
    last = {key: place for place, each in enumerate(found) if (key := _pod_key(each))}
    return [each for place, each in enumerate(found) if last.get(_pod_key(each), place) == place]


def find_pod(found: Sequence[SourceObject | SkippedDocument], namespace: str, name: str) -> SourceObject | None:
    """The pod of this name among what was found, the last one that is given; None where there is none."""
    same = (each for each in reversed(found) if _pod_key(each) == (namespace, name))
    return next((each for each in same if isinstance(each, SourceObject)), None)


def _pod_key(found: SourceObject | SkippedDocument) -> tuple[str, ...]:
    """Namespace and name of a pod; () for one that has no name yet, and for everything else."""
    if not isinstance(found, SourceObject) or not is_pod(found.data):
        return ()
    metadata = found.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return (written_namespace(found.data) or DEFAULT_NAMESPACE, name) if isinstance(name, str) and name else ()


def is_stored(data: dict[str, Any]) -> bool:
    """Is this object one that an API server has stored? It gave it a uid then."""
    metadata = data.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("uid"))


def as_recreated(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what the cluster gave it: its uid, node, status, and the kubelet's marks on a static pod."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return pod
    again = _without_key(pod, "status") | {"spec": _without_key(spec, "nodeName")}
    return again | {"metadata": without_kubelet_annotations(_without_key(metadata, "uid"))}


def _without_key(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def pod_phase(pod: dict[str, Any]) -> object:
    """The phase that the cluster says a pod is in; None where it says none."""
    status = pod.get("status")
    return status.get("phase") if isinstance(status, dict) else None
