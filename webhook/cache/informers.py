"""Watch a live cluster: reflectors and their stores, the tasks that supervise them, and the staleness of the view.

`ClusterInformers` marks the view stale (`stale`) after `STALE_SECONDS` without contact to the API server. The
engine then right-sizes nothing (`webhook.engine.fit`), and cannot check shared quotas (`webhook.engine.quota`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from webhook.cache.inventory import NodeInventory
from webhook.cache.live_view import ViewHolder, ViewPublisher
from webhook.cache.policy_objects import PolicyObjects
from webhook.cache.stored_objects import StoredPod
from webhook.kube.api import KubeClient, read_api_minor
from webhook.kube.reflector import PAUSE_SECONDS, RandomSource, Reflector, WatchedResource, WatchEventSink, WatchStatus
from webhook.model.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.filters.pod_topology_spread import Service, StatefulSet
from webhook.model.fleet import Fleet
from webhook.model.gpu_node import GPUNode
from webhook.model.node_groups import (
    MACHINE_API_VERSION,
    NODE_OVERLAY_API_VERSION,
    NODE_POOL_API_VERSION,
    KarpenterPool,
    MachineDeployment,
    MachineSet,
    NodeOverlay,
)
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.pod_classes import PriorityClass, RuntimeClass
from webhook.model.queues import KUEUE_API_VERSION, OLDER_KUEUE_API_VERSION, QUEUE_OBJECTS
from webhook.model.schedulers import counts_peers
from webhook.model.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from webhook.model.volcano_queues import VOLCANO_API_VERSION, VolcanoQueue
from webhook.well_known import GROUP_PATH

T = TypeVar("T")

STALE_SECONDS = 60.0
"""Without contact for longer, free resources are not known well enough to right-size anything."""

UNSEEN_POD_SECONDS = 40.0
"""An admitted pod that the API server has not reported after this time was rejected after our answer.

