"""With client rules, only clients with a matching certificate may call admission routes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.server.site import PAIR, Site, TlsConnection, encoded, http, post, review, serve_site
from webhook.cli.processes.tls import watch_client_rules
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.server.handlers import AdmissionServer
from webhook.web.tls import CertificateError, ClientCertificateRules, ClientRuleFiles, PemPair, ServerTls

OURS, OTHERS = trustme.CA(), trustme.CA()
NAME = "kube-apiserver"
NOW = datetime.now(UTC)
CLIENTS = ClientCertificateRules(OURS.cert_pem.bytes().decode(), NAME)

GOOD = OURS.issue_cert(NAME)
REFUSED = {
    "no certificate": None,
    "another name": OURS.issue_cert("another-client"),
    "a name with the required name as a prefix": OURS.issue_cert(f"{NAME}.example.com"),
}
UNTRUSTED = {
    "another authority": OTHERS.issue_cert(NAME),
    "an expired certificate": OURS.issue_cert(NAME, not_before=NOW - timedelta(9), not_after=NOW - timedelta(1)),
    "a certificate that is not valid yet": OURS.issue_cert(
        NAME, not_before=NOW + timedelta(1), not_after=NOW + timedelta(9)
    ),
}


def review_as_client(
    certificate: trustme.LeafCert | None, clients: ClientCertificateRules | None
) -> tuple[int, int, float]:
    """Return the status of a review, the number of evaluations, and the number of rejected clients."""
    evaluated: list[str] = []

    def record_evaluation(request: AdmissionRequest, *_: object) -> Decision:
        evaluated.append(request.uid)
        return Decision()

    with serve_site(record_evaluation, clients=clients) as site:
        status = 0
        for route in ("/mutate", "/validate"):
            try:
                connection = TlsConnection(site.port, certificate)
                connection.send(post(route, encoded(review())))
                answer = connection.read()
            except ssl.SSLError:
                answer = None
            status = answer.status if answer is not None else 0
        return status, len(evaluated), site.metric("rightslice_http_rejections_total", reason="client_certificate")


def test_the_configured_client_is_accepted() -> None:
    assert review_as_client(GOOD, CLIENTS) == (200, 2, 0)


@pytest.mark.parametrize("certificate", REFUSED.values(), ids=REFUSED)
def test_other_clients_are_rejected_without_evaluation(certificate: trustme.LeafCert | None) -> None:
    assert review_as_client(certificate, CLIENTS) == (403, 0, 2)


@pytest.mark.parametrize("certificate", UNTRUSTED.values(), ids=UNTRUSTED)
def test_a_certificate_that_is_not_trusted_ends_the_connection(certificate: trustme.LeafCert) -> None:
    assert review_as_client(certificate, CLIENTS) == (0, 0, 0)


def test_any_name_is_accepted_without_a_required_name() -> None:
    assert review_as_client(REFUSED["another name"], ClientCertificateRules(CLIENTS.authorities)) == (200, 2, 0)


def test_any_client_is_accepted_without_client_rules() -> None:
    assert review_as_client(None, None) == (200, 2, 0)


def test_probes_and_scrapers_need_no_certificate() -> None:
    with serve_site(clients=CLIENTS) as site:
        for path in ("/livez", "/readyz", "/metrics"):
            assert site.send_request(http("GET", path)).status == 200


def test_invalid_authorities_are_reported() -> None:
    with pytest.raises(CertificateError, match="must be certificates of authorities"):
        ServerTls(PemPair(PAIR.certificate, PAIR.key), ClientCertificateRules("nothing"))


@contextmanager
def reloading_site(folder: Path) -> Iterator[tuple[Site, ClientRuleFiles]]:
    """Serve with rules from a folder that is watched, as with the optional ConfigMap."""
    files = ClientRuleFiles(folder / "ca.crt", name_file=folder / "name", optional=True)
    tls = ServerTls(PemPair(PAIR.certificate, PAIR.key), files.read())

    def watch(server: AdmissionServer) -> None:
        rules = watch_client_rules(files, server, server.telemetry.log)
        assert rules is not None
        server.polls, server.health_checks = [rules.reload_if_changed], [rules.checks]

    with serve_site(tls=tls, prepare=watch) as site:
        yield site, files


def answer_to(connection: TlsConnection) -> tuple[int, bool]:
    """Return the status of a review on an open connection, and whether the server closes it."""
    connection.send(post("/validate", encoded(review())))
    answer = connection.read()
    assert answer is not None
    return answer.status, answer.headers.get("connection") == "close"


def status_for(site: Site, certificate: trustme.LeafCert | None) -> int:
    """Return the status of a review on a new connection; 0 if its certificate is not trusted."""
    try:
        return answer_to(TlsConnection(site.port, certificate))[0]
    except (AssertionError, OSError):
        return 0


def readiness_line(site: Site) -> str:
    """Return what /readyz says about clients."""
    lines = site.send_request(http("GET", "/readyz?verbose")).body.decode().splitlines()
    return next(line for line in lines if line[3:].startswith("clients"))


def test_a_file_that_appears_switches_authentication_on_with_the_first_certificate(tmp_path: Path) -> None:
    with reloading_site(tmp_path) as (site, files):
        open_connection = TlsConnection(site.port)
        assert answer_to(open_connection) == (200, False)
        assert readiness_line(site) == "[+]clients any that can connect: there is no client CA"

        (tmp_path / "name").write_text(f"{NAME}\n")
        files.authorities.write_bytes(OURS.cert_pem.bytes())
        until_one_comes = (
            f"[+]clients any certificate or none, until a client connects with a certificate of {files.authorities}"
        )
        site.until(lambda: readiness_line(site) == f"{until_one_comes} named {NAME}")

        assert answer_to(open_connection) == (200, True), "it connects again, and may present a certificate"
        assert status_for(site, REFUSED["another name"]) == 200
        waiting = TlsConnection(site.port)
        assert answer_to(waiting) == (200, False)
        assert status_for(site, GOOD) == 200
        assert answer_to(waiting)[0] == 403
        assert [status_for(site, one) for one in REFUSED.values()] == [403, 403, 403]
        assert readiness_line(site) == f"[+]clients with a certificate of {files.authorities} named {NAME}"


def test_a_replaced_authority_is_trusted_no_more(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(OURS.cert_pem.bytes())
    other = OTHERS.issue_cert(NAME)
    with reloading_site(tmp_path) as (site, files):
        open_connection = TlsConnection(site.port, GOOD)
        assert answer_to(open_connection) == (200, False)
        assert status_for(site, other) == 0

        files.authorities.write_bytes(OTHERS.cert_pem.bytes())
        site.until(lambda: status_for(site, other) == 200)

        assert status_for(site, None) == 403, "certificates stay required"
        assert status_for(site, GOOD) == 0
        assert answer_to(open_connection) == (200, True), "it opens another connection, with a new certificate"


@pytest.mark.parametrize("invalid", [True, False], ids=["an invalid file", "a deleted file"])
def test_files_that_cannot_be_used_keep_the_last_rules(tmp_path: Path, invalid: bool) -> None:
    (tmp_path / "ca.crt").write_bytes(OURS.cert_pem.bytes())
    with reloading_site(tmp_path) as (site, files):
        assert status_for(site, GOOD) == 200
        if invalid:
            files.authorities.write_text("nothing")
        else:
            files.authorities.unlink()
        site.until(lambda: readiness_line(site).startswith("[-]clients the last valid rules stay in use: "))

        assert (status_for(site, None), status_for(site, GOOD)) == (403, 200)
