"""The result of an audit by workload: allocated GPUs, the outcome of re-evaluation, savings and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from webhook.model.decisions import OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.check import kubectl_workload_name, resource_meaning, result_message
from webhook.report.costs import NO_COST, GpuCost, gpu_cost
from webhook.report.results import CheckResult, CheckVerdict, ContainerUsage, LocatedFinding, UnevaluatedReason


class PodAllocation(msgspec.Struct, frozen=True, gc=False):
    """A pod and its allocated GPUs.

    Attributes:
        milli: Allocated thousandths of a GPU.
        node_exists: Whether its node exists and has GPUs.
        claims_known: Whether it is known what claims have of its node.
    """

    pod: CheckResult
    milli: int
    node_exists: bool
    claims_known: bool = True

    @property
    def overcommitted_milli(self) -> int:
        """Thousandths of a GPU that it requests beyond what its node has."""
        is_known = self.node_exists and self.claims_known
        return self.pod.decision.gpu_milli_before - self.milli if is_known else 0

    @property
    def over_requested_milli(self) -> int:
        """Allocated thousandths that re-evaluation would not give it again, with audit-mode policies enforced."""
        decision = self.pod.decision
        return min(decision.gpu_milli_before - decision.gpu_milli_after + self.pod.gpu_milli_audit_saved, self.milli)


class WorkloadUsage(ContainerUsage, frozen=True):
    """Usage of containers that several pods of a workload have in common.

    Attributes:
        pods: Pods that have a container of this name with this request.
        pending: Those of them without a node.
    """

    pods: int = 1
    pending: int = 0


class WorkloadReport(msgspec.Struct, frozen=True):
    """All pods of one workload.

    Attributes:
        name: For example "Deployment/serve".
        pending: Pods that request GPUs and have no node.
        pods_on_missing_nodes: Pods with GPUs on a node that does not exist or has none.
        overcommitted_milli: Thousandths of a GPU requested beyond what the pods' nodes have.
        gpu_milli_after: The same if the pods were created again now.
        gpu_milli_audit_saved: What right-sizing in audit or warn mode would save in addition.
        allocated: GPUs allocated to pods on nodes.
        idle: The part of it that belongs to idle pods.
        idle_unknown: The part of it that belongs to pods without usage data: some of it may be idle too.
        over_requested: The part of it that re-evaluation would not give to the others again.
        savings: The part of it that right-sizing would free, also of idle pods. Its money is below zero if the
            recommended GPU costs more.
        denied, warned: Pods that would be denied, or get warnings.
        unevaluated: Pods that were not evaluated at admission: reason, what they would have become, number.
        usages: Each container and amount of GPUs once, with its usage.
        recommended: The resource that most of the pods with GPUs would request instead; "" if they keep theirs.
        recommended_meaning: Its meaning if the name does not contain it: a slice may be called nvidia.com/gpu.
        outcome: What would become of the GPUs of most of these pods, or why they stay.
        keep_reason: The stable word for why these pods keep their requests; "" if they do not.
        needed_mib: GPU memory that one of these pods needs at most; 0 if unknown.
        findings: Each finding once, with the number of pods that have it.
        pods_by_code: Pods with findings of a code and mode, each pod once, and the first of these findings.
    """

    namespace: str
    name: str
    pods: int
    pending: int
    pods_on_missing_nodes: int
    overcommitted_milli: int
    gpu_milli_before: int
    gpu_milli_after: int
    gpu_milli_audit_saved: int
    allocated: GpuCost
    idle: GpuCost
    idle_unknown: GpuCost
    over_requested: GpuCost
    savings: GpuCost
    denied: int
    warned: int
    unevaluated: tuple[tuple[UnevaluatedReason, str, int], ...]
    usages: tuple[WorkloadUsage, ...]
    recommended: str
    recommended_meaning: str
    outcome: str
    keep_reason: str
    needed_mib: int
    findings: tuple[tuple[LocatedFinding, int], ...]
    pods_by_code: tuple[tuple[Finding, int], ...]
    exemptions: tuple[str, ...]

    @property
    def gpu_milli_saved(self) -> int:
        """Thousandths of a GPU that would be freed."""
        return self.gpu_milli_before - self.gpu_milli_after

    @property
    def has_gpus(self) -> bool:
        """True if one of its pods requests GPUs, by name or by claim."""
        return bool(self.usages or self.gpu_milli_before)

    @property
    def waste(self) -> GpuCost:
        """Idle and over-requested, as far as known: at least this. Fragmented GPUs belong to no workload."""
        return self.idle + self.over_requested

    @property
    def object_name(self) -> str:
        """Its name as kubectl prints it: deployment.apps/serve."""
        return kubectl_workload_name(self.name)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings, each once."""
        return tuple(dict.fromkeys(located.finding.code for located, _ in self.findings))

    @property
    def touches_gpus(self) -> bool:
        """True if the workload requests GPUs, or has usage, findings or exemptions."""
        return bool(self.has_gpus or self.findings or self.exemptions)


