"""What the scheduler asks: which of its nodes suit a pod, how well, and where evicting others would help.

The scheduler has filtered by everything that it knows itself, and better than we could: its own view of pods, labels
and taints is never behind. So only what it cannot see is refused here: GPUs that NVLink does not join, for a pod that
requires it. All else is a matter of order.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import numpy as np

from webhook.extender.state import SchedulerState
from webhook.extender.wire import (
    MetaVictims,
    decode_extender_args,
    decode_preemption_args,
    encode_filter_result,
    encode_host_priorities,
    encode_preemption_result,
)
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.pods import Pod
from webhook.placement.capacity import IntArray
from webhook.placement.devices import NodeDevices, devices_from_labels, reconcile_free_count
from webhook.placement.nodes.device_plugin import can_join
from webhook.placement.nodes.filtering import NEVER_JOINED, NOT_JOINED
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.ranking import NodeOrder, NodeRanking
from webhook.placement.nodes.snapshot import PodRequirements, SchedulingSnapshot

MAX_SCORE = 10
"""The highest score an extender may give. Only one node gets it, so that none but it is promised."""

UNKNOWN_NODE = "node(s) were not known to Rightslice yet"


class VerbResult(NamedTuple):
    """What goes back, and how it is counted.

    Attributes:
        body: JSON.
        result: "ranked", "passed" (nothing to say), "narrowed" or "none" (no node is left).
    """

    body: bytes
    result: str


def handle_filter(standing: SchedulerState, body: bytes, now: float) -> VerbResult:
    """The nodes that suit a pod. Where only one is left the scheduler does not ask again, and it is promised.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    pod, names, wanted, ranking = _begin_verb(standing, body, now)
    if ranking is None:
        return VerbResult(encode_filter_result(names, {}, {}), "passed")
    standing.record_arrival(pod, wanted)
    failed, hopeless = _nvlink_rejections(standing, ranking, wanted, names) if wanted.nvlink_required else ({}, {})
    passed = [name for name in names if name not in failed and name not in hopeless] if failed or hopeless else names
    if len(passed) == 1:
        standing.reserve(pod, passed[0], now)
    result = "passed" if passed is names else "narrowed" if passed else "none"
    return VerbResult(encode_filter_result(passed, failed, hopeless), result)


def handle_prioritize(standing: SchedulerState, body: bytes, now: float) -> VerbResult:
    """How well each node suits a pod; the best is promised, and where the rest of its gang fits beside it, that too.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    pod, names, wanted, ranking = _begin_verb(standing, body, now)
    if ranking is None:
        return VerbResult(encode_host_priorities(names, [0] * len(names)), "passed")
    positions, company = standing.positions(names), standing.gang_context(pod)
    among, yielding = standing.node_filter(positions), standing.is_over_share(pod)
    order = ranking.order(wanted, among=among, company=company, yielding=yielding)
    if len(order.nodes):
        others = ranking.nodes_for_gang(wanted, company, order) if company is not None else []
        best, *kept = (standing.fleet.nodes[node].name for node in (int(order.nodes[0]), *others))
        standing.reserve(pod, best, now, kept)
    scores = np.append(_extender_scores(order, len(standing.fleet.nodes)), 0)  # a node that is not known: position -1
    return VerbResult(
        encode_host_priorities(names, scores[positions].tolist()), "ranked" if len(order.nodes) else "none"
    )


def handle_preempt(standing: SchedulerState, body: bytes, now: float) -> VerbResult:
    """Where evicting these pods lets the pod in. Only one that requires NVLink may be let down by the others' going.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    asked = decode_preemption_args(body)
    victims = asked.victims or {}
    ranking, wanted = _refresh_and_require(standing, asked.pod, now)
    if ranking is None or not wanted.nvlink_required:
        return VerbResult(encode_preemption_result(victims), "passed")
    helped = {name: some for name, some in victims.items() if _eviction_helps(standing, ranking, wanted, name, some)}
    return VerbResult(encode_preemption_result(helped), "narrowed" if helped else "none")


class _VerbContext(NamedTuple):
    """A pod that is asked about; without a ranking there is nothing to say of it."""

    pod: Pod
    names: tuple[str, ...]
    wanted: PodRequirements
    ranking: NodeRanking | None


def _begin_verb(standing: SchedulerState, body: bytes, now: float) -> _VerbContext:
    asked = decode_extender_args(body)
    ranking, wanted = _refresh_and_require(standing, asked.pod, now)
    if ranking is None or not wanted.count:
        return _VerbContext(asked.pod, asked.node_names or (), wanted, None)
    standing.release(asked.pod)
    return _VerbContext(asked.pod, asked.node_names or (), wanted, ranking)


def _refresh_and_require(standing: SchedulerState, pod: Pod, now: float) -> tuple[NodeRanking | None, PodRequirements]:
    standing.refresh(now)
    return standing.ranking, pod_requirements(pod, standing.fleet)


def _nvlink_rejections(
    standing: SchedulerState, ranking: NodeRanking, wanted: PodRequirements, names: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Why nodes cannot give the pod joined GPUs: those where somebody's going may help, and those where nothing does.

    A node that we do not know yet may turn out well in a moment.
    """
    failed, hopeless = {}, {}
    fits, ever = ranking.joinable_nodes(wanted)
    positions = standing.positions(names)
    for name, node in zip(names, positions.tolist(), strict=True):
        if node < 0:
            failed[name] = UNKNOWN_NODE
        elif not ever[node]:
            hopeless[name] = NEVER_JOINED
        elif not fits[node]:
            failed[name] = NOT_JOINED
    return failed, hopeless


def _extender_scores(order: NodeOrder, nodes: int) -> IntArray:
    """Scores by node, shape (nodes,): ten for the best, nine and less for the others, alike for equals."""
    scores = np.zeros(nodes, np.int64)
    if len(order.nodes):
        worse = np.concatenate([[0], (order.keys[1:] != order.keys[:-1]).any(1).cumsum()])
        scores[order.nodes] = (MAX_SCORE - 1) * (worse[-1] + 1 - worse) // (worse[-1] + 1)
        scores[order.nodes[0]] = MAX_SCORE
    return scores


def _eviction_helps(
    standing: SchedulerState, ranking: NodeRanking, wanted: PodRequirements, name: str, victims: MetaVictims
) -> bool:
    """Does NVLink join what each container gets of a node once these pods are gone?"""
    node = standing.fleet.by_name.get(name, -1)
    if node < 0 or not ranking.cluster.whole_gpu_nodes() >> node & 1:
        return False
    gone = {victim.uid for victim in victims.pods}
    known = _devices_after_eviction(standing, ranking.cluster, node, gone)
    return can_join(known.topology, known.free, wanted.container_requests, known.free_count)


def _devices_after_eviction(
    standing: SchedulerState, cluster: SchedulingSnapshot, node: int, gone: Container[str]
) -> NodeDevices:
    """The GPUs of a node if pods with these uids were gone."""
    known = cluster.fleet.nodes[node]
    there = standing.inventory.pods.index.on_node(known.name).values()
    freed = sum(each.units.get(WHOLE_GPU, 0) for each in there if each.uid in gone)
    devices = standing.inventory.devices_without(known, gone)
    if devices is not None:
        return reconcile_free_count(devices, cluster.free[node].units(WHOLE_GPU) + freed)
    whole, free = cluster.whole_gpus(node)
    return devices_from_labels(known, whole, free + freed)
