"""A server with a live cluster: its health before and after the first lists."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from tests.kube.scripted import kubeconfig
from tests.server.site import NOW, PAIR, Site, TlsConnection, encoded, http, nothing, post, review, serve_site
from tests.server.test_process import Process
from webhook.cache.informers import empty_view
from webhook.kube.reflector import WatchStatus
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.objects import Namespace
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.settings import SettingsError, WebhookSettings, load_settings

TEAM = {"team": Namespace()}


@dataclasses.dataclass
class Cluster:
    """A live cluster for the server."""

    ready: bool = False
    age: float = 3.0
    states: tuple[WatchStatus, ...] = (WatchStatus("nodes", synced=True), WatchStatus("pods"))


def state_with(cluster: Cluster, view: ClusterView) -> AdmissionState:
    made = AdmissionState(PolicySet(), view, UsageView(), PolicyLoadStatus(NOW))
    made.live_cluster = cluster
    return made


def ready_page(site: Site) -> tuple[int, list[str]]:
    answer = site.send_request(http("GET", "/readyz?verbose"))
    return answer.status, answer.body.decode().splitlines()


def test_the_server_is_not_ready_before_the_first_lists() -> None:
    cluster = Cluster()
    with serve_site(nothing, state=state_with(cluster, empty_view())) as site:
        status, lines = ready_page(site)
        assert status == 503
        assert lines[2:5] == ["[-]cluster not known yet", "[+]nodes synced", "[-]pods not synced yet"]
        answer = site.evaluate(encoded(review()))
        assert answer.status == 503, "the failure policy decides"


def test_nothing_is_evaluated_before_policies_are_loaded() -> None:
    """The view may exist before the policies are loaded."""
    known = ClusterView(Fleet(()), namespaces=TEAM, complete=True)
    with serve_site(nothing, state=state_with(Cluster(), known)) as site:
        assert [site.evaluate(encoded(review()), route).status for route in ("/validate", "/mutate")] == [503, 503]
        assert site.metric("rightslice_http_rejections_total", reason="not_ready") == 2


def test_a_stale_view_is_reported_and_the_server_stays_ready() -> None:
    cluster = Cluster(ready=True, age=75.4)
    cluster.states[1].synced, cluster.states[1].error = True, "GET /api/v1/pods: 403 Forbidden: no\nmore"
    old = ClusterView(Fleet(()), namespaces=TEAM, complete=True, stale=True)
    with serve_site(nothing, state=state_with(cluster, old)) as site:
        status, lines = ready_page(site)
        assert status == 200
        assert lines[2] == "[+]cluster 0 nodes, confirmed 75 s ago: stale, right-sizing is off"
        assert lines[4].startswith("[-]pods synced; GET /api/v1/pods: 403 Forbidden")
        assert site.evaluate(encoded(review())).status == 200, "guards stay active"


def test_the_process_keeps_serving_while_the_cluster_does_not_respond(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    certificate, key = PAIR.write(tmp_path)
    arguments = ["--cluster", "live", "--kubeconfig", str(kubeconfig(tmp_path, url, "t")), "--listen", "127.0.0.1:0"]
    process = Process([*arguments, "--tls-cert", str(certificate), "--tls-key", str(key)])
    try:
        error = str(process.wait_for("watch failed")["error"])
        assert f"no answer from {url}" in error
        connection = TlsConnection(process.port)
        connection.send(http("GET", "/readyz"))
        assert (connection.read() or (0,))[0] == 503
        connection = TlsConnection(process.port)  # a probe's connection is closed after its answer
        connection.send(post("/validate", encoded(review())))
        assert (connection.read() or (0,))[0] == 503
    finally:
        process.popen.terminate()
        assert process.end() == 0


def test_in_a_pod_the_default_cluster_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="--cluster: must be given"):
        load_settings(WebhookSettings, self_signed=True, policies=[Path("policies")])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert load_settings(WebhookSettings, self_signed=True).is_live, "policies may be in the cluster"
    assert not load_settings(WebhookSettings, self_signed=True, policies=[Path("policies")], cluster="demo").is_live