def workload_reports(
    results: Iterable[CheckResult], prices: NodePrices | None = None, nodes: Sequence[NodeCapacity] | None = None
) -> list[WorkloadReport]:
    """Sum up pods by workload, most savings first (audit-mode savings included), then by name.

    Args:
        nodes: Every node with GPUs; pods are allocated no more than their node has. None: what they request.
    """
    groups: dict[tuple[str, str], list[PodAllocation]] = {}
    for each in pod_allocations(results, nodes):
        result = each.pod
        if result.verdict is not CheckVerdict.SKIPPED and result.pod_details is not None:
            groups.setdefault((result.namespace, result.pod_details.workload), []).append(each)
    reports: list[WorkloadReport] = []
    while groups:  # a large cluster has as many workloads as pods: what is summed up makes room for the sums
        (namespace, name), group = groups.popitem()
        reports.append(_workload_report(namespace, name, group, prices))
    reports.sort(key=lambda row: (row.namespace, row.name))
    return sorted(reports, key=lambda row: (-row.gpu_milli_saved - row.gpu_milli_audit_saved, -row.gpu_milli_saved))


def _workload_report(
    namespace: str, name: str, group: list[PodAllocation], prices: NodePrices | None
) -> WorkloadReport:
    pods = [each.pod for each in group]
    gpu_pods = [pod for pod in pods if _pod_usages(pod)]
    (recommended, meaning, outcome), alike = _most_common_outcome(gpu_pods or pods)
    idle = [each for each in group if is_idle_pod(each.pod)]
    busy = [each for each in group if not is_idle_pod(each.pod)]
    return WorkloadReport(
        namespace=namespace,
        name=name,
        pods=len(pods),
        pending=sum(not pod.node and _has_gpus(pod) for pod in pods),
        pods_on_missing_nodes=sum(
            bool(each.pod.node and each.pod.decision.gpu_milli_before and not each.node_exists) for each in group
        ),
        overcommitted_milli=sum(each.overcommitted_milli for each in group),
        gpu_milli_before=sum(pod.decision.gpu_milli_before for pod in pods),
        gpu_milli_after=sum(pod.decision.gpu_milli_after for pod in pods),
        gpu_milli_audit_saved=sum(pod.gpu_milli_audit_saved for pod in pods),
        allocated=_sum_costs_of_pods(((each, each.milli) for each in group), prices),
        idle=_sum_costs_of_pods(((each, each.milli) for each in idle), prices),
        idle_unknown=_sum_costs_of_pods(((each, each.milli) for each in busy if not _is_measured(each.pod)), prices),
        over_requested=_sum_costs_of_pods(((each, each.over_requested_milli) for each in busy), prices),
        savings=sum((_pod_savings(each, prices) for each in group), NO_COST),
        denied=sum(pod.verdict is CheckVerdict.DENIED for pod in pods),
        warned=sum(pod.verdict is CheckVerdict.WARNED for pod in pods),
        unevaluated=_count_unevaluated(pods),
        usages=_workload_usages(gpu_pods, alike),
        recommended=recommended,
        recommended_meaning=meaning,
        outcome=outcome,
        keep_reason=alike[0].decision.keep_reason,
        needed_mib=max(pod.decision.needed_mib for pod in alike),
        findings=_count_findings(pods),
        pods_by_code=_count_pods_by_code(pods),
        exemptions=tuple(sorted({used.exemption for pod in pods for used in pod.decision.exempted})),
    )


def _count_unevaluated(pods: Iterable[CheckResult]) -> tuple[tuple[UnevaluatedReason, str, int], ...]:
    details = [pod.pod_details for pod in pods if pod.pod_details is not None]
    counts = Counter((each.unevaluated_reason, each.would_become) for each in details if each.unevaluated_reason)
    return tuple((reason, change, number) for (reason, change), number in sorted(counts.items()) if reason)


def _most_common_outcome(pods: Iterable[CheckResult]) -> tuple[tuple[str, str, str], list[CheckResult]]:
    """Return resource, meaning and sentence of the outcome that most pods have, and these pods."""
    groups: dict[tuple[str, str, str], list[CheckResult]] = {}
    for pod in pods:
        choice = pod.decision.outcome
        resource = (choice.resource, resource_meaning(choice)) if isinstance(choice, OfferChoice) else ("", "")
        groups.setdefault((*resource, result_message(pod)), []).append(pod)
    return max(groups.items(), key=lambda each: (len(each[1]), each[0]))


def _has_gpus(result: CheckResult) -> bool:
    return bool(_pod_usages(result) or result.decision.gpu_milli_before)


def _pod_usages(result: CheckResult) -> tuple[ContainerUsage, ...]:
    return result.pod_details.usages if result.pod_details is not None else ()


def _usage_key(usage: ContainerUsage) -> tuple[str, str, int]:
    return usage.container, usage.resource, usage.count


