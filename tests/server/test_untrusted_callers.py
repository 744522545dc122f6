"""Callers and objects that try to reach something else: state, other tenants, other machines."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.builders import Json, make_namespace, make_pod
from tests.example_cluster import policies_of, policy, view_of, whole_node
from tests.server.site import NOW, PATIENCE, TlsConnection, encoded, post, review, serve_site
from tests.server.test_process import Process, running
from webhook.engine.decide import decide
from webhook.model.usage import UsageView
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.web.tls import ClientCertificateRules

AUTHORITY = trustme.CA()
CLIENTS = ClientCertificateRules(AUTHORITY.cert_pem.bytes().decode(), "kube-apiserver")
SHARED = policies_of(
    policy("mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 8000}]}\nsecurity: {deny: [visibleDevicesEnv]}")
)
TENANT = make_pod("secret-project").gpus(6).namespace("other").spec(nodeName="whole").build()


def shared_state() -> AdmissionState:
    """Return the state of a cluster where another tenant uses most of a shared quota."""
    view = view_of(make_namespace("team"), make_namespace("other"), whole_node(), TENANT)
    return AdmissionState(SHARED, view, UsageView(), PolicyLoadStatus(NOW))


FORGED: dict[str, Json] = {
    "in the name of the cluster's administrators": {"userInfo": {"username": "a", "groups": ["system:masters"]}},
    "in the name of a node": {"userInfo": {"username": "system:node:whole", "groups": ["system:nodes"]}},
    "for another namespace": {"namespace": "other"},
    "for a pod that exceeds the quota": {"object": make_pod().gpus(8).build()},
}


@pytest.mark.parametrize("route", ["/mutate", "/validate"])
@pytest.mark.parametrize("claim", FORGED.values(), ids=FORGED)
def test_a_review_without_the_required_certificate_changes_and_reveals_nothing(claim: Json, route: str) -> None:
    state = shared_state()
    before = state.view
    with serve_site(decide, state=state, clients=CLIENTS) as site:
        answer = site.evaluate(review(**claim), route)

    assert answer.status == 403
    assert state.view is before
    assert re.search(rb"secret-project|other|lab|8000|6000", answer.body) is None


def test_a_review_that_arrives_after_its_timeout_reserves_nothing() -> None:
    state = shared_state()
    before = state.view
    body = review(object=make_pod().gpus(1).build() | {"metadata": {"name": "p", "namespace": "team", "uid": "u-9"}})
    request = post("/validate?timeout=1s", encoded(body))
    with serve_site(decide, state=state) as site:
        connection = site.connect()
        connection.send(request[:-20])
        site.until(lambda: site.server.registry.load.reading == 1 or bool(site.server.telemetry.rejections))
        time.sleep(1.2)  # the API server has given up by then
        connection.send(request[-20:])
        answer = connection.read()
        assert answer is None or answer.status in (408, 503)
        assert state.view is before

        assert site.send_request(request).response["allowed"] is True
        site.until(lambda: state.view is not before)


URLS = ["http://169.254.169.254/latest", "file:///etc/passwd", "%2e%2e/secrets", "https://10.0.0.1/#../x", "//evil/x"]


def pods_with(url: str) -> Iterator[Json]:
    """Yield pods that hold a URL in each field that is read."""
    yield make_pod().gpus(1).image(f"{url}:1").build()
    yield make_pod().gpus(1).annotate("rightslice.dev/gpu-memory", url).annotate("rightslice.dev/topology", url).build()
    yield make_pod().gpus(1).env("NVIDIA_VISIBLE_DEVICES", url).label("kueue.x-k8s.io/queue-name", "a").build()
    yield make_pod().gpus(1).spec(runtimeClassName=url, schedulerName=url, nodeSelector={"a": url}).build()
    yield make_pod().gpus(1).owned_by("Job", url).build()
    yield make_pod().gpus(1).spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": url}]).build()


def socket_inodes(pid: int) -> set[str]:
    """Return the sockets of a process."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}


def foreign_sockets(pid: int, port: int) -> list[str]:
    """Return the lines of /proc/net about IP sockets of a process that are not of its server."""
    inodes, local = socket_inodes(pid), f":{port:04X}"
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and not (protocol.startswith("tcp") and fields[1].endswith(local)):
                found.append(line)
    return found


