"""The GPUs that a pod would get on a node, and how they are linked.

What NVIDIA's device plugin will allocate counts, because the kubelet asks the plugin. Links are compared with the
best that the kind of node can give, so that a scarce machine with faster links is not taken for its speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.bounded import Bounded
from webhook.model.masks import bits
from webhook.placement.devices import Devices
from webhook.placement.nodes.states import Judged, States
from webhook.placement.nvlink import SETS, GpuSets, Quality, gpu_sets
from webhook.placement.plugin import plugin
from webhook.placement.rooms import Floats
from webhook.placement.topology import Topology

COUNTS_MOST = 64
"""Sizes of sets whose figures are remembered."""

KINDS_MOST = 256
"""Topologies that are remembered; beyond that those that no node has any more are forgotten."""

State = tuple[int, int | None, int]
"""Number of the topology, the mask of the free GPUs (None where it is not known), and how many are free then."""

NONE = (0.0,) * 5


class Links(NamedTuple):
    """The GPUs of a node that a pod would get.

    Attributes:
        gpus: What the device plugin will allocate; () where that is not known.
        optimal: The best set; () where it is not known which GPUs are free.
        quality: Of what it gets; where that is not known, the least it may get.
        joined: True where NVLink joins each pair of it.
        ratio: Its slowest pair against the best on this kind of node, in hundredths.
        broken: How many sizes of joined sets (two, four, eight) the node can no longer give afterwards. Counted
            where not every pair is joined alike; elsewhere the number of idle GPUs says it all.
    """

    gpus: tuple[int, ...]
    optimal: tuple[int, ...]
    quality: Quality
    joined: bool
    ratio: int
    broken: int = 0


class Figures(NamedTuple):
    """What counts of the links of every node, each of shape (nodes,); 0 where a pod gets no GPUs there.

    Attributes:
        joined: 1 where NVLink joins all that a pod would get.
        ratio: As in `Links`.
        broken: As in `Links`.
        joinable: 1 where so many free GPUs can be had with NVLink between each two.
        ever: 1 where they could be if all were free.
    """

    joined: Floats
    ratio: Floats
    broken: Floats
    joinable: Floats
    ever: Floats


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
        self._begin([(each.free, each.spare) for each in devices])

    def set(self, node: int, devices: Devices) -> None:
        """A node has other devices now."""
        if devices.topology is not self._of[node]:
            self._of[node] = devices.topology
            self._kind[node] = self._kind_of(devices.topology)
            if len(self._topologies) > max(KINDS_MOST, 2 * len(self._of)):
                self._begin([self._states.keys[number][1:] for number in self._states.of.tolist()])
        self._states.set(node, (self._kind[node], devices.free, devices.spare))

    def figures(self, count: int) -> Figures:
        """What a pod for so many whole GPUs would get on each node."""
        judged = self._figures.get(count)
        if judged is None:
            judged = Judged(self._states, lambda state: self._judge(state, count), NONE, self._faults)
            self._figures.keep(count, judged)
        return Figures(*judged.by_node().T)

    def sets(self, count: int) -> Floats:
        """How many pods for so many whole GPUs each get joined ones on each node, one after the other, (nodes,)."""
        judged = self._sets.get(count)
        if judged is None:
            judged = Judged(self._states, lambda state: (self._joined_sets(state, count),), (0.0,), self._faults)
            self._sets.keep(count, judged)
        return judged.by_node()[:, 0]

    def _joined_sets(self, state: State, count: int) -> float:
        kind, free, spare = state
        return float(joined_sets(self._topologies[kind], free, count, spare))

    def _begin(self, free: Sequence[tuple[int | None, int]]) -> None:
        """Number the topologies that nodes have; what was worked out under other numbers is forgotten.

        Args:
            free: By node, the mask of the free GPUs, and how many are free where that is not known.
        """
        self._kinds: dict[Topology, int] = {}
        self._topologies: list[Topology] = []
        self._kind = [self._kind_of(topology) for topology in self._of]
        self._states: States[State] = States((kind, *each) for kind, each in zip(self._kind, free, strict=True))
        self._figures: Bounded[int, Judged[State]] = Bounded(COUNTS_MOST)
        self._sets: Bounded[int, Judged[State]] = Bounded(COUNTS_MOST)

    def _kind_of(self, topology: Topology) -> int:
        kind = self._kinds.setdefault(topology, len(self._topologies))
        if kind == len(self._topologies):
            self._topologies.append(topology)
        return kind

    def _judge(self, state: State, count: int) -> tuple[float, ...]:
        kind, free, spare = state
        topology = self._topologies[kind]
        links = links_of(topology, free, count)
        if links is None:
            return NONE
        everyone = (1 << topology.gpus) - 1
        now, ever = joinable(topology, free, count, spare), joinable(topology, everyone, count)
        return tuple(map(float, (links.joined, links.ratio, links.broken, now, ever)))


def links_of(topology: Topology, free: int | None, count: int) -> Links | None:
    """The GPUs that a pod for so many would get; None for none, and where the node has too few.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        count: How many.
    """
    if not 0 < count <= topology.gpus:
        return None
    sets = gpu_sets(topology)
    best = sets.best(count)
    if free is None or free.bit_count() < count:
        worst = sets.worst(count)
        return Links((), (), worst, count == 1 or sets.always_joined(count), _ratio(worst, best))
    predicted, got = plugin(topology).predicted(free, count), given(topology, free, count)
    quality = sets.quality(got)
    told = () if predicted is None else tuple(bits(predicted))
    optimal = tuple(bits(sets.optimal(free, count) or 0))
    return Links(told, optimal, quality, sets.joined(got), _ratio(quality, best), _broken(sets, free, free & ~got))


def given(topology: Topology, free: int, count: int) -> int:
    """The set that a pod gets of the free GPUs: the plugin's; where it cannot cope, the best. 0 for none."""
    predicted = plugin(topology).predicted(free, count)
    return predicted if predicted is not None else gpu_sets(topology).optimal(free, count) or 0


def joinable(topology: Topology, free: int | None, count: int, spare: int = 0) -> bool:
    """Can so many free GPUs be had with NVLink between each two?

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        count: How many the pod wants.
        spare: How many are free where it is not known which: yes only if each choice of so many has a joined set.
    """
    sets = gpu_sets(topology)
    return (sets.island(free) if free is not None else sets.sure_island(spare)) >= count


def joined_sets(topology: Topology, free: int | None, count: int, spare: int = 0) -> int:
    """How many pods for so many GPUs each, one after the other, get ones that NVLink joins. Arguments: `joinable`."""
    for pods in range(topology.gpus):
        if not joinable(topology, free, count, spare):
            return pods
        free = None if free is None else free & ~given(topology, free, count)
        spare = max(0, spare - count)
    return topology.gpus


def warm(topologies: Sequence[Topology]) -> None:
    """Work out ahead what takes longest when it is first asked for: the sets of each kind of node."""
    for topology in topologies:
        for count in (1, *SETS):
            links_of(topology, (1 << topology.gpus) - 1, count)


def _broken(sets: GpuSets, before: int, after: int) -> int:
    if sets.topology.gpus < min(SETS) or sets.always_joined(min(SETS)):
        return 0
    return sum(sets.island(before) >= size > sets.island(after) for size in SETS)


def _ratio(quality: Quality, best: Quality) -> int:
    return 100 * quality.slowest // best.slowest if best.slowest else 100
