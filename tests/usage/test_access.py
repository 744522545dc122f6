"""Access to a Prometheus: TLS, credentials, and invalid settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientSession, web

from tests.cluster.polling import eventually
from tests.controlplane.build import prometheus_program
from tests.usage.fleets import Use, dcgm
from tests.usage.hostile_servers import serve_answer
from tests.usage.prometheus import PrometheusServer, now
from tests.usage.prometheus_readings import read_from
from webhook.errors import UsageError
from webhook.usage.prometheus_source import PrometheusSource

PASSWORD = "hunter2"
HASH = "$2b$04$abcdefghijklmnopqrstuuV3duMsC0HpUex6N9qapiuOHHWkwRXVm"
"""Its bcrypt hash, with the lowest cost."""


class SecuredPrometheus:
    """A Prometheus with TLS and one user."""

    def __init__(self, server: PrometheusServer, ca: Path, password: Path) -> None:
        self.url = server.url.replace("http:", "https:")
        self.ca, self.password = str(ca), str(password)
        self.source = PrometheusSource(self.url, ca=self.ca, user="ana", password=self.password)


@pytest.fixture(scope="module")
def secured(prometheus: PrometheusServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPrometheus]:
    """A running Prometheus with TLS and one user."""
    assert prometheus.process.running
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")
    config = folder / "web.yaml"
    config.write_text(
        f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem}}\nbasic_auth_users: {{ana: {HASH}}}\n"
    )
    (folder / "password").write_text(f"{PASSWORD}\n")
    with PrometheusServer(prometheus_program(), folder, [f"--web.config.file={config}"]) as server:
        made_known = SecuredPrometheus(server, folder / "ca.pem", folder / "password")
        eventually(lambda: "found none" in read_error(made_known.source))  # not 503 any more
        yield made_known


def read_error(source: PrometheusSource) -> str:
    """Return the error of reading from this source."""
    with pytest.raises(UsageError) as error:
        read_from(source)
    return str(error.value)


def test_ca_and_password_are_accepted(secured: SecuredPrometheus) -> None:
    """An empty result is an answer."""
    assert "must have metrics of DCGM exporter, found none" in read_error(secured.source)


def test_unknown_ca_is_rejected(secured: SecuredPrometheus) -> None:
    assert "certificate verify failed" in read_error(
        PrometheusSource(secured.url, user="ana", password=secured.password)
    )


def test_wrong_host_name_is_rejected(secured: SecuredPrometheus) -> None:
    url = secured.url.replace("127.0.0.1", "localhost")

    assert "certificate verify failed" in read_error(
        PrometheusSource(url, ca=secured.ca, user="ana", password=secured.password)
    )


def test_missing_password_is_rejected(secured: SecuredPrometheus) -> None:
    assert "rejected the credentials (401)" in read_error(PrometheusSource(secured.url, ca=secured.ca))


def test_bearer_token_is_sent(prometheus: PrometheusServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    selector = prometheus.feed({"dcgm": dcgm([Use("a", [5] * 24)], now())})

    async def proxy(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer t0ken":
            return web.Response(status=403, text="no")
        async with ClientSession() as session:
            body = await request.read()
            url = prometheus.url + str(request.rel_url)
            kind = {"Content-Type": request.content_type}
            async with session.request(request.method, url, data=body, headers=kind) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    with serve_answer(proxy) as url:
        found = read_from(PrometheusSource(url, token=str(tmp_path / "token"), selector=selector, days=1))
        assert "rejected the credentials (403)" in read_error(PrometheusSource(url))

    assert [history.pod for history in found.histories] == ["a"]


INVALID_SOURCES = {
    "no URL": (
        PrometheusSource("prometheus.corp:9090"),
        "must be an http or https URL, found 'prometheus.corp:9090'. Write http://prometheus.corp:9090",
    ),
    "a namespace and a name": (
        PrometheusSource("monitoring/prometheus"),
        "found 'monitoring/prometheus'. Write https://prometheus.monitoring.svc:9090",
    ),
    "nothing": (PrometheusSource(""), "must be an http or https URL, found ''"),
    "another scheme": (PrometheusSource("ftp://a"), "must be an http or https URL"),
    "an invalid port": (PrometheusSource("http://a:x"), "must be an http or https URL"),
    "an unclosed bracket": (PrometheusSource("http://[::1"), "must be an http or https URL"),
    "a query": (PrometheusSource("http://a/?b"), "must be an http or https URL"),
    "credentials in the URL": (PrometheusSource("http://ana:hunter2@a"), "must not contain credentials"),
    "a missing CA file": (PrometheusSource("https://a", ca="/none"), "/none: must be a PEM file of CA certificates"),
    "a missing token file": (PrometheusSource("http://a", token="/none"), "/none: cannot be read"),
    "a token and a user": (
        PrometheusSource("http://a", token="/none", user="ana", password="/none"),
        "--prometheus-token-file and --prometheus-user: must not be used together, found both",
    ),
    "a user without a password": (PrometheusSource("http://a", user="ana"), "must be given together, found one"),
}


@pytest.mark.parametrize(("source", "word"), INVALID_SOURCES.values(), ids=INVALID_SOURCES)
def test_invalid_source_is_reported_before_any_request(source: PrometheusSource, word: str) -> None:
    with pytest.raises(UsageError) as error:
        source.check()

    assert word in str(error.value)
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", "pässword".encode()])
def test_secret_file_must_be_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)

    with pytest.raises(UsageError, match="must hold one line of ASCII"):
        PrometheusSource("http://a", token=str(tmp_path / "secret")).check()
