"""The fill table: how much of a free piece of GPU a random run of pods from the mix would fill.

U(c, r) is the expected number of thousandths that fill r free thousandths of one GPU beside c free cores, when
so many pods of the mix are offered to it one after the other, each taken if it fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from webhook.placement.needs import GPU_MILLI, PodDemand
from webhook.placement.rooms import FloatArray

MAX_CORES = 48
"""Cores beyond which one GPU sees no more."""

MILLI_STEP = 10
"""Thousandths of a GPU between two columns of the table."""

MILLI_LEVELS = GPU_MILLI // MILLI_STEP + 1

BASE_OFFERS = 27
FEWEST_OFFERS, MOST_OFFERS = 5, 200
"""Pods offered, where every pod is a share; the rarer shares are, the more pods must come by to fill a GPU."""


def count_offers(shares: Mapping[PodDemand, float]) -> int:
    """How many pods are offered to a piece of GPU.

    Args:
        shares: Needs with GPUs and their part of all of them.
    """
    parts = sum(share for need, share in shares.items() if need.gpu_milli < GPU_MILLI)
    wanted = MOST_OFFERS if not parts else int(BASE_OFFERS / parts)
    return max(FEWEST_OFFERS, min(MOST_OFFERS, wanted))


def expected_fill_table(shares: Mapping[PodDemand, float], model: str, rounds: int) -> FloatArray:
    """U for GPUs of one model.

    Args:
        shares: Needs with GPUs and their part of all of them.
        model: The model.
        rounds: Pods offered.

    Returns:
        Expected thousandths, shape (CORES + 2, LEVELS): by whole cores, the last row twice so that a look-up
        may interpolate towards the next, and by free thousandths in steps of STEP, rounded down.
    """
    steps = _single_gpu_demands(shares, model)
    table = np.zeros((MAX_CORES + 1, MILLI_LEVELS))
    for _ in range(rounds):
        following = table.copy()
        for (cores, levels), share in steps.items():
            taken = table[: MAX_CORES + 1 - cores, : MILLI_LEVELS - levels] + levels * MILLI_STEP
            following[cores:, levels:] += share * (taken - table[cores:, levels:])
        table = following
    return np.vstack([table, table[-1]])


def _single_gpu_demands(shares: Mapping[PodDemand, float], model: str) -> dict[tuple[int, int], float]:
    """What single GPUs are asked for: (cores, levels), both rounded up, with the part of all GPU pods."""
    steps: defaultdict[tuple[int, int], float] = defaultdict(float)
    for need, share in shares.items():
        cores, levels = -(-need.cpu_milli // 1000), -(-need.gpu_milli // MILLI_STEP)
        if need.gpus == 1 and need.accepts_model(model) and cores <= MAX_CORES:
            steps[cores, levels] += share
    return steps
