"""What the scheduler asks: which of its nodes suit a pod, how well, and where evicting others would help.

The scheduler has filtered by everything that it knows itself, and better than we could: its own view of pods, labels
and taints is never behind. So only what it cannot see is refused here: GPUs that NVLink does not join, for a pod that
requires it. All else is a matter of order.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import numpy as np

from webhook.extender.standing import Standing
from webhook.extender.wire import (
    Victims,
    filter_answer,
    preempt_answer,
    prioritize_answer,
    read_asked,
    read_preempting,
)
from webhook.model.pods import Pod
from webhook.model.resources import WHOLE_GPU
from webhook.placement.devices import Devices, counted, expected
from webhook.placement.nodes.allotting import joinable
from webhook.placement.nodes.asking import wanted_of
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.filtering import NEVER_JOINED, NOT_JOINED
from webhook.placement.nodes.ranking import Order, Ranking
from webhook.placement.rooms import Ints

BEST = 10
"""The highest score an extender may give. Only one node gets it, so that none but it is promised."""

NOT_KNOWN = "node(s) were not known to Rightslice yet"


class Answer(NamedTuple):
    """What goes back, and how it is counted.

    Attributes:
        body: JSON.
        result: "ranked", "passed" (nothing to say), "narrowed" or "none" (no node is left).
    """

    body: bytes
    result: str


def filtered(standing: Standing, body: bytes, now: float) -> Answer:
    """The nodes that suit a pod. Where only one is left the scheduler does not ask again, and it is promised.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    pod, names, wanted, ranking = _begun(standing, body, now)
    if ranking is None:
        return Answer(filter_answer(names, {}, {}), "passed")
    standing.learn(pod, wanted)
    failed, hopeless = _refused(standing, ranking, wanted, names) if wanted.joined else ({}, {})
    passed = [name for name in names if name not in failed and name not in hopeless] if failed or hopeless else names
    if len(passed) == 1:
        standing.hold(pod, passed[0], now)
    result = "passed" if passed is names else "narrowed" if passed else "none"
    return Answer(filter_answer(passed, failed, hopeless), result)


def prioritized(standing: Standing, body: bytes, now: float) -> Answer:
    """How well each node suits a pod; the best is promised, and where the rest of its gang fits beside it, that too.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    pod, names, wanted, ranking = _begun(standing, body, now)
    if ranking is None:
        return Answer(prioritize_answer(names, [0] * len(names)), "passed")
    positions, company = standing.positions(names), standing.company(pod)
    among, yielding = standing.among(positions), standing.over(pod)
    order = ranking.order(wanted, among=among, company=company, yielding=yielding)
    if len(order.nodes):
        others = ranking.others(wanted, company, order) if company is not None else []
        best, *kept = (standing.fleet.nodes[node].name for node in (int(order.nodes[0]), *others))
        standing.hold(pod, best, now, kept)
    scores = np.append(_scores(order, len(standing.fleet.nodes)), 0)  # a node that is not known: position -1
    return Answer(prioritize_answer(names, scores[positions].tolist()), "ranked" if len(order.nodes) else "none")


def preempted(standing: Standing, body: bytes, now: float) -> Answer:
    """Where evicting these pods lets the pod in. Only one that requires NVLink may be let down by the others' going.

    Raises:
        ReviewError: the body is not what a scheduler sends.
    """
    asked = read_preempting(body)
    victims = asked.victims or {}
    ranking, wanted = _known(standing, asked.pod, now)
    if ranking is None or not wanted.joined:
        return Answer(preempt_answer(victims), "passed")
    helped = {name: some for name, some in victims.items() if _helps(standing, ranking, wanted, name, some)}
    return Answer(preempt_answer(helped), "narrowed" if helped else "none")


class _Turn(NamedTuple):
    """A pod that is asked about; without a ranking there is nothing to say of it."""

    pod: Pod
    names: tuple[str, ...]
    wanted: Wanted
    ranking: Ranking | None


def _begun(standing: Standing, body: bytes, now: float) -> _Turn:
    asked = read_asked(body)
    ranking, wanted = _known(standing, asked.pod, now)
    if ranking is None or not wanted.count:
        return _Turn(asked.pod, asked.node_names or (), wanted, None)
    standing.release(asked.pod)
    return _Turn(asked.pod, asked.node_names or (), wanted, ranking)


def _known(standing: Standing, pod: Pod, now: float) -> tuple[Ranking | None, Wanted]:
    standing.refresh(now)
    return standing.ranking, wanted_of(pod, standing.fleet)


def _refused(
    standing: Standing, ranking: Ranking, wanted: Wanted, names: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Why nodes cannot give the pod joined GPUs: those where somebody's going may help, and those where nothing does.

    A node that we do not know yet may turn out well in a moment.
    """
    failed, hopeless = {}, {}
    fits, ever = ranking.joinable(wanted)
    positions = standing.positions(names)
    for name, node in zip(names, positions.tolist(), strict=True):
        if node < 0:
            failed[name] = NOT_KNOWN
        elif not ever[node]:
            hopeless[name] = NEVER_JOINED
        elif not fits[node]:
            failed[name] = NOT_JOINED
    return failed, hopeless


def _scores(order: Order, nodes: int) -> Ints:
    """Scores by node, shape (nodes,): ten for the best, nine and less for the others, alike for equals."""
    scores = np.zeros(nodes, np.int64)
    if len(order.nodes):
        worse = np.concatenate([[0], (order.keys[1:] != order.keys[:-1]).any(1).cumsum()])
        scores[order.nodes] = (BEST - 1) * (worse[-1] + 1 - worse) // (worse[-1] + 1)
        scores[order.nodes[0]] = BEST
    return scores


def _helps(standing: Standing, ranking: Ranking, wanted: Wanted, name: str, victims: Victims) -> bool:
    """Does NVLink join what each container gets of a node once these pods are gone?"""
    node = standing.fleet.by_name.get(name, -1)
    if node < 0 or not ranking.cluster.whole_nodes() >> node & 1:
        return False
    gone = {victim.uid for victim in victims.pods}
    known = _without(standing, ranking.cluster, node, gone)
    return joinable(known.topology, known.free, wanted.turns, known.spare)


def _without(standing: Standing, cluster: Cluster, node: int, gone: Container[str]) -> Devices:
    """The GPUs of a node if pods with these uids were gone."""
    known = cluster.fleet.nodes[node]
    there = standing.inventory.pods.tenants.on(known.name).values()
    freed = sum(each.units.get(WHOLE_GPU, 0) for each in there if each.uid in gone)
    devices = standing.inventory.devices_without(known, gone)
    if devices is not None:
        return counted(devices, cluster.free[node].units(WHOLE_GPU) + freed)
    whole, free = cluster.whole(node)
    return expected(known, whole, free + freed)
