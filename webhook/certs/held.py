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

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from webhook.certs.issuing import private_key

AUTHORITY_NAME = "Rightslice authority"
"""How the common name of every authority begins that we made for a Secret."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, PEM, and its life."""

    pem: bytes
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate, PEM, its key, its life, and the names it stands for.

    Attributes:
        signed_by: The authority that signed it; None: no authority that the Secret holds.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    begins: datetime
    ends: datetime
    names: frozenset[str]
    signed_by: Authority | None


@dataclass(frozen=True, slots=True)
class Held:
    """What one Secret holds.

    Attributes:
        trusted: Authorities, the newest first.
        key: The key of the first of them; None: there is none that fits.
        leaf: None: there is none, or not with its key.
        faults: What could not be read, a sentence for each key of the Secret.
        foreign: Somebody else's Secret: it holds data and not our mark.
    """

    trusted: tuple[Authority, ...] = ()
    key: bytes | None = field(default=None, repr=False)
    leaf: Leaf | None = None
    faults: tuple[str, ...] = ()
    foreign: bool = False

    @property
    def signing(self) -> Authority | None:
        """The authority that signs from now on."""
        return self.trusted[0] if self.trusted and self.key is not None else None

    @property
    def bundle(self) -> bytes:
        """What clients must trust, PEM."""
        return bundle_of(self.trusted)

    def data(self) -> dict[str, str]:
        """As a Secret's `data`."""
        fields = {"ca.crt": self.bundle, "ca.key": self.key or b""}
        if self.leaf is not None:
            fields |= {"tls.crt": self.leaf.certificate, "tls.key": self.leaf.key}
        return {name: b64encode(value).decode() for name, value in fields.items()}


def read_held(data: Mapping[str, str], *, foreign: bool = False) -> Held:
    """Read a Secret's `data`. What is broken is a fault, never an error."""
    texts = {name: _decoded(value) for name, value in data.items()}
    trusted = authorities_in(texts.get("ca.crt", b""))
    faults = [] if bundle_of(trusted) == texts.get("ca.crt", b"") else ["ca.crt is not what we wrote"]
    key = _key_of(texts.get("ca.key", b""), trusted)
    if key is None and "ca.key" in texts:
        faults.append("ca.key is not the key of the first certificate in ca.crt")
    leaf = leaf_in(texts.get("tls.crt", b""), texts.get("tls.key", b""), trusted)
    if leaf is None and (texts.get("tls.crt") or texts.get("tls.key")):
        faults.append("tls.crt and tls.key are no certificate and its key")
    return Held(trusted, key, leaf, tuple(faults), foreign)


def authorities_in(pem: bytes) -> tuple[Authority, ...]:
    """The authorities of ours in a PEM text, each once, in their order; anything else is passed over."""
    found = (_authority_of(block) for block in _CERTIFICATE.findall(pem))
    return distinct(each for each in found if each is not None)


def bundle_of(authorities: Sequence[Authority]) -> bytes:
    """Authorities as one PEM text."""
    return b"".join(authority.pem for authority in authorities)


def distinct(authorities: Iterable[Authority]) -> tuple[Authority, ...]:
    """Each authority once, where it came first."""
    return tuple(dict.fromkeys(authorities))


def leaf_in(certificate: bytes, key: bytes, trusted: Sequence[Authority]) -> Leaf | None:
    """The serving certificate and its key, or None if they are no pair."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        private_key(key, parsed.public_key())
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return None
    stands_for = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    signers = [authority for authority in trusted if _signed(parsed, authority)]
    begins, ends = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    return Leaf(certificate, key, begins, ends, frozenset(stands_for), signers[0] if signers else None)


def _decoded(value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError):
        return b""


@lru_cache(maxsize=64)
def _authority_of(block: bytes) -> Authority | None:
    """An authority of ours: named so, allowed to sign, and signed by itself."""
    try:
        certificate = x509.load_pem_x509_certificate(block)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return None
    if not constraints.ca or not names or not str(names[0].value).startswith(AUTHORITY_NAME):
        return None
    pem = certificate.public_bytes(Encoding.PEM)
    return Authority(pem, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


@lru_cache(maxsize=64)
def _signed(certificate: x509.Certificate, authority: Authority) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pem))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key_of(key: bytes, trusted: Sequence[Authority]) -> bytes | None:
    if not trusted:
        return None
    try:
        private_key(key, x509.load_pem_x509_certificate(trusted[0].pem).public_key())
    except ValueError:
        return None
    return key
