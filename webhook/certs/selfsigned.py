"""A certificate authority and a serving certificate for as long as a demonstration, a test or a trial lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from webhook.certs.issuing import issue_serving_certificate, create_authority, load_signer

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
