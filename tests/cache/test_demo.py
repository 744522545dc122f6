"""The example snapshot loads, has every form of GPU, and is consistent with its pods."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.fleet import ROOM, demo_objects, grow, grown_view, roomy
from tests.model.nodes import reachable_nodes
from webhook.cache import bundled_files as places
from webhook.cache.build_view import with_quota_status
from webhook.cache.snapshot import ClusterSnapshot, read_snapshot, view_of_objects
from webhook.errors import SourceLocation
from webhook.model.enums import GpuForm
from webhook.model.objects import ResourceQuota, ResourceQuotaStatus
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import parse_pod
from webhook.model.quantity import NANO, parse_nano


@pytest.fixture(scope="module")
def demo() -> ClusterSnapshot:
    """The example snapshot."""
    return read_snapshot("demo")


def test_demo_snapshot_loads_without_skipped_objects(demo: ClusterSnapshot) -> None:
    assert demo.skipped == ()
    assert demo.view.fleet.usable_nodes == demo.view.fleet.all_nodes


def test_every_form_of_gpu_is_partly_free(demo: ClusterSnapshot) -> None:
    view = demo.view
    assert {offer.form for offer in view.fleet.offers} == set(GpuForm)
    for offer in view.fleet.offers:
        assert offer.memory_mib is not None
        assert offer.selector
        assert 0 < view.free_units(offer, view.fleet.all_nodes) < offer.capacity, offer
    assert view.fleet.resources() == (
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-2g.20gb",
        "nvidia.com/mig-3g.40gb",
    )


def test_enlarged_nodes_of_benchmarks_offer_every_resource_of_the_demo(demo: ClusterSnapshot) -> None:
    enlarged = view_of_objects((item, SourceLocation("enlarged")) for item in roomy(demo_objects()))
    units = [{name: amount * ROOM for name, amount in node.gpus.items()} for node in demo.view.fleet.nodes]
    assert [node.gpus for node in enlarged.fleet.nodes] == units


def test_each_offer_selector_matches_only_its_nodes(demo: ClusterSnapshot) -> None:
    fleet = demo.view.fleet
    for offer in fleet.offers:
        assert reachable_nodes(fleet, offer) == offer.nodes


def test_quota_status_counts_the_pods_of_the_snapshot() -> None:
    objects = demo_objects()
    quotas = [item for item in objects if item["kind"] == "ResourceQuota"]
    assert quotas
    for written in quotas:
        namespace = written["metadata"]["namespace"]
        pods = [parse_pod(o) for o in objects if o["kind"] == "Pod" and o["metadata"]["namespace"] == namespace]
        (quota,) = (q for q in read_snapshot("demo").view.quotas(namespace))
        status = ResourceQuotaStatus(hard=quota.status.hard)
        counted = with_quota_status(ResourceQuota(quota.metadata, quota.spec, status), pods).status.used
        assert {key: parse_nano(n) for key, n in counted.items()} == {
            key: parse_nano(n) for key, n in quota.status.used.items()
        }


def test_no_node_is_overcommitted(demo: ClusterSnapshot) -> None:
    used: dict[str, Counter[str]] = {node.name: Counter() for node in demo.view.fleet.nodes}
    for pod in (parse_pod(item) for item in demo_objects() if item["kind"] == "Pod"):
        used[pod.spec.node_name].update(effective_requests(pod))
    for node in demo.view.fleet.nodes:
        has = {name: units * NANO for name, units in node.gpus.items()}
        has |= {"cpu": node.cpu_milli * NANO // 1000, "memory": node.memory * NANO}
        assert all(amount <= has.get(name, 0) for name, amount in used[node.name].items()), node.name


def test_scaled_snapshot_has_the_requested_nodes_and_the_same_offers(demo: ClusterSnapshot) -> None:
    view = grown_view(100)
    assert len(view.fleet.nodes) == len(view.fleet.by_name) == 100
    shapes = [(o.resource, o.product, o.memory_mib, o.taints) for o in demo.view.fleet.offers]
    assert [(o.resource, o.product, o.memory_mib, o.taints) for o in view.fleet.offers] == shapes
    assert grow(demo_objects(), 3) == demo_objects()


def test_installed_package_has_its_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "webhook" / "shipped" / "examples").mkdir(parents=True)
    monkeypatch.setattr(places, "_PACKAGE_FOLDER", tmp_path / "webhook")
    monkeypatch.setattr(places, "_SHIPPED", tmp_path / "webhook" / "shipped")
    assert places.bundled_folder("examples") == tmp_path / "webhook" / "shipped" / "examples"
    assert places.bundled_folder("policies") == tmp_path / "policies"
