"""Our verdict on pods in a cluster, and how it differs from the scheduler's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tests.builders import Json
from tests.controlplane.build import is_minor_or_newer
from tests.example_cluster import view_of
from tests.filters.random_clusters import RandomCluster
from tests.filters.scheduler import Rejections, SchedulerFilters
from tests.placement.clusters import placement_input
from webhook.audit.pod_placement import node_filter_reasons
from webhook.cache.placement_input import PlacementInput
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.model.cluster_view import ClusterView
from webhook.model.csi_migration import ZONE_CONFLICT
from webhook.model.filters.inter_pod_affinity import (
    identity_of,
    merge_namespaces,
    required_affinity,
    required_anti_affinity,
)
from webhook.model.filters.node_declared_features import FEATURES_UNMATCHED
from webhook.model.filters.node_volume_limits import TOO_MANY_VOLUMES
from webhook.model.filters.pod_ties import ties_of
from webhook.model.filters.volume_binding import (
    BIND_CONFLICT,
    NO_SPACE,
    NO_VOLUME,
    NODE_CONFLICT,
    UNBOUND_IMMEDIATE,
)
from webhook.model.filters.volumes import IN_USE
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pods import Pod, parse_pod
from webhook.model.schedulers import rules_of_scheduler, with_default_spread

VOLUME_MESSAGES = (
    *(NODE_CONFLICT, BIND_CONFLICT, NO_SPACE, NO_VOLUME, UNBOUND_IMMEDIATE),
    *('persistentvolumeclaim "', "waiting for ephemeral volume controller"),
)

PLUGIN_BY_MESSAGE = {
    FEATURES_UNMATCHED: "NodeDeclaredFeatures",
    "node(s) were unschedulable": "NodeUnschedulable",
    "node(s) had untolerated taint": "TaintToleration",
    "node(s) didn't match Pod's node affinity/selector": "NodeAffinity",
    "node(s) didn't have free ports for the requested pod ports": "NodePorts",
    "Insufficient ": "NodeResourcesFit",
    "Too many pods": "NodeResourcesFit",
    "node(s) didn't match pod affinity rules": "InterPodAffinity",
    "node(s) didn't match pod anti-affinity rules": "InterPodAffinity",
    "node(s) didn't satisfy existing pods anti-affinity rules": "InterPodAffinity",
    "node(s) didn't match pod topology spread constraints": "PodTopologySpread",
    **dict.fromkeys(VOLUME_MESSAGES, "VolumeBinding"),
    ZONE_CONFLICT: "VolumeZone",
    IN_USE: "VolumeRestrictions",
    TOO_MANY_VOLUMES: "NodeVolumeLimits",
}
"""The plugin of each reason, by how the reason begins."""

SINCE_36 = frozenset({"NodeDeclaredFeatures"})
"""Plugins that reject nothing before Kubernetes 1.36, which stores no pod that would need them."""

COMPARED_PLUGINS = frozenset(PLUGIN_BY_MESSAGE.values()) - (frozenset() if is_minor_or_newer(36) else SINCE_36)
MODELS_TESTED_VERSION = not is_minor_or_newer(37)
"""True if selectors of namespaces that no labels satisfy mean in the tested scheduler what they mean to `place`."""
WAITS_FOR_CLAIM = ('persistentvolumeclaim "', "waiting for ephemeral volume controller", UNBOUND_IMMEDIATE, NO_VOLUME)
"""How reasons begin why a pod waits for a claim on every node: then the other volume plugins add nothing."""

OTHER_VOLUME_PLUGINS = frozenset({"NodeVolumeLimits", "VolumeRestrictions", "VolumeZone"})
EXACT_REASONS = ("NodeResourcesFit",)
"""Plugins whose reasons are all compared; of others, only whether there is a reason."""


class Difference(NamedTuple):
    """A node on which a plugin of the scheduler rejects a pod for other reasons than we do."""

    pod: str
    node: str
    plugin: str
    scheduler: list[str]
    ours: list[str]


def our_reasons(cluster: RandomCluster) -> dict[str, dict[str, list[str]]]:
    """Return why we reject each pod, by node."""
    placement = placement_input(*cluster.objects)
    names = [node.name for node in placement.snapshot.fleet.nodes]
    found = {pod["metadata"]["name"]: _reasons_of_pod(parse_pod(pod), placement) for pod in cluster.pods}
    return {pod: dict(zip(names, reasons, strict=True)) for pod, reasons in found.items()}


def _reasons_of_pod(pod: Pod, placement: PlacementInput) -> list[list[str]]:
    reasons = node_filter_reasons(pod, placement)
    return [
        [reason.scheduler_message for reason in reasons.get(i, ())] for i in range(len(placement.snapshot.fleet.nodes))
    ]


def our_nodes(cluster: RandomCluster) -> dict[str, list[str]]:
    """Return the nodes on which we allow each pod."""
    return {
        pod: [node for node, reasons in nodes.items() if not reasons] for pod, nodes in our_reasons(cluster).items()
    }


def find_differences(cluster: RandomCluster, rejections: Rejections) -> Iterator[Difference]:
    """Yield how our reasons in a cluster differ from the scheduler's."""
    yield from _differences_of_right_sizing(cluster, rejections)
    pods = {each["metadata"]["name"]: each for each in cluster.pods}
    view = view_of(*cluster.objects)
    for pod, reasons_by_node in our_reasons(cluster).items():
        binding = [reason for each in rejections[pod].values() for reason in each.get("VolumeBinding", ())]
        waits = any(reason.startswith(WAITS_FOR_CLAIM) for reason in binding)
        compared = COMPARED_PLUGINS - OTHER_VOLUME_PLUGINS if waits else COMPARED_PLUGINS
        if _spreads_unknown_pods(parse_pod(pods[pod]), view):
            compared -= {"PodTopologySpread"}
        if not MODELS_TESTED_VERSION and _selects_by_absent_labels(parse_pod(pods[pod])):
            compared -= {"InterPodAffinity"}
        for node, reasons in reasons_by_node.items():
            theirs = rejections[pod].get(node, {})
            for plugin in sorted(compared):
                scheduler = sorted(set(theirs.get(plugin, ())))
                ours = sorted({reason for reason in reasons if plugin_of(reason) == plugin})
                if (scheduler != ours) if plugin in EXACT_REASONS else bool(scheduler) != bool(ours):
                    yield Difference(pod, node, plugin, scheduler, ours)


