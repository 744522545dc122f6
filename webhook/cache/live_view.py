"""Keep the `ClusterView` of a live cluster up to date: reflectors write changes, a task publishes new views.

A pod that comes or goes changes a few numbers of one node. A node that changes rebuilds the index of all nodes, in a
thread and at most every two seconds. Each view is immutable and published by replacing one reference, so an evaluation
that reads the reference once sees one consistent state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from webhook.cache.build_view import (
    BuiltView,
    build_live_view,
    free_beside_lasting,
    nodes_beside_devices,
    unreserved_on_node,
    with_quota_status,
)
from webhook.cache.device_index import DeviceIndex
from webhook.cache.node_usage import NodeUsage
from webhook.cache.storage_index import StorageIndex
from webhook.cache.store import NamespaceIndex, ObjectStore
from webhook.cache.stored_objects import created_at, object_namespace, parse_resource_version, version_of
from webhook.kube.reflector import WatchStatus
from webhook.model.assumed_pods import ObservedPod
from webhook.model.claims import DeviceClass, ResourceClaimTemplate, device_classes_by_name
from webhook.model.cluster_view import ClusterView
from webhook.model.daemon_pods import NO_DAEMONS
from webhook.model.dra.device_view import DeviceView
from webhook.model.filters.pod_ties import TieKey
from webhook.model.filters.pod_topology_spread import NO_PEERS, PeerSelectors, Service, StatefulSet
from webhook.model.fleet import Fleet
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_resources import may_take_gpus
from webhook.model.node_groups import GroupSources, KarpenterPool, MachineDeployment, MachineSet, NodeOverlay
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_classes import NO_POD_CLASSES, PodClasses, PriorityClass, RuntimeClass, summarize_pod_classes
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod
from webhook.model.queues import NO_QUEUES, QUEUE_OBJECTS, KueueQueues, QueueObject
from webhook.model.quota_escrow import PodVersions
from webhook.model.storage_view import ClaimKey, StorageObjects, VolumeUsers
from webhook.model.volcano_queues import VolcanoQueue, VolcanoQueues
from webhook.model.waiting_pods import WaitingKind, waiting_kinds
from webhook.well_known import APP_NAME

PUBLISH_SECONDS = 0.05
"""Pause between two views; changes in between are applied together."""

FLEET_SECONDS = 2.0
"""Pause between two indexes of the nodes. Building one takes a quarter of a second of CPU for 5,000 nodes."""

REPLICA_LABELS = {"app.kubernetes.io/name": APP_NAME, "app.kubernetes.io/component": "webhook"}
"""Labels of the webhook's own pods."""

T = TypeVar("T", LimitRange, ResourceQuota, ResourceClaimTemplate)


class ViewHolder(Protocol):
    """Holds the current view."""

    view: ClusterView


@dataclass(slots=True)
class ViewChanges:
    """Changes since the current view.

    Attributes:
        fleet: A node changed, came or went.
        relisted: All pods were listed again.
        nodes: Nodes on which, or nominated for which, pods came or went.
        lasting: Nodes on which pods came or went that the node always has.
        namespaces: Namespaces that changed, came or went.
        limit_ranges, quotas, claim_templates: Namespaces in which objects of these kinds changed.
        device_classes: A DeviceClass changed.
        pod_classes: A RuntimeClass or PriorityClass changed.
        queues: A queue or flavor of Kueue changed, or a queue of Volcano.
        pod_namespaces: Namespaces in which pods came or went.
        ties: What pods that came, went or moved are counted by, with the names of their nodes.
        claims: Volume claims whose pods came, went or moved.
        storage: An object about storage changed, or a pod that uses claims.
        waiting: What pods wait for that came or went, or got a node.
        observed: Pods that are newly known.
        arrived_uids: Uids of pods that are newly known.
        replicas: Names of the webhook's own pods in a list.
        pods_version: The latest version of a pod in a list.
    """

    fleet: bool = False
    relisted: bool = False
    nodes: set[str] = field(default_factory=set)
    lasting: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    limit_ranges: set[str] = field(default_factory=set)
    quotas: set[str] = field(default_factory=set)
    claim_templates: set[str] = field(default_factory=set)
    device_classes: bool = False
    pod_classes: bool = False
    queues: bool = False
    pod_namespaces: set[str] = field(default_factory=set)
    ties: dict[TieKey, set[str]] = field(default_factory=dict)
    waiting: set[WaitingKind] = field(default_factory=set)
    claims: set[ClaimKey] = field(default_factory=set)
    storage: bool = False
    observed: list[ObservedPod] = field(default_factory=list)
    arrived_uids: list[str] = field(default_factory=list)
    replicas: set[str] = field(default_factory=set)
    pods_version: int = 0


