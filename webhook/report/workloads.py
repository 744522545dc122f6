"""The result of an audit by workload: what its pods hold, what they would become, and what that saves and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from webhook.model.decisions import Fit
from webhook.model.prices import NodePrices
from webhook.report.capacities import Stock
from webhook.report.holdings import Holding, holdings
from webhook.report.results import Checked, Located, Missed, Use, Verdict
from webhook.report.wide import meant_by, why


class Spent(msgspec.Struct, frozen=True):
    """An amount of GPUs on nodes, and what it costs.

    Attributes:
        milli: Thousandths of a GPU.
        micro: Millionths of the currency an hour, of the part that has a price.
        unpriced_milli: Thousandths of a GPU on nodes that have no price.
    """

    milli: int = 0
    micro: int = 0
    unpriced_milli: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.milli + other.milli, self.micro + other.micro, self.unpriced_milli + other.unpriced_milli)


NOTHING = Spent()


class UseOfPods(Use, frozen=True):
    """A use that pods of one workload have in common.

    Attributes:
        pods: How many have a container of this name that asks for this.
        waiting: Those of them that have no node yet.
    """

    pods: int = 1
    waiting: int = 0


class Workload(msgspec.Struct, frozen=True):
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
    waiting: int
    astray: int
    beyond_milli: int
    gpu_milli_before: int
    gpu_milli_after: int
    gpu_milli_on_trial: int
    held: Spent
    idle: Spent
    over_asked: Spent
    freed: Spent
    denied: int
    warned: int
    missed: tuple[tuple[Missed, str, int], ...]
    uses: tuple[UseOfPods, ...]
    fit: str
    meant: str
    outcome: str
    findings: tuple[tuple[Located, int], ...]
    exempted: tuple[str, ...]

    @property
    def saved(self) -> int:
        """Thousandths of a GPU that would be free."""
        return self.gpu_milli_before - self.gpu_milli_after

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings, each once."""
        return tuple(dict.fromkeys(located.finding.code for located, _ in self.findings))

    @property
    def touches_gpus(self) -> bool:
        """Is there anything about GPUs to say of it?"""
        return bool(self.uses or self.findings or self.exempted or self.gpu_milli_before)


def workloads_of(
    results: Iterable[Checked], prices: NodePrices | None = None, stocks: Sequence[Stock] | None = None
) -> list[Workload]:
    """Add up pods by workload: the one that would save most first, trials included, then by name.

    Args:
        stocks: Every node with GPUs, where pods hold no more than it gives out; None: they hold what they ask for.
    """
    groups: dict[tuple[str, str], list[Holding]] = {}
    for each in holdings(results, stocks):
        result = each.pod
        if result.verdict is not Verdict.SKIPPED and result.standing is not None:
            groups.setdefault((result.namespace, result.standing.workload), []).append(each)
    rows = [_workload(namespace, name, group, prices) for (namespace, name), group in groups.items()]
    return sorted(rows, key=lambda row: (-row.saved - row.gpu_milli_on_trial, -row.saved, row.namespace, row.name))


def _workload(namespace: str, name: str, group: list[Holding], prices: NodePrices | None) -> Workload:
    members = [each.pod for each in group]
    standings = [each.standing for each in members if each.standing is not None]
    missed = Counter((one.missed, one.becomes) for one in standings if one.missed is not None)
    asking = [each for each in members if _uses(each)]
    (fit, meant, outcome), alike = _most(asking or members)
    return Workload(
        namespace=namespace,
        name=name,
        pods=len(members),
        waiting=sum(not each.node for each in asking),
        astray=sum(each.astray for each in group),
        beyond_milli=sum(each.beyond_milli for each in group),
        gpu_milli_before=sum(each.decision.gpu_milli_before for each in members),
        gpu_milli_after=sum(each.decision.gpu_milli_after for each in members),
        gpu_milli_on_trial=sum(each.gpu_milli_on_trial for each in members),
        held=_spent(((each, each.milli) for each in group), prices),
        idle=_spent(((each, each.milli) for each in group if is_idle(each.pod)), prices),
        over_asked=_spent(((each, _over_asked(each)) for each in group if not is_idle(each.pod)), prices),
        freed=sum((_freed(each, prices) for each in group), NOTHING),
        denied=sum(each.verdict is Verdict.DENIED for each in members),
        warned=sum(each.verdict is Verdict.WARNED for each in members),
        missed=tuple((reason, becomes, pods) for (reason, becomes), pods in sorted(missed.items())),
        uses=_uses_of(asking, alike),
        fit=fit,
        meant=meant,
        outcome=outcome,
        findings=_findings(members),
        exempted=tuple(sorted({taken.exemption for each in members for taken in each.decision.exempted})),
    )


