"""The published protocol on openb lists: order of arrival and metrics.

Every pod of the list comes once, shuffled, then pods drawn from the list with replacement, until 1.3 times the
cluster's GPUs have been requested (from a list that requests more, pods are removed). No pod ends, and unschedulable
pods are dropped. Source: the code of FGD's simulator (USENIX ATC 2023).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from webhook.placement.capacity import PodDemand
from webhook.placement.nodes.simulator import Simulator

RATIO = 1.3


def arrivals(needs: Sequence[PodDemand], capacity: int, rng: np.random.Generator) -> list[PodDemand]:
    """Return the pods in the order of their arrival.

    Args:
        needs: The list.
        capacity: GPUs of the cluster, in thousandths.
        rng: Draws and shuffles.
    """
    order = [needs[i] for i in rng.permutation(len(needs))]
    requested, target = sum(need.total_milli for need in needs), RATIO * capacity
    while requested < target:
        drawn = needs[int(rng.integers(len(needs)))]
        if requested + drawn.gpu_milli > target:  # of each GPU, as the published code counts it
            break
        order.append(drawn)
        requested += drawn.total_milli
    while requested > target:
        requested -= order.pop(int(rng.integers(len(order)))).total_milli
    return order


def fill(simulator: Simulator, order: Sequence[PodDemand]) -> dict[int, float]:
    """Schedule the arrivals.

    Returns:
        Percent of the cluster's GPUs that are allocated, by percent requested: the mean over the arrivals that round
        to it.
    """
    capacity = simulator.capacity.total_milli
    requested = allocated = 0
    seen: defaultdict[int, list[float]] = defaultdict(list)
    for need in order:
        requested += need.total_milli
        allocated += need.total_milli if simulator.schedule_pod(need) else 0
        simulator.record_arrival(need)
        seen[round(100 * requested / capacity)].append(100 * allocated / capacity)
    return {percent: sum(points) / len(points) for percent, points in seen.items()}
