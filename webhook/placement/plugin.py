"""Which GPUs NVIDIA's device plugin will really allocate: the kubelet asks it, and not us.

The plugin's best-effort rule splits all free GPUs into sets of the size asked for, takes the split with the
highest sum of scores, and of that split the set with the highest score; equal ones in the order of indexes. For
one GPU it takes the first. It counts 100 for each NVLink and 10 to 60 for the PCIe path; links that end at an
NVSwitch it does not see. It is used only where no GPU is shared or cut.

Source: NVIDIA/go-gpuallocator, besteffort_policy.go. One flaw is left out: with sizes that do not divide the free
GPUs, the original may hand out a set with a hole (its pull request 80); here only full sets are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from webhook.model.masks import bits
from webhook.placement.nvlink import KINDS, mask_of
from webhook.placement.topology import Topology

PER_LINK = 100
PER_BUS = 10
"""Points of an NVLink, and of each step up from SYS."""

Split = tuple[int, tuple[int, ...]]
"""Points of a split, and its sets."""


class Plugin:
    """The rule on one kind of node."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._points = _pair_points(topology)
        self._splits: dict[tuple[int, int, int, bool], Split] = {}
        self._scores: dict[int, int] = {}
        self._answers: dict[tuple[int, int, int], int | None] = {}

    def predicted(self, free: int, count: int, required: int = 0) -> int | None:
        """The set that the plugin allocates; None where it allocates none or cannot cope.

        Args:
            free: Mask of the free GPUs.
            count: One or more.
            required: Mask of GPUs that must be in it, as the kubelet asks for a container that holds some.
        """
        if not self._topology.symmetric or required & ~free or not required.bit_count() <= count <= free.bit_count():
            return None
        key = (free, count, required)
        if key not in self._answers:
            self._answers[key] = self._chosen(free, count, required)
        return self._answers[key]

    def score(self, chosen: int) -> int:
        """The points of a set."""
        if chosen not in self._scores:
            gpus = list(bits(chosen))
            self._scores[chosen] = sum(self._points[i][j] for i, j in combinations(gpus, 2))
        return self._scores[chosen]

    def _chosen(self, free: int, count: int, required: int) -> int | None:
        if count < 1:
            return None
        if count == 1:
            return required or free & -free
        _, sets = self._best_split(free, count, required, short=bool(free.bit_count() % count))
        full = [each for each in sets if each.bit_count() == count and each & required == required]
        return max(full, key=self.score, default=None)

    def _best_split(self, free: int, count: int, required: int, *, short: bool) -> Split:
        """The first of the splits with the highest points, as the original comes upon them.

        Args:
            short: True while one set is still to be smaller than the others.
        """
        if not free:
            return 0, ()
        key = (free, count, required, short)
        if key not in self._splits:
            self._splits[key] = self._search(free, count, required, short=short)
        return self._splits[key]

    def _search(self, free: int, count: int, required: int, *, short: bool) -> Split:
        best: Split = (-1, ())
        for first in _first_sets(free, count, short=short):
            if first & required and first & required != required:
                continue
            still = short and first.bit_count() == count
            points, sets = self._best_split(free & ~first, count, required, short=still)
            if points >= 0 and self.score(first) + points > best[0]:
                best = (self.score(first) + points, (first, *sets))
        return best


@lru_cache(maxsize=KINDS)
def plugin(topology: Topology) -> Plugin:
    """The rule on a kind of node, its answers remembered."""
    return Plugin(topology)


def _first_sets(free: int, count: int, *, short: bool) -> Iterator[int]:
    """The sets that hold the lowest free GPU, in the original's order: gaps count as the highest indexes."""
    lowest, *others = bits(free)
    gap = len(others) + 1
    missing = -(gap) % count if short else 0
    places = [*others, *range(1000, 1000 + missing)]
    for some in combinations(places, count - 1):
        real = [place for place in some if place < 1000]
        if len(some) - len(real) in (0, missing):
            yield mask_of([lowest, *real])


def _pair_points(topology: Topology) -> list[list[int]]:
    """Points of each pair; a path that is not known counts nothing, as with the original's own test nodes."""
    every = range(topology.gpus)
    return [[_points(topology, i, j) for j in every] for i in every]


def _points(topology: Topology, one: int, other: int) -> int:
    links = 0 if topology.nvswitch else topology.nvlinks[one][other]
    return PER_LINK * links + PER_BUS * (topology.buses[one][other] or 0)
