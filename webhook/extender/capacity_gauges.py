"""GPU capacity and fragmentation for metrics, by product: computed in a thread from a copy of the node index."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.extender.state import Clock, SchedulerState
from webhook.report.capacity import NodeCapacity, node_capacities, total_capacity

CAPACITY_SECONDS = 30.0
"""Minimum time between two computations, the scrape interval of the shipped ServiceMonitor."""

PAUSES_PER_COMPUTATION = 4.0
"""The pause after a computation, in times of its length: requests share the interpreter with it for a fifth of the time
at most."""

UNKNOWN_PRODUCT = "unknown"


class CapacityGauges(NamedTuple):
    """Thousandths of GPUs.

    Attributes:
        by_state: Allocated, free and unschedulable ones, by product and state.
        fragmented: The part of the free ones that a pod of the mix cannot use, on average, by product.
    """

    by_state: Mapping[tuple[str, str], int]
    fragmented: Mapping[str, int]


NO_GAUGES = CapacityGauges({}, {})


def build_capacity_gauges(nodes: Iterable[NodeCapacity]) -> CapacityGauges:
    """Sum up nodes by product."""
    products: defaultdict[str, list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        products[node.product or UNKNOWN_PRODUCT].append(node)
    totals = {product: total_capacity(some) for product, some in sorted(products.items())}
    by_state = {
        (product, state): amount
        for product, total in totals.items()
        for state, amount in (
            ("allocated", total.allocated_milli),
            ("free", total.free_milli),
            ("unschedulable", total.unschedulable_milli),
        )
    }
    return CapacityGauges(by_state, {product: total.fragmented_milli for product, total in totals.items()})


class CapacityPoll:
    """Computes the gauges.

    Attributes:
        latest: The last ones; empty until the nodes are known.
    """

    def __init__(self, state: SchedulerState, clock: Clock) -> None:
        self.latest = NO_GAUGES
        self._state, self._clock, self._due = state, clock, float("-inf")

    async def refresh_if_due(self) -> None:
        """Compute the gauges again if the last ones are older than `CAPACITY_SECONDS`, and the pause is over."""
        ranking, start = self._state.ranking, self._clock()
        if ranking is None or start < self._due:
            return
        self._due = start + CAPACITY_SECONDS
        snapshot, mix = ranking.snapshot.copy(), self._state.learning.estimated_mix()
        devices = self._state.inventory.device_view()
        self.latest = build_capacity_gauges(await asyncio.to_thread(node_capacities, snapshot, mix, devices))
        end = self._clock()
        self._due = max(self._due, end + PAUSES_PER_COMPUTATION * (end - start))
