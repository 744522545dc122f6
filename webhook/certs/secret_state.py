"""The certificates in the Secret, as values. Parsing is lenient: the readable parts of a damaged Secret stay in use.

| key | content |
|---|---|
| `ca.crt` | every trusted authority, the signing one first: the value of each `caBundle` |
| `ca.key` | the private key of the first authority |
| `tls.crt`, `tls.key` | the serving certificate; absent until every `caBundle` contains its authority |
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from webhook.certs.issuer import load_private_key
from webhook.kube.leader_election import NamespacedName

MANAGED_BY_LABEL = {"app.kubernetes.io/managed-by": "rightslice"}
"""Rightslice writes only Secrets with this label."""

AUTHORITY_NAME_PREFIX = "Rightslice authority"
"""Prefix of the common name of our authorities."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class SecretName(NamespacedName):
    """Namespace and name of a Secret."""

    __slots__ = ()
    API = "/api/v1"
    RESOURCE = "secrets"


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A certificate that signs others, PEM, and its validity."""

    pem: bytes
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A serving certificate and its key, PEM, with its validity and its subject alternative names.

    Attributes:
        signed_by: The authority that signed it; None if that is not in the Secret.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    not_before: datetime
    not_after: datetime
    dns_names: frozenset[str]
    signed_by: CertificateAuthority | None


@dataclass(frozen=True, slots=True)
class SecretState:
    """Content of the Secret.

    Attributes:
        authorities: Trusted authorities, the newest first.
        authority_key: Private key of the first authority; None if it is missing or does not match.
        serving: None if the certificate is missing or does not match its key.
        errors: Unreadable keys of the Secret, one sentence each.
        bundle_modified: True if `ca.crt` contains anything but our authorities.
        foreign: True if the Secret has data but not our label.
    """

    authorities: tuple[CertificateAuthority, ...] = ()
    authority_key: bytes | None = field(default=None, repr=False)
    serving: ServingCertificate | None = None
    errors: tuple[str, ...] = ()
    bundle_modified: bool = False
    foreign: bool = False

    @property
    def signing_authority(self) -> CertificateAuthority | None:
        """The authority that signs new certificates."""
        return self.authorities[0] if self.authorities and self.authority_key is not None else None

    @property
    def bundle(self) -> bytes:
        """All trusted authorities as one PEM text."""
        return b"".join(authority.pem for authority in self.authorities)

    def data(self) -> dict[str, str]:
        """Return the `data` of the Secret."""
        fields = {"ca.crt": self.bundle, "ca.key": self.authority_key or b""}
        if self.serving is not None:
            fields |= {"tls.crt": self.serving.certificate, "tls.key": self.serving.key}
        return {name: b64encode(value).decode() for name, value in fields.items()}


def secret_state_of(secret: Mapping[str, Any] | None) -> SecretState | None:
    """Parse a Secret; None if it does not exist or is empty. Invalid values are in `errors`; nothing is raised."""
    data = {key: value for key, value in ((secret or {}).get("data") or {}).items() if value}
    if secret is None or not data:
        return None
    foreign = not MANAGED_BY_LABEL.items() <= (secret["metadata"].get("labels") or {}).items()
    values = {name: decode_base64(value) for name, value in data.items()}
    authorities = parse_authorities(values.get("ca.crt", b""))
    bundle_modified = b"".join(each.pem for each in authorities) != values.get("ca.crt", b"")
    errors = ["ca.crt was modified"] if bundle_modified else []
    key = _matching_key(values.get("ca.key", b""), authorities)
    if key is None and "ca.key" in values:
        errors.append("ca.key does not match the first certificate in ca.crt")
    serving = parse_serving_certificate(values.get("tls.crt", b""), values.get("tls.key", b""), authorities)
    if serving is None and (values.get("tls.crt") or values.get("tls.key")):
        errors.append("tls.crt and tls.key are not a certificate and its key")
    return SecretState(authorities, key, serving, tuple(errors), bundle_modified, foreign)


def parse_authorities(pem: bytes) -> tuple[CertificateAuthority, ...]:
    """Return our authorities in a PEM text, each once, in their order; anything else is skipped."""
    parsed = (_parse_authority(block) for block in _CERTIFICATE.findall(pem))
    return tuple(dict.fromkeys(each for each in parsed if each is not None))


def parse_serving_certificate(
    certificate: bytes, key: bytes, authorities: Sequence[CertificateAuthority]
) -> ServingCertificate | None:
    """Return the serving certificate; None if certificate and key do not match."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        load_private_key(key, parsed.public_key())
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return None
    dns_names = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    signer = next((authority for authority in authorities if _is_signed_by(parsed, authority)), None)
    not_before, not_after = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    return ServingCertificate(certificate, key, not_before, not_after, frozenset(dns_names), signer)


def decode_base64(value: str) -> bytes:
    """Decode base64; empty if the text is invalid."""
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b""


@lru_cache(maxsize=64)
def _parse_authority(block: bytes) -> CertificateAuthority | None:
    """Return one of our authorities: self-signed, allowed to sign, and with our name."""
    try:
        certificate = x509.load_pem_x509_certificate(block)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return None
    if not constraints.ca or not names or not str(names[0].value).startswith(AUTHORITY_NAME_PREFIX):
        return None
    pem = certificate.public_bytes(Encoding.PEM)
    return CertificateAuthority(pem, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


@lru_cache(maxsize=64)
def _is_signed_by(certificate: x509.Certificate, authority: CertificateAuthority) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pem))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _matching_key(key: bytes, authorities: Sequence[CertificateAuthority]) -> bytes | None:
    if not authorities:
        return None
    try:
        load_private_key(key, x509.load_pem_x509_certificate(authorities[0].pem).public_key())
    except ValueError:
        return None
    return key


def build_secret(state: SecretState, name: SecretName, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Secret to write: a new one, or the one that was read, with new data."""
    if before is None:
        metadata: dict[str, Any] = {"namespace": name.namespace, "name": name.name, "labels": dict(MANAGED_BY_LABEL)}
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": state.data()}
    labels = {**(before["metadata"].get("labels") or {}), **MANAGED_BY_LABEL}
    return {**before, "metadata": {**before["metadata"], "labels": labels}, "data": state.data()}
