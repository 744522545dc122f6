"""The pods that come of what files and clusters hold, as the webhook would let them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.audit.evaluate import (
    EvaluationContext,
    build_admission_request,
    evaluate_object,
    unreadable_result,
    with_limit_range_defaults,
)
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.audit.simulation import ArrivingPod
from webhook.engine.templates import invalid_counts
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError, shorten_text
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.pods import Pod, Volume, parse_pod
from webhook.placement.nodes.pod_requirements import PodRequirements, daemon_set_nodes, daemon_set_pod
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict


def reject_unplaceable(
    found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext
) -> Iterator[SourceObject | SkippedDocument]:
    """The same; an object whose pods cannot be read, or that no API server takes so many of, comes out as a fault."""
    for each in found:
        yield _unplaceable_reason(each, world) or each if isinstance(each, SourceObject) else each


def _unplaceable_reason(entry: SourceObject, world: EvaluationContext) -> SkippedDocument | None:
    said = unreadable_result(entry, world)
    return (
        SkippedDocument(said.place, f"{said.title}: {said.reason}", broken=True)
        if said
        else _invalid_replicas(entry, world)
    )


def _invalid_replicas(entry: SourceObject, world: EvaluationContext) -> SkippedDocument | None:
    try:
        request = build_admission_request(entry.data, world)
    except ReviewError:
        return None
    faults = (
        fault
        for one, _, _ in pods_of_workload(request, world.policies, world.view)
        for fault in invalid_counts(entry.data, one.path)
    )
    for path, value in faults:
        must = f"must be a whole number, 0 or more, found {shorten_text(repr(value))}"
        return SkippedDocument(
            entry.place(path), f"{format_path(path)}: {must}. Write how many there are to be", broken=True
        )
    return None


class AdmittedPod(NamedTuple):
    """A pod that comes of an object, as the webhook would let it in.

    Attributes:
        checked: What was said of it.
        pod: The pod.
        replicas: How many there are of it.
        everywhere: True for one of a DaemonSet, which wants one on every node that lets it in: that many, and at
            least 1.
    """

    checked: CheckResult
    pod: Pod
    replicas: int = 1
    daemon: bool = False


def admitted_pods(entry: SourceObject, world: EvaluationContext) -> Iterator[AdmittedPod]:
    """The pods that come of an object that can be read; none of what runs no pods."""
    checked = evaluate_object(with_limit_range_defaults(entry, world), world)
    if checked.verdict is CheckVerdict.SKIPPED:
        return
    if checked.kind == "Pod":
        yield AdmittedPod(checked, parse_pod(apply_json_patch(checked.stored, checked.decision.patch)))
        return
    for template, coming, _ in pods_of_workload(build_admission_request(entry.data, world), world.policies, world.view):
        said = evaluate_object(SourceObject(coming.load_object(), entry.document, entry.prefix), world)
        called = msgspec.structs.replace(said, name=f"{checked.name.removesuffix('-*')}-*")
        pod = _with_claim_volumes(
            parse_pod(apply_json_patch(said.stored, said.decision.patch)), entry.data, template.path
        )
        yield (
            _daemon_pod(called, pod, world)
            if checked.kind == "DaemonSet"
            else AdmittedPod(called, pod, template.replicas)
        )


def _with_claim_volumes(pod: Pod, workload: Mapping[str, Any], template: FieldPath) -> Pod:
    """A pod of a template with the volumes that its controller adds, of the claims that it makes for each pod."""
    beside: Any = workload
    for step in template[:-1]:
        beside = beside[step]
    claims = beside.get("volumeClaimTemplates") if isinstance(beside, dict) else None
    if not isinstance(claims, list) or not claims:
        return pod
    volumes = (*pod.spec.volumes, *(Volume(persistent_volume_claim={"claimName": ""}) for _ in claims))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))


def _daemon_pod(checked: CheckResult, template: Pod, world: EvaluationContext) -> AdmittedPod:
    pod = daemon_set_pod(template, host_network=checked.stored["spec"].get("hostNetwork") is True)
    return AdmittedPod(checked, pod, max(1, daemon_set_nodes(pod, world.view.fleet).bit_count()), daemon=True)


def denial_codes(checked: CheckResult) -> tuple[str, ...]:
    """The codes for which the webhook would refuse a pod; () where it lets it in."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def arriving_replicas(shaped: AdmittedPod, wanted: PodRequirements, fleet: Fleet) -> list[ArrivingPod]:
    """Its replicas as they come to a cluster; of a DaemonSet's, each wants the node that it is made for."""
    codes = denial_codes(shaped.checked)
    refused = f"refused by the webhook: {', '.join(codes)}" if codes else ""
    nodes = list(bit_positions(daemon_set_nodes(shaped.pod, fleet))) if shaped.daemon else []
    each = [ArrivingPod(msgspec.structs.replace(wanted, selected_nodes=1 << node), refused) for node in nodes]
    return each or [ArrivingPod(wanted, refused)] * shaped.replicas
