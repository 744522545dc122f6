"""Which whole GPUs of a node a pod gets, container by container, and whether NVLink joins what each of them gets.

The kubelet asks the device plugin for one container after the other: init containers first, each kind in the order of
the pod. What an init container held goes to those after it before anything else does; a sidecar keeps its own. Only
one container sees a GPU, so GPUs are joined, or not, in each container by itself.

Source: kubelet, `devicesToAllocate` and `devicesToReuse` of its device manager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain, combinations, islice
from math import comb
from typing import NamedTuple

from webhook.model.effective import is_sidecar, limit_or_request
from webhook.model.masks import bits, union
from webhook.model.pods import Pod
from webhook.model.quantity import NANO
from webhook.model.resources import WHOLE_GPU
from webhook.placement.nvlink import ALL_AT_ONCE, gpu_sets, mask_of
from webhook.placement.plugin import plugin
from webhook.placement.topology import Topology

ASKED_MOST = 1024
"""What pods ask for, by kind of node, of which it is remembered whether it can be."""

TRIED_MOST = 1 << ALL_AT_ONCE
"""Choices of free GPUs that are tried: all of eight, the largest of sixteen."""


class Turn(NamedTuple):
    """The GPUs of one container.

    Attributes:
        gpus: How many.
        passed_on: True for an init container that ends: those after it get its GPUs.
    """

    gpus: int
    passed_on: bool = False


Turns = tuple[Turn, ...]
"""The containers of a pod that ask for GPUs, in the order in which the kubelet gives them some."""


Choose = Callable[[Topology, int, int, int], int]
"""The set that one container gets: of the node's GPUs those free, how many, and those that it gets in any case."""


def turns_of(pod: Pod, resource: str) -> Turns:
    """The containers of a pod that ask for units of a resource; what is no amount above zero counts as none.

    An init container that gets along with what those before it have passed on is left out: it changes nothing.
    """
    init = [(one, not is_sidecar(one)) for one in pod.spec.init_containers]
    turns: list[Turn] = []
    held = 0
    for container, passed_on in (*init, *((one, False) for one in pod.spec.containers)):
        gpus = -(-limit_or_request(container.resources, resource) // NANO)
        if gpus > (held if passed_on else 0):
            turns.append(Turn(gpus, passed_on))
            held = gpus if passed_on else max(0, held - gpus)
    return tuple(turns)


def several_turns(pod: Pod) -> Turns:
    """The same of whole GPUs, where several containers ask for some; () elsewhere: then the pod's sum says it all."""
    turns = turns_of(pod, WHOLE_GPU)
    return turns if len(turns) > 1 else ()


def widest(turns: Turns) -> int:
    """The most GPUs of one container; 0 for none."""
    return max((turn.gpus for turn in turns), default=0)


def given(topology: Topology, free: int, count: int, held: int = 0) -> int:
    """The set that one container gets: the plugin's; where it cannot cope, the best. 0 for none.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free.
        count: How many it asks for.
        held: Mask of those that it gets in any case.
    """
    predicted = plugin(topology).predicted(free | held, count, held)
    return best_set(topology, free, count, held) if predicted is None else predicted


def best_set(topology: Topology, free: int, count: int, held: int = 0) -> int:
    """The best that one container could get. Arguments: `given`."""
    more = gpu_sets(topology).optimal(free & ~held, count - held.bit_count())
    return 0 if more is None else held | more


def allotted(topology: Topology, free: int, turns: Turns, choose: Choose = given) -> tuple[int, ...] | None:
    """The set that each container gets; None where there are too few.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free.
        turns: The containers.
        choose: What one of them gets.
    """
    sets, held = [], 0
    for count, passed_on in turns:
        if count > (free | held).bit_count():
            return None
        got = _some(held, count) if count <= held.bit_count() else choose(topology, free, count, held)
        free &= ~got
        held = held | got if passed_on else held & ~got
        sets.append(got)
    return tuple(sets)


def joinable(topology: Topology, free: int | None, turns: Turns, spare: int = 0) -> bool:
    """Does NVLink join what the plugin gives, each two GPUs of each container?

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        turns: The containers of the pod.
        spare: How many are free where it is not known which: yes only if it is so whichever they are.
    """
    if free is not None:
        return _joined(topology, free, turns)
    sets = gpu_sets(topology)
    if not held_by(turns) <= spare <= topology.gpus:
        return False
    if all(sets.always_joined(turn.gpus) for turn in turns):
        return True
    if topology.gpus > ALL_AT_ONCE or sets.sure_island(spare) < widest(turns):
        return False
    return all(_joined(topology, mask_of(some), turns) for some in combinations(range(topology.gpus), spare))


@lru_cache(maxsize=ASKED_MOST)
def ever_joinable(topology: Topology, turns: Turns) -> bool:
    """Might it be so with other GPUs free? No only where it is sure: more choices than can be tried may hold one."""
    held, gpus = held_by(turns), topology.gpus
    everyone = (1 << gpus) - 1
    if held > gpus or gpu_sets(topology).island(everyone) < widest(turns):
        return False
    if _joined(topology, everyone, turns) or sum(comb(gpus, free) for free in range(held, gpus + 1)) > TRIED_MOST:
        return True
    choices = chain.from_iterable(combinations(range(gpus), free) for free in range(held, gpus + 1))
    return any(_joined(topology, mask_of(free), turns) for free in choices)


def held_by(turns: Turns) -> int:
    """How many GPUs the pod holds once all its containers have theirs."""
    held = fresh = 0
    for count, passed_on in turns:
        more = max(0, count - held)
        fresh += more
        held = held + more if passed_on else max(0, held - count)
    return fresh


def joined_sets(topology: Topology, free: int | None, turns: Turns, spare: int = 0) -> int:
    """How many such pods, one after the other, get GPUs that NVLink joins. Arguments: `joinable`."""
    for pods in range(topology.gpus):
        if not joinable(topology, free, turns, spare):
            return pods
        free = None if free is None else free & ~union(allotted(topology, free, turns) or ())
        spare = max(0, spare - held_by(turns))
    return topology.gpus


def _joined(topology: Topology, free: int, turns: Turns) -> bool:
    sets = allotted(topology, free, turns)
    return sets is not None and all(gpu_sets(topology).joined(each) for each in sets)


def _some(gpus: int, count: int) -> int:
    """So many of some GPUs. The kubelet takes any; here it is the first."""
    return mask_of(tuple(islice(bits(gpus), count)))
