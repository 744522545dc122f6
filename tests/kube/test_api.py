"""Calls to the API server: deadlines, errors, and credentials that change."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.kube.scripted import Answer, Json, error_answer, json_answer, kubeconfig, scripted_api, stream
from webhook.certs.issuer import create_self_signed
from webhook.errors import AccessError, ApiError, ApiUnreachable
from webhook.kube import access, api
from webhook.kube.access import ClusterAccess
from webhook.kube.api import KubeClient

POD = {"kind": "Pod", "metadata": {"name": "p"}}


async def test_the_five_verbs_send_the_right_requests(tmp_path: Path) -> None:
    bodies: list[tuple[str, str, str, Any]] = []

    async def record(request: web.Request) -> web.StreamResponse:
        text = await request.text()
        content_type = request.headers.get("Content-Type", "")
        bodies.append((request.method, request.path_qs, content_type, json.loads(text) if text else None))
        return web.json_response(POD)

    async with scripted_api(tmp_path, record, record, record, record, record) as (server, client):
        assert await client.get("/x", {"a": "b c"}) == POD
        assert await client.create("/x", POD) == POD
        assert await client.replace("/x/p", POD) == POD
        assert await client.patch("/x/p", [], "json", {"dryRun": "All"}) == POD
        await client.delete("/x/p")
    kind = "application/json"
    assert bodies == [
        ("GET", "/x?a=b+c", "", None),
        ("POST", "/x", kind, POD),
        ("PUT", "/x/p", kind, POD),
        ("PATCH", "/x/p?dryRun=All", "application/json-patch+json", []),
        ("DELETE", "/x/p", "", None),
    ]
    assert {each.headers["Authorization"] for each in server.requests} == {"Bearer t0"}
    assert {each.headers["User-Agent"] for each in server.requests} == {"rightslice"}


REFUSALS: dict[str, tuple[Answer, tuple[int, str, str]]] = {
    "not found": (error_answer(404, "NotFound", "pods p not found"), (404, "NotFound", "pods p not found")),
    "a conflict": (error_answer(409, "Conflict", "modified"), (409, "Conflict", "modified")),
    "text": (json_answer("  404 page\n not   found\n", 404), (404, "Not Found", "404 page not found")),
    "a redirect is not followed": (json_answer({}, 302, Location="https://elsewhere/"), (302, "Found", "")),
    "HTML and 200": (json_answer("<html>"), (200, "NotJson", "the response must be a JSON object, found '<html>'")),
    "a list and 200": (json_answer([1]), (200, "NotJson", "the response must be a JSON object, found '[1]'")),
}


@pytest.mark.parametrize(("answer", "expected"), REFUSALS.values(), ids=REFUSALS)
async def test_an_error_has_the_message_of_the_server(
    tmp_path: Path, answer: Answer, expected: tuple[int, str, str]
) -> None:
    async with scripted_api(tmp_path, answer) as (_, client):
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
    assert (caught.value.status, caught.value.reason, caught.value.message) == expected
    assert str(caught.value).startswith(f"GET /x: {expected[0]} ")


async def test_a_response_that_is_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_RESPONSE_BYTES", 1000)
    async with scripted_api(tmp_path, json_answer({"x": "y" * 1000})) as (_, client):
        with pytest.raises(ApiError, match="TooLong"):
            await client.get("/x")


async def test_a_server_that_does_not_respond_fails_at_the_deadline(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, stream(b"{"), seconds=0.3) as (_, client):
        with pytest.raises(ApiUnreachable, match="timed out") as caught:
            await client.get("/x")
    assert caught.value.status == 0


async def test_an_unreachable_server_is_named_in_the_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    file = kubeconfig(tmp_path, f"http://127.0.0.1:{port}", "t")
    async with KubeClient(await ClusterAccess(str(file)).read()) as client:
        with pytest.raises(ApiUnreachable, match=f"no answer from http://127.0.0.1:{port}.*connection refused"):
            await client.get("/x")


async def test_a_call_is_retried_after_retry_after(tmp_path: Path) -> None:
    busy = error_answer(429, "TooManyRequests", Retry_After="1")
    async with scripted_api(tmp_path, busy, json_answer(POD)) as (server, client):
        start = asyncio.get_running_loop().time()
        assert await client.create("/x", POD) == POD
        assert asyncio.get_running_loop().time() - start >= 1.0
        assert len(server.requests) == 2


async def test_a_call_is_not_retried_after_its_deadline(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, error_answer(429, "TooManyRequests", Retry_After="60"), seconds=20.0) as (
        server,
        client,
    ):
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
    assert (caught.value.status, caught.value.retry_after, len(server.requests)) == (429, 60.0, 1)


async def test_a_rejected_token_is_read_again_once(tmp_path: Path) -> None:
    async def change(_request: web.Request) -> web.StreamResponse:
        file = tmp_path / "kubeconfig"
        file.write_text(file.read_text().replace("t0", "t1"))
        return await error_answer(401, "Unauthorized")(_request)

    async with scripted_api(tmp_path, change, json_answer(POD)) as (server, client):
        assert await client.get("/x") == POD
        assert [each.headers["Authorization"] for each in server.requests] == ["Bearer t0", "Bearer t1"]


async def test_a_token_that_stays_rejected_is_an_error(tmp_path: Path) -> None:
    denied = error_answer(401, "Unauthorized", "no")
    async with scripted_api(tmp_path, denied, denied) as (server, client):
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
    assert (caught.value.status, len(server.requests)) == (401, 2)


async def test_proxy_environment_variables_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with scripted_api(tmp_path, json_answer(POD)) as (_, client):
        assert await client.get("/x") == POD


# Address and credentials.


def plugin(folder: Path, status: Json | None, code: int = 0) -> Json:
    """Return a user with an exec plugin that prints this status and counts its calls."""
    script = folder / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    script.write_text(f"#!/bin/sh\necho . >> {folder}/calls\necho '{json.dumps(answer)}'\necho oops >&2\nexit {code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"command": str(script), "apiVersion": "client.authentication.k8s.io/v1"}}


def plugin_calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


async def test_an_exec_plugin_provides_the_token_and_runs_once(tmp_path: Path) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    user = plugin(tmp_path, {"token": "made", "expirationTimestamp": later})
    found = await ClusterAccess(str(kubeconfig(tmp_path, "http://x", "", user))).read()
    assert [await found.authorization() for _ in range(3)] == ["Bearer made"] * 3
    assert plugin_calls(tmp_path) == 1


async def test_a_token_about_to_expire_is_renewed(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    user = plugin(tmp_path, {"token": "made", "expirationTimestamp": soon})
    found = await ClusterAccess(str(kubeconfig(tmp_path, "http://x", "", user))).read()
    await found.authorization()
    assert plugin_calls(tmp_path) == 2


MUST = "must be a kubeconfig: one YAML map with clusters, contexts and users"
NO_KUBECONFIG = {
    "a word": ("hello", f"odd: {MUST}. Write --kubeconfig FILE"),
    "a list": ("- a", f"odd: {MUST}. Write"),
    "nothing": ("", f"odd: {MUST}. Write"),
    "an unterminated list": ("[1", f"odd: {MUST}, found: while parsing a flow sequence in"),
    "invalid indentation": ("a\n b: c\n", f"odd: {MUST}, found: mapping values are not allowed here in"),
    "another encoding": ("\udcff", f"odd: {MUST}, found: 'utf-8' codec can't decode"),
    "users that are not a list": ("{clusters: [], contexts: [], users: 3}", f"odd: {MUST}. Write"),
    "an unrelated map": ("{}", "odd: Invalid kube-config file"),
}


@pytest.mark.parametrize(("text", "message"), NO_KUBECONFIG.values(), ids=NO_KUBECONFIG)
async def test_an_invalid_kubeconfig_is_reported_with_the_expected_form(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "odd").write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(AccessError) as caught:
        await ClusterAccess(str(tmp_path / "odd")).read()

    assert message in str(caught.value)


async def test_a_failed_plugin_is_reported_with_its_message(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "http://x", "", plugin(tmp_path, {}, code=3))
    with pytest.raises(AccessError, match=r"exec: process returned 3.*oops"):
        await ClusterAccess(str(file)).read()


async def test_a_plugin_that_hangs_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def recording_exec(*words: str, **how: Any) -> asyncio.subprocess.Process:
        begun.append(await begin(*words, **how))
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recording_exec)
    user = {"exec": {"command": "sleep", "args": ["60"], "apiVersion": "v1"}}
    patience = iter((0.5, 5, 50))  # on a busy machine the time may be over before anything has begun
    while not begun:
        monkeypatch.setattr(access, "READ_SECONDS", next(patience))
        with pytest.raises(AccessError, match="hangs"):
            await ClusterAccess(str(kubeconfig(tmp_path, "http://x", "", user))).read()

    (process,) = begun
    assert process.returncode is None
    process.kill()
    await process.wait()  # until its pipes are closed too: they belong to this event loop


WRONG = {
    "no such file": ("", "must be a kubeconfig file, found none"),
    "not YAML": ("{", "kubeconfig"),
    "no context": ("{apiVersion: v1, kind: Config}", "current-context"),
    "a list": ("[]", "kubeconfig"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "kubeconfig"
    if text:
        file.write_text(text)
    with pytest.raises(AccessError, match=message) as caught:
        await ClusterAccess(str(file)).read()
    assert str(file) in str(caught.value)


async def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "http://x", "t")
    with pytest.raises(AccessError, match="elsewhere") as caught:
        await ClusterAccess(str(file), "elsewhere").read()
    assert str(caught.value) == f"--context: must be a context of {file}, found 'elsewhere'. Write one of: here"


@pytest.mark.parametrize(("written", "found"), [({"namespace": "team"}, "team"), ({}, "default")])
async def test_the_namespace_is_that_of_the_context(tmp_path: Path, written: dict[str, str], found: str) -> None:
    file = kubeconfig(tmp_path, "http://x", "t")
    config = json.loads(file.read_text())
    config["contexts"][0]["context"] |= written
    file.write_text(json.dumps(config))
    assert (await ClusterAccess(str(file)).read()).namespace == found


@pytest.fixture
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without access to a cluster."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("_no_cluster")
def test_the_error_names_all_ways_to_configure_access() -> None:
    with pytest.raises(AccessError, match=r"--kubeconfig FILE, set KUBECONFIG, .* service account"):
        ClusterAccess()


@pytest.mark.usefixtures("_no_cluster")
async def test_a_pod_uses_its_service_account_and_reads_its_token_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    (tmp_path / "namespace").write_text("of-the-pod")
    token.write_text("first\n")
    ca.write_bytes(create_self_signed(["127.0.0.1"], datetime.now(UTC)).authority)
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_DIR", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = await ClusterAccess().read()
    assert (found.server, await found.authorization()) == ("https://[fd00::1]:443", "bearer first")
    assert found.namespace == "of-the-pod"
    token.write_text("second")
    assert await found.authorization() == "bearer first", "it is read once a minute"
    await found.reload("bearer first")
    assert await found.authorization() == "bearer second"
    await found.reload("bearer first")
    assert await found.authorization() == "bearer second", "another task has reloaded it"
    token.write_text(" ")
    with pytest.raises(AccessError, match="must hold a token, found nothing"):
        await found.reload("bearer second")
    ca.unlink()
    with pytest.raises(AccessError, match=r"service account of this pod: .*"):
        await ClusterAccess().read()


def with_authority(file: Path, authority: Path) -> Path:
    """Set the certificate authority in a kubeconfig."""
    config = json.loads(file.read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = str(authority)
    file.write_text(json.dumps(config))
    return file


async def test_the_server_certificate_must_be_signed_by_the_configured_authority(tmp_path: Path) -> None:
    ours, other = (create_self_signed(["127.0.0.1"], datetime.now(UTC)) for _ in range(2))
    certificate, key = ours.write(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(POD)

    app = web.Application()
    app.router.add_get("/x", answer)
    running = TestServer(app, scheme="https")
    await running.start_server(ssl=context)
    authority = tmp_path / "authority"
    authority.write_bytes(other.authority)
    file = with_authority(kubeconfig(tmp_path, str(running.make_url("/")), "t"), authority)
    try:
        async with KubeClient(await ClusterAccess(str(file)).read()) as client:
            with pytest.raises(ApiUnreachable, match="certificate"):
                await client.get("/x")
            authority.write_bytes(ours.authority)
            assert await client.get("/x") == POD, "the corrected authority is read again"
    finally:
        await running.close()


class HangingServer:
    """A TLS server that starts an endless response, and then neither reads nor closes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._raw: socket.socket | None = None
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Accept one request."""
        with self._listener:
            plain, _ = self._listener.accept()
        encrypted = self._context.wrap_socket(plain, server_side=True)
        encrypted.recv(64 * 1024)
        encrypted.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
        self._raw = socket.socket(fileno=encrypted.detach())

    def client_closed(self) -> bool:
        """Return whether the client closed the connection."""
        assert self._raw is not None
        with self._raw as raw:
            raw.settimeout(60)
            try:
                while raw.recv(64 * 1024):
                    pass
            except ConnectionResetError:
                return True
            except TimeoutError:
                return False
        return True


async def test_closing_a_session_closes_connections_to_a_hung_server(tmp_path: Path) -> None:
    ours = create_self_signed(["127.0.0.1"], datetime.now(UTC))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*ours.write(tmp_path))
    authority = tmp_path / "authority"
    authority.write_bytes(ours.authority)
    server = HangingServer(context)
    serving = asyncio.create_task(asyncio.to_thread(server.serve))
    file = with_authority(kubeconfig(tmp_path, server.url, "t"), authority)

    async with KubeClient(await ClusterAccess(str(file)).read()) as client:
        async with client.stream("/x", {"watch": "1"}, 30.0) as pieces:
            assert await anext(pieces) == b"{}\n"
        await serving

    assert await asyncio.to_thread(server.client_closed)


async def test_regular_calls_do_not_keep_the_connections_of_a_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "IDLE_SECONDS", 0.3)
    connections, all_at_once = WeakSet[asyncio.Transport](), asyncio.Barrier(10)

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        connections.add(request.transport)
        if request.path == "/burst":
            await all_at_once.wait()
        return web.json_response(POD)

    app = web.Application()
    app.router.add_get("/{path}", answer)
    async with TestServer(app) as server:
        file = kubeconfig(tmp_path, str(server.make_url("/")), "t")
        async with KubeClient(await ClusterAccess(str(file)).read()) as client:
            await asyncio.gather(*(client.get("/burst") for _ in range(10)))
            assert len(connections) == 10
            # For several IDLE_SECONDS, calls that each take the connection that is idle longest.
            for _ in range(20):
                await asyncio.sleep(0.1)
                await client.get("/regular")

            still_open = [each for each in connections if not each.is_closing()]
    assert len(still_open) < 10
