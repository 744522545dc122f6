"""A live cluster followed: the kinds that are watched, the tasks that keep them, and how old what we know is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from webhook.cache.inventory import NodeInventory
from webhook.cache.live_view import ViewHolder, ViewPublisher
from webhook.cache.policy_objects import PolicyObjects
from webhook.cache.snapshot_objects import StoredPod
from webhook.kube.api import KubeClient
from webhook.kube.backoff import RandomSource
from webhook.kube.reflector import Reflector, WatchedResource, WatchEventSink, WatchStatus
from webhook.model.claims import DeviceClass, ResourceClaimTemplate
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.well_known import GROUP_PATH

INVENTORY_REST_SECONDS = 0.1
"""Between two watches. A scheduler asks a second after a pod has gone, and not again if it is refused then."""


class InventoryInformers:
    """The watches that feed an inventory.

    Attributes:
        states: How each watch is doing.
    """

    def __init__(self, api: KubeClient, inventory: NodeInventory, random: RandomSource, told: WatchEventSink) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            inventory: Written by nobody else.
            random: Spreads out what many replicas would do at once.
            told: Who is told what goes wrong.
        """
        self._sink = told
        watch = partial(
            Reflector,
            api,
            random=random,
            events=told,
            max_pause=INVENTORY_REST_SECONDS,
        )
        self._watches: list[Reflector[Any]] = [
            watch(NODES, inventory.nodes),
            watch(PODS, inventory.pods),
            watch(GPUNODES, inventory.gpunodes),
        ]
        self.states: tuple[WatchStatus, ...] = tuple(each.status for each in self._watches)

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed the kind that was confirmed longest ago."""
        return asyncio.get_running_loop().time() - min(state.last_contact for state in self.states)

    async def run(self, rank: Callable[[], Awaitable[None]]) -> None:
        """Go on until cancelled.

        Args:
            rank: Runs beside the watches once everything was there.
        """
        async with asyncio.TaskGroup() as tasks:
            for each in self._watches:
                tasks.create_task(supervise(each.status.name, each.run, self._sink))
            while not all(state.synced for state in self.states):
                await asyncio.sleep(AGE_CHECK_SECONDS / 10)
            tasks.create_task(supervise("ranking", rank, self._sink))


STALE_SECONDS = 60.0
"""Without contact for longer, what is free is not known well enough to shrink anything."""

UNSEEN_POD_SECONDS = 30.0
"""A pod that was admitted and is not seen so long after, by what the server has told since, was refused by others."""

AGE_CHECK_SECONDS = 1.0
RESTART_SECONDS = 5.0
"""The wait before a task that failed by a fault of ours begins anew."""

NODES = WatchedResource("nodes", "/api/v1/nodes", Node)
NAMESPACES = WatchedResource("namespaces", "/api/v1/namespaces", Namespace)
LIMIT_RANGES = WatchedResource("limitranges", "/api/v1/limitranges", LimitRange)
QUOTAS = WatchedResource("resourcequotas", "/api/v1/resourcequotas", ResourceQuota)
PODS = WatchedResource(
    "pods",
    "/api/v1/pods",
    StoredPod,
    {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
)
"""Only pods that hold something, or wait for it: for one that ends, the server says DELETED."""

DRA_PATH = "/apis/resource.k8s.io/v1"
CLAIM_TEMPLATES = WatchedResource(
    "resourceclaimtemplates", f"{DRA_PATH}/resourceclaimtemplates", ResourceClaimTemplate, optional=True
)
DEVICE_CLASSES = WatchedResource("deviceclasses", f"{DRA_PATH}/deviceclasses", DeviceClass, optional=True)
"""Where claims come from that quotas count. A cluster before Kubernetes 1.34 has neither."""


GPUNODES = WatchedResource("gpunodes", f"{GROUP_PATH}/gpunodes", GPUNode, optional=True)
"""What the agents of nodes report."""


def policy_resource() -> WatchedResource[dict[str, Any]]:
    """The policies that are objects."""
    return WatchedResource("gpupolicies", f"{GROUP_PATH}/gpupolicies", dict[str, Any], optional=True)


def exception_resource(namespace: str) -> WatchedResource[dict[str, Any]]:
    """The exceptions of the admins' namespace; those of other namespaces count for nothing."""
    path = f"{GROUP_PATH}/namespaces/{namespace}/gpupolicyexceptions"
    return WatchedResource("gpupolicyexceptions", path, dict[str, Any], optional=True)


