"""The values that the console's pages show: those of `audit`, `rightsize` and `capacity`, computed once a reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.prices import NodePrices
from webhook.report.audit import AdmissionSavings, admission_savings
from webhook.report.capacity import NodeCapacity
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.utilization import ClusterUtilization, compute_utilization
from webhook.report.workloads import WorkloadReport, pod_touches_gpus, workload_reports

WorkloadKey = tuple[str, str]
"""Namespace and name of a workload, for example ("research", "Deployment/serve")."""


class ConsolePod(NamedTuple):
    """A pod of a workload: its node ("" if it has none), its GPUs in thousandths, and its outcome."""

    name: str
    node: str
    gpu_milli: int
    verdict: CheckVerdict


class ConsoleState(msgspec.Struct, frozen=True):
    """One reading of a cluster.

    Attributes:
        cluster: Its address, or the name of the snapshot.
        moment: When it was read, for people.
        workloads: Those that have to do with GPUs, most savings first.
        by_workload: The same by key.
        pods: The pods of each of these workloads.
        workload_of_pod: The workload of each of these pods, by namespace and name.
        policies_of: Names of the policies that apply to pods with GPUs of each of these workloads.
        nodes: Every node with GPUs.
        utilization: None if no nodes are known.
        usage_problem: Why no usage was read; "" if it was.
        admission: What right-sizing saved when pods were created.
        largest_part_mib: Memory of the largest part of a card that other layouts could give, in MiB.
    """

    cluster: str
    moment: str
    workloads: tuple[WorkloadReport, ...]
    by_workload: Mapping[WorkloadKey, WorkloadReport]
    pods: Mapping[WorkloadKey, tuple[ConsolePod, ...]]
    workload_of_pod: Mapping[tuple[str, str], str]
    policies_of: Mapping[WorkloadKey, frozenset[str]]
    nodes: tuple[NodeCapacity, ...]
    utilization: ClusterUtilization | None
    admission: AdmissionSavings
    prices: NodePrices | None
    usage_problem: str
    largest_part_mib: int


def build_console_state(
    results: Sequence[CheckResult],
    nodes: Sequence[NodeCapacity],
    prices: NodePrices | None,
    *,
    usage_problem: str,
    largest_part_mib: int,
    cluster: str,
    moment: str,
) -> ConsoleState:
    """Sum up an audit for the pages.

    Args:
        results: The audited pods.
        nodes: Every node with GPUs.
    """
    every = workload_reports(results, prices, nodes or None)
    workloads = tuple(row for row in every if row.touches_gpus)
    by_workload = {(row.namespace, row.name): row for row in workloads}
    pods = _pods_by_workload(results, by_workload)
    return ConsoleState(
        cluster=cluster,
        moment=moment,
        workloads=workloads,
        by_workload=by_workload,
        pods=pods,
        workload_of_pod={(key[0], pod.name): key[1] for key, members in pods.items() for pod in members},
        policies_of=_policies_by_workload(results, by_workload),
        nodes=tuple(nodes),
        utilization=compute_utilization(nodes, every, prices) if nodes else None,
        admission=admission_savings(results),
        prices=prices,
        usage_problem=usage_problem,
        largest_part_mib=largest_part_mib,
    )


def _pods_by_workload(
    results: Iterable[CheckResult], workloads: Mapping[WorkloadKey, WorkloadReport]
) -> dict[WorkloadKey, tuple[ConsolePod, ...]]:
    found: dict[WorkloadKey, list[ConsolePod]] = {key: [] for key in workloads}
    for each in results:
        key = each.namespace, each.workload
        if key in found and each.verdict is not CheckVerdict.SKIPPED:
            found[key].append(ConsolePod(each.name, each.node or "", each.decision.gpu_milli_before, each.verdict))
    return {key: tuple(pods) for key, pods in found.items()}


def _policies_by_workload(
    results: Iterable[CheckResult], workloads: Mapping[WorkloadKey, WorkloadReport]
) -> dict[WorkloadKey, frozenset[str]]:
    found: dict[WorkloadKey, frozenset[str]] = {key: frozenset() for key in workloads}
    for each in results:
        key = each.namespace, each.workload
        if key in found and pod_touches_gpus(each) and not found[key].issuperset(each.decision.policies):
            found[key] |= frozenset(each.decision.policies)
    return found
