"""Checks of `doctor` for scheduling: the accounting resource, the extender, and the node agents.

Check of `doctor` for queues: pods hold the GPUs that Kueue charged for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, ReviewError, abbreviate_names
from webhook.installing.cluster_health import list_gpu_nodes
from webhook.installing.facts import CheckState, ClusterFacts, DiagnosticResult, slices_of_node, unread_part_result
from webhook.manifests.scheduler_config import SECOND_SCHEDULER_NAME
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, MIG_PREFIX, WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pods import parse_pod
from webhook.model.queues import POD_SET_LABEL, WORKLOAD_ANNOTATION
from webhook.policy.policy_set import Policy
from webhook.report.text import pluralize
from webhook.well_known import AGENT_NAMESPACE, Json

SILENT_AFTER = timedelta(minutes=6)
"""Three missed renewals of a Lease."""

LAYOUT_ADVICE = "rightslice layout --cluster live shows whether other MIG layouts would serve these pods"
IGNORE_ADVICE = (
    "configure the scheduler to ignore it (an extender's managedResources), "
    "or let the agents of all GPU nodes advertise it (--gpu-milli)"
)
AGENT_PODS_COMMAND = f"kubectl -n {AGENT_NAMESPACE} get pods -o wide"
AGENT_RESTART_COMMAND = f"update the agents: kubectl -n {AGENT_NAMESPACE} rollout restart daemonset/rightslice-agent"
FORMER_GPUNODE_FIELDS = {"driver", "cuda", "nvlinkRate", "alone", "ailments", "memory", "numa", "pci", "linksDown"}
EXTENDER_PODS_COMMAND = "kubectl -n {} get pods -o wide -l app.kubernetes.io/component=extender"


def check_accounting_resource(facts: ClusterFacts, policies: Sequence[Policy]) -> Iterator[DiagnosticResult]:
    """Check that no pod waits for the accounting resource if a policy adds it.

    Most scheduler configurations cannot be read, but pods that wait because of them can.
    """
    wanted = [policy.limits for policy in policies if policy.limits is not None and policy.limits.accounting]
    if not wanted:
        return
    waiting = pods_waiting_for_accounting(facts)
    nodes = list_gpu_nodes(facts)
    bare = [node for node in nodes if ACCOUNTING_RESOURCE not in node["status"]["allocatable"]]
    if waiting:
        yield DiagnosticResult.fail(
            f"{pluralize(len(waiting), 'pod waits', 'pods wait')} for {ACCOUNTING_RESOURCE}",
            IGNORE_ADVICE,
        )
    elif nodes and not bare:
        yield DiagnosticResult.ok(
            f"{pluralize(len(nodes), 'GPU node advertises', 'GPU nodes advertise')} {ACCOUNTING_RESOURCE}",
        )
    elif any(limits.scheduler_ignores_accounting for limits in wanted):
        yield DiagnosticResult.ok(f"a policy says that schedulers ignore {ACCOUNTING_RESOURCE}")
    elif is_ignored_by_scheduler(facts.scheduler or ""):
        yield DiagnosticResult.ok(
            f"{SECOND_SCHEDULER_NAME} ignores {ACCOUNTING_RESOURCE}",
            "other schedulers cannot be checked",
        )
    else:
        advice = f"it is not added, so that no pod waits for it: {IGNORE_ADVICE}; see rightslice accounting check"
        who = f"{len(bare)} of {pluralize(len(nodes), 'GPU node')} do not advertise" if nodes else "no node advertises"
        yield DiagnosticResult.warn(f"a policy has native accounting, but {who} its resource", advice)


def pods_waiting_for_accounting(facts: ClusterFacts) -> list[Json]:
    """Return the pods that wait for the accounting resource."""
    return [pod for pod in facts.waiting or () if f"Insufficient {ACCOUNTING_RESOURCE}" in _unschedulable_message(pod)]


def _unschedulable_message(pod: Json) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return " ".join(str(one.get("message") or "") for one in conditions if one["type"] == "PodScheduled")


def is_ignored_by_scheduler(configuration: str) -> bool:
    """Return True if a KubeSchedulerConfiguration ignores the accounting resource."""
    try:
        configurations = [found.data for found in read_documents(configuration, SECOND_SCHEDULER_NAME, aliases=True)]
    except DocumentError:
        return False
    extenders = [one for found in configurations if isinstance(found, dict) for one in found.get("extenders") or ()]
    managed = [each for one in extenders for each in one.get("managedResources") or ()]
    return any(each.get("name") == ACCOUNTING_RESOURCE and each.get("ignoredByScheduler") for each in managed)


def check_extender(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check the replicas of the extender and their status, if it is installed."""
    if facts.extender is None:
        if facts.refused["extender"].status != HTTPStatus.NOT_FOUND:
            yield unread_part_result(facts, "extender", "", "")
        return
    ready = (facts.extender.get("status") or {}).get("readyReplicas", 0)
    wanted = facts.extender["spec"].get("replicas", 1)
    good = ready >= wanted
    advice = "" if good else f"schedulers continue without it: {EXTENDER_PODS_COMMAND.format(facts.namespace)}"
    yield DiagnosticResult(
        CheckState.OK if good else CheckState.FAIL, f"{ready} of {wanted} replicas of the extender ready", advice
    )
    if facts.extender_ready is None:
        advice = "its Service cannot be reached through the API server"
        yield DiagnosticResult.skip("the extender could not be queried", advice)
        return
    for line in facts.extender_ready.splitlines():
        if line.startswith("[-]"):
            yield DiagnosticResult.warn(f"extender: {line[3:]}", "see its log")


