"""A live cluster for commands that run once: listed by pages, never watched, and never held in whole.

Of the pods that make the view only what they hold on their nodes is kept; the pods that are judged come page by
page, and each page is let go before the next is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Self, TypeVar

from webhook.audit.inforce import PolicySources, policy_files_of
from webhook.audit.manifests import Entry
from webhook.cache.following import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    GROUP,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    exceptions_of,
    policies_of_cluster,
)
from webhook.cache.gathering import by_namespace
from webhook.cache.holdings import Holdings, HoldingsWriter
from webhook.cache.making import make
from webhook.cache.objects import Kept, StoredPod
from webhook.cache.policies import PolicyObjects
from webhook.documents.places import Document
from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.kube.decoding import Decoder, Page
from webhook.kube.watching import PAGE, Resource
from webhook.model.claims import classes_of
from webhook.model.cluster import ClusterView, Room
from webhook.model.events import Event
from webhook.model.fleet import Fleet
from webhook.model.gpunodes import GPUNode
from webhook.model.pods import Pod

T = TypeVar("T")

RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
Look = Callable[[Fleet], Callable[[Pod], None]]
"""Who wants to see the pods that make a view."""

NOWHERE = (0, 0)
"""Objects of a cluster stand on no line."""


GPU_NODES = Resource("gpunodes", f"{GROUP}/gpunodes", GPUNode, optional=True)


class Stock(NamedTuple):
    """What there is to place pods in.

    Attributes:
        fleet: The nodes.
        kept: Nodes, pods that have not ended, and GPUNodes.
        unread: Why GPUNodes could not be read; "" where they could, or there are none.
    """

    fleet: Fleet
    kept: tuple[Kept, ...]
    unread: str = ""


class Cluster:
    """A live cluster. A context manager; calls block.

    Attributes:
        pods_unended: How many pods had not ended when the view was made.
        rooms: What was free on each node then, by name.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Choose a cluster; see `webhook.kube.access`."""
        self._runner = asyncio.Runner()
        self._access = (kubeconfig, context)
        self._api: Api
        self.pods_unended = 0
        self.rooms: Mapping[str, Room] = {}

    def __enter__(self) -> Self:
        """Find out where it is.

        Raises:
            AccessError: nothing says so, or what says so cannot be used.
        """
        try:
            self._api = self._run(Api.connect(*self._access))
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

    def view(self, look: Look | None = None) -> ClusterView:
        """What a webhook would judge by now.

        Args:
            look: Is given the fleet, and then each pod that has not ended.

        Raises:
            ApiError: the cluster does not let us, or does not answer.
        """
        return self._run(self._view(look))

    def stock(self) -> Stock:
        """What there is to place pods in. Without agents there are no GPUNodes, and that is no error.

        Raises:
            ApiError: see `view`.
        """
        return self._run(self._stock())

    def policies(self, namespace: str) -> PolicySources:
        """What a webhook in the cluster takes its policies from. Kinds that the server does not have count as empty.

        Args:
            namespace: Where exceptions count, and the ConfigMap is.

        Raises:
            ApiError: see `view`.
        """
        return self._run(self._policies(namespace))

    def serves(self, group_version: str, plural: str) -> bool:
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

    def pods(self, *, ended: bool = False) -> Iterator[Entry]:
        """The pods that have not ended, as they are stored; with `ended` those that have too.

        Raises:
            ApiError: see `view`.
        """
        yield from self._entries(Resource("pods", PODS.path, dict[str, Any], {} if ended else RUNNING), "Pod")

    def limits(self, namespace: str | None = None) -> Iterator[Entry]:
        """The LimitRanges and then the ResourceQuotas of one namespace, or of all, as they are stored.

        Raises:
            ApiError: see `view`.
        """
        space = f"/namespaces/{namespace}" if namespace else ""
        for kind, plural in (("LimitRange", "limitranges"), ("ResourceQuota", "resourcequotas")):
            yield from self._entries(Resource(plural, f"/api/v1{space}/{plural}", dict[str, Any]), kind)

    def device_classes(self) -> Iterator[Entry]:
        """The DeviceClasses; none where the cluster has no such thing, or where we may not know.

        Raises:
            ApiError: see `view`.
        """
        try:
            yield from self._entries(Resource("deviceclasses", DEVICE_CLASSES.path, dict[str, Any]), "DeviceClass")
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise

    def _entries(self, resource: Resource[dict[str, Any]], kind: str) -> Iterator[Entry]:
        decoder: Decoder[dict[str, Any]] = Decoder(f"GET {resource.path}", resource.model)
        more = ""
        while True:
            page = self._run(self._page(resource, decoder, more))
            yield from (entry_of(item, kind) for item in page.items)
            more = page.more
            if not more:
                return

    def lacks(self, namespace: str) -> bool:
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

    def pod(self, namespace: str, name: str) -> Entry:
        """One pod as it is stored.

        Raises:
            ApiError: see `view`; 404 where there is none.
        """
        return entry_of(self._run(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")))

    def events(self, namespace: str, names: Iterable[str]) -> list[Event]:
        """What was said in a namespace about objects of these names; some hundred of each at most.

        Raises:
            ApiError: see `view`.
        """
        return [each for name in names for each in self._run(self._events(namespace, name))]

    async def _events(self, namespace: str, name: str) -> list[Event]:
        path = f"/api/v1/namespaces/{namespace}/events"
        decoder: Decoder[Event] = Decoder(f"GET {path}", Event)
        return decoder.page(
            await self._api.read(path, {"fieldSelector": f"involvedObject.name={name}", "limit": str(PAGE)})
        ).items

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _view(self, look: Look | None) -> ClusterView:
        fleet = Fleet(sorted([node async for node in self._all(NODES)], key=lambda node: node.metadata.name))
        holdings = Holdings()
        writer = HoldingsWriter(holdings, lambda *_: None, lambda: None)
        seen = look(fleet) if look is not None else lambda _pod: None
        writer.begin()
        async for pod in self._all(PODS):
            writer.put(pod)
            seen(pod)
        writer.swap()
        self.pods_unended = holdings.pods
        made = make(
            fleet,
            holdings,
            {found.metadata.name: found async for found in self._all(NAMESPACES)},
            by_namespace([found async for found in self._all(LIMIT_RANGES)]),
            by_namespace([found async for found in self._all(QUOTAS)]),
            holdings.lines(),
            by_namespace(await self._seen(CLAIM_TEMPLATES)),
            classes_of(await self._seen(DEVICE_CLASSES)),
        )
        self.rooms = dict(zip(fleet.by_name, made.rooms, strict=True))
        return made.view

    async def _stock(self) -> Stock:
        nodes = [node async for node in self._all(NODES)]
        pods = [pod async for pod in self._all(Resource("pods", PODS.path, StoredPod, RUNNING))]
        try:
            agents, unread = await self._known(GPU_NODES), ""
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            agents, unread = [], str(error)
        fleet = Fleet(sorted(nodes, key=lambda node: node.metadata.name))
        return Stock(fleet, (*nodes, *pods, *agents), unread)

    async def _policies(self, namespace: str) -> PolicySources:
        objects = PolicyObjects()
        for each in await self._known(policies_of_cluster()):
            objects.policies.put(each)
        for each in await self._known(exceptions_of(namespace)):
            objects.exceptions.put(each)
        files, unread = await policy_files_of(self._api, namespace)
        texts, ready = tuple(objects.texts()), tuple(objects.ready())
        return PolicySources(files, texts, unread, tuple(objects.halted()), ready)

    async def _known(self, resource: Resource[T]) -> list[T]:
        """All of a kind; none where the server does not have the kind."""
        try:
            return [each async for each in self._all(resource)]
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return []
            raise

    async def _seen(self, resource: Resource[T]) -> list[T]:
        """All of a kind that is of help and not needed; none where we may not look."""
        try:
            return await self._known(resource)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return []

    async def _all(self, resource: Resource[T]) -> AsyncIterator[T]:
        decoder: Decoder[T] = Decoder(f"GET {resource.path}", resource.model)
        more = ""
        while True:
            page = await self._page(resource, decoder, more)
            for item in page.items:
                yield item
            more = page.more
            if not more:
                return

    async def _page(self, resource: Resource[T], decoder: Decoder[T], more: str) -> Page[T]:
        ask = {"limit": str(PAGE), **({"continue": more} if more else {})}
        return decoder.page(await self._api.read(resource.path, {**resource.params, **ask}))


def entry_of(item: dict[str, Any], kind: str = "Pod") -> Entry:
    """An object of a cluster, as if it stood in a file of its own. Items of a list do not say what they are."""
    metadata = item.get("metadata") or {}
    data = {"apiVersion": "v1", "kind": kind, **item}
    name = f"{kind.lower()}/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return Entry(data, Document(data, name, NOWHERE))
