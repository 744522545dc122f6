"""The demand of slices and whole cards over recorded time: the needs of the pods that usage was recorded of.

A recorded pod needs what it needs in the cluster, or what most pods of its workload there need. If the cluster has none
of them, it counts as a pod with the recorded GPUs of each container, evaluated with its recorded usage. Running pods
without recorded usage count at any time. The last bin is the present.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from webhook.audit.evaluate import EvaluationContext
from webhook.audit.layout_demand import DemandCollector, PodNeed
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_audit import audit_pods
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.offer_groups import SAME_SIZE_PERCENT
from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import EqualNodes, most_served
from webhook.placement.node_layouts import group_nodes
from webhook.report.layout import RecordedService
from webhook.report.layout_demand import DemandQuota, DemandRecord, HeldOutShare, LayoutDemand, UnitNeed, unit_limits
from webhook.usage.history import UsageHistory
from webhook.usage.record_file import UsageRecord
from webhook.well_known import Json

PLANNED_PART = 2 / 3
"""Part of the recorded time that a test plans with; the rest is not used to plan."""

MAX_TESTED_BINS = 500
"""Bins that are served in a test, evenly spaced."""

DAY = 86_400

Needs = Mapping[UnitNeed, int]
PodHistories = Sequence[UsageHistory]
"""The histories of one pod, one for each container."""


class DemandSeries(NamedTuple):
    """Requests at the same time, by need, in equal bins of time.

    Attributes:
        start: Unix seconds.
    """

    start: int
    step_seconds: int
    requests: Mapping[UnitNeed, NDArray[np.int64]]

    @property
    def bins(self) -> int:
        """The number of bins."""
        return max(map(len, self.requests.values()), default=0)

    def part(self, first: int, last: int) -> DemandSeries:
        """Return the bins from `first` to before `last`."""
        requests = {need: each[first:last] for need, each in self.requests.items()}
        return DemandSeries(self.start + first * self.step_seconds, self.step_seconds, requests)

    def quantile(self, share: float) -> dict[UnitNeed, int]:
        """Return for each need the fewest requests that are enough in a share of the bins."""
        place = max(0, ceil(share * self.bins - 1e-9) - 1)
        found = {need: int(np.sort(each)[place]) for need, each in self.requests.items()}
        return {need: requests for need, requests in found.items() if requests}

    def mixes(self) -> Counter[tuple[int, ...]]:
        """Return how many of the bins have which requests, in the order of the needs; evenly spaced if many."""
        chosen = np.unique(np.linspace(0, self.bins - 1, min(self.bins, MAX_TESTED_BINS)).round().astype(int))
        columns = [each[chosen].tolist() for each in self.requests.values()]
        return Counter(zip(*columns, strict=True))


def record_demand(
    demand: LayoutDemand,
    collector: DemandCollector,
    record: UsageRecord,
    context: EvaluationContext,
    quantile: float,
    headroom: int,
) -> LayoutDemand:
    """Return a demand whose needs are those of the recorded time at a quantile, and more by a headroom in percent.

    Args:
        demand: Today's.
        collector: The needs of today's pods.
        context: Against which pods that the cluster does not have any more are evaluated.
    """
    series, pods, unrecorded = _recorded_series(demand, collector, record, context)
    found = DemandRecord(
        quantile,
        series.start,
        int(record.now),
        series.bins,
        pods,
        unrecorded,
        demand.needs,
        _test_plan(demand, series, quantile, headroom),
    )
    return demand._replace(needs=series.quantile(quantile), record=found).increased_by(headroom)


def serve_record(
    nodes: Sequence[EqualNodes],
    demand: LayoutDemand,
    collector: DemandCollector,
    record: UsageRecord,
    context: EvaluationContext,
) -> RecordedService:
    """Return how much of what recorded pods needed some nodes serve as they are.

    The other arguments are as of `record_demand`.
    """
    series, pods, _ = _recorded_series(demand, collector, record, context)
    return RecordedService(series.start, int(record.now), pods, *serve_series(nodes, series, demand.quotas))


def _recorded_series(
    demand: LayoutDemand, collector: DemandCollector, record: UsageRecord, context: EvaluationContext
) -> tuple[DemandSeries, int, int]:
    """Return the needs over the recorded time, the number of recorded pods, and that of running ones without record."""
    pods = [list(some) for _, some in groupby(sorted(record.histories, key=_pod_key), _pod_key)]
    kept = sum((Counter(pod.kept) for pod in collector.pods.values()), Counter[UnitNeed]())
    recorded = {_pod_key(some[0]) for some in pods}
    unrecorded = [pod for key, pod in collector.pods.items() if pod.runs and key not in recorded]
    lives = list(zip(pods, _needs_of_pods(pods, collector, context), strict=True))
    series = build_series(lives, unrecorded, Counter(demand.needs) + kept, kept, record.now)
    return series, len(pods), len(unrecorded)


def _pod_key(history: UsageHistory) -> tuple[str, str]:
    return history.namespace, history.pod


def _needs_of_pods(
    pods: Iterable[PodHistories], collector: DemandCollector, context: EvaluationContext
) -> Iterator[Needs]:
    """Yield what each recorded pod needs."""
    usual, assumed = _usual_needs(collector.pods), dict[tuple[str, str], Needs]()
    for some in pods:
        workload, own = (some[0].namespace, some[0].workload), collector.pods.get(_pod_key(some[0]))
        if own is not None or workload in usual:
            yield own.needs if own is not None else usual[workload]
            continue
        if workload not in assumed:
            assumed[workload] = _assumed_needs(some, collector, context)
        yield assumed[workload]


def _usual_needs(pods: Mapping[tuple[str, str], PodNeed]) -> dict[tuple[str, str], Needs]:
    """Return what most pods of each workload need, by namespace and workload."""
    found: dict[tuple[str, str], Counter[tuple[tuple[UnitNeed, int], ...]]] = {}
    for (namespace, _), pod in pods.items():
        found.setdefault((namespace, pod.workload), Counter())[tuple(sorted(pod.needs.items()))] += 1
    return {workload: dict(needs.most_common(1)[0][0]) for workload, needs in found.items()}


def _assumed_needs(some: PodHistories, collector: DemandCollector, context: EvaluationContext) -> Needs:
    """Return what a pod that the cluster does not have any more would need, as far as its record tells."""
    text = msgspec.json.encode(_assumed_pod(some, context))
    found = [each for each in parse_objects("recorded pod", text) if isinstance(each, SourceObject)]
    needs = Counter[UnitNeed]()
    for result in audit_pods(found, context):
        needs += collector.needs_if_created(result)
    return needs


def _assumed_pod(some: PodHistories, context: EvaluationContext) -> Json:
    """Return a pod with the recorded containers and their GPUs, on products with as much memory as the record tells."""
    kind, _, name = some[0].workload.partition("/")
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "controller": True, "uid": "recorded"}
    cards = {each.capacity_mib for each in some if each.capacity_mib}
    terms = (
        [{"key": PRODUCT_LABEL, "operator": "In", "values": products}]
        if (products := _products(cards, context))
        else []
    )
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": some[0].namespace,
            "name": some[0].pod,
            "ownerReferences": [] if kind == "Pod" else [owner],
        },
        "spec": {
            "containers": [
                {"name": each.container, "image": each.image, "resources": {"limits": {WHOLE_GPU: str(each.gpus)}}}
                for each in some
            ],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}} if terms else {},
        },
    }


def _products(cards: Iterable[int], context: EvaluationContext) -> list[str]:
    """Return the products whose cards have some sizes; none if no product has."""
    whole = [offer for offer in context.view.fleet.offers if offer.form is GpuForm.WHOLE and offer.memory_mib]
    found = {each.product for size in cards for each in whole if _is_same_size(size, each.memory_mib or 0)}
    return sorted(found - {""})


def _is_same_size(one: int, other: int) -> bool:
    return 100 * abs(one - other) <= SAME_SIZE_PERCENT * other


def build_series(
    lives: Sequence[tuple[PodHistories, Needs]],
    always: Iterable[PodNeed],
    present: Needs,
    kept: Needs,
    now: float,
) -> DemandSeries:
    """Return the concurrent needs from the first record until now, without the cards that pods keep."""
    histories = [history for some, _ in lives for history in some]
    step = histories[0].step_seconds if histories else DAY
    start = min([history.start for history in histories], default=int(now))
    bins = max(0, ceil((now - start) / step))
    changes: dict[UnitNeed, NDArray[np.int64]] = {}

    def add(needs: Needs, first: int, last: int) -> None:
        for need, count in needs.items():
            each = changes.setdefault(need, np.zeros(bins + 1, np.int64))
            each[first] += count
            each[last] -= count

    for some, needs in lives:
        first = (min(history.start for history in some) - start) // step
        last = ceil((max(history.observed_until for history in some) - start) / step)
        add(needs, first, min(bins, max(first + 1, last)))
    for pod in always:
        add(pod.needs, 0, bins)
    requests = {}
    for need in sorted({*changes, *present}):
        over_time = np.cumsum(changes.get(need, np.zeros(bins + 1, np.int64))[:bins])
        requests[need] = np.maximum(np.append(over_time, present.get(need, 0)) - kept.get(need, 0), 0)
    return DemandSeries(start, step, requests)


def _test_plan(demand: LayoutDemand, series: DemandSeries, quantile: float, headroom: int) -> HeldOutShare | None:
    """Plan with the first part of the time, whole days if there are several, and serve the rest."""
    split = round(PLANNED_PART * series.bins)
    by_day = DAY // series.step_seconds
    if by_day and series.bins >= 3 * by_day:
        split = round(split / by_day) * by_day
    if not 0 < split < series.bins:
        return None
    earlier, later = series.part(0, split), series.part(split, series.bins)
    planned = demand._replace(needs=earlier.quantile(quantile)).increased_by(headroom)
    wanted = [need.demand(requests) for need, requests in planned.needs.items()]
    every = [need.demand(1) for need in series.requests]
    groups = [group for group, _ in group_nodes(demand.nodes, [*wanted, *every])]
    used, quotas = plan_layouts(groups, wanted, limits=planned.limits()).used_nodes, demand.quotas
    return HeldOutShare(later.start, *serve_series(used, later, quotas), *serve_series(used, earlier, quotas))


def serve_series(
    nodes: Sequence[EqualNodes], series: DemandSeries, quotas: Sequence[DemandQuota] = ()
) -> tuple[int, int]:
    """Return how many requests a series has, over all bins, and how many of them nodes can serve as they are."""
    requested = served = 0
    for mix, bins in series.mixes().items():
        needs = list(zip(series.requests, mix, strict=True))
        wanted = [need.demand(requests) for need, requests in needs]
        requested += bins * sum(mix)
        served += bins * most_served(nodes, wanted, limits=unit_limits(needs, quotas))
    return requested, served
