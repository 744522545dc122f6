"""Workloads: the pods that will come of a template, judged at apply time, in warnings only.

Nobody is refused a Deployment: its pods are what is admitted. But people learn at `kubectl apply` what will
happen to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from webhook.engine.limitrange import limited, limited_pod
from webhook.engine.siblings import labels_to_come
from webhook.engine.templates import Template, templates
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision
from webhook.model.findings import Exempted, Finding
from webhook.model.modes import Mode
from webhook.model.pods import OwnerReference, Pod
from webhook.model.ranges import Ranges
from webhook.model.requests import Request
from webhook.model.stored import as_stored
from webhook.policy.compiled import PolicySet


class Judged(msgspec.Struct, frozen=True):
    """One template and what a pod of it would come to."""

    template: Template
    decision: Decision


def pods_of(request: Request, policies: PolicySet, view: ClusterView) -> Iterator[tuple[Template, Request, Pod]]:
    """Each template of a workload, with the request that a pod of it would come in, and that pod.

    The workload stands for whatever will own the pod. What a template cannot tell is absent: a name, a uid; the label
    that its controller will add is there and empty.
    """
    paths = policies.templates.get((request.group, request.kind))
    if not paths:
        return
    ranges = view.ranges(request.namespace)
    for template in templates(request, paths):
        if template.error:
            continue
        pod = _owned(request, template.pod)
        pod = limited_pod(pod, ranges) if ranges else pod
        yield template, _coming(request, pod, partial(_data, request, template, ranges)), pod


def _owned(workload: Request, pod: Pod) -> Pod:
    """A pod of a template, which its workload owns and its controller has labelled."""
    owner = OwnerReference(kind=workload.kind, name=workload.name, controller=True)
    labels = {**_labels(workload), **pod.metadata.labels}
    metadata = msgspec.structs.replace(pod.metadata, owner_references=(owner,), labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata)


def _labels(workload: Request) -> dict[str, str]:
    return labels_to_come((workload.group, workload.kind))


def _coming(workload: Request, pod: Pod, load: Callable[[], dict[str, Any]]) -> Request:
    """The request that will bring a pod of a workload; its plain data is put together only if a policy asks for it."""
    return msgspec.structs.replace(
        workload,
        operation="CREATE",
        group="",
        kind="Pod",
        name="",
        pod=pod,
        load=load,
        load_old=lambda: None,
    )


def _data(workload: Request, template: Template, ranges: Ranges) -> dict[str, Any]:
    """A pod of a template as admission would see it."""
    owner = {"kind": workload.kind, "name": workload.name, "controller": True}
    metadata = {**(template.data.get("metadata") or {}), "ownerReferences": [owner]}
    labels = {**_labels(workload), **(metadata.get("labels") or {})}
    metadata |= {"labels": labels} if labels else {}
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.data["spec"]}
    return limited(as_stored(data, workload.namespace), ranges)


def warned(judged: Sequence[Judged]) -> Decision:
    """One decision of many: findings at their place in the workload, never more than a warning, no patch."""
    findings: list[Finding] = []
    exempted: list[Exempted] = []
    for one in judged:
        findings += [_moved(found, one.template) for found in one.decision.findings]
        exempted += [Exempted(_moved(e.finding, one.template), e.exemption, e.expires) for e in one.decision.exempted]
    if not judged:
        return Decision()
    policies = dict.fromkeys(name for one in judged for name in one.decision.policies)
    return Decision(
        findings=tuple(findings),
        exempted=tuple(exempted),
        outcome=judged[0].decision.outcome,
        gpu_milli_before=sum(one.decision.gpu_milli_before * one.template.replicas for one in judged),
        gpu_milli_after=sum(_milli_after(one.decision) * one.template.replicas for one in judged),
        policies=tuple(policies),
        touches_gpus=any(one.decision.touches_gpus for one in judged),
    )


def _milli_after(decision: Decision) -> int:
    """Pods that are refused save nothing."""
    return decision.gpu_milli_before if decision.denials else decision.gpu_milli_after


def _moved(finding: Finding, template: Template) -> Finding:
    path, mode = template.at(finding.path), min(finding.mode, Mode.WARN)
    refuses = finding.mode is Mode.ENFORCE
    return msgspec.structs.replace(finding, path=path, mode=mode, message=_of_its_pods(finding), refuses_pods=refuses)


def _of_its_pods(finding: Finding) -> str:
    """The same in the future: the workload is let in, its pods are what this will happen to."""
    if finding.mode is Mode.ENFORCE:
        return f"its pods will be refused: {finding.message}"
    return f"its pods will be {finding.message}" if finding.code == "GPU-R101" else finding.message