def empty_view() -> ClusterView:
    """The view before there is one: no namespace is known in it, so nothing is judged by it."""
    return ClusterView(Fleet(()), complete=True, current=False)


class ClusterInformers:
    """Everything that is watched in one cluster.

    Attributes:
        states: How each watch is doing.
        policies: The policies and exceptions that are objects.
    """

    def __init__(
        self, api: KubeClient, holder: ViewHolder, random: RandomSource, told: WatchEventSink, namespace: str
    ) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            holder: Who is handed each new view.
            random: Spreads out what many replicas would do at once.
            told: Who is told what goes wrong.
            namespace: The admins' namespace, where exceptions are.
        """
        self._holder, self._sink = holder, told
        self._live = ViewPublisher(holder)
        self.policies = PolicyObjects()
        watch = partial(Reflector, api, random=random, events=told)
        cluster: list[Reflector[Any]] = [
            watch(NODES, self._live.nodes),
            watch(NAMESPACES, self._live.namespaces),
            watch(LIMIT_RANGES, self._live.limit_ranges),
            watch(QUOTAS, self._live.quotas),
            pods := watch(PODS, self._live.pods),
            watch(CLAIM_TEMPLATES, self._live.claim_templates),
            watch(DEVICE_CLASSES, self._live.device_classes),
        ]
        self._pods = pods.status
        ours: list[Reflector[Any]] = [
            watch(policy_resource(), self.policies.policies),
            watch(exception_resource(namespace), self.policies.exceptions),
        ]
        self._watches = [*cluster, *ours]
        self._cluster_states = [each.status for each in cluster]
        self.states: tuple[WatchStatus, ...] = tuple(each.status for each in self._watches)

    async def run(self, policies_changed: Callable[[], Awaitable[None]], synced: Callable[[], None]) -> None:
        """Go on until cancelled.

        Args:
            policies_changed: Awaited once all kinds are synced, and after each change of policy objects.
            synced: Called once, when there is a view and the policies were read.
        """
        async with asyncio.TaskGroup() as tasks:
            for each in self._watches:
                tasks.create_task(supervise(each.status.name, each.run, self._sink))
            tasks.create_task(supervise("view", lambda: self._live.run(self._is_synced), self._sink))
            tasks.create_task(supervise("age", self._mark_staleness, self._sink))
            tasks.create_task(supervise("policies", lambda: self._deliver_policies(policies_changed), self._sink))
            while not self.ready:
                await asyncio.sleep(AGE_CHECK_SECONDS / 10)
            synced()

    @property
    def ready(self) -> bool:
        """Was everything there once, and is there a view of it?"""
        return self._is_synced() and self._live.has_view and self.policies.delivered

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed the kind that was confirmed longest ago."""
        return asyncio.get_running_loop().time() - min(state.last_contact for state in self._cluster_states)

    def _is_synced(self) -> bool:
        return all(state.synced for state in self.states)

    async def _mark_staleness(self) -> None:
        """A view that is too old is marked so, and unmarked when the server speaks again."""
        while True:
            await asyncio.sleep(AGE_CHECK_SECONDS)
            if self._live.has_view:
                current = self.age <= STALE_SECONDS and not self._live.failing
                view = self._holder.view.with_currency(current=current)
                self._holder.view = view.without_reservations_before(self._pods.last_contact - UNSEEN_POD_SECONDS)

    async def _deliver_policies(self, policies_changed: Callable[[], Awaitable[None]]) -> None:
        while not self._is_synced():
            await asyncio.sleep(AGE_CHECK_SECONDS / 10)
        while True:
            self.policies.wake.clear()
            await policies_changed()
            self.policies.delivered = True
            await self.policies.wake.wait()


async def supervise(name: str, task: Callable[[], Awaitable[None]], told: WatchEventSink) -> None:
    """Run a task without an end, and begin anew after a fault of ours, which must not end it for good."""
    while True:
        try:
            await task()
        except Exception as error:
            told.record_internal_error(name, error)
        await asyncio.sleep(RESTART_SECONDS)