def _most(pods: Iterable[Checked]) -> tuple[tuple[str, str, str], list[Checked]]:
    """What would become of most pods: the fit, what is meant by it, and in words; and which pods these are."""
    alike: dict[tuple[str, str, str], list[Checked]] = {}
    for each in pods:
        alike.setdefault((*_fit(each), why(each)), []).append(each)
    return max(alike.items(), key=lambda each: (len(each[1]), each[0]))


def _uses(result: Checked) -> tuple[Use, ...]:
    return result.standing.uses if result.standing is not None else ()


def _uses_of(asking: Sequence[Checked], alike: Iterable[Checked]) -> tuple[UseOfPods, ...]:
    """What containers ask for, in the order of the pods; a launcher has other containers than its workers.

    Args:
        alike: Those that get what the workload is said to get, with its risk; others may not, as those with `keep`.
    """
    running = [(use, (use.container, use.resource, use.count)) for each in asking if each.node for use in _uses(each)]
    idle = {key for _, key in running} - {key for use, key in running if not use.idle}
    said = {(use.container, use.resource, use.count): use for each in alike for use in _uses(each)}
    first: dict[tuple[str, str, int], Use] = {}
    pods: Counter[tuple[str, str, int]] = Counter()
    waiting: Counter[tuple[str, str, int]] = Counter()
    for each in asking:
        for use in _uses(each):
            key = (use.container, use.resource, use.count)
            first.setdefault(key, said.get(key, use))
            pods[key] += 1
            waiting[key] += not each.node
    found = ((key, msgspec.structs.asdict(use) | {"idle": key in idle}) for key, use in first.items())
    return tuple(UseOfPods(**fields, pods=pods[key], waiting=waiting[key]) for key, fields in found)


def _fit(result: Checked) -> tuple[str, str]:
    fit = result.decision.outcome
    return (fit.resource, meant_by(fit)) if isinstance(fit, Fit) else ("", "")


def is_idle(result: Checked) -> bool:
    """Was no engine active for any GPU container of the pod's workload? False where one was not seen, nor the pod."""
    uses = _uses(result)
    return bool(uses) and all(use.idle for use in uses)


def _over_asked(holding: Holding) -> int:
    decision = holding.pod.decision
    less = decision.gpu_milli_before - decision.gpu_milli_after + holding.pod.gpu_milli_on_trial
    return min(less, holding.milli)


def _freed(holding: Holding, prices: NodePrices | None) -> Spent:
    """What right-sizing would free of a pod, at what it costs where it is less what the rest costs where it would be.

    That is the dearest of the products that its new request may land on; it has no price where one of these has none.
    """
    less, fit, node = _over_asked(holding), holding.pod.decision.outcome, holding.pod.node or ""
    here = spent(node, less, prices)
    if not less or prices is None or here.unpriced_milli or not isinstance(fit, Fit):
        return here
    there = prices.dearest(offer.product for offer in fit.offers)
    if there is None:
        return Spent(less, 0, less)
    if there == prices.by_node[node]:
        return here
    return Spent(less, (prices.of(node, holding.milli) or 0) - _up((holding.milli - less) * there, 1000))


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _spent(amounts: Iterable[tuple[Holding, int]], prices: NodePrices | None) -> Spent:
    """Add up what pods hold."""
    total = NOTHING
    for holding, milli in amounts:
        if milli:
            total += spent(holding.pod.node or "", milli, prices)
    return total


def spent(node: str, milli: int, prices: NodePrices | None) -> Spent:
    """An amount of GPUs on one node, and what it costs."""
    micro = prices.of(node, milli) if prices is not None else None
    return Spent(milli, micro or 0, milli if micro is None else 0)


def _findings(members: Iterable[Checked]) -> tuple[tuple[Located, int], ...]:
    """Each finding once, the strictest first: pods of one workload have the same, each at its own place."""
    first: dict[tuple[str, str], Located] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for result in members:
        for located in result.findings:
            key = (located.finding.code, located.finding.message)
            first.setdefault(key, located)
            counts[key] += 1
    ranked = sorted(first, key=lambda key: (-first[key].finding.mode, key))
    return tuple((first[key], counts[key]) for key in ranked)
