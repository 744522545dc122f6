"""The extender's verbs, from request body to answer: filter, prioritize (with and without claims) and preempt.

The wire structures are those of `k8s.io/kube-scheduler/extender/v1`.

The scheduler has applied its own filters already, with a view of pods, labels and taints that is newer than ours. So
only GPUs that NVLink does not connect are rejected here, for pods that require it, and slices and shares that must not
serve a request for several GPUs. Everything else only affects the order.

The score: `placement.nodes.ranking` orders the feasible nodes by a key, and `_extender_scores` maps the order to 10 to
0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from webhook.errors import ReviewError, quote_text
from webhook.extender.state import RESERVATION_SECONDS, SchedulerState
from webhook.manifests.scheduler_config import managed_resources
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.object_bounds import find_exceeded_bound
from webhook.model.pod_resources import effective_requests, negative_resources
from webhook.model.pods import Pod, PodSpec, pod_uid, without_nulls
from webhook.placement.capacity import IntArray
from webhook.placement.devices import devices_from_labels, reconcile_free_count
from webhook.placement.nodes.device_plugin import gets_connected_gpus
from webhook.placement.nodes.device_values import NeededDevices
from webhook.placement.nodes.filtering import NEVER_CONNECTED, NOT_CONNECTED, unsuitable_reason
from webhook.placement.nodes.pod_requirements import PodRequirements, pod_requirements
from webhook.placement.nodes.providers import ProviderRequirements, requirements_by_provider
from webhook.placement.nodes.ranking import NodeOrder, NodeRanking

NODE_NAMES_REQUIRED = "NodeNames must be set: write nodeCacheCapable: true in the scheduler's configuration"


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Body of /filter and /prioritize."""

    pod: Pod
    node_names: tuple[str, ...] | None = None


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node."""

    pods: tuple[MetaPod, ...] = msgspec.field(name="Pods", default=())
    disruptions: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """Body of /preempt."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


MAX_SCORE = 10
"""The highest score an extender may give. Only one node gets it, so that the node with the reservation is chosen."""

UNKNOWN_NODE = "node(s) were not known to Rightslice yet"


class VerbResult(NamedTuple):
    """An answer, and its label in metrics.

    Attributes:
        body: JSON.
        result: "ranked", "passed" (unchanged), "narrowed" or "none" (no node is left).
    """

    body: bytes
    result: str


def handle_filter(state: SchedulerState, body: bytes, now: float) -> VerbResult:
    """Return the nodes that pass. If only one is left the scheduler does not call /prioritize, so it is reserved here.

    Raises:
        ReviewError: the body is not an ExtenderArgs.
    """
    pod, names, providers, ranking, needed = _begin_verb(state, _decode_args(body, ExtenderArgs), now)
    requirements = providers.of_plugins
    if ranking is None:
        return VerbResult(encode_filter_result(names, {}, {}), "passed")
    state.learning.record_arrival(ranking.snapshot, pod_uid(pod), requirements)
    failed, unresolvable = _nvlink_rejections(state, ranking, requirements, names)
    unresolvable |= _unsuitable_rejections(state, ranking, requirements, names)
    passed = (
        [name for name in names if name not in failed and name not in unresolvable] if failed or unresolvable else names
    )
    if len(passed) == 1:
        _reserve(state, pod, providers, needed, passed[0], now)
    result = "passed" if passed is names else "narrowed" if passed else "none"
    return VerbResult(encode_filter_result(passed, failed, unresolvable), result)


def handle_prioritize(state: SchedulerState, body: bytes, now: float) -> VerbResult:
    """Return the score of each node. Reserves the best one, and nodes for the rest of the pod's gang if it fits.

    Raises:
        ReviewError: the body is not an ExtenderArgs.
    """
    return _prioritize(state, _begin_verb(state, _decode_args(body, ExtenderArgs), now), now)


def handle_prioritize_claims(state: SchedulerState, body: bytes, now: float) -> VerbResult:
    """Return the scores for a pod that `managedResources` do not name but that needs devices; none for others.

    Raises:
        ReviewError: the body is not an ExtenderArgs.
    """
    args: ExtenderArgs = _decode_args(body, ExtenderArgs)
    is_managed = not effective_requests(args.pod).keys().isdisjoint(managed_resources())
    if is_managed or (context := _begin_verb(state, args, now)).needed is None:
        return VerbResult(b"[]", "passed")
    return _prioritize(state, context, now)


