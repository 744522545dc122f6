"""Workloads: the pods that will come of a template, judged at apply time, in warnings only.

Nobody is refused a Deployment: its pods are what is admitted. But people learn at `kubectl apply` what will
happen to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from webhook.engine.templates import PodTemplate, read_templates
from webhook.engine.workload_labels import expected_pod_labels
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.defaulting import default_object, default_pod, default_pod_data
from webhook.model.enums import PolicyMode
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.model.pods import OwnerReference, Pod
from webhook.policy.policy_set import PolicySet


class TemplateDecision(msgspec.Struct, frozen=True):
    """One template and what a pod of it would come to."""

    template: PodTemplate
    decision: Decision


def pods_of_workload(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView
) -> Iterator[tuple[PodTemplate, AdmissionRequest, Pod]]:
    """Each template of a workload, with the request that a pod of it would come in, and that pod.

    The workload stands for whatever will own the pod. What a template cannot tell is absent: a name, a uid; the label
    that its controller will add is there and empty.
    """
    paths = policies.template_paths.get((request.group, request.kind))
    if not paths:
        return
    ranges = view.ranges(request.namespace)
    for template in read_templates(request, paths):
        if template.error:
            continue
        pod = _with_owner(request, template.pod)
        pod = default_pod(pod, ranges) if ranges else pod
        yield template, _pod_request(request, pod, partial(_admission_data, request, template, ranges)), pod


def _with_owner(workload: AdmissionRequest, pod: Pod) -> Pod:
    """A pod of a template, which its workload owns and its controller has labelled."""
    owner = OwnerReference(kind=workload.kind, name=workload.name, controller=True)
    labels = {**_workload_pod_labels(workload), **pod.metadata.labels}
    metadata = msgspec.structs.replace(pod.metadata, owner_references=(owner,), labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata)


def _workload_pod_labels(workload: AdmissionRequest) -> dict[str, str]:
    return expected_pod_labels((workload.group, workload.kind))


def _pod_request(workload: AdmissionRequest, pod: Pod, load: Callable[[], dict[str, Any]]) -> AdmissionRequest:
    """The request that will bring a pod of a workload; its plain data is put together only if a policy asks for it."""
    return msgspec.structs.replace(
        workload,
        operation="CREATE",
        group="",
        kind="Pod",
        name="",
        pod=pod,
        load_object=load,
        load_old_object=lambda: None,
    )


def _admission_data(workload: AdmissionRequest, template: PodTemplate, ranges: NamespaceLimitRanges) -> dict[str, Any]:
    """A pod of a template as admission would see it."""
    owner = {"kind": workload.kind, "name": workload.name, "controller": True}
    metadata = {**(template.data.get("metadata") or {}), "ownerReferences": [owner]}
    labels = {**_workload_pod_labels(workload), **(metadata.get("labels") or {})}
    metadata |= {"labels": labels} if labels else {}
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.data["spec"]}
    return default_pod_data(default_object(data, workload.namespace), ranges)


def combine_template_decisions(judged: Sequence[TemplateDecision]) -> Decision:
    """One decision of many: findings at their place in the workload, never more than a warning, no patch."""
    findings: list[Finding] = []
    exempted: list[ExemptedFinding] = []
    for one in judged:
        findings += [_move_finding(found, one.template) for found in one.decision.findings]
        exempted += [
            ExemptedFinding(_move_finding(e.finding, one.template), e.exemption, e.expires)
            for e in one.decision.exempted
        ]
    if not judged:
        return Decision()
    policies = dict.fromkeys(name for one in judged for name in one.decision.policies)
    return Decision(
        findings=tuple(findings),
        exempted=tuple(exempted),
        outcome=judged[0].decision.outcome,
        gpu_milli_before=sum(one.decision.gpu_milli_before * one.template.replicas for one in judged),
        gpu_milli_after=sum(_milli_after_denials(one.decision) * one.template.replicas for one in judged),
        policies=tuple(policies),
        involves_gpus=any(one.decision.involves_gpus for one in judged),
    )


def _milli_after_denials(decision: Decision) -> int:
    """Pods that are refused save nothing."""
    return decision.gpu_milli_before if decision.denials else decision.gpu_milli_after


def _move_finding(finding: Finding, template: PodTemplate) -> Finding:
    path, mode = template.field_path(finding.path), min(finding.mode, PolicyMode.WARN)
    refuses = finding.mode is PolicyMode.ENFORCE
    return msgspec.structs.replace(finding, path=path, mode=mode, message=_pods_message(finding), denies_pods=refuses)


def _pods_message(finding: Finding) -> str:
    """The same in the future: the workload is let in, its pods are what this will happen to."""
    if finding.mode is PolicyMode.ENFORCE:
        return f"its pods will be refused: {finding.message}"
    return f"its pods will be {finding.message}" if finding.code == "GPU-R101" else finding.message
