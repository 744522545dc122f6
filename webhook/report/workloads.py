"""The result of an audit by workload: what its pods hold, what they would become, and what that saves and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from webhook.model.decisions import OfferChoice
from webhook.model.prices import NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.check import resource_meaning, result_reason
from webhook.report.results import CheckResult, CheckVerdict, ContainerUsage, LocatedFinding, UnevaluatedReason


class PodAllocation(msgspec.Struct, frozen=True, gc=False):
    """A pod, and the thousandths of a GPU that it holds.

    Attributes:
        there: Is its node there, and gives out GPUs?
    """

    pod: CheckResult
    milli: int
    node_exists: bool

    @property
    def on_missing_node(self) -> bool:
        """Does it ask for GPUs on a node that is not there, or gives out none?"""
        return bool(self.pod.node and self.pod.decision.gpu_milli_before and not self.node_exists)

    @property
    def overcommitted_milli(self) -> int:
        """Thousandths of a GPU that it asks of its node beyond what this gives out."""
        return self.pod.decision.gpu_milli_before - self.milli if self.node_exists else 0


class GpuCost(msgspec.Struct, frozen=True):
    """An amount of GPUs on nodes, and what it costs.

    Attributes:
        milli: Thousandths of a GPU.
        micro: Millionths of the currency an hour, of the part that has a price.
        unpriced_milli: Thousandths of a GPU on nodes that have no price.
    """

    milli: int = 0
    micro: int = 0
    unpriced_milli: int = 0

    def __add__(self, other: GpuCost) -> GpuCost:
        return GpuCost(self.milli + other.milli, self.micro + other.micro, self.unpriced_milli + other.unpriced_milli)


NO_COST = GpuCost()


class WorkloadUsage(ContainerUsage, frozen=True):
    """A use that pods of one workload have in common.

    Attributes:
        pods: How many have a container of this name that asks for this.
        waiting: Those of them that have no node yet.
    """

    pods: int = 1
    pending: int = 0


class WorkloadReport(msgspec.Struct, frozen=True):
    """All pods of one workload.

    Attributes:
        name: For example "Deployment/serve".
        pods: How many there are.
        waiting: Those of them that ask for GPUs and have no node yet.
        astray: Those of them with GPUs on a node that is not there, or gives out none.
        beyond_milli: Thousandths of a GPU that they ask of nodes that are there, beyond what these give out.
        gpu_milli_before: Thousandths of a GPU that they hold, or wait for.
        gpu_milli_after: The same if they were created again now.
        gpu_milli_on_trial: What right-sizings on trial would free beside.
        held: What pods on nodes hold.
        idle: The part of it that belongs to pods which do nothing with it.
        over_asked: The part of it that the others would not get again, trials included.
        freed: The part of it that right-sizing would free, of idle pods too, trials included. Its money is what that
            saves: below zero where what is advised costs more.
        denied, warned: Pods that would be.
        missed: Pods that no hook saw, by the reason and what they would have become.
        uses: What containers ask for and were seen to use: each container and amount once, whatever pods it is in.
        fit: The resource that most of the pods with GPUs would ask for instead, trials included; "" where they keep
            theirs.
        meant: What is meant by it where its name does not tell: a slice can be called nvidia.com/gpu.
        outcome: What would become of the GPUs, or why they stay, of most of these pods.
        findings: Each finding once, with the number of pods that have it.
        exempted: Exemptions in use.
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
    over_requested: GpuCost
    savings: GpuCost
    denied: int
    warned: int
    unevaluated: tuple[tuple[UnevaluatedReason, str, int], ...]
    usages: tuple[WorkloadUsage, ...]
    recommended: str
    recommended_meaning: str
    outcome: str
    findings: tuple[tuple[LocatedFinding, int], ...]
    exemptions: tuple[str, ...]

    @property
    def gpu_milli_saved(self) -> int:
        """Thousandths of a GPU that would be free."""
        return self.gpu_milli_before - self.gpu_milli_after

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings, each once."""
        return tuple(dict.fromkeys(located.finding.code for located, _ in self.findings))

    @property
    def touches_gpus(self) -> bool:
        """Is there anything about GPUs to say of it?"""
        return bool(self.usages or self.findings or self.exemptions or self.gpu_milli_before)


def workload_reports(
    results: Iterable[CheckResult], prices: NodePrices | None = None, stocks: Sequence[NodeCapacity] | None = None
) -> list[WorkloadReport]:
    """Add up pods by workload: the one that would save most first, trials included, then by name.

    Args:
        stocks: Every node with GPUs, where pods hold no more than it gives out; None: they hold what they ask for.
    """
    groups: dict[tuple[str, str], list[PodAllocation]] = {}
    for each in pod_allocations(results, stocks):
        result = each.pod
        if result.verdict is not CheckVerdict.SKIPPED and result.pod_details is not None:
            groups.setdefault((result.namespace, result.pod_details.workload), []).append(each)
    rows = [_workload_report(namespace, name, group, prices) for (namespace, name), group in groups.items()]
    return sorted(
        rows,
        key=lambda row: (
            -row.gpu_milli_saved - row.gpu_milli_audit_saved,
            -row.gpu_milli_saved,
            row.namespace,
            row.name,
        ),
    )


def _workload_report(
    namespace: str, name: str, group: list[PodAllocation], prices: NodePrices | None
) -> WorkloadReport:
    members = [each.pod for each in group]
    standings = [each.pod_details for each in members if each.pod_details is not None]
    missed = Counter(
        (one.unevaluated_reason, one.would_become) for one in standings if one.unevaluated_reason is not None
    )
    asking = [each for each in members if _pod_usages(each)]
    (fit, meant, outcome), alike = _most_common_outcome(asking or members)
    return WorkloadReport(
        namespace=namespace,
        name=name,
        pods=len(members),
        pending=sum(not each.node for each in asking),
        pods_on_missing_nodes=sum(each.on_missing_node for each in group),
        overcommitted_milli=sum(each.overcommitted_milli for each in group),
        gpu_milli_before=sum(each.decision.gpu_milli_before for each in members),
        gpu_milli_after=sum(each.decision.gpu_milli_after for each in members),
        gpu_milli_audit_saved=sum(each.gpu_milli_audit_saved for each in members),
        allocated=_sum_allocations(((each, each.milli) for each in group), prices),
        idle=_sum_allocations(((each, each.milli) for each in group if is_idle_pod(each.pod)), prices),
        over_requested=_sum_allocations(
            ((each, _over_requested_milli(each)) for each in group if not is_idle_pod(each.pod)), prices
        ),
        savings=sum((_pod_savings(each, prices) for each in group), NO_COST),
        denied=sum(each.verdict is CheckVerdict.DENIED for each in members),
        warned=sum(each.verdict is CheckVerdict.WARNED for each in members),
        unevaluated=tuple((reason, becomes, pods) for (reason, becomes), pods in sorted(missed.items())),
        usages=_workload_usages(asking, alike),
        recommended=fit,
        recommended_meaning=meant,
        outcome=outcome,
        findings=_count_findings(members),
        exemptions=tuple(sorted({taken.exemption for each in members for taken in each.decision.exempted})),
    )


def _most_common_outcome(pods: Iterable[CheckResult]) -> tuple[tuple[str, str, str], list[CheckResult]]:
    """What would become of most pods: the fit, what is meant by it, and in words; and which pods these are."""
    alike: dict[tuple[str, str, str], list[CheckResult]] = {}
    for each in pods:
        alike.setdefault((*_fit_resource(each), result_reason(each)), []).append(each)
    return max(alike.items(), key=lambda each: (len(each[1]), each[0]))


def _pod_usages(result: CheckResult) -> tuple[ContainerUsage, ...]:
    return result.pod_details.usages if result.pod_details is not None else ()


def _workload_usages(asking: Sequence[CheckResult], alike: Iterable[CheckResult]) -> tuple[WorkloadUsage, ...]:
    """What containers ask for, in the order of the pods; a launcher has other containers than its workers.

    Args:
        alike: Those that get what the workload is said to get, with its risk; others may not, as those with `keep`.
    """
    running = [
        (use, (use.container, use.resource, use.count)) for each in asking if each.node for use in _pod_usages(each)
    ]
    idle = {key for _, key in running} - {key for use, key in running if not use.idle}
    said = {(use.container, use.resource, use.count): use for each in alike for use in _pod_usages(each)}
    first: dict[tuple[str, str, int], ContainerUsage] = {}
    pods: Counter[tuple[str, str, int]] = Counter()
    waiting: Counter[tuple[str, str, int]] = Counter()
    for each in asking:
        for use in _pod_usages(each):
            key = (use.container, use.resource, use.count)
            first.setdefault(key, said.get(key, use))
            pods[key] += 1
            waiting[key] += not each.node
    found = ((key, msgspec.structs.asdict(use) | {"idle": key in idle}) for key, use in first.items())
    return tuple(WorkloadUsage(**fields, pods=pods[key], pending=waiting[key]) for key, fields in found)


def _fit_resource(result: CheckResult) -> tuple[str, str]:
    fit = result.decision.outcome
    return (fit.resource, resource_meaning(fit)) if isinstance(fit, OfferChoice) else ("", "")


def is_idle_pod(result: CheckResult) -> bool:
    """Was no engine active for any GPU container of the pod's workload? False where one was not seen, nor the pod."""
    uses = _pod_usages(result)
    return bool(uses) and all(use.idle for use in uses)


