"""A live cluster followed: the kinds that are watched, the tasks that keep them, and how old what we know is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from webhook.cache.live import Holder, Live
from webhook.cache.objects import StoredPod
from webhook.cache.policies import PolicyObjects
from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.kube.pace import Random
from webhook.kube.watching import Resource, State, Watch
from webhook.model.claims import DeviceClass, ResourceClaimTemplate
from webhook.model.cluster import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.gpunodes import GPUNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota

STALE_SECONDS = 60.0
"""Without contact for longer, what is free is not known well enough to shrink anything."""

RESERVED_SECONDS = 30.0
"""A pod that was admitted and is not seen so long after, by what the server has told since, was refused by others."""

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0
"""The wait before a task that failed by a fault of ours begins anew."""

NODES = Resource("nodes", "/api/v1/nodes", Node)
NAMESPACES = Resource("namespaces", "/api/v1/namespaces", Namespace)
LIMIT_RANGES = Resource("limitranges", "/api/v1/limitranges", LimitRange)
QUOTAS = Resource("resourcequotas", "/api/v1/resourcequotas", ResourceQuota)
PODS = Resource(
    "pods",
    "/api/v1/pods",
    StoredPod,
    {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
)
"""Only pods that hold something, or wait for it: for one that ends, the server says DELETED."""

DEVICES = "/apis/resource.k8s.io/v1"
CLAIM_TEMPLATES = Resource(
    "resourceclaimtemplates", f"{DEVICES}/resourceclaimtemplates", ResourceClaimTemplate, optional=True
)
DEVICE_CLASSES = Resource("deviceclasses", f"{DEVICES}/deviceclasses", DeviceClass, optional=True)
"""Where claims come from that quotas count. A cluster before Kubernetes 1.34 has neither."""

GROUP = "/apis/rightslice.dev/v1alpha1"

GPUNODES = Resource("gpunodes", f"{GROUP}/gpunodes", GPUNode, optional=True)
"""What the agents of nodes report."""


def policies_of_cluster() -> Resource[dict[str, Any]]:
    """The policies that are objects."""
    return Resource("gpupolicies", f"{GROUP}/gpupolicies", dict[str, Any], optional=True)


def exceptions_of(namespace: str) -> Resource[dict[str, Any]]:
    """The exceptions of the admins' namespace; those of other namespaces count for nothing."""
    path = f"{GROUP}/namespaces/{namespace}/gpupolicyexceptions"
    return Resource("gpupolicyexceptions", path, dict[str, Any], optional=True)


def nothing_known() -> ClusterView:
    """The view before there is one: no namespace is known in it, so nothing is judged by it."""
    return ClusterView(Fleet(()), complete=True, current=False)


class Told(Protocol):
    """Who is told what goes wrong."""

    def watch_broke(self, kind: str, why: str) -> None:
        """A list or watch ended otherwise than it should."""

    def crashed(self, route: str, uid: str, error: Exception) -> None:
        """A fault of ours."""


class Following:
    """Everything that is watched in one cluster.

    Attributes:
        states: How each watch is doing.
        policies: The policies and exceptions that are objects.
    """

    def __init__(self, api: Api, holder: Holder, random: Random, told: Told, namespace: str) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            holder: Who is handed each new view.
            random: Spreads out what many replicas would do at once.
            told: Who is told what goes wrong.
            namespace: The admins' namespace, where exceptions are.
        """
        self._holder, self._told = holder, told
        self._live = Live(holder)
        self.policies = PolicyObjects()
        watch = partial(Watch, api, random=random, broke=self._broke, crashed=self._crashed)
        cluster: list[Watch[Any]] = [
            watch(NODES, self._live.nodes),
            watch(NAMESPACES, self._live.namespaces),
            watch(LIMIT_RANGES, self._live.limit_ranges),
            watch(QUOTAS, self._live.quotas),
            pods := watch(PODS, self._live.pods),
            watch(CLAIM_TEMPLATES, self._live.claim_templates),
            watch(DEVICE_CLASSES, self._live.device_classes),
        ]
        self._pods = pods.state
        ours: list[Watch[Any]] = [
            watch(policies_of_cluster(), self.policies.policies),
            watch(exceptions_of(namespace), self.policies.exceptions),
        ]
        self._watches = [*cluster, *ours]
        self._needed = [each.state for each in cluster]
        self.states: tuple[State, ...] = tuple(each.state for each in self._watches)

    async def run(self, policies_changed: Callable[[], Awaitable[None]], synced: Callable[[], None]) -> None:
        """Go on until cancelled.

        Args:
            policies_changed: Awaited once all kinds are synced, and after each change of policy objects.
            synced: Called once, when there is a view and the policies were read.
        """
        async with asyncio.TaskGroup() as tasks:
            for each in self._watches:
                tasks.create_task(kept(each.state.name, each.run, self._told))
            tasks.create_task(kept("view", lambda: self._live.run(self._is_synced), self._told))
            tasks.create_task(kept("age", self._look_at_age, self._told))
            tasks.create_task(kept("policies", lambda: self._hand_on(policies_changed), self._told))
            while not self.ready:
                await asyncio.sleep(LOOK_SECONDS / 10)
            synced()

    @property
    def ready(self) -> bool:
        """Was everything there once, and is there a view of it?"""
        return self._is_synced() and self._live.made and self.policies.handed_on

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed the kind that was confirmed longest ago."""
        return asyncio.get_running_loop().time() - min(state.heard for state in self._needed)

    def _is_synced(self) -> bool:
        return all(state.synced for state in self.states)

    async def _look_at_age(self) -> None:
        """A view that is too old is marked so, and unmarked when the server speaks again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._live.made:
                current = self.age <= STALE_SECONDS and not self._live.failing
                view = self._holder.view.dated(current=current)
                self._holder.view = view.reserved_since(self._pods.heard - RESERVED_SECONDS)

    async def _hand_on(self, policies_changed: Callable[[], Awaitable[None]]) -> None:
        while not self._is_synced():
            await asyncio.sleep(LOOK_SECONDS / 10)
        while True:
            self.policies.wake.clear()
            await policies_changed()
            self.policies.handed_on = True
            await self.policies.wake.wait()

    def _broke(self, state: State, error: ApiError) -> None:
        self._told.watch_broke(state.name, str(error))

    def _crashed(self, state: State, error: Exception) -> None:
        self._told.crashed(state.name, "", error)


async def kept(name: str, task: Callable[[], Awaitable[None]], told: Told) -> None:
    """Run a task without an end, and begin anew after a fault of ours, which must not end it for good."""
    while True:
        try:
            await task()
        except Exception as error:
            told.crashed(name, "", error)
        await asyncio.sleep(AGAIN_SECONDS)
