"""With client rules, only clients with a matching certificate may call admission routes."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from tests.server.site import PAIR, TlsConnection, encoded, http, post, review, serve_site
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.web.tls import CertificateError, ClientCertificateRules, PemPair, server_context

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
        server_context(PemPair(PAIR.certificate, PAIR.key), ClientCertificateRules("nothing"))