POLICY_WITH_URLS = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: urls}
spec:
  mode: enforce
  match:
    matchConditions: [{name: meta, expression: "object.metadata.name != 'http://169.254.169.254/'"}]
  injection: {labels: {example.com/a: "169.254.169.254"}}
"""


def test_urls_in_objects_and_policies_open_no_connection(tmp_path: Path) -> None:
    more = tmp_path / "urls.yaml"
    more.write_text(POLICY_WITH_URLS)
    with running(tmp_path, "--policies", str(more)) as process:
        connection = TlsConnection(process.port)
        for pod in (pod for url in URLS for pod in pods_with(url)):
            for route in ("/mutate", "/validate"):
                connection.send(post(route, encoded(review(pod))))
                answer = connection.read()
                assert answer is not None
                assert answer.status == 200
                assert foreign_sockets(process.popen.pid, process.port) == []


def test_a_socket_of_a_process_is_found(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        assert foreign_sockets(process.popen.pid, process.port) == []
        assert foreign_sockets(process.popen.pid, process.port + 1) != []


RUN_SECONDS, PERIOD_SECONDS = 0.01, 0.1
"""A container with 100m CPU runs for 10 ms of each 100."""


@contextmanager
def a_tenth_of_a_core(process: Process) -> Iterator[None]:
    """Suspend a process for nine tenths of the time, as the kernel does with a CPU limit of 100m."""
    ended = threading.Event()

    def squeeze() -> None:
        while not ended.is_set():
            process.popen.send_signal(signal.SIGSTOP)
            ended.wait(PERIOD_SECONDS - RUN_SECONDS)
            process.popen.send_signal(signal.SIGCONT)
            ended.wait(RUN_SECONDS)

    thread = threading.Thread(target=squeeze)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)
        process.popen.send_signal(signal.SIGCONT)


def status_of(connection: TlsConnection, request: bytes) -> int:
    """Return the status of a request; 0: the server closed the connection."""
    connection.send(request)
    answer = connection.read()
    return answer.status if answer is not None else 0


def cpu_seconds_of(process: Process) -> float:
    """Return the CPU time of a process that runs."""
    _, _, fields = Path(f"/proc/{process.popen.pid}/stat").read_text(encoding="ascii").rpartition(") ")
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


MAX_CALL_SECONDS = 3.0
"""The timeout of the webhook configurations."""


def test_with_a_tenth_of_a_core_calls_are_answered_within_their_timeout(tmp_path: Path) -> None:
    """In CPU time: how long the process waits for it is up to other work of this machine."""
    with running(tmp_path) as process:
        connections = [TlsConnection(process.port) for _ in range(8)]
        for connection in connections:
            assert status_of(connection, post("/validate", encoded(review()))) == 200
        statuses, spent = set[int](), []
        with a_tenth_of_a_core(process):
            for number in range(40):
                before = cpu_seconds_of(process)
                statuses.add(status_of(connections[number % 8], post("/validate", encoded(review(uid=f"u-{number}")))))
                spent.append(cpu_seconds_of(process) - before)
        assert status_of(connections[0], post("/validate", encoded(review()))) == 200

    assert statuses <= {200, 503}
    assert max(spent) < MAX_CALL_SECONDS * RUN_SECONDS / PERIOD_SECONDS


TOKENS = {
    "of another audience": "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsiYXBpIl19.c2ln",
    "without a signature": "eyJhbGciOiJub25lIn0.eyJhdWQiOlsicmlnaHRzbGljZSJdfQ.",
    "that expired": "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9.c2ln",
    "that is no token": "%00../../etc/passwd",
    "of 7,000 characters": "a" * 7000,
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_a_token_replaces_no_certificate_and_is_not_read(token: str) -> None:
    request = post("/validate", encoded(review()), f"Authorization: Bearer {token}")
    with serve_site(decide, state=shared_state(), clients=CLIENTS) as site:
        assert site.send_request(request).status == 403
        assert token not in site.log.getvalue()
    with serve_site(decide, state=shared_state()) as site:
        assert site.send_request(request).body == site.evaluate(review()).body
