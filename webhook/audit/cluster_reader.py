"""A live cluster for commands that run once: listed by pages, never watched, and never held in whole.

Of the pods that make the view only what they hold on their nodes is kept; the pods that are judged come page by
page, and each page is let go before the next is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Self, TypeVar

from webhook.audit.cluster_policies import PolicySources, read_policy_config_map
from webhook.audit.object_files import SourceObject
from webhook.cache.build_view import build_live_view, group_by_namespace
from webhook.cache.informers import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    exception_resource,
    policy_resource,
)
from webhook.cache.node_usage import NodeUsage, NodeUsageWriter
from webhook.cache.policy_objects import PolicyObjects
from webhook.cache.snapshot_objects import SnapshotObject
from webhook.cache.stored_objects import StoredPod
from webhook.documents.document import Document
from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.decoder import ListPage, ResourceDecoder
from webhook.kube.reflector import PAGE_SIZE, WatchedResource
from webhook.model.claims import device_classes_by_name
from webhook.model.cluster_view import ClusterView, FreeResources
from webhook.model.events import CoreEvent
from webhook.model.fleet import Fleet
from webhook.model.gpu_node import GPUNode
from webhook.model.pods import Pod
from webhook.well_known import GROUP_PATH

T = TypeVar("T")

ACTIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
PodObserver = Callable[[Fleet], Callable[[Pod], None]]
"""Who wants to see the pods that make a view."""

NO_POSITION = (0, 0)
"""Objects of a cluster stand on no line."""


GPU_NODES = WatchedResource("gpunodes", f"{GROUP_PATH}/gpunodes", GPUNode, optional=True)


class PlacementObjects(NamedTuple):
    """What there is to place pods in.

    Attributes:
        fleet: The nodes.
        kept: Nodes, pods that have not ended, and GPUNodes.
        unread: Why GPUNodes could not be read; "" where they could, or there are none.
    """

    fleet: Fleet
    objects: tuple[SnapshotObject, ...]
    unread_reason: str = ""


class ClusterReader:
    """A live cluster. A context manager; calls block.

    Attributes:
        pods_unended: How many pods had not ended when the view was made.
        rooms: What was free on each node then, by name.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Choose a cluster; see `webhook.kube.access`."""
        self._runner = asyncio.Runner()
        self._access = (kubeconfig, context)
        self._api: KubeClient
        self.active_pods = 0
        self.free_by_node: Mapping[str, FreeResources] = {}

    def __enter__(self) -> Self:
        """Find out where it is.

        Raises:
            AccessError: nothing says so, or what says so cannot be used.
        """
        try:
            self._api = self._run(KubeClient.connect(*self._access))
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._api.close())
        self._runner.close()

    @property
    def server(self) -> str:
        """Its URL."""
        return self._api.server

    def view(self, look: PodObserver | None = None) -> ClusterView:
        """What a webhook would judge by now.

        Args:
            look: Is given the fleet, and then each pod that has not ended.

        Raises:
            ApiError: the cluster does not let us, or does not answer.
        """
        return self._run(self._view(look))

    def placement_objects(self) -> PlacementObjects:
        """What there is to place pods in. Without agents there are no GPUNodes, and that is no error.

        Raises:
            ApiError: see `view`.
        """
        return self._run(self._placement_objects())

    def policies(self, namespace: str) -> PolicySources:
        """What a webhook in the cluster takes its policies from. Kinds that the server does not have count as empty.

        Args:
            namespace: Where exceptions count, and the ConfigMap is.

        Raises:
            ApiError: see `view`.
        """
        return self._run(self._policies(namespace))

    def serves_resource(self, group_version: str, plural: str) -> bool:
        """Has the cluster this kind of object?

        Raises:
            ApiError: see `view`.
        """
        try:
            found = self._run(self._api.get(f"/apis/{group_version}"))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return any(each.get("name") == plural for each in found.get("resources") or ())

    def pods(self, *, ended: bool = False) -> Iterator[SourceObject]:
        """The pods that have not ended, as they are stored; with `ended` those that have too.

        Raises:
            ApiError: see `view`.
        """
        yield from self._list_objects(
            WatchedResource("pods", PODS.path, dict[str, Any], {} if ended else ACTIVE_PODS), "Pod"
        )

    def limit_objects(self, namespace: str | None = None) -> Iterator[SourceObject]:
        """The LimitRanges and then the ResourceQuotas of one namespace, or of all, as they are stored.

        Raises:
            ApiError: see `view`.
        """
        space = f"/namespaces/{namespace}" if namespace else ""
        for kind, plural in (("LimitRange", "limitranges"), ("ResourceQuota", "resourcequotas")):
            yield from self._list_objects(WatchedResource(plural, f"/api/v1{space}/{plural}", dict[str, Any]), kind)

    def device_classes(self) -> Iterator[SourceObject]:
        """The DeviceClasses; none where the cluster has no such thing, or where we may not know.

        Raises:
            ApiError: see `view`.
        """
        try:
            yield from self._list_objects(
                WatchedResource("deviceclasses", DEVICE_CLASSES.path, dict[str, Any]), "DeviceClass"
            )
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise

    def _list_objects(self, resource: WatchedResource[dict[str, Any]], kind: str) -> Iterator[SourceObject]:
        decoder: ResourceDecoder[dict[str, Any]] = ResourceDecoder(f"GET {resource.path}", resource.model)
        more = ""
        while True:
            page = self._run(self._get_page(resource, decoder, more))
            yield from (object_of_cluster(item, kind) for item in page.items)
            more = page.continue_token
            if not more:
                return

    def lacks_namespace(self, namespace: str) -> bool:
        """Is there no such namespace? False where we may not know.

        Raises:
            ApiError: see `view`.
        """
        try:
            self._run(self._api.get(f"/api/v1/namespaces/{namespace}"))
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise
            return error.status == HTTPStatus.NOT_FOUND
        return False

    def pod(self, namespace: str, name: str) -> SourceObject:
        """One pod as it is stored.

        Raises:
            ApiError: see `view`; 404 where there is none.
        """
        return object_of_cluster(self._run(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")))

    def events(self, namespace: str, names: Iterable[str]) -> list[CoreEvent]:
        """What was said in a namespace about objects of these names; some hundred of each at most.

        Raises:
            ApiError: see `view`.
        """
        return [each for name in names for each in self._run(self._events(namespace, name))]

    async def _events(self, namespace: str, name: str) -> list[CoreEvent]:
        path = f"/api/v1/namespaces/{namespace}/events"
        decoder: ResourceDecoder[CoreEvent] = ResourceDecoder(f"GET {path}", CoreEvent)
        return decoder.decode_page(
            await self._api.get_bytes(path, {"fieldSelector": f"involvedObject.name={name}", "limit": str(PAGE_SIZE)})
        ).items

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _view(self, look: PodObserver | None) -> ClusterView:
        fleet = Fleet(sorted([node async for node in self._list_all(NODES)], key=lambda node: node.metadata.name))
        holdings = NodeUsage()
        writer = NodeUsageWriter(holdings)
        seen = look(fleet) if look is not None else lambda _pod: None
        writer.begin()
        async for pod in self._list_all(PODS):
            writer.upsert(pod)
            seen(pod)
        writer.swap()
        self.active_pods = holdings.pod_count
        made = build_live_view(
            fleet,
            holdings,
            {found.metadata.name: found async for found in self._list_all(NAMESPACES)},
            group_by_namespace([found async for found in self._list_all(LIMIT_RANGES)]),
            group_by_namespace([found async for found in self._list_all(QUOTAS)]),
            holdings.summaries(),
            group_by_namespace(await self._list_permitted(CLAIM_TEMPLATES)),
            device_classes_by_name(await self._list_permitted(DEVICE_CLASSES)),
        )
        self.free_by_node = dict(zip(fleet.by_name, made.free, strict=True))
        return made.view

    async def _placement_objects(self) -> PlacementObjects:
        nodes = [node async for node in self._list_all(NODES)]
        pods = [pod async for pod in self._list_all(WatchedResource("pods", PODS.path, StoredPod, ACTIVE_PODS))]
        try:
            agents, unread = await self._list_optional(GPU_NODES), ""
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            agents, unread = [], str(error)
        fleet = Fleet(sorted(nodes, key=lambda node: node.metadata.name))
        return PlacementObjects(fleet, (*nodes, *pods, *agents), unread)

    async def _policies(self, namespace: str) -> PolicySources:
        objects = PolicyObjects()
        for each in await self._list_optional(policy_resource()):
            objects.policies.upsert(each)
        for each in await self._list_optional(exception_resource(namespace)):
            objects.exceptions.upsert(each)
        files, unread = await read_policy_config_map(self._api, namespace)
        texts, ready = tuple(objects.texts()), tuple(objects.ready_names())
        return PolicySources(files, texts, unread, tuple(objects.halted_names()), ready)

    async def _list_optional(self, resource: WatchedResource[T]) -> list[T]:
        """All of a kind; none where the server does not have the kind."""
        try:
            return [each async for each in self._list_all(resource)]
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return []
            raise

    async def _list_permitted(self, resource: WatchedResource[T]) -> list[T]:
        """All of a kind that is of help and not needed; none where we may not look."""
        try:
            return await self._list_optional(resource)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return []

    async def _list_all(self, resource: WatchedResource[T]) -> AsyncIterator[T]:
        decoder: ResourceDecoder[T] = ResourceDecoder(f"GET {resource.path}", resource.model)
        more = ""
        while True:
            page = await self._get_page(resource, decoder, more)
            for item in page.items:
                yield item
            more = page.continue_token
            if not more:
                return

    async def _get_page(self, resource: WatchedResource[T], decoder: ResourceDecoder[T], more: str) -> ListPage[T]:
        ask = {"limit": str(PAGE_SIZE), **({"continue": more} if more else {})}
        return decoder.decode_page(await self._api.get_bytes(resource.path, {**resource.params, **ask}))


def object_of_cluster(item: dict[str, Any], kind: str = "Pod") -> SourceObject:
    """An object of a cluster, as if it stood in a file of its own. Items of a list do not say what they are."""
    metadata = item.get("metadata") or {}
    data = {"apiVersion": "v1", "kind": kind, **item}
    name = f"{kind.lower()}/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return SourceObject(data, Document(data, name, NO_POSITION))