The API server ends a create after 34 s, its `requestTimeoutUpperBound`; the rest is for a watch that lags."""

AGE_CHECK_SECONDS = 1.0
VERSION_SECONDS = 300.0
"""Between two looks at the version of the API server."""

SYNC_CHECK_SECONDS = 0.1
RESTART_SECONDS = 5.0
"""Pause before a task that raised an unexpected error is started again."""

INVENTORY_PAUSE_SECONDS = 0.1
"""Longest pause between two watches of the extender: a scheduler calls it once, a second after a pod is deleted."""

NODES = WatchedResource("nodes", "/api/v1/nodes", Node)
NAMESPACES = WatchedResource("namespaces", "/api/v1/namespaces", Namespace)
LIMIT_RANGES = WatchedResource("limitranges", "/api/v1/limitranges", LimitRange)
QUOTAS = WatchedResource("resourcequotas", "/api/v1/resourcequotas", ResourceQuota)
PODS = WatchedResource(
    "pods", "/api/v1/pods", StoredPod, {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
)
"""Active pods only; the API server reports DELETED when one finishes."""

DRA_PATH = "/apis/resource.k8s.io/v1"
CLAIM_TEMPLATES = WatchedResource(
    "resourceclaimtemplates",
    f"{DRA_PATH}/resourceclaimtemplates",
    ResourceClaimTemplate,
    optional=True,
    may_be_forbidden=True,
)
DEVICE_CLASSES = WatchedResource("deviceclasses", f"{DRA_PATH}/deviceclasses", DeviceClass, optional=True)
RESOURCE_SLICES = WatchedResource(
    "resourceslices", f"{DRA_PATH}/resourceslices", ResourceSlice, optional=True, may_be_forbidden=True
)
RESOURCE_CLAIMS = WatchedResource(
    "resourceclaims", f"{DRA_PATH}/resourceclaims", ResourceClaim, optional=True, may_be_forbidden=True
)
"""Not served before Kubernetes 1.34."""

TAINT_RULES = WatchedResource(
    "devicetaintrules",
    f"{DRA_PATH}/devicetaintrules",
    DeviceTaintRule,
    optional=True,
    may_be_forbidden=True,
    older_paths=(f"{DRA_PATH}beta2/devicetaintrules", f"{DRA_PATH}alpha3/devicetaintrules"),
)
"""Served where the feature gate DeviceTaintRules is on: by default since Kubernetes 1.37."""

RUNTIME_CLASSES = WatchedResource("runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses", RuntimeClass, optional=True)
PRIORITY_CLASSES = WatchedResource(
    "priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", PriorityClass, optional=True
)

STORAGE_PATH = "/apis/storage.k8s.io/v1"


def _storage_resource(path: str, model: type[T]) -> WatchedResource[T]:
    """Return a resource of objects about storage. Without permission, pods with claims keep their requests."""
    return WatchedResource(path.rpartition("/")[2], path, model, optional=True, may_be_forbidden=True)


CLAIMS = _storage_resource("/api/v1/persistentvolumeclaims", PersistentVolumeClaim)
VOLUMES = _storage_resource("/api/v1/persistentvolumes", PersistentVolume)
STORAGE_CLASSES = _storage_resource(f"{STORAGE_PATH}/storageclasses", StorageClass)
CSI_NODES = _storage_resource(f"{STORAGE_PATH}/csinodes", CSINode)
CSI_DRIVERS = _storage_resource(f"{STORAGE_PATH}/csidrivers", CSIDriver)
CAPACITIES = _storage_resource(f"{STORAGE_PATH}/csistoragecapacities", CSIStorageCapacity)
ATTACHMENTS = _storage_resource(f"{STORAGE_PATH}/volumeattachments", VolumeAttachment)
STORAGE_RESOURCES: tuple[WatchedResource[Any], ...] = (
    CLAIMS,
    VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    CSI_DRIVERS,
    CAPACITIES,
    ATTACHMENTS,
)
"""In the order of `StorageIndex.stores`."""


def _queue_resource(plural: str, model: type[T]) -> WatchedResource[T]:
    """Return a resource of Kueue. Where it is absent or forbidden, templates keep their requests."""
    path, older = (f"/apis/{version}/{plural}" for version in (KUEUE_API_VERSION, OLDER_KUEUE_API_VERSION))
    return WatchedResource(plural, path, model, optional=True, may_be_forbidden=True, older_paths=(older,))


QUEUE_RESOURCES: tuple[WatchedResource[Any], ...] = tuple(
    _queue_resource(plural, kind) for plural, kind in QUEUE_OBJECTS.items()
)
"""In the order of `ViewPublisher.queue_stores`."""

VOLCANO_QUEUES = WatchedResource(
    "queues", f"/apis/{VOLCANO_API_VERSION}/queues", VolcanoQueue, optional=True, may_be_forbidden=True
)
"""The queues of Volcano. Where they are absent or forbidden, templates keep their requests."""


def _group_resource(api_version: str, plural: str, model: type[T]) -> WatchedResource[T]:
    """Return a resource about node groups. Where it is absent or forbidden, groups do not grow by it."""
    return WatchedResource(plural, f"/apis/{api_version}/{plural}", model, optional=True, may_be_forbidden=True)


OVERLAYS = _group_resource(NODE_OVERLAY_API_VERSION, "nodeoverlays", NodeOverlay)
NODE_POOLS = _group_resource(NODE_POOL_API_VERSION, "nodepools", KarpenterPool)
MACHINE_DEPLOYMENTS = _group_resource(MACHINE_API_VERSION, "machinedeployments", MachineDeployment)
MACHINE_SETS = _group_resource(MACHINE_API_VERSION, "machinesets", MachineSet)

SERVICES = WatchedResource("services", "/api/v1/services", Service, may_be_forbidden=True)
STATEFUL_SETS = WatchedResource("statefulsets", "/apis/apps/v1/statefulsets", StatefulSet, may_be_forbidden=True)
"""What default topology spread counts pods by. Where they are forbidden, its pods keep their requests."""

GPUNODES = WatchedResource("gpunodes", f"{GROUP_PATH}/gpunodes", GPUNode, optional=True)


def policy_resource() -> WatchedResource[dict[str, Any]]:
    """Return the resource of GPUPolicy objects."""
    return WatchedResource("gpupolicies", f"{GROUP_PATH}/gpupolicies", dict[str, Any], optional=True)


def exception_resource(namespace: str) -> WatchedResource[dict[str, Any]]:
    """Return the resource of GPUPolicyExceptions in the admins' namespace; others have no effect."""
    path = f"{GROUP_PATH}/namespaces/{namespace}/gpupolicyexceptions"
    return WatchedResource("gpupolicyexceptions", path, dict[str, Any], optional=True)


