"""Creates certificate authorities and serving certificates, with ECDSA P-256 keys; the caller passes the time.

A handshake costs a fraction of one with RSA, and API servers open new connections whenever more than 25 calls run at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MAX_COMMON_NAME = 64
"""The limit of RFC 5280."""

CLOCK_SKEW = timedelta(minutes=5)
"""Largest lag of a client's clock."""


@dataclass(frozen=True, slots=True)
class CertificateSigner:
    """An authority with its private key.

    Attributes:
        name: Its subject, and the issuer of the certificates that it signs.
        not_after: Its expiry, and the latest expiry of the certificates that it signs.
    """

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    not_after: datetime


@dataclass(frozen=True, slots=True)
class SelfSignedPair:
    """A serving certificate, its key, and the authority for the `caBundle`, all PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write tls.crt, tls.key (readable only by its owner) and ca.crt; returns the paths of the first two."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / "tls.crt", folder / "tls.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        certificate.write_bytes(self.certificate)
        (folder / "ca.crt").write_bytes(self.authority)
        return certificate, key


def create_authority(name: str, not_before: datetime, not_after: datetime) -> tuple[bytes, bytes]:
    """Return certificate and key, PEM, of a self-signed authority that may sign serving certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    certificate = (
        _certificate_builder(subject, subject, key.public_key(), not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key)


def load_signer(certificate: bytes, key: bytes) -> CertificateSigner:
    """Return the authority with this certificate and key, PEM.

    Raises:
        ValueError: they are not PEM, not on an elliptic curve, or do not match.
    """
    authority = x509.load_pem_x509_certificate(certificate)
    return CertificateSigner(
        authority.subject, load_private_key(key, authority.public_key()), authority.not_valid_after_utc
    )


def load_private_key(pem: bytes, public: object) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM text, which must match the public key.

    Raises:
        ValueError: it is not PEM, encrypted, not on an elliptic curve, or does not match.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise ValueError("the key is encrypted") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != public:
        raise ValueError("the key does not match the certificate")
    return key


def issue_serving_certificate(
    signer: CertificateSigner, names: Sequence[str], not_before: datetime, not_after: datetime
) -> tuple[bytes, bytes]:
    """Return certificate and key, PEM, of a serving certificate for DNS names and IP addresses.

    It expires no later than its authority.

    Raises:
        ValueError: there is no name.
    """
    if not names:
        raise ValueError("a certificate needs at least one name")
    key = ec.generate_private_key(ec.SECP256R1())
    subject, not_after = _common_name(names[0]), min(not_after, signer.not_after)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    certificate = (
        _certificate_builder(subject, signer.name, key.public_key(), not_before, not_after)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority_key, critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key)


SELF_SIGNED_LIFETIME = timedelta(days=90)


def create_self_signed(names: Sequence[str], now: datetime) -> SelfSignedPair:
    """Create an authority and one serving certificate, for a demonstration or a test.

    Args:
        names: DNS names and IP addresses of the server; at least one.
        now: The current time, with a time zone.

    Raises:
        ValueError: there is no name.
    """
    not_before, not_after = now - CLOCK_SKEW, now + SELF_SIGNED_LIFETIME
    authority, authority_key = create_authority("Rightslice self-signed authority", not_before, not_after)
    signer = load_signer(authority, authority_key)
    certificate, key = issue_serving_certificate(signer, names, not_before, not_after)
    return SelfSignedPair(certificate, key, authority)


def expiry_of(certificates: bytes) -> datetime | None:
    """Return the expiry of the first certificate in a PEM text; None if it cannot be parsed."""
    try:
        return x509.load_pem_x509_certificate(certificates).not_valid_after_utc
    except ValueError:
        return None


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:MAX_COMMON_NAME])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