def _spreads_unknown_pods(pod: Pod, view: ClusterView) -> bool:
    """Return whether a default constraint of the scheduler selects pods by what is not known of a cluster."""
    spread = with_default_spread(pod, rules_of_scheduler(view.schedulers, ""), partial(view.peers.find_of_pod, pod))
    return ties_of(spread).selects_unknown


def _selects_by_absent_labels(pod: Pod) -> bool:
    identity = identity_of(pod)
    terms = (*required_affinity(pod, identity), *required_anti_affinity(pod, identity))
    return any(merge_namespaces(term) != term for term in terms)


def nodes_for_right_sizing(pod: Pod, view: ClusterView) -> list[str]:
    """Return the nodes on which right-sizing finds what a pod requests free; none without one kind of GPU."""
    units = [(name, count) for name, count in count_gpu_units(effective_requests(pod).items()).items() if count > 0]
    if len(units) != 1:
        return []
    (resource, count), feasible = units[0], FeasibleNodes(view, pod)
    return [
        node.name
        for i, node in enumerate(view.fleet.nodes)
        if feasible.nodes >> i & 1 and feasible.has_free_node(resource, count, 1 << i)
    ]


def _differences_of_right_sizing(cluster: RandomCluster, rejections: Rejections) -> Iterator[Difference]:
    """Yield where right-sizing relies on a node that the scheduler rejects. Pods that wait keep it off others too."""
    view = view_of(*cluster.objects)
    for pod in map(parse_pod, cluster.pods):
        rejected = rejections[pod.metadata.name]
        for node in nodes_for_right_sizing(pod, view):
            if node in rejected:
                yield Difference(pod.metadata.name, node, "right-sizing", rejected[node][""], [])


def plugin_of(reason: str) -> str:
    """Return the plugin that gives a reason."""
    return next(plugin for message, plugin in PLUGIN_BY_MESSAGE.items() if reason.startswith(message))


def describe_difference(found: Difference, cluster: RandomCluster, filters: SchedulerFilters) -> str:
    """Return a difference with the smallest part of its cluster that shows it."""
    pod = next(each for each in cluster.pods if each["metadata"]["name"] == found.pod)
    objects = cluster.of_kind("Namespace") + [each for each in cluster.objects if each["kind"] != "Namespace"]

    def differs(part: list[Json]) -> bool:
        small = RandomCluster(part, [pod])
        (rejections,) = filters.rejections([small])
        kinds = [each[1:3] for each in find_differences(small, rejections)]
        return found[1:3] in kinds

    small = _smallest_part(objects, differs)
    shown = "\n".join(json.dumps(each) for each in [*small, pod])
    return f"{found}\nthe objects of the cluster, then the pod:\n{shown}\n"


def _smallest_part(objects: list[Json], differs: Callable[[list[Json]], bool]) -> list[Json]:
    """Return objects without those that a difference does not need."""
    size = len(objects) // 2
    while size:
        for begin in range(len(objects) - 1, -1, -size):
            fewer = objects[: max(0, begin - size + 1)] + objects[begin + 1 :]
            if differs(fewer):
                objects = fewer
        size //= 2
    return objects