def empty_view() -> ClusterView:
    """Return the view before the first list: it knows no namespace, so nothing is evaluated by it."""
    return ClusterView(Fleet(()), complete=True, stale=True)


class ReflectorGroup:
    """Reflectors that run together.

    Attributes:
        states: The status of each.
    """

    def __init__(
        self, api: KubeClient, random: RandomSource, events: WatchEventSink, *, max_pause: float = PAUSE_SECONDS
    ) -> None:
        self._api, self._random, self._events, self._max_pause = api, random, events, max_pause
        self._reflectors: list[Reflector[Any]] = []

    def add(self, resource: WatchedResource[Any], store: Any) -> WatchStatus:
        """Add a reflector for a resource that writes to a store."""
        reflector = Reflector(self._api, resource, store, self._random, self._events, max_pause=self._max_pause)
        self._reflectors.append(reflector)
        return reflector.status

    @property
    def states(self) -> tuple[WatchStatus, ...]:
        """The status of each reflector."""
        return tuple(each.status for each in self._reflectors)

    def is_synced(self) -> bool:
        """Return True if each resource was listed."""
        return all(status.synced for status in self.states)

    async def wait_synced(self) -> None:
        """Wait until each resource was listed."""
        while not self.is_synced():
            await asyncio.sleep(SYNC_CHECK_SECONDS)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the reflectors as supervised tasks."""
        for each in self._reflectors:
            tasks.create_task(supervise(each.status.name, each.run, self._events))


def seconds_without_contact(states: Sequence[WatchStatus]) -> float:
    """Return the age of the resource that the API server confirmed longest ago."""
    return asyncio.get_running_loop().time() - min(status.last_contact for status in states)


class ClusterInformers:
    """Everything that the webhook watches in one cluster.

    Once there are DeviceClasses or ResourceSlices, it watches ResourceClaims, their templates and DeviceTaintRules too.

    Attributes:
        policies: The GPUPolicy and GPUPolicyException objects.
    """

    def __init__(
        self, api: KubeClient, holder: ViewHolder, random: RandomSource, events: WatchEventSink, namespace: str
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            api: The API server.
            holder: Receives each new view.
            random: Spreads the requests of many replicas.
            events: Receives errors.
            namespace: The admins' namespace, where exceptions are.
        """
        self._api, self._holder, self._events = api, holder, events
        self._publisher = ViewPublisher(holder, namespace)
        self.policies = PolicyObjects()
        self._reflectors = reflectors = ReflectorGroup(api, random, events)
        reflectors.add(NODES, self._publisher.nodes)
        reflectors.add(NAMESPACES, self._publisher.namespaces)
        reflectors.add(LIMIT_RANGES, self._publisher.limit_ranges)
        reflectors.add(QUOTAS, self._publisher.quotas)
        self._pods = self._publisher.pods_status = reflectors.add(PODS, self._publisher.pods)
        devices = self._publisher.devices
        reflectors.add(DEVICE_CLASSES, self._publisher.device_classes)
        self._of_claims, self._watches_claims = ReflectorGroup(api, random, events), False
        self._of_claims.add(TAINT_RULES, devices.taint_rules)
        devices.watches += [
            reflectors.add(RESOURCE_SLICES, devices.slices),
            self._of_claims.add(CLAIM_TEMPLATES, self._publisher.claim_templates),
            self._of_claims.add(RESOURCE_CLAIMS, devices.claims),
        ]
        reflectors.add(RUNTIME_CLASSES, self._publisher.runtime_classes)
        reflectors.add(PRIORITY_CLASSES, self._publisher.priority_classes)
        for resource, store in zip(STORAGE_RESOURCES, self._publisher.storage.stores, strict=True):
            self._publisher.storage.watches.append(reflectors.add(resource, store))
        for resource, store in zip(QUEUE_RESOURCES, self._publisher.queue_stores, strict=True):
            reflectors.add(resource, store)
        reflectors.add(VOLCANO_QUEUES, self._publisher.volcano_queues)
        reflectors.add(OVERLAYS, self._publisher.overlays)
        reflectors.add(NODE_POOLS, self._publisher.node_pools)
        reflectors.add(MACHINE_DEPLOYMENTS, self._publisher.machine_deployments)
        reflectors.add(MACHINE_SETS, self._publisher.machine_sets)
        if counts_peers(holder.view.schedulers):
            self._publisher.peer_watches = (
                reflectors.add(SERVICES, self._publisher.services),
                reflectors.add(STATEFUL_SETS, self._publisher.stateful_sets),
            )
        self._cluster_states = reflectors.states
        reflectors.add(policy_resource(), self.policies.policies)
        reflectors.add(exception_resource(namespace), self.policies.exceptions)

    @property
    def states(self) -> tuple[WatchStatus, ...]:
        """The status of each reflector that runs."""
        return self._reflectors.states + self._states_of_claims

    @property
    def _states_of_claims(self) -> tuple[WatchStatus, ...]:
        return self._of_claims.states if self._watches_claims else ()

    async def run(self, policies_changed: Callable[[], Awaitable[None]], synced: Callable[[], None]) -> None:
        """Watch until cancelled.

        Args:
            policies_changed: Awaited once everything was listed, and after each change of policy objects.
            synced: Called once, when there is a view and the policies were loaded.
        """
        async with asyncio.TaskGroup() as tasks:
            self._reflectors.start(tasks)
            tasks.create_task(self._watch_claims(tasks))
            publish = partial(self._publisher.run, self._is_synced)
            tasks.create_task(supervise("view", publish, self._events))
            tasks.create_task(supervise("version", self._watch_version, self._events))
            tasks.create_task(supervise("age", self._mark_staleness, self._events))
            tasks.create_task(supervise("policies", lambda: self._deliver_policies(policies_changed), self._events))
            while not self.ready:
                await asyncio.sleep(SYNC_CHECK_SECONDS)
            synced()

    @property
    def ready(self) -> bool:
        """True once everything was listed, a view was built, and the policies were loaded."""
        return self._reflectors.is_synced() and self._publisher.has_view and self.policies.delivered

    @property
    def age(self) -> float:
        """Seconds since the API server confirmed the resource that was confirmed longest ago."""
        return seconds_without_contact(self._cluster_states + self._states_of_claims)

    @property
    def pods_contact(self) -> float:
        """When the API server last confirmed the pods, in seconds of the event loop's clock."""
        return self._pods.last_contact

    def _has_devices(self) -> bool:
        return bool(self._publisher.device_classes.items) or self._publisher.devices.has_slices()

    def _is_synced(self) -> bool:
        return self._reflectors.is_synced() and (self._watches_claims or not self._has_devices())

    async def _watch_claims(self, tasks: asyncio.TaskGroup) -> None:
        """Watch claims from when there are devices on."""
        await self._reflectors.wait_synced()
        while not self._has_devices():
            await asyncio.sleep(AGE_CHECK_SECONDS)
        self._of_claims.start(tasks)
        await self._of_claims.wait_synced()
        self._watches_claims = True

    async def _watch_version(self) -> None:
        """Read the version of the API server again and again: upgrades and rollbacks happen while this runs."""
        while True:
            minor = await read_api_minor(self._api)
            if minor:
                self._publisher.set_api_minor(minor)
            await asyncio.sleep(VERSION_SECONDS if minor else RESTART_SECONDS)

    async def _mark_staleness(self) -> None:
        """Mark the view stale while it is too old or cannot be built; drop reservations of pods that never appeared."""
        while True:
            await asyncio.sleep(AGE_CHECK_SECONDS)
            if self._publisher.has_view:
                stale = self.age > STALE_SECONDS or self._publisher.failing
                view = self._holder.view.with_staleness(stale=stale)
                self._holder.view = view.without_reservations_before(self._pods.last_contact - UNSEEN_POD_SECONDS)

    async def _deliver_policies(self, policies_changed: Callable[[], Awaitable[None]]) -> None:
        await self._reflectors.wait_synced()
        while True:
            self.policies.wake.clear()
            await policies_changed()
            self.policies.delivered = True
            await self.policies.wake.wait()