def _prioritize(state: SchedulerState, context: _VerbContext, now: float) -> VerbResult:
    pod, names, providers, ranking, needed = context
    requirements = providers.of_plugins
    if ranking is None:
        return VerbResult(encode_host_priorities(names, [0] * len(names)), "passed")
    positions, gang = state.positions(names), state.gang_context(pod) if requirements.count else None
    candidates = np.isin(np.arange(len(state.fleet.nodes)), positions)
    devices = state.find_device_values(needed, np.flatnonzero(candidates).tolist())
    over_fair_share = state.is_over_share(pod)
    order = providers.order(ranking, candidates=candidates, gang=gang, over_fair_share=over_fair_share, devices=devices)
    if len(order.nodes):
        others = ranking.nodes_for_gang(requirements, gang, order) if gang is not None else []
        best, *reserved = (state.fleet.nodes[node].name for node in (int(order.nodes[0]), *others))
        _reserve(state, pod, providers, needed, best, now, reserved)
    scores = np.append(_extender_scores(order, len(state.fleet.nodes)), 0)  # unknown nodes have position -1
    result = "ranked" if len(order.nodes) else "none"
    return VerbResult(encode_host_priorities(names, scores[positions].tolist()), result)


def handle_preempt(state: SchedulerState, body: bytes, now: float) -> VerbResult:
    """Return the nodes where evicting the victims helps: all of them for a pod that does not require NVLink.

    Raises:
        ReviewError: the body is not an ExtenderPreemptionArgs.
    """
    args: ExtenderPreemptionArgs = _decode_args(body, ExtenderPreemptionArgs)
    if args.victims is None:
        raise ReviewError(NODE_NAMES_REQUIRED.replace("NodeNames", "NodeNameToMetaVictims"))
    ranking, requirements = _refresh_for_pod(state, args.pod, now)
    victims, result = args.victims, "passed"
    if ranking is not None and requirements.nvlink_required:
        victims = {
            name: some for name, some in victims.items() if _eviction_helps(state, ranking, requirements, name, some)
        }
        result = "narrowed" if victims else "none"
    return VerbResult(msgspec.json.encode({"NodeNameToMetaVictims": victims}), result)


def _reserve(
    state: SchedulerState,
    pod: Pod,
    providers: ProviderRequirements,
    needed: NeededDevices | None,
    node: str,
    now: float,
    others: Sequence[str] = (),
) -> None:
    """Reserve a node for a pod that requests GPUs of device plugins, and the devices that the pod needs there."""
    position = state.fleet.by_name.get(node)
    requirements = providers.of_plugins if position is None else providers.on_node(position)
    if requirements.count:
        state.reserve(pod, node, now, others)
    if needed is not None and position is not None:
        state.devices.reserve(needed, position, state.fleet, now + RESERVATION_SECONDS)


class _VerbContext(NamedTuple):
    """The request of a verb.

    Attributes:
        providers: What the pod requires of device plugins, by node.
        ranking: None if there is no ranking yet, or the pod needs no GPUs.
        needed: The devices of ResourceSlices that it needs.
    """

    pod: Pod
    names: tuple[str, ...]
    providers: ProviderRequirements
    ranking: NodeRanking | None
    needed: NeededDevices | None = None


def _begin_verb(state: SchedulerState, args: ExtenderArgs, now: float) -> _VerbContext:
    if args.node_names is None:
        raise ReviewError(NODE_NAMES_REQUIRED)
    ranking, requirements = _refresh_for_pod(state, args.pod, now)
    needed = state.devices.find_needed(args.pod, state.fleet, now)
    providers = ProviderRequirements(((state.fleet.all_nodes, requirements),))
    if needed is not None:
        providers = requirements_by_provider(requirements, needed.view, state.fleet)
    elif not requirements.count:
        ranking = None
    if ranking is not None:
        state.release(args.pod)
    return _VerbContext(args.pod, args.node_names, providers, ranking, needed)


def _refresh_for_pod(state: SchedulerState, pod: Pod, now: float) -> tuple[NodeRanking | None, PodRequirements]:
    state.refresh(now)
    return state.ranking, pod_requirements(pod, state.fleet)


