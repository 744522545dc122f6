"""The serving certificate: TLS 1.2 or later, ECDHE with an AEAD, and new files taken in without a restart.

A live `SSLContext` takes a new pair for the handshakes to come and leaves open connections alone. It also takes
half a pair and is broken from then on, so every pair is tried on a scratch context first.
"""

from __future__ import annotations

import ssl
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
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


CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class PemPair(NamedTuple):
    """A certificate chain and its key, PEM."""

    certificate: bytes
    key: bytes


class CertificateError(Exception):
    """The files are no usable pair."""


class CertificateFiles(NamedTuple):
    """Where the pair stands on disk; a mounted Secret swaps both at once."""

    certificate: Path
    key: Path

    def fingerprint(self) -> Hashable:
        """Changes whenever the files do. Cheap.

        Raises:
            OSError: a file is not there.
        """
        stats = [path.stat() for path in self]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def read(self) -> PemPair:
        """Both files.

        Raises:
            OSError: a file cannot be read.
        """
        return PemPair(self.certificate.read_bytes(), self.key.read_bytes())


def server_context(pair: PemPair, clients: ClientCertificateRules | None = None) -> ssl.SSLContext:
    """A context for the server. With `clients`, a certificate of a client is verified if it shows one.

    Raises:
        CertificateError: certificate and key are not PEM, or do not belong together; or the authorities are not PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _load_pair(context, pair)
    if clients is not None:
        verify_clients(context, clients)
    return context


def verify_clients(context: ssl.SSLContext, clients: ClientCertificateRules) -> None:
    """Verify the certificate of a client that shows one.

    Raises:
        CertificateError: the authorities are not PEM.
    """
    try:
        context.load_verify_locations(cadata=clients.authorities)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        raise CertificateError(f"must be certificates of authorities ({reason})") from None
    context.verify_mode = ssl.CERT_OPTIONAL


def replace_certificate(context: ssl.SSLContext, pair: PemPair) -> None:
    """Give a live context a new pair.

    Raises:
        CertificateError: as above; the context is as it was.
    """
    _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    _load_pair(context, pair)


def _load_pair(context: ssl.SSLContext, pair: PemPair) -> None:
    """OpenSSL takes certificates from files alone; these are private to the process and gone at once."""
    with TemporaryDirectory(prefix="rightslice-") as folder:
        files = CertificateFiles(Path(folder, "tls.crt"), Path(folder, "tls.key"))
        for path, content in zip(files, pair, strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        try:
            context.load_cert_chain(files.certificate, files.key, password=_reject_encrypted_key)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "not PEM"
            raise CertificateError(f"certificate and key are no usable pair ({reason})") from None


def _reject_encrypted_key() -> str:
    """An encrypted key must not make the process wait for a password on its terminal."""
    raise ValueError("the key is encrypted")


def certificate_names(certificate: PeerCertificate) -> Iterator[str]:
    """Common names and DNS names.

    >>> list(names_of({"subject": ((("commonName", "a"),),), "subjectAltName": (("DNS", "b"), ("URI", "c:d"))}))
    ['a', 'b']
    """
    yield from (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
