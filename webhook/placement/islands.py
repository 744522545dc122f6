"""Islands of a node: sets of GPUs in which every pair is joined by NVLink."""

from __future__ import annotations

from collections.abc import Sequence

MAX_ISLAND_GPUS = 64
"""Of a node; the search ends soon on boards, which are either joined throughout or in small groups."""


def largest_island(nvlinks: Sequence[Sequence[int]]) -> int:
    """GPUs of the largest set in which every pair is joined by NVLink; 1 where there is no link, 0 without GPUs.

    Args:
        nvlinks: Links that each GPU has up towards each, shape (GPUs, GPUs); a pair is joined where both ends have
            one. The GPUs count whether they are free or not.
    """
    gpus = range(len(nvlinks))
    if len(gpus) > MAX_ISLAND_GPUS:
        return 0
    near = [
        sum(1 << other for other in gpus if other != one and nvlinks[one][other] and nvlinks[other][one])
        for one in gpus
    ]
    return _largest_clique(0, (1 << len(gpus)) - 1, near, 0)


def _largest_clique(size: int, candidates: int, near: list[int], best: int) -> int:
    """The largest clique that grows from one of `size` by candidates, if it beats `best`."""
    while candidates and size + candidates.bit_count() > best:
        one = candidates.bit_length() - 1
        candidates ^= 1 << one
        best = max(best, size + 1, _largest_clique(size + 1, candidates & near[one], near, best))
    return best
