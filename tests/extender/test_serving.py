"""The extender over real sockets: TLS, limits, health, metrics, draining and logs."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import aiohttp
from msgspec.structs import replace

from tests.builders import make_pod
from tests.example_cluster import mig_node
from tests.extender.harness import extender_body, scheduler_state
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report
from tests.server.site import PAIR
from webhook.cache.inventory import NodeInventory
from webhook.extender.app import ExtenderMetrics, build_extender
from webhook.extender.state import SchedulerState
from webhook.telemetry.logs import make_logger
from webhook.web.limits import ServerLimits
from webhook.web.listener import HttpListener, drain_connections
from webhook.web.tls import ClientCertificateRules, PemPair, ServerTls

JSON = {"Content-Type": "application/json"}
TWO = make_pod("two").gpus(2)


def state() -> SchedulerState:
    return scheduler_state(gpu_node("n"), gpu_node_report("n", 4, BRIDGED))


class Site:
    """A serving extender, and requests to it."""

    def __init__(self, listener: HttpListener, port: int, client: aiohttp.ClientSession, log: io.StringIO) -> None:
        self.listener, self._url, self._client, self.log = listener, f"https://localhost:{port}", client, log

    async def post(self, path: str, data: bytes, headers: dict[str, str] = JSON) -> tuple[int, Any]:
        async with self._client.post(self._url + path, data=data, headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str) -> tuple[int, str]:
        async with self._client.get(self._url + path) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def serve_extender(
    of: SchedulerState, limits: ServerLimits | None = None, clients: ClientCertificateRules | None = None
) -> AsyncIterator[Site]:
    log = io.StringIO()
    tls, metrics = ServerTls(PemPair(PAIR.certificate, PAIR.key), clients), ExtenderMetrics(make_logger("info", log))
    listener = build_extender(of, monotonic, metrics, tls, limits or ServerLimits())
    port = await listener.listen("127.0.0.1", 0)
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=PAIR.authority.decode()))
    try:
        async with aiohttp.ClientSession(connector=trusting, timeout=aiohttp.ClientTimeout(60)) as client:
            yield Site(listener, port, client, log)
    finally:
        await listener.close()


async def ready() -> SchedulerState:
    return await asyncio.to_thread(state)


async def test_scheduler_is_answered_over_tls() -> None:
    async with serve_extender(await ready()) as site:
        filtered = await site.post("/filter", extender_body(TWO, ["n"]))
        ranked = await site.post("/prioritize", extender_body(TWO, ["n"]))

    assert filtered == (
        200,
        {"NodeNames": ["n"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""},
    )
    assert ranked == (200, [{"Host": "n", "Score": 10}])


async def test_before_the_nodes_are_known_it_is_unready() -> None:
    async with serve_extender(SchedulerState(NodeInventory())) as site:
        status, answer = await site.post("/filter", extender_body(TWO, ["n"]))
        page = await site.get("/readyz?verbose")
        alive = await site.get("/livez")

    assert (status, answer) == (503, {"error": "the nodes are not known yet"})
    assert page == (503, "[-]cluster not known yet\n[+]certificate in use\n[+]serving ok\nnot ready\n")
    assert alive == (200, "ok\n")


async def test_invalid_requests_are_rejected_and_counted() -> None:
    async with serve_extender(await ready(), ServerLimits(body=4096)) as site:
        unread = await site.post("/filter", b"{")
        large = await site.post("/filter", extender_body(TWO, ["n" * 5000]))
        text = await site.post("/filter", b"{}", {"Content-Type": "text/plain"})
        _, page = await site.get("/metrics")

    assert [unread[0], large[0], text[0]] == [400, 413, 415]
    assert 'rightslice_http_rejections_total{reason="invalid_request"} 1.0' in page
    assert 'rightslice_http_rejections_total{reason="body_too_large"} 1.0' in page


async def test_metrics_have_no_client_text() -> None:
    async with serve_extender(await ready()) as site:
        await site.post("/prioritize", extender_body(TWO, ["n", "stranger"]))
        _, page = await site.get("/metrics")

    assert 'rightslice_extender_requests_total{result="ranked",verb="prioritize"} 1.0' in page
    assert "rightslice_extender_reservations 1.0" in page
    assert "rightslice_extender_nodes 1.0" in page
    assert "stranger" not in page


async def test_internal_error_is_logged() -> None:
    broken = await ready()
    async with serve_extender(broken) as site:
        broken.inventory = None  # type: ignore[assignment] # a fault that no test of the rest could provoke
        status, answer = await site.post("/filter", extender_body(TWO, ["n"]))

    assert (status, answer) == (500, {"error": "internal error; see the log"})
    assert "AttributeError" in site.log.getvalue()


async def test_it_answers_while_draining_but_is_not_ready() -> None:
    hurried = asyncio.Event()
    async with serve_extender(await ready()) as site:
        ending = asyncio.create_task(drain_connections(site.listener, 30.0, hurried))
        await asyncio.sleep(0)
        page = await site.get("/readyz")
        status, _ = await site.post("/filter", extender_body(TWO, ["n"]))
        hurried.set()
        await ending

    assert page == (503, "not ready\n")
    assert status == 200


async def test_implausible_node_data_is_logged() -> None:
    broken = gpu_node_report("n", 4, BRIDGED, mig_instances={0: [("1g.10gb", 77, "")]})
    absurd = gpu_node("absurd", 10**15)
    async with serve_extender(await asyncio.to_thread(scheduler_state, gpu_node("n"), broken, absurd)) as site:
        async with asyncio.timeout(30):
            while site.log.getvalue().count("invalid node data ignored") < 2:
                await asyncio.sleep(0.05)
        ranked = await site.post("/prioritize", extender_body(make_pod("small").gpus(1), ["n"]))

    assert ranked == (200, [{"Host": "n", "Score": 10}])
    assert "must be 0 to 15, found 77" in site.log.getvalue()
    assert "1000000000000000 nvidia.com/gpu are more than any node can have" in site.log.getvalue()


async def test_failing_node_is_logged_and_others_are_ranked() -> None:
    of = await asyncio.to_thread(scheduler_state, mig_node("healthy"), mig_node("unhealthy"))
    assert of.ranking is not None
    of.refresh(0.0)
    ill = of.fleet.by_name["unhealthy"]
    broken = replace(of.ranking.snapshot.devices[ill], mig_cards=(None,))  # no card at all
    of.ranking.set_nodes({ill: (of.ranking.snapshot.free[ill], broken)})
    async with serve_extender(of) as site:
        small = make_pod("small").requests("nvidia.com/mig-1g.10gb", "1")
        status, ranked = await site.post("/prioritize", extender_body(small, ["healthy", "unhealthy"]))

    assert (status, ranked[0]["Score"], ranked[1]["Score"] < 10) == (200, 10, True)
    assert site.log.getvalue().count('"internal error"') == 1
