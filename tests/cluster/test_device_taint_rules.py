"""DeviceTaintRules on a real control plane: scheduler, live view and snapshots pass over tainted devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import Json, make_node
from tests.cluster.nodes import add_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.random_claims import API
from tests.cluster.test_commands import rightslice
from tests.cluster.test_device_claims import CLASSES, GPU, cards, create_pod, exactly, template
from tests.cluster.test_live_view import follow_cluster, until
from tests.controlplane.build import control_plane, is_minor_or_newer, wanted_version
from tests.model.test_device_taint_rules import rule
from webhook.model.dra.device_pools import DevicePools

NODE = "tainted"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"

pytestmark = pytest.mark.skipif(not is_minor_or_newer(36), reason="served as v1beta2 from Kubernetes 1.36 on")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane with the feature gate, which is off by default before Kubernetes 1.37, and two cards."""
    gates = {"DRADeviceTaintRules": True}
    with Plane(control_plane(wanted_version()), tmp_path_factory.mktemp("plane"), feature_gates=gates) as running:
        for each in CLASSES:
            running.api.create(f"{API}/deviceclasses", each)
        add_nodes(running, [make_node(NODE, {})])
        for each in cards(NODE, "gpu-0", "gpu-1"):
            running.api.create(f"{API}/resourceslices", each)
        yield running


@pytest.fixture
def of_one_card(plane: Plane) -> Iterator[Json]:
    """A rule that taints one of the cards."""
    created = plane.api.create(RULES, rule({"driver": GPU, "pool": NODE, "device": "gpu-0"}, "v1beta2"))
    yield created
    plane.api.delete(f"{RULES}/{created['metadata']['name']}")


def tainted(pools: DevicePools) -> list[str]:
    """Return the devices of all nodes that have a taint."""
    return [each.device.name for pool in pools.pools_of_node(0) for each in pool.devices if each.device.taints]


async def test_the_live_view_follows_rules(plane: Plane) -> None:
    async with follow_cluster(plane) as site:
        await until(lambda: len(site.view.fleet.nodes) and site.view.devices.pools)
        await asyncio.to_thread(plane.api.create, RULES, rule({"device": "gpu-0"}, "v1beta2"))
        await until(lambda: tainted(site.view.devices.pools) == ["gpu-0"])
        await asyncio.to_thread(plane.api.delete, f"{RULES}/r")
        await until(lambda: tainted(site.view.devices.pools) == [])


def test_the_scheduler_gives_no_tainted_card(plane: Plane, of_one_card: Json, namespace: str) -> None:
    waits = create_pod(plane, namespace, "two", exactly(GPU, count=2))
    eventually(waits, until=lambda pod: "cannot allocate all claims" in str(pod["status"].get("conditions")))
    runs = create_pod(plane, namespace, "one", exactly(GPU))
    assert eventually(runs, until=lambda pod: pod["spec"].get("nodeName"))["spec"]["nodeName"] == NODE
    (claim,) = [each for each in claims_of(plane, namespace) if "allocation" in each.get("status", {})]
    assert [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]] == ["gpu-1"]


def claims_of(plane: Plane, namespace: str) -> list[Json]:
    """Return the claims of a namespace."""
    found: list[Json] = plane.api.get(f"{API}/namespaces/{namespace}/resourceclaims")["items"]
    return found


def test_check_reads_rules(plane: Plane, of_one_card: Json, namespace: str, tmp_path: Path) -> None:
    wanted = template("two", exactly(GPU, count=2))
    wanted["metadata"]["namespace"] = namespace
    (tmp_path / "two.json").write_text(json.dumps(wanted), encoding="utf-8")
    found = json.loads(rightslice(plane, "check", str(tmp_path / "two.json"), "-o", "json").stdout)
    assert [each["code"] for each in found["objects"][0]["findings"]] == ["GPU-D104"]
