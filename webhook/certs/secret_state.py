"""What the Secret holds, as values: read leniently, so that what is left of a spoilt Secret is still of use.

| key | holds |
|---|---|
| `ca.crt` | every authority that clients must trust, the signing one first: what each `caBundle` has to be |
| `ca.key` | the key of the first |
| `tls.crt`, `tls.key` | the serving certificate; not there until every `caBundle` has its authority |
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from webhook.certs.issuer import load_private_key
from webhook.kube.namespaced_name import NamespacedName

MANAGED_BY_LABEL = {"app.kubernetes.io/managed-by": "rightslice"}
"""The label of a Secret that is ours to write."""


class SecretName(NamespacedName):
    """Where the Secret is."""

    __slots__ = ()
    API = "/api/v1"
    RESOURCE = "secrets"


AUTHORITY_NAME_PREFIX = "Rightslice authority"
"""How the common name of every authority begins that we made for a Secret."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A certificate that signs others, PEM, and its life."""

    pem: bytes
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A serving certificate, PEM, its key, its life, and the names it stands for.

    Attributes:
        signed_by: The authority that signed it; None: no authority that the Secret holds.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    not_before: datetime
    not_after: datetime
    dns_names: frozenset[str]
    signed_by: CertificateAuthority | None


@dataclass(frozen=True, slots=True)
class SecretState:
    """What one Secret holds.

    Attributes:
        trusted: Authorities, the newest first.
        key: The key of the first of them; None: there is none that fits.
        leaf: None: there is none, or not with its key.
        faults: What could not be read, a sentence for each key of the Secret.
        foreign: Somebody else's Secret: it holds data and not our mark.
    """

    authorities: tuple[CertificateAuthority, ...] = ()
    authority_key: bytes | None = field(default=None, repr=False)
    serving: ServingCertificate | None = None
    errors: tuple[str, ...] = ()
    foreign: bool = False

    @property
    def signing_authority(self) -> CertificateAuthority | None:
        """The authority that signs from now on."""
        return self.authorities[0] if self.authorities and self.authority_key is not None else None

    @property
    def bundle(self) -> bytes:
        """What clients must trust, PEM."""
        return encode_bundle(self.authorities)

    def data(self) -> dict[str, str]:
        """As a Secret's `data`."""
        fields = {"ca.crt": self.bundle, "ca.key": self.authority_key or b""}
        if self.serving is not None:
            fields |= {"tls.crt": self.serving.certificate, "tls.key": self.serving.key}
        return {name: b64encode(value).decode() for name, value in fields.items()}


def parse_secret_data(data: Mapping[str, str], *, foreign: bool = False) -> SecretState:
    """Read a Secret's `data`. What is broken is a fault, never an error."""
    texts = {name: _decode_base64(value) for name, value in data.items()}
    trusted = parse_authorities(texts.get("ca.crt", b""))
    faults = [] if encode_bundle(trusted) == texts.get("ca.crt", b"") else ["ca.crt is not what we wrote"]
    key = _matching_key(texts.get("ca.key", b""), trusted)
    if key is None and "ca.key" in texts:
        faults.append("ca.key is not the key of the first certificate in ca.crt")
    leaf = parse_serving_certificate(texts.get("tls.crt", b""), texts.get("tls.key", b""), trusted)
    if leaf is None and (texts.get("tls.crt") or texts.get("tls.key")):
        faults.append("tls.crt and tls.key are no certificate and its key")
    return SecretState(trusted, key, leaf, tuple(faults), foreign)


def parse_authorities(pem: bytes) -> tuple[CertificateAuthority, ...]:
    """The authorities of ours in a PEM text, each once, in their order; anything else is passed over."""
    found = (_parse_authority(block) for block in _CERTIFICATE.findall(pem))
    return unique_authorities(each for each in found if each is not None)


def encode_bundle(authorities: Sequence[CertificateAuthority]) -> bytes:
    """Authorities as one PEM text."""
    return b"".join(authority.pem for authority in authorities)


def unique_authorities(authorities: Iterable[CertificateAuthority]) -> tuple[CertificateAuthority, ...]:
    """Each authority once, where it came first."""
    return tuple(dict.fromkeys(authorities))


def parse_serving_certificate(
    certificate: bytes, key: bytes, trusted: Sequence[CertificateAuthority]
) -> ServingCertificate | None:
    """The serving certificate and its key, or None if they are no pair."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        load_private_key(key, parsed.public_key())
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return None
    stands_for = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    signers = [authority for authority in trusted if _is_signed_by(parsed, authority)]
    begins, ends = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    return ServingCertificate(certificate, key, begins, ends, frozenset(stands_for), signers[0] if signers else None)


def _decode_base64(value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError):
        return b""


@lru_cache(maxsize=64)
def _parse_authority(block: bytes) -> CertificateAuthority | None:
    """An authority of ours: named so, allowed to sign, and signed by itself."""
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


def _matching_key(key: bytes, trusted: Sequence[CertificateAuthority]) -> bytes | None:
    if not trusted:
        return None
    try:
        load_private_key(key, x509.load_pem_x509_certificate(trusted[0].pem).public_key())
    except ValueError:
        return None
    return key


def secret_state_of(secret: Mapping[str, Any] | None) -> SecretState | None:
    """What a Secret holds; None: it is not there, or empty."""
    data = {key: value for key, value in ((secret or {}).get("data") or {}).items() if value}
    if secret is None or not data:
        return None
    labels = secret["metadata"].get("labels") or {}
    return parse_secret_data(data, foreign=not MANAGED_BY_LABEL.items() <= labels.items())


def build_secret(held: SecretState, name: SecretName, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Secret to write: a new one, or the one that was read with other data."""
    if before is None:
        metadata: dict[str, Any] = {"namespace": name.namespace, "name": name.name, "labels": dict(MANAGED_BY_LABEL)}
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": held.data()}
    labels = {**(before["metadata"].get("labels") or {}), **MANAGED_BY_LABEL}
    return {**before, "metadata": {**before["metadata"], "labels": labels}, "data": held.data()}
