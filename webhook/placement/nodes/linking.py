"""The GPUs that a pod would get on a node, and how they are linked.

What NVIDIA's device plugin will allocate counts, because the kubelet asks the plugin. Links are compared with the
best that the kind of node can give, so that a scarce machine with faster links is not taken for its speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.bounded import Bounded
from webhook.model.masks import bits, union
from webhook.placement.devices import Devices
from webhook.placement.nodes.allotting import (
    Turn,
    Turns,
    allotted,
    best_set,
    ever_joinable,
    held_by,
    joinable,
    joined_sets,
)
from webhook.placement.nodes.states import Judged, States
from webhook.placement.nvlink import SETS, GpuSets, Quality, gpu_sets
from webhook.placement.rooms import Floats
from webhook.placement.topology import Topology

COUNTS_MOST = 64
"""What pods ask for, container by container, of which the figures are remembered."""

KINDS_MOST = 256
"""Topologies that are remembered; beyond that those that no node has any more are forgotten."""

State = tuple[int, int | None, int, int]
"""Number of the topology, the mask of the free GPUs (None where it is not known), how many are free then, and the mask
of those that are ill."""

NONE = (0.0,) * 6


class Links(NamedTuple):
    """The GPUs of a node that a pod would get.

    Attributes:
        gpus: What the device plugin will allocate; () where that is not known.
        optimal: The best set; () where it is not known which GPUs are free.
        quality: Of what it gets; where that is not known, the least it may get.
        joined: True where NVLink joins each pair of every container.
        ratio: Its slowest pair against the best on this kind of node, in hundredths; of the container worst off.
        broken: How many sizes of joined sets (two, four, eight) the node can no longer give afterwards. Counted
            where not every pair is joined alike; elsewhere the number of idle GPUs says it all.
        ill: Those that are ill of what it gets, or of what it may get where that is not known.
    """

    gpus: tuple[int, ...]
    optimal: tuple[int, ...]
    quality: Quality
    joined: bool
    ratio: int
    broken: int = 0
    ill: tuple[int, ...] = ()


class Figures(NamedTuple):
    """What counts of the links of every node, each of shape (nodes,); 0 where a pod gets no GPUs there.

    Attributes:
        joined: 1 where NVLink joins all that each container would get.
        ratio: As in `Links`.
        broken: As in `Links`.
        joinable: The same, and 1 too where it is so whichever GPUs are free.
        ever: 1 where it may be so once other GPUs are free.
        ill: How many of what it would get, or may get, are ill.
    """

    joined: Floats
    ratio: Floats
    broken: Floats
    joinable: Floats
    ever: Floats
    ill: Floats


class Linking:
    """The links of every node, kept as GPUs are taken and given back. It has one writer."""

    def __init__(self, devices: Sequence[Devices], faults: list[Exception] | None = None) -> None:
        """Begin.

        Args:
            devices: The GPUs of each node.
            faults: Gets what goes wrong while nodes are judged; such nodes count as those without GPUs.
        """
        self._faults = faults
        self._of = [each.topology for each in devices]
        self._begin([(each.free, each.spare, each.ill) for each in devices])

    def set(self, node: int, devices: Devices) -> None:
        """A node has other devices now."""
        if devices.topology is not self._of[node]:
            self._of[node] = devices.topology
            self._kind[node] = self._kind_of(devices.topology)
            if len(self._topologies) > max(KINDS_MOST, 2 * len(self._of)):
                self._begin([self._states.keys[number][1:] for number in self._states.of.tolist()])
        self._states.set(node, (self._kind[node], devices.free, devices.spare, devices.ill))

    def figures(self, turns: Turns) -> Figures:
        """What a pod whose containers ask for so many whole GPUs would get on each node."""
        judged = self._figures.get(turns)
        if judged is None:
            judged = Judged(self._states, lambda state: self._judge(state, turns), NONE, self._faults)
            self._figures.keep(turns, judged)
        return Figures(*judged.by_node().T)

    def sets(self, turns: Turns) -> Floats:
        """How many such pods get joined GPUs on each node, one after the other, (nodes,)."""
        judged = self._sets.get(turns)
        if judged is None:
            judged = Judged(self._states, lambda state: (self._joined_sets(state, turns),), (0.0,), self._faults)
            self._sets.keep(turns, judged)
        return judged.by_node()[:, 0]

    def _joined_sets(self, state: State, turns: Turns) -> float:
        kind, free, spare, _ = state
        return float(joined_sets(self._topologies[kind], free, turns, spare))

    def _begin(self, free: Sequence[tuple[int | None, int, int]]) -> None:
        """Number the topologies that nodes have; what was worked out under other numbers is forgotten.

        Args:
            free: By node, the mask of the free GPUs, how many are free where that is not known, and which are ill.
        """
        self._kinds: dict[Topology, int] = {}
        self._topologies: list[Topology] = []
        self._kind = [self._kind_of(topology) for topology in self._of]
        self._states: States[State] = States((kind, *each) for kind, each in zip(self._kind, free, strict=True))
        self._figures: Bounded[Turns, Judged[State]] = Bounded(COUNTS_MOST)
        self._sets: Bounded[Turns, Judged[State]] = Bounded(COUNTS_MOST)

    def _kind_of(self, topology: Topology) -> int:
        kind = self._kinds.setdefault(topology, len(self._topologies))
        if kind == len(self._topologies):
            self._topologies.append(topology)
        return kind

    def _judge(self, state: State, turns: Turns) -> tuple[float, ...]:
        kind, free, spare, ill = state
        topology = self._topologies[kind]
        links = links_of(topology, free, turns, ill)
        if links is None:
            return NONE
        now, ever = joinable(topology, free, turns, spare), ever_joinable(topology, turns)
        sick = min(len(links.ill), held_by(turns))
        return tuple(map(float, (links.joined, links.ratio, links.broken, now, ever, sick)))


def links_of(topology: Topology, free: int | None, turns: Turns, ill: int = 0) -> Links | None:
    """The GPUs that a pod would get; None for none, and where the node has too few.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        turns: The containers that ask for some.
        ill: Mask of those that may be given and are ill.
    """
    if not turns or allotted(topology, (1 << topology.gpus) - 1, turns) is None:
        return None
    got = None if free is None else allotted(topology, free, turns)
    if free is None or got is None:
        return _least(topology, turns)._replace(ill=tuple(bits(ill)))
    sick = ill & union(got) if topology.two_sided else ill
    return _got(topology, free, turns, got)._replace(ill=tuple(bits(sick)))


def _least(topology: Topology, turns: Turns) -> Links:
    """Where it is not known which GPUs are free."""
    sets = gpu_sets(topology)
    worst = [sets.worst(count) for count, _ in turns]
    joined = all(count == 1 or sets.always_joined(count) for count, _ in turns)
    return Links((), (), _quality(turns, worst), joined, _worst_ratio(sets, turns, worst))


def _got(topology: Topology, free: int, turns: Turns, got: tuple[int, ...]) -> Links:
    """Where it is known which ones each container gets."""
    sets, taken = gpu_sets(topology), union(got)
    qualities = [sets.quality(each) for each in got]
    told = tuple(bits(taken)) if topology.two_sided else ()
    joined = all(sets.joined(each) for each in got)
    best = tuple(bits(union(allotted(topology, free, turns, best_set) or ())))
    ratio, broken = _worst_ratio(sets, turns, qualities), _broken(sets, free, free & ~taken)
    return Links(told, best, _quality(turns, qualities), joined, ratio, broken)


def _quality(turns: Turns, qualities: Sequence[Quality]) -> Quality:
    """Of all containers together; one with a single GPU has no pairs."""
    pairs = [one.slowest for (count, _), one in zip(turns, qualities, strict=True) if count > 1]
    return Quality(min(pairs, default=0), sum(one.total for one in qualities))


def _worst_ratio(sets: GpuSets, turns: Turns, qualities: Sequence[Quality]) -> int:
    return min(_ratio(one, sets.best(count)) for (count, _), one in zip(turns, qualities, strict=True))


def warm(topologies: Sequence[Topology]) -> None:
    """Work out ahead what takes longest when it is first asked for: the sets of each kind of node."""
    for topology in topologies:
        for count in range(1, topology.gpus + 1):
            links_of(topology, (1 << topology.gpus) - 1, (Turn(count),))


def _broken(sets: GpuSets, before: int, after: int) -> int:
    if sets.topology.gpus < min(SETS) or sets.always_joined(min(SETS)):
        return 0
    return sum(sets.island(before) >= size > sets.island(after) for size in SETS)


def _ratio(quality: Quality, best: Quality) -> int:
    return 100 * quality.slowest // best.slowest if best.slowest else 100
