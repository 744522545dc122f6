"""The fill table: how much of a free piece of GPU a random run of pods from the mix would fill.

U(c, r) is the expected number of thousandths that fill r free thousandths of one GPU beside c free cores, when
so many pods of the mix are offered to it one after the other, each taken if it fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from webhook.placement.needs import WHOLE, Need
from webhook.placement.rooms import Floats

CORES = 48
"""Cores beyond which one GPU sees no more."""

STEP = 10
"""Thousandths of a GPU between two columns of the table."""

LEVELS = WHOLE // STEP + 1

OFFERS = 27
FEWEST_OFFERS, MOST_OFFERS = 5, 200
"""Pods offered, where every pod is a share; the rarer shares are, the more pods must come by to fill a GPU."""


def offers(shares: Mapping[Need, float]) -> int:
    """How many pods are offered to a piece of GPU.

    Args:
        shares: Needs with GPUs and their part of all of them.
    """
    parts = sum(share for need, share in shares.items() if need.gpu_milli < WHOLE)
    wanted = MOST_OFFERS if not parts else int(OFFERS / parts)
    return max(FEWEST_OFFERS, min(MOST_OFFERS, wanted))


def fill_table(shares: Mapping[Need, float], model: str, rounds: int) -> Floats:
    """U for GPUs of one model.

    Args:
        shares: Needs with GPUs and their part of all of them.
        model: The model.
        rounds: Pods offered.

    Returns:
        Expected thousandths, shape (CORES + 2, LEVELS): by whole cores, the last row twice so that a look-up
        may interpolate towards the next, and by free thousandths in steps of STEP, rounded down.
    """
    steps = _steps(shares, model)
    table = np.zeros((CORES + 1, LEVELS))
    for _ in range(rounds):
        following = table.copy()
        for (cores, levels), share in steps.items():
            taken = table[: CORES + 1 - cores, : LEVELS - levels] + levels * STEP
            following[cores:, levels:] += share * (taken - table[cores:, levels:])
        table = following
    return np.vstack([table, table[-1]])


def _steps(shares: Mapping[Need, float], model: str) -> dict[tuple[int, int], float]:
    """What single GPUs are asked for: (cores, levels), both rounded up, with the part of all GPU pods."""
    steps: defaultdict[tuple[int, int], float] = defaultdict(float)
    for need, share in shares.items():
        cores, levels = -(-need.cpu_milli // 1000), -(-need.gpu_milli // STEP)
        if need.gpus == 1 and need.takes(model) and cores <= CORES:
            steps[cores, levels] += share
    return steps
