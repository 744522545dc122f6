"""The self-signed pair passes the checks of clients."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from webhook.certs.issuer import create_self_signed
from webhook.web.tls import PemPair, server_context

NOW = datetime.now(UTC)
PAIR = create_self_signed(["rightslice.example.svc", "127.0.0.1", "::1"], NOW)


def handshake(name: str) -> None:
    """Do a handshake with a client that trusts the authority and expects a name."""
    client = ssl.create_default_context(cadata=PAIR.authority.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()
    server = server_context(PemPair(PAIR.certificate, PAIR.key))

    def serve() -> None:
        try:
            server.wrap_socket(right, server_side=True).close()
        except OSError:
            right.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(left, server_hostname=name).close()
    finally:
        left.close()
        thread.join()


@pytest.mark.parametrize("name", ["rightslice.example.svc", "127.0.0.1", "::1"])
def test_a_strict_client_accepts_each_name(name: str) -> None:
    handshake(name)


def test_another_name_is_rejected() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake("elsewhere.example")


def test_the_certificate_is_small_and_short_lived() -> None:
    certificate = x509.load_pem_x509_certificate(PAIR.certificate)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert certificate.not_valid_before_utc < NOW
    assert certificate.not_valid_after_utc == (NOW + timedelta(days=90)).replace(microsecond=0)


def test_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    certificate, key = PAIR.write(tmp_path / "new")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert (certificate.read_bytes(), key.read_bytes()) == (PAIR.certificate, PAIR.key)
    assert (tmp_path / "new" / "ca.crt").read_bytes() == PAIR.authority


def test_a_certificate_needs_a_name() -> None:
    with pytest.raises(ValueError, match="at least one name"):
        create_self_signed([], NOW)
