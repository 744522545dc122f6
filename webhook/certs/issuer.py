"""Authorities, and serving certificates that they sign. ECDSA P-256; the clock is the caller's.

A handshake costs a fraction of what RSA costs, and API servers open new connections whenever more than 25 calls
run at once.
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

CLOCK_SKEW = timedelta(minutes=5)
"""How far behind a client's clock may be."""


@dataclass(frozen=True, slots=True)
class SelfSignedPair:
    """A serving certificate, its key, and the authority that clients must trust (`caBundle`), all PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write tls.crt, tls.key (readable by its owner alone) and ca.crt; gives the first two."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / "tls.crt", folder / "tls.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        certificate.write_bytes(self.certificate)
        (folder / "ca.crt").write_bytes(self.authority)
        return certificate, key


COMMON_NAME_MOST = 64
"""RFC 5280 allows no longer common name."""


@dataclass(frozen=True, slots=True)
class CertificateSigner:
    """An authority with its private key.

    Attributes:
        name: Its subject, and the issuer of what it signs.
        until: When it ends; nothing that it signs holds longer.
    """

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    not_after: datetime


def create_authority(name: str, begins: datetime, ends: datetime) -> tuple[bytes, bytes]:
    """A self-signed authority that may sign serving certificates and no other authority: certificate and key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    certificate = (
        _certificate_builder(subject, subject, key.public_key(), begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key)


def load_signer(certificate: bytes, key: bytes) -> CertificateSigner:
    """The authority whose certificate and key these are, PEM.

    Raises:
        ValueError: they are not PEM, not of elliptic curves, or do not belong together.
    """
    authority = x509.load_pem_x509_certificate(certificate)
    return CertificateSigner(
        authority.subject, load_private_key(key, authority.public_key()), authority.not_valid_after_utc
    )


def load_private_key(pem: bytes, public: object) -> ec.EllipticCurvePrivateKey:
    """The private key in a PEM text, which must be that of the public key.

    Raises:
        ValueError: it is not PEM, encrypted, not of an elliptic curve, or another's.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise ValueError("the key is encrypted") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != public:
        raise ValueError("the key belongs to another certificate")
    return key


def issue_serving_certificate(
    signer: CertificateSigner, names: Sequence[str], begins: datetime, ends: datetime
) -> tuple[bytes, bytes]:
    """A serving certificate for DNS names and IP addresses: certificate and key, PEM.

    It ends with its authority at the latest.

    Raises:
        ValueError: no name was given.
    """
    if not names:
        raise ValueError("a certificate needs at least one name")
    key = ec.generate_private_key(ec.SECP256R1())
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    certificate = (
        _certificate_builder(_common_name(names[0]), signer.name, key.public_key(), begins, min(ends, signer.not_after))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority_key, critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _encode_key(key)


def expiry_of(certificates: bytes) -> datetime | None:
    """When the first certificate of a PEM text ends; None: it cannot be told."""
    try:
        return x509.load_pem_x509_certificate(certificates).not_valid_after_utc
    except ValueError:
        return None


def renewal_time(begins: datetime, ends: datetime) -> datetime:
    """When two thirds of a life are over."""
    return ends - (ends - begins) / 3


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_MOST])])


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


def create_self_signed(names: Sequence[str], now: datetime, valid: timedelta = timedelta(days=90)) -> SelfSignedPair:
    """Make an authority and one serving certificate.

    Args:
        names: DNS names and IP addresses that clients will call the server by; at least one.
        now: The moment, with its zone.
        valid: How long both certificates hold.

    Raises:
        ValueError: no name was given.
    """
    begins, ends = now - CLOCK_SKEW, now + valid
    authority, authority_key = create_authority("Rightslice self-signed authority", begins, ends)
    certificate, key = issue_serving_certificate(load_signer(authority, authority_key), names, begins, ends)
    return SelfSignedPair(certificate, key, authority)
