"""A plan of MIG layouts for tests of reports: nodes of several products that change, stay, or are not planned."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.placement.integer_program import ObjectiveValue
from webhook.placement.layout_plan import WHOLE_CARD, CardGroup, CardUnit, LayoutPlan
from webhook.placement.mig import MigLayout
from webhook.placement.node_layouts import AdvertisedGpus, NodeChange, NodeLayout, UnplannedNode
from webhook.report.layout import ClusterLayout
from webhook.report.layout_demand import LayoutDemand, RequestOrigin, UnitNeed

H100, A30 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A30"
MIXED: MigLayout = (("1g.10gb", 4), ("3g.40gb", 1))
SEVEN: MigLayout = (("1g.10gb", 7),)
HALF_FREE: MigLayout = (("2g.12gb", 1),)


def planned_layout(names: Sequence[str] = ()) -> ClusterLayout:
    """Return a plan that frees one card of seven, with more nodes, products and a cluster of these names."""
    changed = NodeLayout("h1", H100, (WHOLE_CARD,) * 4, kept_whole=1, pods=3)
    nodes = (
        changed,
        *(NodeLayout(f"a{i}", A30, (HALF_FREE, WHOLE_CARD)) for i in range(3)),
        *(NodeLayout(name, name, (WHOLE_CARD,)) for name in names),
    )
    plan = LayoutPlan(
        (
            *(CardGroup(H100, layout, 1) for layout in (WHOLE_CARD, MIXED, SEVEN)),
            *(CardGroup(A30, layout, 3) for layout in (WHOLE_CARD, HALF_FREE)),
            *(CardGroup(name, WHOLE_CARD, 1) for name in names),
        ),
        ({CardUnit(H100, "1g.10gb"): 11}, {}),
        ObjectiveValue(2, 2),
        ObjectiveValue(5, 5),
        2,
    )
    unit = CardUnit(H100, "1g.10gb")
    needs = {UnitNeed((unit,), RequestOrigin.RIGHT_SIZED): 11, UnitNeed((), RequestOrigin.SLICE): 2}
    demand = LayoutDemand(nodes, needs, {"MultipleGPUs": 1}, {H100: 4}, 2, 1)
    unplanned = [
        UnplannedNode("l4", "NVIDIA-L4", (AdvertisedGpus("nvidia.com/gpu.shared", 8, "", 4),), "its GPUs are shared"),
        UnplannedNode("t4", "Tesla-T4", (AdvertisedGpus("nvidia.com/gpu", 2, "", 1),), "no profiles"),
        UnplannedNode("s", "NVIDIA-H20", (AdvertisedGpus("nvidia.com/mig-1g.12gb", 480, "1g.12gb", 48),), "shared"),
        *(UnplannedNode(name, name, (AdvertisedGpus(name, 1, name, 2),), name) for name in names),
    ]
    changes = [NodeChange(changed, (WHOLE_CARD, MIXED, SEVEN, WHOLE_CARD))]
    return ClusterLayout(demand, plan, changes, None, cluster=", ".join(("cluster.yaml", *names)), unplanned=unplanned)