def check_layouts(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that waiting pods get slices that nodes have, and that pods use slices while others wait for whole GPUs."""
    waiting = [pod for pod in facts.waiting or () if not (pod.get("spec") or {}).get("nodeName")]
    partitioned = {node["metadata"]["name"]: slices_of_node(node) for node in facts.nodes or ()}
    advertised = {name for slices in partitioned.values() for name in slices}
    wanted = Counter(name for pod in waiting for name in requested_gpus(pod))
    missing = sorted(name for name in wanted if name.startswith(MIG_PREFIX) and name not in advertised)
    if missing:
        pods = pluralize(sum(wanted[name] for name in missing), "pod waits", "pods wait")
        summary = f"{pods} for {abbreviate_names(missing)}, which no node advertises"
        yield DiagnosticResult.warn(summary, LAYOUT_ADVICE)
    if facts.partitioned_pods is None or not advertised:
        return
    used = {pod["spec"]["nodeName"] for pod in facts.partitioned_pods if requested_gpus(pod) & advertised}
    idle = sorted(name for name, slices in partitioned.items() if slices and name not in used)
    nodes = pluralize(len(used) + len(idle), "node")
    if idle and wanted[WHOLE_GPU]:
        pods = pluralize(wanted[WHOLE_GPU], "pod waits", "pods wait")
        summary = f"no pod uses the slices of {len(idle)} of {nodes}, and {pods} for whole GPUs"
        yield DiagnosticResult.warn(f"{summary}: {abbreviate_names(idle)}", LAYOUT_ADVICE)
    else:
        yield DiagnosticResult.ok(f"pods use the slices of {len(used)} of {nodes} that have some")


def requested_gpus(pod: Json) -> set[str]:
    """Return the names of the GPU resources that a pod requests, unless it has ended."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return set()
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    limits = ((each.get("resources") or {}).get("limits") or {} for each in containers)
    return {name for each in limits for name in each if parse_gpu_resource(name)}


def check_agents(facts: ClusterFacts, now: datetime) -> Iterator[DiagnosticResult]:
    """Check that each GPU node has a current GPUNode without errors."""
    if facts.agents is None and facts.refused["agents"].status != HTTPStatus.NOT_FOUND:
        yield unread_part_result(facts, "agents", "", "")
        return
    if not facts.agents:
        advice = "placement falls back to node labels; to install the agent: kubectl apply -k manifests/agent"
        yield DiagnosticResult.skip("no agent reports the GPUs of its node", advice)
        return
    statuses = {one["metadata"]["name"]: one.get("status") or {} for one in facts.agents}
    missing = [node["metadata"]["name"] for node in list_gpu_nodes(facts) if node["metadata"]["name"] not in statuses]
    if missing:
        yield DiagnosticResult.warn(
            f"{pluralize(len(missing), 'GPU node')} without GPUNode: {abbreviate_names(missing)}",
            AGENT_PODS_COMMAND,
        )
    yield from _lease_results(facts.agents, facts.leases, now)
    former = [name for name, status in statuses.items() if is_former_report(status)]
    if former:
        summary = f"{pluralize(len(former), 'GPUNode')} in the format before 0.1: {abbreviate_names(former)}"
        yield DiagnosticResult.warn(f"{summary}; NVLink errors and memory are not read", AGENT_RESTART_COMMAND)
    for name, status in statuses.items():
        if status.get("message"):
            yield DiagnosticResult.warn(f"GPUNode {name}: {status['message']}", "see the log of its agent")


def is_former_report(status: Json) -> bool:
    """Return whether the status of a GPUNode has field names of agents before 0.1."""
    fields = {*status, *(name for gpu in status.get("gpus") or () for name in gpu)}
    return not FORMER_GPUNODE_FIELDS.isdisjoint(fields)


def _lease_results(agents: list[Json], leases: list[Json] | None, now: datetime) -> Iterator[DiagnosticResult]:
    every = pluralize(len(agents), "GPUNode")
    if leases is None:
        yield DiagnosticResult.skip(f"{every}; whether they are current is unknown")
        return
    renewed = {one["metadata"]["name"]: (one.get("spec") or {}).get("renewTime") for one in leases}
    created = {one["metadata"]["name"]: one["metadata"].get("creationTimestamp") for one in agents}
    late = [name for name in sorted(created) if not _is_recent(renewed.get(name), now)]
    young = [name for name in late if _is_recent(created[name], now)]
    silent = [name for name in late if name not in young]
    minutes = SILENT_AFTER.seconds // 60
    if silent:
        advice = f"their agents have not reported for {minutes} minutes or more: {AGENT_PODS_COMMAND}"
        yield DiagnosticResult.warn(f"{len(silent)} of {every} outdated: {abbreviate_names(silent)}", advice)
    if young:
        summary = f"{len(young)} of {every} created less than {minutes} minutes ago, not renewed yet"
        yield DiagnosticResult.skip(f"{summary}: {abbreviate_names(young)}", "check again later")
    if not late:
        yield DiagnosticResult.ok(f"{every}, all current")


def _is_recent(moment: str | None, now: datetime) -> bool:
    try:
        return moment is not None and now - datetime.fromisoformat(moment) < SILENT_AFTER
    except (ValueError, TypeError):
        return False


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
