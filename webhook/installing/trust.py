"""Does every hook trust the certificate that is served?"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature

JsonObject = Mapping[str, Any]


class CertificateTrust(NamedTuple):
    """What is wrong ("": nothing), and when the serving certificate ends (None: it cannot be read)."""

    error: str
    expires: datetime | None


def check_ca_bundles(configurations: Sequence[JsonObject], secret: JsonObject | None, now: datetime) -> CertificateTrust:
    """Hold the caBundle of each hook against the certificate in the Secret."""
    hooks = [hook for one in configurations for hook in one["webhooks"]]
    bundles = [(hook["name"], hook["clientConfig"].get("caBundle") or "") for hook in hooks]
    leaf = _serving_certificate(secret)
    ends = leaf.not_valid_after_utc if leaf else None
    empty = dict.fromkeys(name for name, bundle in bundles if not bundle)
    if empty:
        return CertificateTrust(f"empty in {', '.join(empty)}", ends)
    for name, bundle in bundles:
        try:
            authorities = x509.load_pem_x509_certificates(b64decode(bundle))
        except ValueError:
            return CertificateTrust(f"no certificates in that of {name}", ends)
        if all(authority.not_valid_after_utc <= now for authority in authorities):
            return CertificateTrust(f"that of {name} has ended", ends)
        if leaf is not None and not any(_is_issued_by(leaf, authority) for authority in authorities):
            return CertificateTrust(f"that of {name} does not hold the authority of the serving certificate", ends)
    return CertificateTrust("", ends)


def _serving_certificate(secret: JsonObject | None) -> x509.Certificate | None:
    text = ((secret or {}).get("data") or {}).get("tls.crt")
    try:
        return x509.load_pem_x509_certificate(b64decode(text)) if text else None
    except ValueError:
        return None


def _is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
