"""How scarce each kind of node is, and how much of a node's CPU one of its GPUs can claim."""

from __future__ import annotations

import math

import numpy as np

from webhook.placement.fragmentation.mixes import WorkloadMix
from webhook.placement.needs import GPU_MILLI, PodDemand
from webhook.placement.rooms import FloatArray, ClusterCapacity

CLAIM, CLAIM_EXPONENT, MOST_CLAIM = 0.8, 4.0, 2.2
"""The claim where the mix asks for just the CPU there is for each GPU, how it falls with more, and its bound."""


def cpu_claim_factor(mix: WorkloadMix, site: ClusterCapacity) -> float:
    """How many times its even share of the free cores one piece of GPU may count on.

    The more cores pods ask for against what the cluster has for each GPU, the less.
    """
    cores = sum(count * need.cpu_milli for need, count in mix.counts.items())
    milli = sum(count * need.total_milli for need, count in mix.counts.items())
    there = int(site.cpu.sum()) / max(1, site.total_milli)
    if not milli or not cores or not there:
        return MOST_CLAIM
    return min(MOST_CLAIM, CLAIM * math.pow(cores / milli / there, -CLAIM_EXPONENT))


def scarcity_prices(mix: WorkloadMix, site: ClusterCapacity) -> FloatArray:
    """How much demand competes for each GPU of a kind of node, shape (kinds,).

    The mix is scaled so that it asks for exactly the cluster's GPUs. Each need spreads its part evenly over
    the GPUs of the kinds of node that could take it when empty.
    """
    capacity = np.bincount(site.kind_index, site.gpus.sum(1), len(site.kinds)) / GPU_MILLI
    asked = {need: count * need.total_milli for need, count in mix.counts.items() if need.gpus}
    scale = capacity.sum() / max(1.0, sum(asked.values()))
    price = np.zeros(len(site.kinds))
    for need, milli in asked.items():
        fits = np.array([_fits_node_kind(need, *kind) for kind in site.kinds], np.bool_)
        if fits.any():
            price[fits] += milli * scale / capacity[fits].sum()
    return price


def _fits_node_kind(need: PodDemand, model: str, gpus: int, cpu_milli: int) -> bool:
    return need.accepts_model(model) and need.total_milli <= gpus * GPU_MILLI and need.cpu_milli <= cpu_milli
