"""Check of `doctor` for queues: pods hold the GPUs that Kueue charged for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from webhook.errors import ReviewError, abbreviate_names
from webhook.installing.facts import ClusterFacts, DiagnosticResult, unread_part_result
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pods import parse_pod
from webhook.model.queues import POD_SET_LABEL, WORKLOAD_ANNOTATION
from webhook.report.text import pluralize
from webhook.well_known import Json

MAX_NAMES = 3

PodSetName = tuple[str, str, str]
"""Namespace, Workload and pod set."""


def check_charges(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that pods hold the GPUs for which Kueue charged their Workload, if it is installed."""
    if facts.workloads is None:
        if facts.refused["workloads"].status != HTTPStatus.NOT_FOUND:
            yield unread_part_result(facts, "workloads", "", "")
        return
    charged = dict(_charged_pod_sets(facts.workloads))
    drifted = [name for pod in facts.queued_pods or () if (name := _drift_of(pod, charged))]
    if drifted:
        yield DiagnosticResult.warn(
            f"{pluralize(len(drifted), 'pod holds', 'pods hold')} other GPUs than Kueue charged",
            f"{abbreviate_names(drifted, MAX_NAMES)}: a webhook changed them after the charge; right-size templates "
            "instead (rightSizing.templates: enforce)",
        )
    elif charged:
        yield DiagnosticResult.ok("pods under Kueue hold the GPUs that it charged")


def _charged_pod_sets(workloads: list[Json]) -> Iterator[tuple[PodSetName, Mapping[str, int]]]:
    for workload in workloads:
        metadata = workload["metadata"]
        for pod_set in workload.get("spec", {}).get("podSets") or ():
            name = metadata.get("namespace", ""), metadata["name"], pod_set.get("name", "main")
            yield name, _gpu_units({"metadata": {}, "spec": pod_set["template"].get("spec") or {}})


def _drift_of(pod: Json, charged: Mapping[PodSetName, Mapping[str, int]]) -> str:
    """Return a pod with its GPUs and the charged ones, for people; "" if they are equal or unknown."""
    metadata = pod["metadata"]
    workload = (metadata.get("annotations") or {}).get(WORKLOAD_ANNOTATION, "")
    pod_set = (metadata.get("labels") or {}).get(POD_SET_LABEL, "")
    before, after = charged.get((metadata["namespace"], workload, pod_set)), _gpu_units(pod)
    if before is None or before == after:
        return ""
    return f"{metadata['namespace']}/{metadata['name']} ({_describe_units(after)}, charged {_describe_units(before)})"


def _describe_units(units: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(units.items())) or "none"


def _gpu_units(data: Any) -> dict[str, int]:
    """Return the units of each GPU resource that a pod requests."""
    try:
        pod = parse_pod(data)
    except ReviewError:
        return {}
    return {name: count for name, count in count_gpu_units(effective_requests(pod).items()).items() if count}