def _nvlink_rejections(
    state: SchedulerState, ranking: NodeRanking, requirements: PodRequirements, names: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return why nodes cannot give the pod connected GPUs: those where eviction may help, and those where it cannot.

    An unknown node counts as one where eviction may help, so that the scheduler tries it again.
    """
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    if not requirements.nvlink_required:
        return failed, unresolvable
    fits, ever = ranking.nvlink_connected_nodes(requirements)
    positions = state.positions(names)
    for name, node in zip(names, positions.tolist(), strict=True):
        if node < 0:
            failed[name] = UNKNOWN_NODE
        elif not ever[node]:
            unresolvable[name] = NEVER_CONNECTED
        elif not fits[node]:
            failed[name] = NOT_CONNECTED
    return failed, unresolvable


def _unsuitable_rejections(
    state: SchedulerState, ranking: NodeRanking, requirements: PodRequirements, names: tuple[str, ...]
) -> dict[str, str]:
    """Return the nodes whose slices or shares must not serve several units, with what they have."""
    if not requirements.unsuitable_nodes:
        return {}
    nodes = zip(names, state.positions(names).tolist(), strict=True)
    return {
        name: unsuitable_reason(ranking.snapshot, requirements, node).detail
        for name, node in nodes
        if node >= 0 and requirements.unsuitable_nodes >> node & 1
    }


def _extender_scores(order: NodeOrder, nodes: int) -> IntArray:
    """Return scores by node, shape (nodes,): 10 for the best, 9 and less for the others, equal for equal keys."""
    scores = np.zeros(nodes, np.int64)
    if len(order.nodes):
        ranks = np.concatenate([[0], (order.keys[1:] != order.keys[:-1]).any(1).cumsum()])
        scores[order.nodes] = (MAX_SCORE - 1) * (ranks[-1] + 1 - ranks) // (ranks[-1] + 1)
        scores[order.nodes[0]] = MAX_SCORE
    return scores


def _eviction_helps(
    state: SchedulerState, ranking: NodeRanking, requirements: PodRequirements, name: str, victims: MetaVictims
) -> bool:
    """Return whether NVLink connects the GPUs of each container on a node without the victims."""
    node = state.fleet.by_name.get(name, -1)
    if node < 0 or not ranking.snapshot.whole_gpu_nodes() >> node & 1:
        return False
    cluster, evicted = ranking.snapshot, {victim.uid for victim in victims.pods}
    running = state.inventory.gpu_pods.on_node(name).values()
    freed = sum(each.units.get(WHOLE_GPU, 0) for each in running if each.uid in evicted)
    devices = state.inventory.devices_without(cluster.fleet.nodes[node], evicted)
    if devices is None:
        whole, free = cluster.whole_gpus(node)
        devices = devices_from_labels(cluster.fleet.nodes[node], whole, free + freed)
    else:
        devices = reconcile_free_count(devices, cluster.free[node].units(WHOLE_GPU) + freed)
    return gets_connected_gpus(devices.topology, devices.free, requirements.container_requests, devices.free_count)


def _decode_args(body: bytes, kind: type[Any]) -> Any:
    """Read a body, whose pod must be one that an API server admits.

    Other pods wait meanwhile, so a pod that is too large for the webhook is treated like one without GPUs.
    """
    args = _decode_body(body, kind)
    if find_exceeded_bound([args.pod]):
        return replace(args, pod=Pod(args.pod.metadata, PodSpec()))
    for name in negative_resources(args.pod):
        raise ReviewError(f"{quote_text(name)} must not be negative")
    return args


def _decode_body(body: bytes, kind: type[Any]) -> Any:
    """Decode directly first. Go writes null for an empty value, so a failure is retried with nulls removed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        pass
    except RecursionError as error:
        raise ReviewError("the body must not be nested this deeply") from error
    try:
        return msgspec.convert(without_nulls(msgspec.json.decode(body)), kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError("the body must be what kube-scheduler sends to an extender") from error


def encode_filter_result(passed: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    """Return the answer of /filter; `failed` and `unresolvable` have reasons by node: eviction may help, or cannot."""
    answer = {"NodeNames": passed, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}
    return msgspec.json.encode(answer)


def encode_host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Return the answer of /prioritize: a score of 0 to 10 for each node."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])