def _workload_usages(pods: Sequence[CheckResult], alike: Iterable[CheckResult]) -> tuple[WorkloadUsage, ...]:
    """Return the usages in the order of the pods; a launcher has other containers than its workers.

    Args:
        alike: Those with the outcome of the workload, whose risk is reported; others may differ, as those with `keep`.
    """
    running = [usage for pod in pods if pod.node for usage in _pod_usages(pod)]
    idle = set(map(_usage_key, running)) - {_usage_key(usage) for usage in running if not usage.idle}
    reported = {_usage_key(usage): usage for pod in alike for usage in _pod_usages(pod)}
    first: dict[tuple[str, str, int], ContainerUsage] = {}
    counts: Counter[tuple[str, str, int]] = Counter()
    pending: Counter[tuple[str, str, int]] = Counter()
    for pod in pods:
        for usage in _pod_usages(pod):
            key = _usage_key(usage)
            first.setdefault(key, reported.get(key, usage))
            counts[key] += 1
            pending[key] += not pod.node
    found = ((key, msgspec.structs.asdict(usage) | {"idle": key in idle}) for key, usage in first.items())
    return tuple(WorkloadUsage(**fields, pods=counts[key], pending=pending[key]) for key, fields in found)


def pod_touches_gpus(result: CheckResult) -> bool:
    """Return whether a pod requests GPUs, or has usage, findings or exemptions."""
    return bool(_has_gpus(result) or result.findings or result.decision.exempted)


def is_idle_pod(result: CheckResult) -> bool:
    """Return whether no engine was active in any GPU container of the pod's workload; False if that is unknown."""
    usages = _pod_usages(result)
    return bool(usages) and all(usage.idle for usage in usages)


def _is_measured(result: CheckResult) -> bool:
    usages = _pod_usages(result)
    return bool(usages) and all(usage.samples for usage in usages)


def _pod_savings(allocation: PodAllocation, prices: NodePrices | None) -> GpuCost:
    """Return the GPUs of a pod that right-sizing would free, and what the pod would cost less.

    The rest has the price of the most expensive product that the new request may get; no price if one has none.
    """
    freed, choice, node = allocation.over_requested_milli, allocation.pod.decision.outcome, allocation.pod.node or ""
    here = gpu_cost(node, freed, prices)
    if not freed or prices is None or here.unpriced_milli or not isinstance(choice, OfferChoice):
        return here
    price = prices.max_price(offer.product for offer in choice.offers)
    if price is None:
        return GpuCost(freed, 0, freed)
    if price == prices.by_node[node]:
        return here
    rest = -(-(allocation.milli - freed) * price // 1000)
    return GpuCost(freed, (prices.price_of(node, allocation.milli) or 0) - rest)


def _sum_costs_of_pods(amounts: Iterable[tuple[PodAllocation, int]], prices: NodePrices | None) -> GpuCost:
    costs = (gpu_cost(allocation.pod.node or "", milli, prices) for allocation, milli in amounts if milli)
    return sum(costs, NO_COST)


def _count_findings(pods: Iterable[CheckResult]) -> tuple[tuple[LocatedFinding, int], ...]:
    """Return each finding once with its number of pods, the strictest first; pods of a workload share findings."""
    first: dict[tuple[str, str], LocatedFinding] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        found = {(located.finding.code, located.finding.message): located for located in reversed(pod.findings)}
        counts.update(found.keys())
        for key in reversed(found):
            first.setdefault(key, found[key])
    ranked = sorted(first, key=lambda key: (-first[key].finding.mode, key))
    return tuple((first[key], counts[key]) for key in ranked)


def _count_pods_by_code(pods: Iterable[CheckResult]) -> tuple[tuple[Finding, int], ...]:
    first: dict[tuple[PolicyMode, str], Finding] = {}
    counts: Counter[tuple[PolicyMode, str]] = Counter()
    for pod in pods:
        found = {(located.finding.mode, located.finding.code): located.finding for located in reversed(pod.findings)}
        counts.update(found.keys())
        for key, finding in found.items():
            first.setdefault(key, finding)
    return tuple((first[key], counts[key]) for key in first)


def pod_allocations(results: Iterable[CheckResult], nodes: Sequence[NodeCapacity] | None) -> Iterator[PodAllocation]:
    """Yield the allocated GPUs of each pod, in order.

    A pending pod has none, and neither has one whose node does not exist. If the pods of a node request more than it
    has, later pods get what earlier ones leave.

    Args:
        nodes: Every node with GPUs; None if unknown: each pod then has what it requests.
    """
    left = {node.name: node.allocated_milli for node in nodes or () if not node.missing_gpus}
    unknown = {node.name for node in nodes or () if node.unknown_milli}
    for pod in results:
        node = pod.node or ""
        requested = pod.decision.gpu_milli_before if node else 0
        milli = min(requested, left.get(node, 0)) if nodes is not None else requested
        if node in left:
            left[node] -= milli
        yield PodAllocation(pod, milli, bool(node) and (nodes is None or node in left), node not in unknown)
