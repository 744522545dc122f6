"""Which requests the console answers, and the headers of every response."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from tests.console.conftest import Client, demo_flags
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.guard import allowed_hosts
from webhook.console.listener import serve_console
from webhook.console.reading import ClusterReading, NewestReading
from webhook.console.server import PAGES
from webhook.errors import RightsliceError
from webhook.settings import is_loopback

PATHS = ("/", "/workloads", "/nodes", "/console.css", "/console.js", "/missing", "/workloads?page=0")


@pytest.mark.parametrize("path", PATHS)
async def test_every_response_has_the_security_headers(client: Client, path: str) -> None:
    answer = await client.get(path)

    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_page_that_fails_has_the_security_headers_and_is_logged(
    demo: ClusterReading, caplog: pytest.LogCaptureFixture
) -> None:
    broken = demo._replace(state=msgspec.structs.replace(demo.state, nodes=None))
    async with serve_console(NewestReading(broken), "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        answer = await Client(address, session).get("/nodes")

    assert answer.status == 500
    assert "TypeError" in caplog.text
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.2:{port}", ""]
)
async def test_a_request_for_another_host_is_rejected(client: Client, host: str) -> None:
    """A site that resolves its own name to loopback sends that name."""
    port = client.address.rstrip("/").rpartition(":")[2]

    answer = await client.get("/", Host=host.format(port=port))

    assert answer.status == 421
    assert "Overview" not in answer.text


async def test_localhost_is_this_host_too(client: Client) -> None:
    port = client.address.rstrip("/").rpartition(":")[2]

    assert (await client.get("/", Host=f"localhost:{port}")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/workloads", "/missing", "/console.js"])
async def test_pages_can_only_be_read(client: Client, method: str, path: str) -> None:
    foreign = await client.send(method, path, Origin="https://evil.example")
    own = await client.send(method, path, Origin=client.address.rstrip("/"))

    assert foreign.status == 403
    assert own.status == 405


async def test_head_has_the_headers_of_get(client: Client) -> None:
    head, get = await client.send("HEAD", "/"), await client.get("/")

    assert (head.status, head.text) == (200, "")
    assert head.headers["ETag"] == get.headers["ETag"]


async def test_an_unchanged_page_is_not_sent_again(client: Client) -> None:
    first = await client.get("/workloads")

    again = await client.get("/workloads", If_None_Match=first.headers["ETag"])

    assert (again.status, again.text) == (304, "")


async def test_a_long_query_is_rejected(client: Client) -> None:
    assert (await client.get(f"/workloads?q={'a' * 2_000}")).status == 414


INVALID_REQUESTS = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", b"Missing 'Host' header"),
    "a very long address": (b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 9000), b"more than 8190 bytes"),
    "no HTTP": (b"hello\r\n\r\n", b"Invalid method"),
}


@pytest.mark.parametrize(("request_bytes", "reason"), INVALID_REQUESTS.values(), ids=INVALID_REQUESTS)
async def test_an_invalid_request_gets_a_reason_and_leaves_no_traceback(
    client: Client, caplog: pytest.LogCaptureFixture, request_bytes: bytes, reason: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(client.address).port)
    writer.write(request_bytes)
    answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.0 400 ")
    assert reason in answer
    assert caplog.text == ""


async def test_every_page_of_the_navigation_exists(client: Client) -> None:
    text = (await client.get("/")).text

    entries = text.split("<nav", 1)[1].split("</nav>")[0].count("<a ")
    assert entries == len([path for path in PAGES if f'href="{path}"' in text])


LOOPBACK = ("127.0.0.1", "127.8.8.8", "::1", "localhost")
OTHERS = ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com")


@pytest.mark.parametrize("host", LOOPBACK + OTHERS)
def test_only_loopback_is_accepted(host: str) -> None:
    assert is_loopback(host) is (host in LOOPBACK)


def test_port_80_may_be_left_out() -> None:
    assert "localhost" in allowed_hosts("127.0.0.1", 80)
    assert "localhost" not in allowed_hosts("127.0.0.1", 8080)
    assert "[::1]:8080" in allowed_hosts("::1", 8080)


async def test_a_reading_that_fails_keeps_the_last_one_and_says_so(demo: ClusterReading) -> None:
    def fail() -> ClusterReading:
        raise RightsliceError("the API server <b>did not answer</b>")

    reading = NewestReading(demo)
    async with serve_console(reading, "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        client = Client(address, session)
        before = await client.get("/")
        await reading.refresh(fail)
        after = await client.get("/", If_None_Match=before.headers["ETag"])
        await reading.refresh(lambda: demo)
        recovered = await client.get("/")

    assert "Not current" not in before.text
    assert "Not current: the API server &lt;b&gt;did not answer" in after.text
    assert "Not current" not in recovered.text
    assert before.words == after.words


async def test_a_page_says_why_a_cluster_could_not_be_read_again(demo: ClusterReading) -> None:
    missing = ConsoleReader(demo_flags(cluster="live", access=ClusterFlags("/missing/kubeconfig")))
    reading = NewestReading(demo)
    async with serve_console(reading, "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        await reading.refresh(missing.read_again)
        page = (await Client(address, session).get("/")).text

    assert "Not current: the cluster could not be read again: /missing/kubeconfig: " in page


async def test_an_unexpected_error_does_not_end_the_readings(demo: ClusterReading) -> None:
    def fail() -> ClusterReading:
        raise ZeroDivisionError

    reading = NewestReading(demo)
    await reading.refresh(fail)

    assert reading.current is demo
    assert reading.problem == "internal error: ZeroDivisionError()"


def test_the_process_does_not_wait_for_a_reading(demo: ClusterReading) -> None:
    """A large cluster is read for a minute, and Ctrl-C must end the console at once."""
    started, ended = threading.Event(), threading.Event()

    def read() -> ClusterReading:
        started.set()
        ended.wait(600)
        return demo

    async def end_during_reading() -> None:
        refreshing = asyncio.create_task(NewestReading(demo).refresh(read))
        await asyncio.to_thread(started.wait, 60)
        refreshing.cancel()

    try:
        waiting = threading.Thread(target=asyncio.run, args=(end_during_reading(),))
        waiting.start()
        waiting.join(60)
        assert started.is_set()
        assert not waiting.is_alive()
    finally:
        ended.set()


async def test_a_live_cluster_is_read_again(demo: ClusterReading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.console.reading.MIN_PAUSE_SECONDS", 0.01)
    changed, reading = demo._replace(histories={}), NewestReading(demo)

    following = asyncio.create_task(reading.follow(lambda: changed))
    async with asyncio.timeout(60):
        while reading.current is not changed:
            await asyncio.sleep(0.01)
    following.cancel()
