"""The benchmark of MIG layouts: its fixed layouts are used as well as possible."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.layout import (
    PRODUCTS,
    compare_layouts,
    made_pods,
    need_series,
    served_when_planned_before,
    slice_milli,
    unit_demands,
)
from benchmarks.openb import made
from webhook.placement.capacity import PodDemand
from webhook.placement.layout_plan import UnitDemand

H100, A30 = PRODUCTS
CASES: dict[str, tuple[str, list[PodDemand], dict[str, int]]] = {
    "seven small pods: a balanced card has four slices, and larger ones serve small pods": (
        H100,
        [PodDemand(1, 1, 100)] * 7,
        {"ours": 1, "all-balanced": 2, "all-1g": 1, "majority": 1, "whole GPUs": 7},
    ),
    "two pods of two fifths fill a card": (
        H100,
        [PodDemand(1, 1, 400)] * 2,
        {"ours": 1, "all-balanced": 2, "all-1g": 2, "majority": 1, "whole GPUs": 2},
    ),
    "several GPUs are whole cards": (
        A30,
        [PodDemand(1, 2, 1000), PodDemand(1, 1, 250)],
        {"ours": 3, "all-balanced": 3, "all-1g": 3, "majority": 3, "whole GPUs": 3},
    ),
}


@pytest.mark.parametrize(("product", "pods", "cards"), CASES.values(), ids=CASES.keys())
def test_cards_of_each_layout(product: str, pods: list[PodDemand], cards: dict[str, int]) -> None:
    bound, figures = compare_layouts(unit_demands(pods, product), product)

    assert {each.name: each.cards for each in figures} == cards
    assert bound == cards["ours"]


def test_no_fixed_layout_serves_more_with_the_same_cards() -> None:
    [pods] = made().lists.values()
    bound, [ours, *fixed] = compare_layouts(unit_demands(pods, H100), H100)

    assert ours.cards == bound
    assert max(each.served for each in fixed) < ours.served
    assert min(each.cards for each in fixed) > ours.cards


def test_layouts_of_a_day_serve_the_time_that_was_not_used_to_plan() -> None:
    series = need_series(made_pods(), H100)
    demands = [UnitDemand(requests, need.units) for need, requests in series.quantile(0.95).items()]
    bound, [ours, *fixed] = compare_layouts(demands, H100)
    earlier, later = served_when_planned_before(series, H100)

    assert sum(each.requests for each in demands) == 12
    assert bound == ours.cards <= min(each.cards for each in fixed)
    assert (earlier, later) == (1.0, 1.0)


def test_pods_that_come_later_than_the_plan_find_fewer_cards() -> None:
    pods = made_pods()
    late = [
        pod._replace(history=replace(pod.history, pod=f"late-{i}", start=2 * pod.history.end - pod.history.start))
        for i, pod in enumerate(pods * 2)
    ]
    earlier, later = served_when_planned_before(need_series([*pods, *late], H100), H100)

    assert earlier == 1.0
    assert 0 < later < 1


def test_a_slice_covers_a_share_in_memory_and_compute() -> None:
    assert slice_milli(H100) == {
        "1g.10gb": 125,
        "1g.20gb": 142,
        "2g.20gb": 250,
        "3g.40gb": 428,
        "4g.40gb": 500,
        "7g.80gb": 1000,
    }
