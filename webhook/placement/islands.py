"""Islands of a node: sets of GPUs in which every pair is joined by NVLink."""

from __future__ import annotations

from webhook.placement.topology import Topology


def largest_island(topology: Topology) -> int:
    """GPUs of the largest set in which every pair is joined by NVLink; 1 where there is no link, 0 without GPUs.

    The node's GPUs count whether they are free or not. Exact: branch and bound over at most 16 GPUs.
    """
    near = [
        sum(1 << other for other in range(topology.gpus) if other != one and topology.links(one, other))
        for one in range(topology.gpus)
    ]
    return _largest(0, (1 << topology.gpus) - 1, near, 0)


def _largest(size: int, candidates: int, near: list[int], best: int) -> int:
    """The largest clique that grows from one of `size` by candidates, if it beats `best`."""
    while candidates and size + candidates.bit_count() > best:
        one = candidates.bit_length() - 1
        candidates ^= 1 << one
        best = max(best, size + 1, _largest(size + 1, candidates & near[one], near, best))
    return best
