"""Reads a live cluster for commands that run once: lists page by page, without watches.

A view stores only the allocation of its pods on nodes. Pods to evaluate are yielded page by page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Self, TypeVar

from webhook.audit.object_files import SourceObject
from webhook.cache.build_view import build_live_view, free_resources_on_node, group_by_namespace
from webhook.cache.informers import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DRA_PATH,
    LIMIT_RANGES,
    MACHINE_DEPLOYMENTS,
    MACHINE_SETS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    OVERLAYS,
    PODS,
    PRIORITY_CLASSES,
    QUEUE_RESOURCES,
    QUOTAS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_RESOURCES,
    TAINT_RULES,
    VOLCANO_QUEUES,
    exception_resource,
    policy_resource,
)
from webhook.cache.node_usage import NodeUsage
from webhook.cache.policy_objects import PolicyObjects
from webhook.cache.snapshot import parse_kueue_configuration
from webhook.cache.snapshot_objects import SnapshotObject, snapshot_groups
from webhook.cache.storage_index import StorageIndex
from webhook.cache.stored_objects import StoredPod
from webhook.documents.document import Document
from webhook.documents.reader import is_document_file
from webhook.errors import ApiError
from webhook.kube.api import KubeClient, find_object, read_api_minor
from webhook.kube.decoder import ResourceDecoder
from webhook.kube.installation import VALIDATING_PATH, find_installed_namespace
from webhook.kube.reflector import PAGE_SIZE, WatchedResource
from webhook.model.claims import DeviceClass, ResourceClaimTemplate, device_classes_by_name
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_view import NO_DEVICES, DeviceKind, DeviceView, build_device_view
from webhook.model.filters.pod_topology_spread import NO_PEERS, PeerSelectors
from webhook.model.fleet import Fleet
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import CoreEvent
from webhook.model.pod_classes import summarize_pod_classes
from webhook.model.pods import Pod
from webhook.model.queues import UNKNOWN_CONFIGURATION, KueueConfiguration, KueueQueues
from webhook.model.schedulers import NO_SCHEDULERS, Schedulers, counts_peers
from webhook.model.storage_view import StorageObjects, VolumeUsers
from webhook.model.volcano_queues import VolcanoQueues
from webhook.well_known import GROUP_PATH

T = TypeVar("T")

CONFIG_MAP = "rightslice-policies"
KUEUE_CONFIG_MAP = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
KUEUE_CONFIG_FILE = "controller_manager_config.yaml"
ACTIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
GPU_NODES = WatchedResource("gpunodes", f"{GROUP_PATH}/gpunodes", GPUNode, optional=True)
NO_POSITION = (0, 0)
"""The line and column of objects that are not in a file."""

PodObserver = Callable[[Fleet], Callable[[Pod], None]]
"""Called with the fleet; returns what is called with each listed pod."""

PolicyTexts = tuple[tuple[str, str], ...]
"""Names of policy files or objects, and their text."""


class PlacementObjects(NamedTuple):
    """The objects that placement is computed from.

    Attributes:
        objects: Nodes, active pods, GPUNodes, objects about storage and node groups, and templates of claims.
        devices: Devices of ResourceSlices, and the claims that have them.
        unread_reason: Why GPUNodes could not be read; "" if they could, or if there are none.
    """

    fleet: Fleet
    objects: tuple[SnapshotObject, ...]
    devices: DeviceView
    unread_reason: str = ""


class PolicySources(NamedTuple):
    """The policies of a cluster as text.

    Attributes:
        files: The files of the ConfigMap that the webhook mounts.
        objects: GPUPolicies, and the GPUPolicyExceptions of the policy namespace.
        unread_reason: Why the ConfigMap could not be read; "" if it could, or if there is none.
        halted: Objects whose rollout was halted.
        ready: Objects that a server reports as in use.
    """

    files: PolicyTexts
    objects: PolicyTexts
    unread_reason: str = ""
    halted: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()


class ClusterReader:
    """A context manager for reading a cluster. Calls block, and raise ApiError if the API server denies them.

    Attributes:
        active_pods: Number of active pods when the view was built.
        free_by_node: Free resources at that time, by node name.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Select a cluster; see `webhook.kube.access`."""
        self._runner = asyncio.Runner()
        self._access = (kubeconfig, context)
        self._api: KubeClient
        self.active_pods = 0
        self.free_by_node: Mapping[str, FreeResources] = {}

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            AccessError: there is no usable kubeconfig or service account.
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
        """The URL of the API server."""
        return self._api.server

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, as kubectl uses it."""
        return self._api.access.namespace

    def view(self, observer: PodObserver | None = None, schedulers: Schedulers = NO_SCHEDULERS) -> ClusterView:
        """Return the view that a webhook in the cluster would have.

        Args:
            observer: Is called with each active pod.
            schedulers: The rules of schedulers whose configuration is known.
        """
        view = self._run(self._view(observer)).with_schedulers(schedulers)
        return view.with_peers(self._run(self._peers())) if counts_peers(schedulers) else view

    def placement_objects(self) -> PlacementObjects:
        """Return the objects for placement; without agents there are no GPUNodes."""
        return self._run(self._placement_objects())

    def policies(self, namespace: str) -> PolicySources:
        """Return the policies that a webhook in the cluster uses.

        Args:
            namespace: The namespace of exceptions and of the ConfigMap; "" for that of the installation.
        """
        return self._run(self._policies(namespace))

    def serves_resource(self, group_version: str, plural: str) -> bool:
        """Return whether the cluster has this resource."""
        found = self._run(find_object(self._api, f"/apis/{group_version}")) or {}
        return any(each.get("name") == plural for each in found.get("resources") or ())

    def pods(self, namespace: str = "", *, ended: bool = False) -> Iterator[SourceObject]:
        """Yield the active pods of one or all namespaces as stored; with `ended` also the others."""
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else PODS.path
        yield from self._list_objects("Pod", path, {} if ended else ACTIVE_PODS)

    def limit_objects(self, namespace: str | None = None) -> Iterator[SourceObject]:
        """Yield the LimitRanges and then the ResourceQuotas of one or all namespaces as stored."""
        prefix = f"/api/v1/namespaces/{namespace}" if namespace else "/api/v1"
        yield from self._list_objects("LimitRange", f"{prefix}/limitranges")
        yield from self._list_objects("ResourceQuota", f"{prefix}/resourcequotas")

    def device_classes(self) -> list[SourceObject]:
        """Return the DeviceClasses; none if the cluster has no such resource, or does not permit listing them."""
        return self._list_if_permitted("DeviceClass", DEVICE_CLASSES.path) or []

    def validating_webhooks(self) -> dict[str, Any] | None:
        """Return the configuration of the installed validating webhooks; None without one, or the right to read it."""
        unread = (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)
        return self._run(find_object(self._api, VALIDATING_PATH, unread))

    def disruption_budgets(self) -> list[SourceObject] | None:
        """Return the PodDisruptionBudgets; None if the cluster does not permit listing them."""
        return self._list_if_permitted("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets")

    def gpu_nodes(self) -> list[GPUNode]:
        """Return the reports of the node agents; none without agents, or if listing them is not permitted."""
        return self._run(self._list_optional(GPU_NODES, HTTPStatus.FORBIDDEN))

    def _list_if_permitted(self, kind: str, path: str) -> list[SourceObject] | None:
        """Return all objects of a kind; none if the cluster has no such resource, None if listing is not permitted."""
        try:
            return list(self._list_objects(kind, path))
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise
            return [] if error.status == HTTPStatus.NOT_FOUND else None

    def _list_objects(self, kind: str, path: str, params: Mapping[str, str] | None = None) -> Iterator[SourceObject]:
        pages = self._pages(WatchedResource(f"{kind.lower()}s", path, dict[str, Any], params or {}))

        async def next_page() -> list[dict[str, Any]] | None:
            return await anext(pages, None)

        while (page := self._run(next_page())) is not None:
            yield from (object_of_cluster(item, kind) for item in page)

    def lacks_namespace(self, namespace: str) -> bool:
        """Return whether a namespace does not exist; False if the cluster does not permit reading it."""
        try:
            self._run(self._api.get(f"/api/v1/namespaces/{namespace}"))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return True
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        return False

    def pod(self, namespace: str, name: str) -> SourceObject:
        """Return a pod as stored."""
        return object_of_cluster(self._run(self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")))

    def claim(self, namespace: str, plural: str, name: str) -> SourceObject:
        """Return a resource claim or a template of claims as stored."""
        return object_of_cluster(self._run(self._api.get(f"{DRA_PATH}/namespaces/{namespace}/{plural}/{name}")))

    def events(self, namespace: str, names: Iterable[str]) -> list[CoreEvent]:
        """Return Events about objects with these names, at most a page of each."""
        path = f"/api/v1/namespaces/{namespace}/events"
        decoder: ResourceDecoder[CoreEvent] = ResourceDecoder(f"GET {path}", CoreEvent)
        events: list[CoreEvent] = []
        for name in names:
            params = {"fieldSelector": f"involvedObject.name={name}", "limit": str(PAGE_SIZE)}
            events += decoder.decode_page(self._run(self._api.get_bytes(path, params))).items
        return events

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _view(self, observer: PodObserver | None) -> ClusterView:
        fleet = Fleet(sorted(await self._list_all(NODES), key=lambda node: node.metadata.name))
        usage = NodeUsage()
        observe = observer(fleet) if observer is not None else lambda _pod: None
        usage.begin()
        async for page in self._pages(PODS):
            for pod in page:
                usage.upsert(pod)
                observe(pod)
        usage.swap()
        self.active_pods = usage.pod_count
        device_classes = await self._list_permitted(DEVICE_CLASSES)
        templates = await self._list_permitted(CLAIM_TEMPLATES)
        built = build_live_view(
            fleet,
            usage,
            {namespace.metadata.name: namespace for namespace in await self._list_all(NAMESPACES)},
            group_by_namespace(await self._list_all(LIMIT_RANGES)),
            group_by_namespace(await self._list_all(QUOTAS)),
            usage.summaries(),
            group_by_namespace(templates or ()),
            device_classes_by_name(device_classes or ()),
            usage.all_tie_counts(),
            usage.waiting_counts(),
            (await self._storage_objects(usage), usage.volume_users(VolumeUsers())),
        )
        self.free_by_node = {node.name: free_resources_on_node(node, usage) for node in fleet.nodes}
        view = built.view.with_devices(await self._device_view(fleet, device_classes, templates))
        view = await self._with_queues(view.with_group_sources(snapshot_groups(await self._group_objects())))
        view = view.with_api_minor(await read_api_minor(self._api))
        return view.with_pod_classes(
            summarize_pod_classes(
                await self._list_optional(RUNTIME_CLASSES, HTTPStatus.FORBIDDEN),
                await self._list_optional(PRIORITY_CLASSES, HTTPStatus.FORBIDDEN),
            )
        )

    async def _with_queues(self, view: ClusterView) -> ClusterView:
        """Return the view with the queues of Kueue and Volcano."""
        found = [one for each in QUEUE_RESOURCES for one in await self._list_optional(each, HTTPStatus.FORBIDDEN)]
        configured = await fetch_kueue_configuration(self._api) if found else UNKNOWN_CONFIGURATION
        view = view.with_queues(KueueQueues(found, configured))
        return view.with_volcano_queues(VolcanoQueues(await self._list_optional(VOLCANO_QUEUES, HTTPStatus.FORBIDDEN)))

    async def _peers(self) -> PeerSelectors:
        """Return what selects the peers of pods; nothing is known where it may not be listed."""
        try:
            services, stateful_sets = await self._list_optional(SERVICES), await self._list_optional(STATEFUL_SETS)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return NO_PEERS
        return PeerSelectors(services, stateful_sets)

    async def _group_objects(self) -> list[SnapshotObject]:
        """Return the objects about node groups that the cluster has and permits listing."""
        return [
            *await self._list_optional(OVERLAYS, HTTPStatus.FORBIDDEN),
            *await self._list_optional(MACHINE_DEPLOYMENTS, HTTPStatus.FORBIDDEN),
            *await self._list_optional(MACHINE_SETS, HTTPStatus.FORBIDDEN),
            *await self._list_optional(NODE_POOLS, HTTPStatus.FORBIDDEN),
        ]

    async def _storage_objects(self, usage: NodeUsage) -> StorageObjects:
        """Return the objects about storage, without those that the cluster does not permit listing."""
        index, missing = StorageIndex(usage, lambda: None), list[str]()
        for resource, store in zip(STORAGE_RESOURCES, index.stores, strict=True):
            try:
                found = await self._list_optional(resource)
            except ApiError as error:
                if error.status != HTTPStatus.FORBIDDEN:
                    raise
                missing.append(resource.name)
                continue
            for each in found:
                store.upsert(each)
        return index.take_objects()[0]._replace(missing=tuple(missing))

    async def _placement_objects(self) -> PlacementObjects:
        nodes = await self._list_all(NODES)
        pods = await self._list_all(WatchedResource("pods", PODS.path, StoredPod, ACTIVE_PODS))
        try:
            gpu_nodes, unread_reason = await self._list_optional(GPU_NODES), ""
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            gpu_nodes, unread_reason = [], str(error)
        fleet = Fleet(sorted(nodes, key=lambda node: node.metadata.name))
        templates = await self._list_permitted(CLAIM_TEMPLATES)
        others = *await self._all_storage_objects(), *(templates or ()), *await self._group_objects()
        devices = await self._device_view(fleet, await self._list_permitted(DEVICE_CLASSES), templates)
        return PlacementObjects(fleet, (*nodes, *pods, *gpu_nodes, *others), devices, unread_reason)

    async def _device_view(
        self,
        fleet: Fleet,
        classes: Sequence[DeviceClass] | None,
        templates: Sequence[ResourceClaimTemplate] | None,
    ) -> DeviceView:
        """Return the devices and claims; none of a kind that the cluster does not have or permit listing."""
        slices, claims = await self._list_permitted(RESOURCE_SLICES), await self._list_permitted(RESOURCE_CLAIMS)
        rules = await self._list_optional(TAINT_RULES, HTTPStatus.FORBIDDEN) if slices else []
        listed = {
            DeviceKind.CLAIM: claims,
            DeviceKind.TEMPLATE: templates,
            DeviceKind.CLASS: classes,
            DeviceKind.SLICE: slices,
        }
        unlisted = [kind for kind, found in listed.items() if found is None]
        view = build_device_view(slices or (), claims or (), classes or (), fleet, rules, unlisted)
        return view if claims is not None or view is NO_DEVICES else view._replace(knows_claims=False)

    async def _list_permitted(self, resource: WatchedResource[T]) -> list[T] | None:
        """List a resource; none if the cluster does not have it, None if it does not permit listing it."""
        try:
            return await self._list_optional(resource)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return None

    async def _all_storage_objects(self) -> list[SnapshotObject]:
        """Return the objects about storage; none if the cluster does not permit listing one kind of them."""
        try:
            return [each for resource in STORAGE_RESOURCES for each in await self._list_optional(resource)]
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return []

    async def _policies(self, namespace: str) -> PolicySources:
        namespace = namespace or await find_installed_namespace(self._api)
        objects = PolicyObjects()
        for policy in await self._list_optional(policy_resource()):
            objects.policies.upsert(policy)
        for exception in await self._list_optional(exception_resource(namespace)):
            objects.exceptions.upsert(exception)
        files, unread_reason = await read_policy_config_map(self._api, namespace)
        halted, ready = tuple(objects.halted_names()), tuple(objects.ready_names())
        return PolicySources(files, tuple(objects.texts()), unread_reason, halted, ready)

    async def _list_optional(self, resource: WatchedResource[T], *ignored: HTTPStatus) -> list[T]:
        """List a resource; none if the cluster does not have it, or answers with an ignored status."""
        for path in (resource.path, *resource.older_paths):
            try:
                return await self._list_all(resource._replace(path=path))
            except ApiError as error:
                if error.status not in (HTTPStatus.NOT_FOUND, *ignored):
                    raise
        return []

    async def _list_all(self, resource: WatchedResource[T]) -> list[T]:
        return [item async for page in self._pages(resource) for item in page]

    async def _pages(self, resource: WatchedResource[T]) -> AsyncIterator[list[T]]:
        decoder: ResourceDecoder[T] = ResourceDecoder(f"GET {resource.path}", resource.model)
        params = {**resource.params, "limit": str(PAGE_SIZE)}
        while True:
            page = decoder.decode_page(await self._api.get_bytes(resource.path, params))
            yield page.items
            if not page.continue_token:
                return
            params["continue"] = page.continue_token


async def read_policy_config_map(api: KubeClient, namespace: str) -> tuple[PolicyTexts, str]:
    """Return the policy files of the ConfigMap, and why it could not be read.

    Raises:
        ApiError: the API server does not answer.
    """
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}")
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return (), ""
        if error.status == HTTPStatus.FORBIDDEN:
            return (), str(error)
        raise
    folder, files = f"configmap/{namespace}/{CONFIG_MAP}", sorted((found.get("data") or {}).items())
    return tuple((f"{folder}/{key}", text) for key, text in files if is_document_file([key])), ""


async def fetch_kueue_configuration(api: KubeClient) -> KueueConfiguration:
    """Return Kueue's Configuration, by the ConfigMap of its manifests; unknown without it or the right to read it.

    Raises:
        ApiError: the API server does not answer.
        SnapshotError: the ConfigMap has no valid Configuration.
    """
    try:
        found = await api.get(KUEUE_CONFIG_MAP)
    except ApiError as error:
        if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            raise
        return UNKNOWN_CONFIGURATION
    text = (found.get("data") or {}).get(KUEUE_CONFIG_FILE, "")
    return parse_kueue_configuration(text, f"configmap/kueue-system/kueue-manager-config/{KUEUE_CONFIG_FILE}")


def object_of_cluster(item: dict[str, Any], kind: str = "Pod") -> SourceObject:
    """Return an object of a cluster as if it were in a file. Items of a list do not contain their kind."""
    metadata = item.get("metadata") or {}
    data = {"apiVersion": "v1", "kind": kind, **item}
    name = f"{kind.lower()}/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return SourceObject(data, Document(data, name, NO_POSITION))
