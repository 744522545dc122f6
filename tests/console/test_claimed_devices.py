"""Who has the devices of ResourceSlices, on the page of a node and on that of a workload."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import aiohttp
import pytest

from tests.builders import Json, make_node, make_pod
from tests.console.conftest import Client, demo_flags
from tests.device_builders import NVIDIA, allocated, card, mig_device, resource_claim, resource_slice
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.listener import serve_console
from webhook.console.reading import ClusterReading, NewestReading
from webhook.report.console.query import workload_address
from webhook.report.text import format_gpus

PROFILES = ("3g.40gb", "2g.20gb", "1g.10gb")
DEVICES = [
    card("gpu-0"),
    card("gpu-1"),
    *(mig_device(f"gpu-4-mig-{i}", each, "GPU-4") for i, each in enumerate(PROFILES)),
]


def claim_of(name: str, device: str, *pods: str) -> Json:
    claim = resource_claim(name, allocated("dra", device))
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    return claim


def pod_with_claim(name: str, claim: str) -> Json:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": claim}]
    spec = {"nodeName": "dra", "resourceClaims": claims, "containers": [container]}
    return make_pod(name).namespace("team").owned_by("StatefulSet", name.partition("-")[0]).spec(**spec).build()


CLUSTER = [
    make_node("dra", {}),
    resource_slice("dra", NVIDIA, "dra", nodeName="dra", devices=DEVICES),
    claim_of("whole", "gpu-0", "trainer"),
    claim_of("part", "gpu-4-mig-1", "server-0", "server-1", "<b>gone", *(f"gone-{i}" for i in range(253))),
    claim_of("unused", "gpu-4-mig-2"),
    pod_with_claim("trainer", "whole"),
    pod_with_claim("server-0", "part"),
    pod_with_claim("server-1", "part"),
]


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> ClusterReading:
    folder: Path = tmp_path_factory.mktemp("cluster")
    (folder / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER}))
    return ConsoleReader(demo_flags(cluster=str(folder))).read()


@pytest.fixture
async def console(reading: ClusterReading) -> AsyncIterator[Client]:
    async with serve_console(NewestReading(reading), "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        yield Client(address, session)


def cells(page: str, noun: str) -> list[list[str]]:
    """Return the texts of a table, without its header."""
    [table] = re.findall(rf'aria-label="Table: {noun}".*?</table>', page, re.DOTALL)
    rows = re.findall("<tr>(.*?)</tr>", table, re.DOTALL)[1:]
    return [[re.sub("<[^>]*>", "", each) for each in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]


async def test_the_page_of_a_node_has_the_claims_and_pods_of_its_devices(console: Client) -> None:
    page = (await console.get("/node?name=dra")).text

    assert [row[0].rpartition("/")[2] for row in cells(page, "cards")] == ["gpu-0", "gpu-1", "gpu-4"]
    assert [[row[0].rpartition("/")[2], *row[5:]] for row in cells(page, "allocated devices")] == [
        ["gpu-0", "team/whole", "trainer"],
        ["gpu-4-mig-1", "team/part", "server-0, server-1, &lt;b&gt;gone, and 253 more"],
        ["gpu-4-mig-2", "team/unused", "none"],
    ]


async def test_the_columns_of_a_node_add_up_to_what_its_summary_and_overview_say(
    console: Client, reading: ClusterReading
) -> None:
    page = (await console.get("/node?name=dra")).text
    (node,) = reading.state.nodes

    for noun, column in (("cards", 5), ("allocated devices", 4)):
        assert format_gpus(round(1000 * sum(float(row[column]) for row in cells(page, noun)))) == "1.43"
    assert format_gpus(node.allocated_milli) == "1.43"
    assert reading.state.utilization is not None
    assert reading.state.utilization.allocated.milli == node.allocated_milli


async def test_a_pod_with_a_claim_leads_to_its_workload_and_from_there_to_the_node(console: Client) -> None:
    page = (await console.get("/node?name=dra")).text

    links = [unescape(each) for each in re.findall(r'<a href="(/workload\?[^"]*)">', page)]
    names = ["StatefulSet/trainer", "StatefulSet/server", "StatefulSet/server"]
    assert links == [workload_address("team", name) for name in names]
    for link, device, claim in ((links[0], "gpu-0", "whole"), (links[1], "gpu-4-mig-1", "part")):
        answer = await console.get(link)
        [row] = cells(answer.text, "allocated devices")
        assert (row[0].rpartition("/")[2], row[4]) == (device, f"team/{claim}")
        assert f'<a href="/node?name=dra">{NVIDIA}/dra/{device}</a>' in answer.text