def _over_requested_milli(holding: PodAllocation) -> int:
    decision = holding.pod.decision
    less = decision.gpu_milli_before - decision.gpu_milli_after + holding.pod.gpu_milli_audit_saved
    return min(less, holding.milli)


def _pod_savings(holding: PodAllocation, prices: NodePrices | None) -> GpuCost:
    """What right-sizing would free of a pod, at what it costs where it is less what the rest costs where it would be.

    That is the dearest of the products that its new request may land on; it has no price where one of these has none.
    """
    less, fit, node = _over_requested_milli(holding), holding.pod.decision.outcome, holding.pod.node or ""
    here = gpu_cost(node, less, prices)
    if not less or prices is None or here.unpriced_milli or not isinstance(fit, OfferChoice):
        return here
    there = prices.max_price(offer.product for offer in fit.offers)
    if there is None:
        return GpuCost(less, 0, less)
    if there == prices.by_node[node]:
        return here
    return GpuCost(
        less, (prices.price_of(node, holding.milli) or 0) - _ceil_divide((holding.milli - less) * there, 1000)
    )


def _ceil_divide(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _sum_allocations(amounts: Iterable[tuple[PodAllocation, int]], prices: NodePrices | None) -> GpuCost:
    """Add up what pods hold."""
    total = NO_COST
    for holding, milli in amounts:
        if milli:
            total += gpu_cost(holding.pod.node or "", milli, prices)
    return total


def gpu_cost(node: str, milli: int, prices: NodePrices | None) -> GpuCost:
    """An amount of GPUs on one node, and what it costs."""
    micro = prices.price_of(node, milli) if prices is not None else None
    return GpuCost(milli, micro or 0, milli if micro is None else 0)


def _count_findings(members: Iterable[CheckResult]) -> tuple[tuple[LocatedFinding, int], ...]:
    """Each finding once, the strictest first: pods of one workload have the same, each at its own place."""
    first: dict[tuple[str, str], LocatedFinding] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for result in members:
        for located in result.findings:
            key = (located.finding.code, located.finding.message)
            first.setdefault(key, located)
            counts[key] += 1
    ranked = sorted(first, key=lambda key: (-first[key].finding.mode, key))
    return tuple((first[key], counts[key]) for key in ranked)


def pod_allocations(results: Iterable[CheckResult], stocks: Sequence[NodeCapacity] | None) -> Iterator[PodAllocation]:
    """What each pod holds, in their order.

    A pod that waits for a node holds nothing, and one whose node is not there neither. Where the pods of a node
    ask for more than it gives out, the later ones hold what the earlier ones leave.

    Args:
        stocks: Every node with GPUs; None where they are not known: each pod holds what it asks for.
    """
    left = {stock.name: stock.allocated_milli for stock in stocks or ()}
    for pod in results:
        asked = pod.decision.gpu_milli_before if pod.node else 0
        node = pod.node or ""
        there = bool(node) and (stocks is None or node in left)
        milli = min(asked, left.get(node, 0)) if stocks is not None else asked
        if node in left:
            left[node] -= milli
        yield PodAllocation(pod, milli, there)
