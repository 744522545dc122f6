"""The role in docs/console.md permits all that is read of a cluster, and Overview says what a read was denied."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.builders import make_node, make_pod
from tests.cluster.accounts import documented_role
from tests.console.conftest import demo_flags
from tests.device_builders import NVIDIA, card, resource_slice
from tests.usage.hostile_servers import serve_answer
from webhook.audit.cluster_reader import ClusterReader
from webhook.cache.placement_input import build_placement_input
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.console_inputs import WITHOUT_USAGE, ConsoleReader
from webhook.console.reading import ClusterReading
from webhook.model.dra.device_allocations import allocated_in_pools
from webhook.model.dra.pool_kinds import cards_on_node
from webhook.model.pods import TopologySpreadConstraint
from webhook.model.schedulers import DEFAULT_SCHEDULER, USUAL_RULES
from webhook.report.capacity import capacity_table, node_capacities
from webhook.report.console.next_steps import next_steps
from webhook.report.console.nodes import node_page
from webhook.report.node_topology import CARDS, node_lines
from webhook.report.utilization import compute_utilization, utilization_lines

ITEMS: Mapping[str, Sequence[Any]] = {
    "nodes": [
        make_node("h100-1", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, **{"nvidia.com/gpu": 8}),
        make_node("dra", {}),
    ],
    "pods": [make_pod("train").namespace("a").gpus(1).spec(nodeName="h100-1").build()],
    "clusterqueues": [{"metadata": {"name": "gpus"}, "spec": {}}],
    "resourceslices": [
        {
            "metadata": {"name": "slice"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "h100-1", "pool": {"name": "h100-1"}, "devices": []},
        },
        resource_slice("dra", NVIDIA, "dra", nodeName="dra", devices=[card("gpu-0")]),
    ],
}
DISCOVERY = re.compile("/apis/[^/]+/[^/]+")
"""Paths that every authenticated account may read."""


Permission = tuple[str, str, str, str]
"""API group, resource, verb, and name of the object of a "get"."""


class ApiServer:
    """Answers every list, with the objects above or with none, and remembers what was read."""

    def __init__(self, denied: Sequence[str] = ()) -> None:
        self.denied = denied
        self.read: set[Permission] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "37"})
        if DISCOVERY.fullmatch(request.path):
            return web.json_response({"resources": []})
        _, resource, verb, name = permission = permission_of(request.path)
        self.read.add(permission)
        if resource in self.denied:
            message = f'{resource} is forbidden: User "reader" cannot {verb} resource "{resource}"'
            return web.json_response({"kind": "Status", "status": "Failure", "message": message}, status=403)
        if resource == "configmaps":
            return web.json_response({"status": "Failure"}, status=404)
        return web.json_response({"metadata": {"name": name}, "items": [*ITEMS.get(resource, ())]})


def permission_of(path: str) -> Permission:
    """Return what a GET of a path needs."""
    _, api, *parts = path.split("/")
    group = "" if api == "api" else parts.pop(0)
    parts.pop(0)  # the version
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource, name = parts[0], (parts[1:] or [""])[0]
    return group, resource, "get" if name else "list", name


@contextmanager
def serve_cluster(server: ApiServer, folder: Path) -> Iterator[ClusterFlags]:
    """Serve a cluster, and give the flags of a command that reads it."""
    with serve_answer(server.answer) as url:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (folder / "config").write_text(json.dumps(config))
        yield ClusterFlags(str(folder / "config"))


def is_permitted(role: Mapping[str, Any], permission: Permission) -> bool:
    """Return whether a ClusterRole permits something."""
    group, resource, verb, name = permission
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and name in rule.get("resourceNames", [name])
        for rule in role["rules"]
    )


def test_the_documented_role_permits_all_that_is_read(tmp_path: Path) -> None:
    """By the console, and by each method of the reader that other commands call."""
    server, role = ApiServer(), documented_role("docs/console.md")
    with serve_cluster(server, tmp_path) as access:
        reading = ConsoleReader(demo_flags(cluster="live", access=access)).read()
        reading.plan()
        with ClusterReader(*access) as cluster:
            cluster.view(schedulers={DEFAULT_SCHEDULER: USUAL_RULES._replace(spread=(TopologySpreadConstraint(),))})
            cluster.placement_objects()
            cluster.disruption_budgets()
            cluster.lacks_namespace("a")
            cluster.events("a", ["train"])
            cluster.pod("a", "train")
            for plural in ("resourceclaims", "resourceclaimtemplates"):
                cluster.claim("a", plural, "c")

    assert {resource for _, resource, _, _ in server.read} >= {
        "services",
        "topologies",
        "configmaps",
        "devicetaintrules",
    }
    assert {permission for permission in server.read if not is_permitted(role, permission)} == set()


def test_overview_says_that_prometheus_was_not_read_and_why(tmp_path: Path) -> None:
    with serve_cluster(ApiServer(["services"]), tmp_path) as access:
        reading = ConsoleReader(demo_flags(cluster="live", access=access)).read()

    [step] = [each for each in next_steps(reading.state) if "GPU activity" in each.action]
    assert step.action.startswith(
        "Make usage readable: nothing is known about the GPU activity of 1 workload with GPUs now, because "
    )
    assert "no Prometheus was searched" in step.action
    assert "cannot list resource" in step.action
    assert "DCGM" not in step.action


def test_overview_of_a_snapshot_without_usage_asks_for_it(demo: ClusterReading) -> None:
    state = msgspec.structs.replace(demo.state, usage_problem=WITHOUT_USAGE)

    [step] = [each for each in next_steps(state) if "GPU activity" in each.action]
    assert step.action.endswith("no usage was read. Start rightslice ui with --usage FILE or --prometheus URL.")


ALLOCATED = {
    "of claims that may be read": ((), "No claim has one of them."),
    "of claims that may not": (["resourceclaims"], "Unknown: resource claims cannot be read."),
}


@pytest.mark.parametrize(("denied", "words"), ALLOCATED.values(), ids=ALLOCATED)
def test_no_device_counts_as_not_allocated_while_claims_may_not_be_read(
    denied: Sequence[str], words: str, tmp_path: Path
) -> None:
    with serve_cluster(ApiServer(denied), tmp_path) as access:
        reading = ConsoleReader(demo_flags(cluster="live", access=access)).read()
        with ClusterReader(*access) as cluster:
            placed = cluster.placement_objects().devices

    assert reading.snapshot is not None
    node, devices = reading.snapshot.fleet.by_name["dra"], reading.context.view.devices
    cards = cards_on_node(devices, node)
    allocated = allocated_in_pools(devices, {each.pool for each in cards})
    assert words in node_page(reading.state, reading.snapshot, node, [], cards, allocated)
    lines = "\n".join(node_lines(reading.snapshot, node, [], cards, allocated_in_pools(placed, {cards[0].pool})))
    assert ("? resource claims cannot be read: it is unknown which GPUs" in lines) == bool(denied)


@pytest.mark.parametrize("denied", [(), ("resourceclaims", "resourceclaimtemplates", "deviceclasses")])
def test_kinds_that_may_not_be_listed_are_known(denied: Sequence[str], tmp_path: Path) -> None:
    with serve_cluster(ApiServer(denied), tmp_path) as access, ClusterReader(*access) as cluster:
        assert cluster.view().devices.unlisted == cluster.placement_objects().devices.unlisted == set(denied)


@pytest.mark.parametrize("denied", [(), ("resourceclaims",)])
def test_no_gpu_counts_as_free_while_claims_may_not_be_read(denied: Sequence[str], tmp_path: Path) -> None:
    with serve_cluster(ApiServer(denied), tmp_path) as access, ClusterReader(*access) as cluster:
        found = cluster.placement_objects()
    placement = build_placement_input(found.fleet, found.objects, found.devices)
    nodes = node_capacities(placement.snapshot, placement.mix, placement.devices)
    [capacity] = [node for node in nodes if node.name == "dra"]
    assert (capacity.free_milli, capacity.unknown_milli) == ((0, 1000) if denied else (1000, 0))
    table = capacity_table(nodes)
    assert ("? resource claims cannot be read: it is unknown which GPUs" in "\n".join(table)) == bool(denied)
    [row] = [line.split() for line in table if line.startswith("dra")]
    assert row[3:5] == (["?", "?"] if denied else ["0", "(0%)"])
    figures = compute_utilization([capacity], [])
    assert (figures.usable.milli, figures.allocatable.milli) == (0 if denied else 1000, 1000)
    caveat = "1 GPU is free or allocated, which is unknown: resource claims cannot be read."
    assert (caveat in "\n".join(utilization_lines(figures))) == bool(denied)
    [card_of_node] = cards_on_node(placement.devices, placement.snapshot.fleet.by_name["dra"])
    assert CARDS.to_document(card_of_node)["freeMilli"] == (0 if denied else 1000)
