"""The report of a plan whose time ended before it was proved optimal."""

from __future__ import annotations

import pytest

from webhook.placement.integer_program import ObjectiveValue
from webhook.placement.layout_plan import CardGroup, LayoutPlan
from webhook.placement.node_layouts import NodeLayout
from webhook.report.layout import ClusterLayout
from webhook.report.layout_demand import LayoutDemand, RequestOrigin, UnitNeed
from webhook.report.layout_text import layout_lines

UNPROVED = {
    "more could be served": (ObjectiveValue(5, 2), ObjectiveValue(3, 1), "other layouts may serve 3 more units"),
    "fewer cards could be used": (ObjectiveValue(5, 5), ObjectiveValue(3, 1), "other layouts may use 2 fewer cards"),
}


@pytest.mark.parametrize(("unserved", "used", "expected"), UNPROVED.values(), ids=UNPROVED.keys())
def test_the_gap_is_shown(unserved: ObjectiveValue, used: ObjectiveValue, expected: str) -> None:
    demand = LayoutDemand((NodeLayout("n", "NVIDIA-A30", ((),) * 4, kept_whole=1),), {}, {}, {}, 0, 0)
    plan = LayoutPlan((CardGroup("NVIDIA-A30", (), 3),), (), unserved, used, 0)

    [line] = [
        line for line in layout_lines(ClusterLayout(demand, plan, (), None), ()) if line.startswith("Lower bound")
    ]

    assert line == f"Lower bound            2: time ended; {expected}"


def test_a_need_that_nothing_can_serve_has_a_text() -> None:
    needs = {UnitNeed((), RequestOrigin.WHOLE, "team"): 2}
    demand = LayoutDemand((NodeLayout("n", "NVIDIA-A30", ((),)),), needs, {}, {}, 0, 0)
    plan = LayoutPlan((CardGroup("NVIDIA-A30", (), 1),), ({},), ObjectiveValue(2, 2), ObjectiveValue(0, 0), 0)

    lines = list(layout_lines(ClusterLayout(demand, plan, (), None), ()))

    assert any("whole cards requested   none that fits in team   " in line for line in lines)
