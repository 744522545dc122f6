"""The demand over recorded time: concurrent needs, their quantile, and the part that is not used to plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.test_layout_demand import H100, NODES, POLICY, needs_of, whole
from tests.builders import PodMaker
from tests.usage.usage_histories import steady
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.layout_demand import DemandCollector
from webhook.audit.layout_quotas import QuotaCollector
from webhook.audit.layout_view import view_with_slices
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_audit import audit_pods
from webhook.audit.recorded_demand import DemandSeries, build_series, record_demand, serve_series
from webhook.cache.snapshot import view_of_objects
from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import CardUnit, EqualNodes, UnitDemand
from webhook.placement.node_layouts import node_layouts
from webhook.policy.loader import load_policies
from webhook.report.layout_demand import LayoutDemand, RequestOrigin, UnitNeed
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import UsageHistory
from webhook.usage.record_file import UsageRecord

HOUR, NOW = 3600, 1_700_000_000
SMALL = UnitNeed((CardUnit(H100, "1g.10gb"), CardUnit(H100, "2g.20gb"), CardUnit(H100, "")), RequestOrigin.RIGHT_SIZED)
LARGE = UnitNeed((CardUnit(H100, "3g.40gb"), CardUnit(H100, "")), RequestOrigin.RIGHT_SIZED)


def lived(pod: str, first: int, last: int, gib: float = 5, **fields: Any) -> UsageHistory:
    """Return the record of a pod that ran from some hours before now until some hours before now."""
    return steady(1024 * gib, hours=first - last, pod=pod, start=NOW - HOUR * first, **fields)


def recorded(
    histories: list[UsageHistory], *pods: PodMaker, quantile: float = 1.0, policy: str = POLICY, headroom: int = 0
) -> LayoutDemand:
    """Return the demand of recorded pods and of those of the cluster."""
    items = [*NODES, *(pod.build() for pod in pods)]
    found = list(parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    loaded = load_policies([("p.yaml", policy)])
    assert loaded.policies is not None, loaded.errors
    layouts = node_layouts(view.fleet)
    offering = view_with_slices(view, layouts)
    usage = estimate_usage(histories, NOW)
    context = EvaluationContext(loaded.policies, offering, datetime.fromtimestamp(NOW, UTC), usage)
    collector = DemandCollector(offering.fleet, layouts, loaded.policies, QuotaCollector(view, loaded.policies))
    for result in audit_pods(found, context):
        collector.add(result)
    return record_demand(collector.demand(), collector, UsageRecord(histories, NOW), context, quantile, headroom)


def serving(name: str, need: str = "30Gi", node: str = "a100") -> PodMaker:
    """Return a running pod of the Deployment that the records are of."""
    return whole(name, need, node).owned_by("Deployment", "serve")


LARGE_SLICES = ("right-sized", "A100/3g.40gb", "A100/4g.40gb", "A100/whole")
FOUR_HOURS_OF_TEN = [lived("a", 10, 0), *(lived(f"b{i}", 4, 0) for i in range(2))]
RECORDS: dict[str, tuple[list[UsageHistory], list[PodMaker], float, dict[tuple[str, ...], int]]] = {
    "pods that ended need what those of their workload need": (
        [lived("a", 10, 0), lived("b", 10, 8), lived("c", 10, 8)],
        [serving("a")],
        1.0,
        {LARGE_SLICES: 3},
    ),
    "pods one after the other need one slice": (
        [lived("a", 2, 0), lived("b", 4, 2), lived("c", 6, 4)],
        [serving("a")],
        1.0,
        {LARGE_SLICES: 1},
    ),
    "at a quantile, short peaks do not count": (FOUR_HOURS_OF_TEN, [serving("a")], 0.5, {LARGE_SLICES: 1}),
    "at a higher one they do": (FOUR_HOURS_OF_TEN, [serving("a")], 0.9, {LARGE_SLICES: 3}),
    "a running pod without a record counts at any time": (
        [lived("a", 10, 9, workload="Deployment/other")],
        [serving("x"), serving("y")],
        0.5,
        {LARGE_SLICES: 2},
    ),
    "a pod that waits counts now": ([lived("a", 10, 9)], [serving("x", node="")], 0.5, {}),
    "pods that the cluster does not have any more need what their usage tells": (
        [lived("a", 240, 0, workload="Job/train")],
        [],
        1.0,
        {("right-sized", "A100/1g.10gb", "A100/1g.20gb", "A100/2g.20gb", "A100/3g.40gb", "A100/4g.40gb", "H100/1g.10gb",
          "H100/1g.20gb", "H100/2g.20gb", "H100/3g.40gb", "H100/4g.40gb", "A100/whole", "H100/whole"): 1},
    ),
    "all of the GPUs that they had": (
        [lived("a", 240, 0, workload="Job/train", gpus=4)],
        [],
        1.0,
        {("whole cards requested", "A100/whole", "H100/whole"): 4},
    ),
    "and whole cards if the policies do not make them smaller": (
        [lived(pod, 10, 0, workload=f"Pod/{pod}", namespace="elsewhere") for pod in ("a", "b")],
        [],
        1.0,
        {("whole cards requested", "A100/whole", "H100/whole"): 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("histories", "pods", "quantile", "expected"), RECORDS.values(), ids=RECORDS.keys())
def test_needs_of_recorded_pods(
    histories: list[UsageHistory], pods: list[PodMaker], quantile: float, expected: dict[tuple[str, ...], int]
) -> None:
    policy = POLICY.replace("[declared]", "[declared, observed]")

    assert needs_of(recorded(histories, *pods, quantile=quantile, policy=policy)) == expected


def test_a_recorded_pod_of_several_gpus_needs_them_on_one_node() -> None:
    demand = recorded([lived(f"p{i}", 240, 0, workload="Job/train", gpus=4) for i in range(3)], headroom=20)

    assert [(need.together, requests) for need, requests in demand.needs.items()] == [(4, 16)]


def test_cards_that_a_running_pod_keeps_are_not_needed_twice() -> None:
    histories = [lived("a", 10, 0), lived("b", 10, 5)]
    demand = recorded(histories, serving("a", ""), quantile=1.0)

    assert needs_of(demand) == {("whole cards requested", "A100/whole"): 1}
    assert sum(node.kept_whole for node in demand.nodes) == 1


def test_a_record_says_what_it_is_based_on() -> None:
    histories = [lived("a", 240, 0), lived("b", 240, 0), lived("c", 240, 0, workload="Deployment/other")]
    demand = recorded(histories, serving("a"), serving("x"), quantile=0.95, headroom=100)

    record = demand.record
    assert record is not None
    assert (record.pods, record.unrecorded_pods, record.bins) == (3, 1, 4 * 240 + 1)
    assert record.end - record.start == 240 * HOUR
    assert list(record.now.values()) == [2]
    assert needs_of(demand) == {LARGE_SLICES: 6, ("whole cards requested", "A100/whole", "H100/whole"): 2}


def test_time_that_is_not_used_to_plan_is_served_by_a_plan_of_the_time_before() -> None:
    histories = [lived(f"p{i}", 240 if i < 2 else 72, 0) for i in range(40)]
    record = recorded(histories, serving("p0"), quantile=1.0).record
    assert record is not None
    held = record.held_out
    assert held is not None

    assert held.start == NOW - 72 * HOUR
    assert held.earlier_served == held.earlier_requests > 0
    assert 0 < held.served < held.requests


Lives = list[tuple[int, int, bool]]
lives = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.booleans()), min_size=1, max_size=12)


def series_of(some: Lives) -> DemandSeries:
    """Return the series of pods that ran between some hours before now."""
    each = [
        ([lived(f"p{i}", max(pair) + 1, min(pair) - 1)], {LARGE if large else SMALL: 1})
        for i, (*pair, large) in enumerate(some)
    ]
    return build_series(each, [], {}, {}, NOW)


@given(lives)
def test_concurrent_needs_equal_a_count_at_every_moment(some: Lives) -> None:
    series = series_of(some)

    for bin_, counts in enumerate(zip(*series.requests.values(), strict=True)):
        at = series.start + bin_ * series.step_seconds
        for need, count in zip(series.requests, counts, strict=True):
            running = sum(
                NOW - HOUR * (max(pair) + 1) <= at < NOW - HOUR * (min(pair) - 1)
                and (LARGE if large else SMALL) == need
                for *pair, large in some
            )
            assert count == running


@given(lives, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_needs_no_less(some: Lives, one: float, other: float) -> None:
    series, (low, high) = series_of(some), sorted((one, other))
    less, more = series.quantile(low), series.quantile(high)

    assert all(more.get(need, 0) >= requests for need, requests in less.items())


@given(lives, st.floats(0.01, 1))
def test_a_quantile_is_enough_in_its_share_of_the_time(some: Lives, share: float) -> None:
    series = series_of(some)
    enough = series.quantile(share)

    for need, counts in series.requests.items():
        assert np.mean(counts <= enough.get(need, 0)) >= share - 1e-6


def planned(needs: dict[UnitNeed, int], cards: int) -> Sequence[EqualNodes]:
    """Return the cards that the best layouts of some nodes with one card use for some needs."""
    demands = [UnitDemand(count, need.units) for need, count in needs.items()]
    return plan_layouts([EqualNodes(H100, ((),), cards)], demands).used_nodes


@settings(max_examples=20)
@given(lives)
def test_a_plan_for_the_peak_serves_all_of_the_time(some: Lives) -> None:
    series = series_of(some)
    requests, served = serve_series(planned(series.quantile(1.0), 12), series)

    assert served == requests == sum(int(counts.sum()) for counts in series.requests.values())


def test_a_plan_for_less_serves_less() -> None:
    series = series_of([(1, 20, False), *((1, 2, True) for _ in range(9))])
    requests, served = serve_series(planned(series.quantile(0.5), 2), series)

    assert 0 < served < requests
