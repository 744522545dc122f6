"""The live view on a real API server: it follows changes made with kubectl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from statistics import median
from typing import Any

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import PATIENCE_SECONDS
from tests.cluster.predicted_outcomes import API_MINOR
from tests.device_builders import NVIDIA, allocated, card, resource_claim, resource_slice
from webhook.cache import informers
from webhook.cache.informers import ClusterInformers, empty_view
from webhook.errors import ApiError
from webhook.kube import reflector
from webhook.kube.api import KubeClient
from webhook.kube.reflector import Reflector, WatchedResource, WatchStatus
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_pools import PoolId

GPU = "nvidia.com/gpu"


class ViewHolder:
    """The owner of the live view."""

    def __init__(self) -> None:
        self.view: ClusterView = empty_view()
        self.errors: list[str] = []
        self.informers: ClusterInformers

    def record_watch_error(self, resource: str, error: ApiError) -> None:
        self.errors.append(f"{resource}: {error}")

    def record_internal_error(self, component: str, error: Exception) -> None:
        raise AssertionError(component) from error

    def free(self, node: str) -> int:
        """Return the number of free whole GPUs on a node."""
        node_mask = 1 << self.view.fleet.by_name[node]
        return sum(self.view.free_units(offer, node_mask) for offer in self.view.fleet.by_resource[GPU])


async def until(condition: Callable[[], object], within: float = PATIENCE_SECONDS) -> float:
    """Wait until a condition holds, and return the seconds; only a check that starts after the deadline fails."""
    begun = asyncio.get_running_loop().time()
    while True:
        started = asyncio.get_running_loop().time()
        if condition():
            return started - begun
        if started > begun + within:
            raise TimeoutError(f"condition not met within {within} s")
        await asyncio.sleep(0.02)


async def run_blocking(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Run a blocking call in a thread."""
    return await asyncio.to_thread(function, *arguments, **keywords)


@asynccontextmanager
async def follow_cluster(plane: Plane) -> AsyncIterator[ViewHolder]:
    """A live view of the plane, ready."""
    site = ViewHolder()

    async def nothing() -> None:
        return

    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        site.informers = ClusterInformers(api, site, Random(1), site, "rightslice-system")
        ready = asyncio.Event()
        task = asyncio.create_task(site.informers.run(nothing, ready.set))
        try:
            await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
            yield site
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_kubectl_changes_are_visible_as_they_are_watched(plane: Plane, nodes: list[str], namespace: str) -> None:
    async with follow_cluster(plane) as site:
        await until(lambda: site.view.api_minor == API_MINOR)
        view, seconds = site.view, list[float]()
        assert (view.complete, view.is_stale) == (True, False)
        assert {node.name for node in view.fleet.nodes} >= set(nodes)
        assert view.namespace(namespace) is not None
        assert view.namespace("nowhere") is None

        await run_blocking(plane.kubectl, "create", "quota", "gpus", f"--hard=requests.{GPU}=4", "-n", namespace)
        seconds.append(await until(lambda: site.view.quotas(namespace)))
        limits = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {GPU: "2"}}]}}
        await run_blocking(plane.api.create, f"/api/v1/namespaces/{namespace}/limitranges", limits)
        seconds.append(await until(lambda: GPU in site.view.limited_resources(namespace)))
        devices = "/apis/resource.k8s.io/v1"
        template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": []}}}}
        await run_blocking(plane.api.create, f"{devices}/namespaces/{namespace}/resourceclaimtemplates", template)
        await run_blocking(plane.api.create, f"{devices}/deviceclasses", {"metadata": {"name": namespace}, "spec": {}})
        seconds.append(await until(lambda: "t" in site.view.claim_context(namespace).templates))
        seconds.append(await until(lambda: namespace in site.view.claim_context(namespace).classes))
        path, name = f"{devices}/resourceslices", f"{namespace}-slice"
        published = resource_slice(name, NVIDIA, namespace, nodeName=nodes[0], devices=[card("gpu-0")])
        await run_blocking(plane.api.create, path, published)
        seconds.append(await until(lambda: PoolId(NVIDIA, namespace) in site.view.devices.pools.slices))
        claims = f"{devices}/namespaces/{namespace}/resourceclaims"
        claim = await run_blocking(plane.api.create, claims, resource_claim("c", namespace=namespace))
        taken = resource_claim("c", allocated(namespace, "gpu-0"))["status"]
        await run_blocking(plane.api.replace, f"{claims}/c/status", claim | {"status": taken})
        seconds.append(await until(lambda: PoolId(NVIDIA, namespace) in site.view.devices.allocated))
        await run_blocking(plane.api.delete, f"{claims}/c")
        seconds.append(await until(lambda: PoolId(NVIDIA, namespace) not in site.view.devices.allocated))
        await run_blocking(plane.api.delete, f"{path}/{name}")
        seconds.append(await until(lambda: PoolId(NVIDIA, namespace) not in site.view.devices.pools.slices))
        await run_blocking(plane.api.delete, f"{devices}/deviceclasses/{namespace}")
        seconds.append(await until(lambda: namespace not in site.view.claim_context(namespace).classes))
        await run_blocking(plane.kubectl, "label", "namespace", namespace, "tier=research")
        seconds.append(await until(lambda: labels(site, namespace).get("tier") == "research"))
        await run_blocking(plane.kubectl, "delete", "quota", "gpus", "-n", namespace)
        seconds.append(await until(lambda: not site.view.quotas(namespace)))
    assert median(seconds) < reflector.WATCH_SECONDS / 2, "by its event, not when the next watch begins"


