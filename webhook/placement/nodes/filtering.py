"""Which nodes cannot take a pod, and every reason why: in the scheduler's own words, and in ours.

Source of the words: the scheduler's plugins NodeUnschedulable, NodeAffinity, TaintToleration and
NodeResourcesFit, as `kubectl describe pod` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from webhook.model.masks import bits
from webhook.model.modes import Form
from webhook.model.nodelabels import PRODUCT, STRATEGY
from webhook.model.resources import gpu_resource
from webhook.model.taints import all_tolerated
from webhook.placement.mig import geometry, repartition, worth_of
from webhook.placement.nodes.allotting import Turns, allotted, joinable, widest
from webhook.placement.nodes.cluster import MIB, Cluster, Wanted
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import Topology

NOT_JOINED = "node(s) had no free GPUs joined by NVLink"
NEVER_JOINED = "node(s) could not join so many GPUs by NVLink"


class Reason(msgspec.Struct, frozen=True):
    """Why a node cannot take a pod.

    Attributes:
        scheduler: As the scheduler says it, or in its manner where only we see it.
        detail: As we say it, with figures and names.
    """

    scheduler: str
    detail: str


def obstacles(cluster: Cluster, wanted: Wanted, node: int) -> list[Reason]:
    """Everything that keeps a pod off a node; none where it fits."""
    return [*ruled_out(cluster, wanted, node), *lacking(cluster, wanted, node)]


def lacking(cluster: Cluster, wanted: Wanted, node: int) -> Iterator[Reason]:
    """What a node has too little of for a pod, whether it would be let in or not."""
    if cluster.free[node].full:
        yield Reason("Too many pods", f"it takes {cluster.fleet.nodes[node].pods} pods, and has them")
    yield from _short(cluster, wanted, node)
    yield from _gpus(cluster, wanted, node)


def ruled_out(cluster: Cluster, wanted: Wanted, node: int) -> Iterator[Reason]:
    """Why a node does not let a pod in, however much it has free."""
    bit, known = 1 << node, cluster.fleet.nodes[node]
    if not cluster.fleet.open_to(wanted.tolerations) & bit:
        yield Reason("node(s) were unschedulable", "cordoned, not ready, or its GPUs are being changed")
    if not wanted.selected & bit:
        yield Reason("node(s) didn't match Pod's node affinity/selector", "ruled out by node selector or affinity")
    for taint in known.taints:
        if not all_tolerated(wanted.tolerations, (taint,)):
            said = f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
            yield Reason(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}", f"taint {said}")


def _short(cluster: Cluster, wanted: Wanted, node: int) -> Iterator[Reason]:
    room = cluster.free[node]
    if wanted.cpu_milli > max(0, room.cpu_milli):
        yield Reason("Insufficient cpu", f"{_cores(room.cpu_milli)} cores free of {_cores(wanted.cpu_milli)}")
    if wanted.memory_mib > max(0, room.memory) // MIB:
        free, asked = max(0, room.memory) // MIB, wanted.memory_mib
        yield Reason("Insufficient memory", f"{_gib(free)} GiB of memory free of {_gib(asked)}")


def _gib(mib: int) -> str:
    """Exact to the MiB: a node may lack no more than that."""
    return f"{mib / 1024:.3f}".rstrip("0").rstrip(".")


def _cores(milli: int) -> str:
    return f"{max(0, milli) / 1000:g}"


def _gpus(cluster: Cluster, wanted: Wanted, node: int) -> Iterator[Reason]:
    room = cluster.free[node]
    short = [(resource, count) for resource, count in wanted.gpus if room.units(resource) < count]
    for resource, count in short:
        yield Reason(f"Insufficient {resource}", _why_short(cluster, resource, count, node))
    if not short and wanted.joined and not joined_on(cluster, wanted, node):
        yield Reason(NOT_JOINED, _why_not_joined(cluster, wanted, node))


def joined_on(cluster: Cluster, wanted: Wanted, node: int) -> bool:
    """Does NVLink join what each container would get on a node?"""
    devices, offer = cluster.devices[node], cluster.offer(node, wanted.resource)
    whole = offer is not None and offer.form is Form.WHOLE
    return whole and joinable(devices.topology, devices.free, wanted.turns, devices.spare)


def _why_not_joined(cluster: Cluster, wanted: Wanted, node: int) -> str:
    offer, devices = cluster.offer(node, wanted.resource), cluster.devices[node]
    free, most = cluster.free[node].units(wanted.resource), widest(wanted.turns)
    if offer is None or offer.form is not Form.WHOLE:
        return f"{free} free, which are no whole cards: NVLink joins none of them"
    topology, known = devices.topology, devices.free
    if gpu_sets(topology).island((1 << topology.gpus) - 1 if known is None else known) < most:
        return f"{free} free, no {most} of them joined by NVLink{_which(cluster, node)}"
    if known is None:
        return f"{free} free, it is not known which, and NVLink does not join every choice"
    got = _unjoined(topology, known, wanted.turns)
    if not got:
        return f"{free} free by their number, and {known.bit_count()} by the agent's report{_which(cluster, node)}"
    whose = f" to the container of {got.bit_count()}" if len(wanted.turns) > 1 else ""
    return f"{free} free, and the device plugin gives {_list(got)}{whose}, which NVLink does not join"


def _unjoined(topology: Topology, free: int, turns: Turns) -> int:
    """The first set that a container would get and NVLink does not join; 0 where there are too few."""
    sets = allotted(topology, free, turns) or ()
    return next((each for each in sets if not gpu_sets(topology).joined(each)), 0)


def _why_short(cluster: Cluster, resource: str, count: int, node: int) -> str:
    there, free = cluster.fleet.nodes[node].gpus.get(resource, 0), cluster.free[node].units(resource)
    beyond = cluster.fleet.nodes[node].beyond.get(resource, 0)
    if beyond:
        return f"says it has {beyond} {resource}, more than any node can have: counts as none"
    if not there:
        said = f"offers no {resource}"
    elif there < count:
        said = f"has {there} of {count}"
    else:
        said = "full" if not free else f"{free} free of {count}"
    cut = _new_cut(cluster, resource, node)
    return f"{said}; {cut}" if cut else said


def _new_cut(cluster: Cluster, resource: str, node: int) -> str:
    """How a MIG card could be cut anew to make room; "" where that does not help."""
    cards, profile = cluster.devices[node].cards, _profile(cluster, resource, node)
    known = geometry(cluster.fleet.nodes[node].labels.get(PRODUCT, "")) if cards and profile else None
    cut = repartition(worth_of(known), cards, profile) if known else None
    if cut is None:
        return ""
    removed = ", ".join(sorted(f"{one.profile} at {one.start}" for one in cut.remove)) or "nothing"
    return f"GPU {cut.index} could be cut anew: remove {removed}, make {cut.create.profile} at {cut.create.start}"


def _profile(cluster: Cluster, resource: str, node: int) -> str:
    """The MIG profile that a name stands for on a node, or would once a card is cut so; "" for none."""
    offer, named = cluster.offer(node, resource), gpu_resource(resource)
    if offer is not None:
        return offer.profile if offer.form is Form.MIG else ""
    alike = cluster.fleet.nodes[node].labels.get(STRATEGY) == "single"
    return "" if named is None or alike else named.profile


def _which(cluster: Cluster, node: int) -> str:
    free = cluster.devices[node].free
    return f" (GPUs {_list(free)})" if free else ""


def _list(gpus: int) -> str:
    return ", ".join(map(str, bits(gpus)))
