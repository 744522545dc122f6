"""A real server on a loopback port, over TLS, in its own thread, and a client for tests."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import trustme
import uvloop

from tests.builders import Json, make_pod
from webhook.cache.snapshot import view_of_objects
from webhook.certs.issuer import SelfSignedPair, create_self_signed
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.server.admission_state import AdmissionState, Decide, PolicyLoadStatus
from webhook.server.handlers import AdmissionServer
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.limits import ServerLimits
from webhook.web.listener import Poll, drain_connections
from webhook.web.tls import ClientCertificateRules, PemPair, ServerTls

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PAIR: SelfSignedPair = create_self_signed(["127.0.0.1", "localhost"], datetime.now(UTC))
PATIENCE = 60.0
"""Seconds after which a test stops waiting; far more than any test needs."""

POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: {name}}}
spec: {{security: {{deny: [visibleDevicesEnv]}}}}
"""


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def response(self) -> Any:
        """The AdmissionReview's response."""
        return self.json["response"]


def review(obj: Json | None = None, **request: Any) -> Json:
    """Return a CREATE review of a pod, as an API server sends it, with these fields of the request."""
    pod = make_pod().gpus(1).build() if obj is None else obj
    body = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "pod",
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body | request}


def encoded(data: Any) -> bytes:
    """Return JSON as an API server writes it."""
    return json.dumps(data, separators=(",", ":")).encode()


def http(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """Return a request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a POST request with JSON as bytes."""
    return http("POST", path, body, "Content-Type: application/json", *headers)


OPEN: list[TlsConnection] = []
"""Connections of the current test; they are closed after it."""

QUICK = ServerLimits(close_time=0.05, request_time=10 * PATIENCE, handshake_time=10 * PATIENCE)
"""The limits of a server that soon closes connections of rejected clients, and waits for slow ones."""


class TlsConnection:
    """One TLS connection of a client that trusts an authority and connects by a name."""

    def __init__(
        self,
        port: int,
        certificate: trustme.LeafCert | None = None,
        *,
        authority: bytes = PAIR.authority,
        name: str = "localhost",
        opened: socket.socket | None = None,
    ) -> None:
        context = ssl.create_default_context(cadata=authority.decode())
        if certificate is not None:
            certificate.configure_cert(context)
        plain = opened or socket.create_connection(("127.0.0.1", port))
        plain.settimeout(PATIENCE)
        self.socket = context.wrap_socket(plain, server_hostname=name)
        self._left = b""
        OPEN.append(self)

    def send(self, data: bytes) -> None:
        """Send bytes; it is not an error if the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return

    def read(self) -> Answer | None:
        """Return the next response; None if the server closes the connection instead."""
        while b"\r\n\r\n" not in self._left:
            if not self._more():
                return None
        head, _, rest = self._left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            self._left = rest
            if not self._more():
                return None
            rest = self._left
        self._left = rest[length:]
        return Answer(int(first.split()[1]), headers, rest[:length])

    def closed(self) -> bool:
        """Wait for the server to close the connection; return True if it sent nothing more."""
        return not self._left and not self._more()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise
        except OSError:
            return False
        self._left += data
        return bool(data)


class Site:
    """A server that is listening."""

    def __init__(self, server: AdmissionServer, log: io.StringIO) -> None:
        self.server = server
        self.log = log
        self.port = 0
        self.loop: asyncio.AbstractEventLoop

    def connect(self) -> TlsConnection:
        """Open a connection."""
        return TlsConnection(self.port)

    def send_request(self, request: bytes) -> Answer:
        """Send one request on a connection of its own."""
        connection = self.connect()
        try:
            connection.send(request)
            answer = connection.read()
        finally:
            connection.close()
        assert answer is not None, "the server closed without an answer"
        return answer

    def evaluate(self, data: Any, route: str = "/validate") -> Answer:
        """Post a review."""
        return self.send_request(post(route, data if isinstance(data, bytes) else encoded(data)))

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample of /metrics; 0 if it is missing."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.send_request(http("GET", "/metrics")).body.decode().splitlines():
            sample, _, value = line.rpartition(" ")
            key, _, rest = sample.partition("{")
            if key == name and wanted <= set(rest.strip("}").split(",")):
                return float(value)
        return 0.0

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, "the condition did not become true"
            time.sleep(0.01)


def nothing(*_: object) -> Decision:
    """Return an empty decision."""
    return Decision()


def policies(name: str = "guard") -> PolicySet:
    """Return a set of one small policy."""
    loaded = load_policies([("policy.yaml", POLICY.format(name=name))])
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


def make_state(view: ClusterView | None = None) -> AdmissionState:
    """Return the state with one small policy and an empty cluster."""
    return AdmissionState(policies(), view or view_of_objects(()), UsageView(), PolicyLoadStatus(NOW))


@contextmanager
def serve_site(
    decide: Decide = nothing,
    *,
    limits: ServerLimits | None = None,
    state: AdmissionState | None = None,
    tls: ServerTls | None = None,
    make_polls: Callable[[AdmissionState, Telemetry], list[Poll]] = lambda _world, _telemetry: [],
    prepare: Callable[[AdmissionServer], None] = lambda _server: None,
    clients: ClientCertificateRules | None = None,
) -> Iterator[Site]:
    """Run a server in a thread until the block ends."""
    log = io.StringIO()
    telemetry = Telemetry(make_logger("info", log))
    state = state or make_state()
    tls = tls or ServerTls(PemPair(PAIR.certificate, PAIR.key), clients)
    server = AdmissionServer(
        state,
        telemetry,
        lambda: NOW,
        tls,
        limits or QUICK,
        make_polls(state, telemetry),
        0.02,
        0.02,
        decide=decide,
    )
    prepare(server)
    site = Site(server, log)
    started = threading.Event()
    ending: list[asyncio.Event] = []

    async def run() -> None:
        site.loop = asyncio.get_running_loop()
        site.port = await server.listen("127.0.0.1", 0)
        ending.append(asyncio.Event())
        started.set()
        await ending[0].wait()
        await drain_connections(server, 0.0, asyncio.Event())

    thread = threading.Thread(target=lambda: uvloop.run(run()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE), "the server did not start"
    try:
        yield site
    finally:
        site.loop.call_soon_threadsafe(ending[0].set)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"


def uid_of(request: AdmissionRequest) -> str:
    """The request's uid, to distinguish requests."""
    return request.uid