class InventoryInformers:
    """Everything that the scheduler extender watches: nodes, pods, GPUNodes and ResourceSlices.

    Once there are ResourceSlices, it watches ResourceClaims, their templates, DeviceClasses and DeviceTaintRules too.
    """

    def __init__(self, api: KubeClient, inventory: NodeInventory, random: RandomSource, events: WatchEventSink) -> None:
        """Prepare; no request is sent yet."""
        self._events, self._inventory = events, inventory
        self._reflectors = ReflectorGroup(api, random, events, max_pause=INVENTORY_PAUSE_SECONDS)
        self._reflectors.add(NODES, inventory.nodes)
        self._reflectors.add(PODS, inventory.pods)
        self._reflectors.add(GPUNODES, inventory.gpunodes)
        self._reflectors.add(RESOURCE_SLICES, inventory.devices.slices)
        self._of_claims = ReflectorGroup(api, random, events, max_pause=INVENTORY_PAUSE_SECONDS)
        self._of_claims.add(TAINT_RULES, inventory.devices.taint_rules)
        inventory.devices.watches += [
            self._of_claims.add(DEVICE_CLASSES._replace(may_be_forbidden=True), inventory.device_classes),
            self._of_claims.add(CLAIM_TEMPLATES, inventory.claim_templates),
            self._of_claims.add(RESOURCE_CLAIMS, inventory.devices.claims),
        ]
        self._watches_claims = False

    @property
    def states(self) -> tuple[WatchStatus, ...]:
        """The status of each reflector that runs."""
        return self._reflectors.states + (self._of_claims.states if self._watches_claims else ())

    @property
    def age(self) -> float:
        """Seconds since the API server confirmed the resource that was confirmed longest ago."""
        return seconds_without_contact(self.states)

    async def run(self, rank: Callable[[], Awaitable[None]]) -> None:
        """Watch until cancelled; `rank` runs in parallel once everything was listed."""
        async with asyncio.TaskGroup() as tasks:
            self._reflectors.start(tasks)
            await self._reflectors.wait_synced()
            if self._inventory.devices.has_slices():
                await self._watch_claims(tasks)
            tasks.create_task(supervise("ranking", rank, self._events))
            while not self._watches_claims:
                await asyncio.sleep(AGE_CHECK_SECONDS)
                if self._inventory.devices.has_slices():
                    await self._watch_claims(tasks)

    async def _watch_claims(self, tasks: asyncio.TaskGroup) -> None:
        self._of_claims.start(tasks)
        await self._of_claims.wait_synced()
        self._watches_claims = True


async def supervise(component: str, task: Callable[[], Awaitable[None]], events: WatchEventSink) -> None:
    """Run an endless task, and start it again after an unexpected error."""
    while True:
        try:
            await task()
        except Exception as error:
            events.record_internal_error(component, error)
        await asyncio.sleep(RESTART_SECONDS)
