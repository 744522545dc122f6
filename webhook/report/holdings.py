"""What each pod holds of the nodes that give GPUs out: no more than these have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from webhook.report.capacities import NodeCapacity
from webhook.report.results import CheckResult


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