def labels(site: ViewHolder, namespace: str) -> dict[str, str]:
    found = site.view.namespace(namespace)
    return found.metadata.labels if found is not None else {}


async def test_a_pod_takes_its_gpus_while_it_runs(plane: Plane, nodes: list[str], namespace: str) -> None:
    tolerations = [{"key": GPU, "operator": "Exists"}]
    pod = make_pod("train").namespace(namespace).gpus(2).spec(tolerations=tolerations).build()
    path = f"/api/v1/namespaces/{namespace}/pods"
    async with follow_cluster(plane) as site:
        before = {node: site.free(node) for node in nodes if GPU in by_name(site, node).gpus}
        await run_blocking(plane.api.create, path, pod)
        await until(lambda: sum(before.values()) - sum(map(site.free, before)) == 2)
        bound = (await run_blocking(plane.api.get, f"{path}/train"))["spec"]["nodeName"]
        assert site.free(bound) == before[bound] - 2
        ended: Json = {"status": {"phase": "Succeeded"}}
        await run_blocking(plane.api.patch, f"{path}/train/status", ended)
        await until(lambda: site.free(bound) == before[bound])


def by_name(site: ViewHolder, node: str) -> Any:
    return site.view.fleet.nodes[site.view.fleet.by_name[node]]


async def test_a_changed_node_is_reindexed(plane: Plane, nodes: list[str]) -> None:
    async with follow_cluster(plane) as site:
        index = site.view.fleet.by_name[nodes[0]]
        assert site.view.fleet.usable_nodes >> index & 1
        await run_blocking(plane.kubectl, "cordon", nodes[0])
        await until(lambda: not site.view.fleet.usable_nodes >> index & 1)
        await run_blocking(plane.kubectl, "uncordon", nodes[0])
        await until(lambda: site.view.fleet.usable_nodes >> index & 1)


async def test_the_view_is_correct_after_an_api_server_restart(plane: Plane, namespace: str) -> None:
    async with follow_cluster(plane) as site:
        await run_blocking(plane.apiserver.kill)
        await until(lambda: site.errors)
        await run_blocking(plane.apiserver.start)
        await run_blocking(plane.kubectl, "create", "quota", "after", f"--hard=requests.{GPU}=4", "-n", namespace)
        await until(lambda: site.view.quotas(namespace))
        assert not site.view.is_stale


