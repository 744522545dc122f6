"""Who may ask for a verdict: anyone, or only those whose certificate an authority of ours has signed.

An API server shows a certificate where its admission configuration gives it one for this webhook. Probes and
scrapers have none, so the handshake asks for a certificate and does not insist: one that is wrong ends the
handshake, and a path that judges does without none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PeerCertificate = Mapping[str, Any]
"""What `ssl.SSLSocket.getpeercert` gives of a certificate that was verified."""


class ClientCertificateRules(NamedTuple):
    """The clients that may ask.

    Attributes:
        authorities: PEM of the authorities that sign their certificates.
        name: Common name or DNS name that the certificate must have; "" for any.
    """

    authorities: str
    name: str = ""

    def allows(self, certificate: PeerCertificate | None) -> bool:
        """May the holder of this verified certificate ask?"""
        return bool(certificate) and (not self.name or self.name in certificate_names(certificate or {}))


def certificate_names(certificate: PeerCertificate) -> Iterator[str]:
    """Common names and DNS names.

    >>> list(names_of({"subject": ((("commonName", "a"),),), "subjectAltName": (("DNS", "b"), ("URI", "c:d"))}))
    ['a', 'b']
    """
    yield from (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