class ViewPublisher:
    """Publishes views to a holder, built from what reflectors write.

    Attributes:
        nodes, namespaces, limit_ranges, quotas, pods, claim_templates, device_classes, runtime_classes,
            priority_classes, volcano_queues, overlays, node_pools,
            machine_deployments, machine_sets: The stores, one per reflector.
        queue_stores: The stores of Kueue's objects.
        services, stateful_sets: The stores of what default topology spread counts pods by.
        peer_watches: The status of their watches, if there are any.
        storage: The stores of objects about storage.
        devices: The stores of ResourceSlices and ResourceClaims.
        failing: True if the last attempt to build a view failed.
        pods_status: The status of the watch of pods; None if there is none.
    """

    def __init__(self, holder: ViewHolder, namespace: str = "", *, fleet_seconds: float = FLEET_SECONDS) -> None:
        """Start without a view.

        Args:
            holder: Keeps its view until the first is built. The `replicas` of that view are the least, and what Kueue
                charges and queues is as in its `queues`; node groups of settings and schedulers are those of it.
            namespace: Namespace of the webhook's replicas.
            fleet_seconds: The least time between two indexes of the nodes.
        """
        self._holder, self._fleet_seconds = holder, fleet_seconds
        self._namespace, self._least_replicas = namespace, holder.view.replicas
        self._replicas: set[str] = set()
        self._pods_version = self._api_minor = 0
        self.pods_status: WatchStatus | None = None
        self._limit_ranges: NamespaceIndex[LimitRange] = NamespaceIndex()
        self._quotas: NamespaceIndex[ResourceQuota] = NamespaceIndex()
        self._templates: NamespaceIndex[ResourceClaimTemplate] = NamespaceIndex()
        self.nodes: ObjectStore[Node] = ObjectStore(_cluster_object_key, self._on_node_change)
        self.namespaces: ObjectStore[Namespace] = ObjectStore(_cluster_object_key, self._on_namespace_change)
        self.limit_ranges = self._namespaced_store(self._limit_ranges, "limit_ranges")
        self.quotas = self._namespaced_store(self._quotas, "quotas")
        self.claim_templates = self._namespaced_store(self._templates, "claim_templates")
        self.device_classes: ObjectStore[DeviceClass] = ObjectStore(_cluster_object_key, self._on_class_change)
        self.runtime_classes: ObjectStore[RuntimeClass] = ObjectStore(_cluster_object_key, self._on_pod_class_change)
        self.priority_classes: ObjectStore[PriorityClass] = ObjectStore(_cluster_object_key, self._on_pod_class_change)
        self.queue_stores: tuple[ObjectStore[Any], ...] = tuple(
            ObjectStore(_queue_object_key, self._on_queue_change) for _ in QUEUE_OBJECTS
        )
        self.volcano_queues: ObjectStore[VolcanoQueue] = ObjectStore(_cluster_object_key, self._on_queue_change)
        self._kueue_configuration, self._schedulers = holder.view.queues.configuration, holder.view.schedulers
        self.services: ObjectStore[Service] = ObjectStore(_namespaced_object_key, self._on_peer_change)
        self.stateful_sets: ObjectStore[StatefulSet] = ObjectStore(_namespaced_object_key, self._on_peer_change)
        self.peer_watches: tuple[WatchStatus, ...] = ()
        self._peers, self._peers_changed = NO_PEERS, False
        self.overlays: ObjectStore[NodeOverlay] = ObjectStore(_cluster_object_key, self._on_group_change)
        self.node_pools: ObjectStore[KarpenterPool] = ObjectStore(_cluster_object_key, self._on_group_change)
        self.machine_deployments: ObjectStore[MachineDeployment] = ObjectStore(
            _namespaced_object_key, self._on_group_change
        )
        self.machine_sets: ObjectStore[MachineSet] = ObjectStore(_namespaced_object_key, self._on_group_change)
        self._group_sources, self._groups_changed = holder.view.group_sources, False
        self._daemons, self._daemons_changed = NO_DAEMONS, False
        self.pods = NodeUsage(self)
        self.storage = StorageIndex(self.pods, self._on_storage_change)
        self._storage, self._users = StorageObjects(), VolumeUsers()
        self.devices = DeviceIndex(lambda: self._wake.set())
        self._changes = ViewChanges(fleet=True)
        self._listed: ViewChanges | None = None
        self._built: BuiltView | None = None
        self._built_at = float("-inf")
        self._wake = asyncio.Event()
        self.failing = False

    def set_api_minor(self, minor: int) -> None:
        """Publish a view of an API server of this minor version."""
        if minor != self._api_minor:
            self._api_minor = minor
            self._wake.set()

    @property
    def has_view(self) -> bool:
        """True once a view was published."""
        return self._built is not None

    async def run(self, ready: Callable[[], bool]) -> None:
        """Publish views until cancelled, starting when `ready` returns True, after every kind was listed."""
        while not ready():
            await asyncio.sleep(PUBLISH_SECONDS)
        while True:
            try:
                await self.publish()
            except BaseException:
                self.failing = True
                raise
            self.failing = False
            await asyncio.sleep(PUBLISH_SECONDS)
            await self._wake.wait()

    async def publish(self) -> None:
        """Apply the changes, and publish the resulting view."""
        self._wake.clear()
        built, loop = self._built, asyncio.get_running_loop()
        is_fleet_due = loop.time() >= self._built_at + self._fleet_seconds
        if built is None or self._changes.relisted or (self._changes.fleet and is_fleet_due):
            built = await self._rebuild_view(built)
        await self.devices.update_pools(built.view.fleet)
        daemons = self._daemons
        if is_fleet_due and self._daemons_changed:
            self._daemons, self._daemons_changed = self.pods.daemon_pods(), False
            self._built_at = loop.time()
        if self._groups_changed or built is not self._built or daemons is not self._daemons:
            await self._find_node_groups(built.view)
        try:
            view = before = self._holder.view
            if built is not self._built:  # the view that replaces the current one keeps the pods assumed so far
                stale = before.is_stale and self._built is not None
                view = built.view.with_pending_of(before).with_staleness(stale=stale)
            replicas = self._least_replicas and max(self._least_replicas, len(self._replicas))
            view = self._apply_changes(view, built).with_replicas(replicas)
            self._holder.view = view.with_api_minor(self._api_minor)
        except BaseException:
            self._changes.fleet = self._changes.relisted = True
            raise
        self._built = built
        if self._changes.fleet or self._daemons_changed:
            loop.call_later(self._fleet_seconds, self._wake.set)

    async def _rebuild_view(self, before: BuiltView | None) -> BuiltView:
        """Build a view from scratch in a thread; changes made meanwhile are applied afterwards."""
        fleet = before.view.fleet if before is not None and not self._changes.fleet else None
        self._storage, _ = self.storage.take_objects()
        self._users = self.pods.volume_users(self._users)
        inputs = (
            fleet or tuple(self.nodes.items.values()),
            self.pods,
            dict(self.namespaces.items),
            self._limit_ranges.all(),
            self._quotas.all(),
            self.pods.summaries(),
            self._templates.all(),
            device_classes_by_name(self.device_classes.items.values()),
            self.pods.all_tie_counts(),
            self.pods.waiting_counts(),
            (self._storage, self._users),
        )
        changes = self._changes
        self._changes = ViewChanges(observed=changes.observed, arrived_uids=changes.arrived_uids)
        try:
            built = await asyncio.to_thread(build_live_view, *inputs)
            await asyncio.to_thread(built.view.precompute_weights, self._holder.view)
        except BaseException:
            self._changes.fleet, self._changes.relisted = self._changes.fleet or changes.fleet, True
            raise
        finally:
            self._built_at = asyncio.get_running_loop().time()
        return built

    async def _find_node_groups(self, view: ClusterView) -> None:
        """Find the node groups in a thread, so that no review has to: with thousands of nodes it takes too long."""
        if self._groups_changed:
            self._group_sources, self._groups_changed = self._read_group_sources(), False
        try:
            view = view.with_group_sources(self._group_sources).with_daemons(self._daemons)
            await asyncio.to_thread(view.view_new_nodes)
            await asyncio.to_thread(view.view_new_nodes, stopped=True)
        except BaseException:
            self._groups_changed = True
            raise

    def _apply_changes(self, view: ClusterView, built: BuiltView) -> ClusterView:
        """Return the view with all changes, and clear them once they are applied."""
        changes = self._changes
        if changed := self._changed_nodes(changes.nodes, built):
            view = view.with_free(changed)
        view = view.with_lasting(self._beside_lasting(changes.lasting, built.view.fleet))
        if changes.namespaces or changes.limit_ranges or changes.quotas or changes.claim_templates:
            quotas = {name: self._quotas.in_namespace(name) for name in changes.quotas}
            view = view.with_objects(
                {name: self.namespaces.items.get(name) for name in changes.namespaces},
                {name: self._limit_ranges.in_namespace(name) for name in changes.limit_ranges},
                {name: [with_quota_status(quota, ()) for quota in found] for name, found in quotas.items()},
                {name: self._templates.in_namespace(name) for name in changes.claim_templates},
            )
        if changes.device_classes:
            view = view.with_classes(device_classes_by_name(self.device_classes.items.values()))
        devices = self.devices.take_view(self.device_classes.items.values())
        view = view.with_devices(devices, self._free_beside_devices(devices, view, built))
        if changes.pod_classes or view.pod_classes is NO_POD_CLASSES:  # a view that was just built has none
            view = view.with_pod_classes(self._pod_classes())
        if changes.queues or view.queues is NO_QUEUES:
            view = view.with_queues(self._kueue_queues())
            view = view.with_volcano_queues(VolcanoQueues(self.volcano_queues.items.values()))
        view = view.with_group_sources(self._group_sources).with_daemons(self._daemons)
        view = view.with_schedulers(self._schedulers).with_peers(self._current_peers())
        if changes.pod_namespaces:
            view = view.with_pods(self.pods.summaries(changes.pod_namespaces))
        if changes.ties:
            view = view.with_tie_counts(self.pods.tie_counts(changes.ties))
        if changes.waiting:
            view = view.with_waiting(self.pods.waiting_counts(changes.waiting))
        if changes.storage or self.storage.missing != self._storage.missing:
            view = self._with_storage(view, changes.claims)
        if changes.relisted:  # the view does not have the pods of that list yet
            observed, arrived_uids = changes.observed, changes.arrived_uids
            self._changes = ViewChanges(
                fleet=changes.fleet, relisted=True, observed=observed, arrived_uids=arrived_uids
            )
            return view
        view = view.without_observed(changes.observed).without_reservations(changes.arrived_uids)
        self._changes = ViewChanges(fleet=changes.fleet)
        return view.with_pod_versions(self._pod_versions())

    def _with_storage(self, view: ClusterView, claims: Iterable[ClaimKey]) -> ClusterView:
        self._storage, nodes = self.storage.take_objects()
        self._users = self.pods.volume_users(self._users, claims)
        return view.with_storage(self._storage, self._users, nodes)

    def _pod_versions(self) -> PodVersions:
        listed = parse_resource_version(self.pods_status.list_version) if self.pods_status is not None else 0
        return PodVersions(self._pods_version, max(self._pods_version, listed))

    def _free_beside_devices(
        self, devices: DeviceView, view: ClusterView, built: BuiltView
    ) -> Mapping[int, FreeResources] | None:
        """Return the free resources of nodes with devices and without other GPUs; None if these nodes are the same."""
        if devices.pools is view.devices.pools:
            return None
        fleet = built.view.fleet
        for index in (found := nodes_beside_devices(devices.pools, fleet)):
            built.free[index] = unreserved_on_node(fleet.nodes[index], self.pods)
        return {index: built.free[index] for index in found}

    def _changed_nodes(self, names: Iterable[str], built: BuiltView) -> dict[int, tuple[FreeResources, FreeResources]]:
        """Return the free resources before and after of each node with GPUs or devices on which they changed."""
        fleet, changed = built.view.fleet, {}
        for name in names:
            index = fleet.by_name.get(name)
            if index is None or not (fleet.nodes[index].gpus or self.devices.publishes(name)):
                continue
            before, after = built.free[index], unreserved_on_node(fleet.nodes[index], self.pods)
            if before != after:
                built.free[index] = after
                changed[index] = (before, after)
        return changed

    def _beside_lasting(self, names: Iterable[str], fleet: Fleet) -> dict[str, FreeResources | None]:
        """Return what the pods that some nodes always have leave free there."""
        nodes = [fleet.nodes[fleet.by_name[name]] for name in names if name in fleet.by_name]
        return {node.name: free_beside_lasting(node, self.pods) for node in nodes}

    # Handlers of the stores.

    def _on_storage_change(self) -> None:
        self._changes.storage = True
        self._wake.set()

    def _on_node_change(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self._changes.fleet = True
        self._wake.set()

    def _on_namespace_change(self, key: str, _before: Namespace | None, _after: Namespace | None) -> None:
        self._changes.namespaces.add(key)
        self._wake.set()

    def _on_class_change(self, _key: str, _before: DeviceClass | None, _after: DeviceClass | None) -> None:
        self._changes.device_classes = True
        self._wake.set()

    def _on_pod_class_change(self, _key: str, _before: object, _after: object) -> None:
        self._changes.pod_classes = True
        self._wake.set()

    def _on_queue_change(self, _key: str, _before: object, _after: object) -> None:
        self._changes.queues = True
        self._wake.set()

    def _on_peer_change(self, _key: str, before: object, after: object) -> None:
        if before != after:
            self._peers_changed = True
            self._wake.set()

    def _current_peers(self) -> PeerSelectors:
        """Return what selects the peers of pods; nothing is known unless it is watched, and everything was listed."""
        are_known = bool(self.peer_watches) and all(each.synced and not each.forbidden for each in self.peer_watches)
        if self._peers_changed or are_known != self._peers.are_known:
            services, stateful_sets = self.services.items.values(), self.stateful_sets.items.values()
            self._peers, self._peers_changed = PeerSelectors(services, stateful_sets, are_known=are_known), False
        return self._peers

    def _on_group_change(self, _key: str, before: object, after: object) -> None:
        if before != after:  # most changes of a NodePool are about its conditions
            self._groups_changed = True
            self._wake.set()

    def _read_group_sources(self) -> GroupSources:
        machines = (*self.machine_deployments.items.values(), *self.machine_sets.items.values())
        overlays, pools = self.overlays.items.values(), self.node_pools.items.values()
        return GroupSources(self._group_sources.groups, tuple(overlays), tuple(pools), machines)

    def _kueue_queues(self) -> KueueQueues:
        objects = [one for store in self.queue_stores for one in store.items.values()]
        return KueueQueues(objects, self._kueue_configuration)

    def _pod_classes(self) -> PodClasses:
        return summarize_pod_classes(self.runtime_classes.items.values(), self.priority_classes.items.values())

    def _namespaced_store(
        self, index: NamespaceIndex[T], kind: Literal["limit_ranges", "quotas", "claim_templates"]
    ) -> ObjectStore[T]:
        """Return a store that writes to an index, and records the namespaces of changes under their kind."""

        def on_change(key: str, _before: T | None, after: T | None) -> None:
            namespace = key.partition("/")[0]
            index.set(key, namespace, after)
            changes: set[str] = getattr(self._changes, kind)
            changes.add(namespace)
            self._wake.set()

        return ObjectStore(_namespaced_object_key, on_change)

    # Handlers of pods: see PodEventHandler. While a list is not complete, its pods are collected.

    def on_list_start(self) -> None:
        """Collect the pods of a list."""
        self._listed = ViewChanges()

    def on_pod(self, pod: Pod, before: PodSummary | None, after: PodSummary | None) -> None:
        """Record a pod that changed or arrived."""
        changes = self._changes if self._listed is None else self._listed
        if self._listed is None:
            self._pods_version = max(self._pods_version, version_of(pod))
        else:
            self._listed.pods_version = max(self._listed.pods_version, version_of(pod))
        if after is not None and before is None:
            changes.observed += observed_pods_of(pod, after)
        if object_namespace(pod) == self._namespace and pod.metadata.labels.items() >= REPLICA_LABELS.items():
            names = self._replicas if self._listed is None else self._listed.replicas
            (names.discard if after is None else names.add)(pod.metadata.name)
        if before is None or self._listed is not None:
            changes.arrived_uids.append(pod.metadata.uid)
        if before != after and self._listed is None:
            changes.pod_namespaces.add(object_namespace(pod))
            for each in filter(None, (before, after)):
                for key in each.ties:
                    changes.ties.setdefault(key, set()).add(each.node)
                changes.waiting.update(waiting_kinds(each))
                changes.nodes.update(filter(None, (each.node, each.nominated)))
                if each.is_lasting:
                    changes.lasting.add(each.node)
                    self._daemons_changed = True
                if each.volumes or each.disks:
                    self._note_claims(object_namespace(pod), each)
            self._wake.set()

    def _note_claims(self, namespace: str, pod: PodSummary) -> None:
        self._changes.storage = True
        self._changes.claims.update(f"{namespace}/{use.claim}" for use in pod.volumes)
        self.storage.note_nodes((pod.node,))

    def on_list_end(self) -> None:
        """Record that all nodes may have changed, and the pods of the list."""
        listed, self._listed = self._listed or ViewChanges(), None
        self._changes.relisted, self._replicas = True, listed.replicas
        self._daemons_changed = True
        self.storage.note_nodes(self.storage.csi_nodes.items)
        self._pods_version = max(self._pods_version, listed.pods_version)
        self._changes.observed += listed.observed
        self._changes.arrived_uids += listed.arrived_uids
        self._wake.set()


def observed_pods_of(pod: Pod, summary: PodSummary) -> list[ObservedPod]:
    """Return the names under which a pod of the cluster may have been assumed at admission, by each resource.

    That is its name, and its generateName followed by "*" if the API server made the name of it. Pods of one template
    share a generateName; the creation time tells them apart.
    """
    namespace, metadata, observed = object_namespace(pod), pod.metadata, []
    prefix = metadata.generate_name
    for resource in (name for name, _ in summary.requests if may_take_gpus(name)):
        observed.append(ObservedPod((namespace, metadata.name), resource))
        if prefix and metadata.name.startswith(prefix):
            observed.append(ObservedPod((namespace, f"{prefix}*"), resource, created_at(pod)))
    return observed


def _cluster_object_key(
    item: Node | Namespace | DeviceClass | RuntimeClass | PriorityClass | VolcanoQueue | NodeOverlay | KarpenterPool,
) -> str:
    return item.metadata.name


def _namespaced_object_key(
    item: LimitRange | ResourceQuota | ResourceClaimTemplate | MachineDeployment | Service | StatefulSet,
) -> str:
    return f"{object_namespace(item)}/{item.metadata.name}"


def _queue_object_key(item: QueueObject) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"