async def test_an_unconfirmed_view_is_reported_as_stale(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "STALE_SECONDS", 6.0)
    monkeypatch.setattr(reflector, "WATCH_SECONDS", 2)  # an idle kind is confirmed when its watch ends
    async with follow_cluster(plane) as site:
        await until(lambda: not site.view.is_stale)
        await run_blocking(plane.apiserver.kill)
        await until(lambda: site.view.is_stale)
        assert site.informers.ready, "it stays ready: security rules are still enforced"
        assert site.informers.age > 6.0
        assert site.view.namespace(namespace) is not None
        await run_blocking(plane.apiserver.start)
        await until(lambda: not site.view.is_stale)


DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.test.example"},
    "spec": {
        "group": "test.example",
        "scope": "Cluster",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def unexpected(_state: WatchStatus, error: Exception) -> None:
    raise error


class RecordingWriter:
    """A writer that records its calls."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.incoming: dict[str, Any] | None = None

    def begin(self) -> None:
        self.incoming = {}

    def upsert(self, item: dict[str, Any]) -> None:
        (self.items if self.incoming is None else self.incoming)[item["metadata"]["name"]] = item

    def remove(self, item: dict[str, Any]) -> None:
        (self.items if self.incoming is None else self.incoming).pop(item["metadata"]["name"], None)

    def swap(self) -> None:
        self.items, self.incoming = self.incoming or {}, None


async def test_kinds_that_are_added_and_removed_are_watched(plane: Plane) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    writer = RecordingWriter()
    resource = WatchedResource("widgets", "/apis/test.example/v1/widgets", dict[str, Any], optional=True)
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        watch = Reflector(api, resource, writer, Random(1), ViewHolder())
        task = asyncio.create_task(watch.run())
        try:
            await until(lambda: watch.status.absent)
            assert watch.status.synced
            await run_blocking(plane.kubectl, "create", "-f", "-", stdin=json.dumps(DEFINITION))
            await until(lambda: watch.status.synced and not watch.status.absent)
            widget = {"apiVersion": "test.example/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"x": 1}}
            await api.create("/apis/test.example/v1/widgets", widget)
            await until(lambda: writer.items["w"]["spec"] == {"x": 1} if writer.items else False)
        finally:
            await api.delete(f"{definitions}/widgets.test.example")
            with suppress(TimeoutError):
                await until(lambda: watch.status.absent)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert (writer.items, watch.status.absent) == ({}, True)


async def test_without_watch_list_objects_are_listed_by_page(plane: Plane, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    writer = RecordingWriter()
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        for index in range(7):
            await api.create(maps, {"metadata": {"name": f"m{index}"}})
        watch = Reflector(
            api,
            WatchedResource("configmaps", maps, dict[str, Any]),
            writer,
            Random(1),
            ViewHolder(),
        )
        watch._uses_watch_list = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("webhook.kube.reflector.PAGE_SIZE", 3)
            task = asyncio.create_task(watch.run())
            try:
                await until(lambda: watch.status.synced)
                assert {f"m{index}" for index in range(7)} <= set(writer.items)
                await api.delete(f"{maps}/m0")
                await until(lambda: "m0" not in writer.items)
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def test_optimistic_writes_and_each_patch_type(plane: Plane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        made = await api.create(path, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        await api.patch(f"{path}/m", {"data": {"b": "2"}}, "merge")
        with pytest.raises(ApiError) as stale:
            await api.replace(f"{path}/m", {**made, "data": {}})
        assert (stale.value.status, stale.value.reason) == (409, "Conflict")
        with pytest.raises(ApiError) as again:
            await api.create(path, {"metadata": {"name": "m"}})
        assert (again.value.status, again.value.reason) == (409, "AlreadyExists")
        await api.patch(f"{path}/m", [{"op": "add", "path": "/data/c", "value": "3"}], "json")
        await api.patch(f"{path}/m", {"data": {"d": "4"}}, "strategic")
        applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"e": "5"}}
        found = await api.patch(f"{path}/m", applied, "apply", {"fieldManager": "test"})
        assert found["data"] == {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
        await api.delete(f"{path}/m")
        with pytest.raises(ApiError) as missing:
            await api.get(f"{path}/m")
        assert missing.value.status == 404
