"""What the Secret is to hold once a step is taken: here keys and certificates are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from webhook.certs.held import AUTHORITY_NAME_PREFIX, SecretState, parse_authorities, parse_serving_certificate
from webhook.certs.issuing import issue_serving_certificate, create_authority, load_signer
from webhook.certs.plan import PruneAuthorities, IssueCertificate, CreateAuthority

AUTHORITY_LIFETIME = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=90)
"""Renewed with 30 days left. An authority is renewed with 121 left, so it never cuts a certificate's life short."""

BACKDATED = timedelta(hours=1)
"""API servers may be behind each other, and may be set back, by as much."""


def state_after_step(step: CreateAuthority | IssueCertificate | PruneAuthorities, held: SecretState, names: Sequence[str], now: datetime) -> SecretState:
    """What the Secret holds after a step that is about it."""
    match step:
        case CreateAuthority():
            return _add_authority(step, now)
        case IssueCertificate():
            assert held.authority_key is not None
            signer = load_signer(held.authorities[0].pem, held.authority_key)
            certificate, key = issue_serving_certificate(signer, names, now - BACKDATED, now + SERVING_LIFETIME)
            return replace(held, serving=parse_serving_certificate(certificate, key, held.authorities), errors=())
        case PruneAuthorities():
            return replace(held, authorities=held.authorities[:1], errors=())


def _add_authority(step: CreateAuthority, now: datetime) -> SecretState:
    name = f"{AUTHORITY_NAME_PREFIX} {now:%Y-%m-%d} {uuid4().hex[:8]}"
    certificate, key = create_authority(name, now - BACKDATED, now + AUTHORITY_LIFETIME)
    return SecretState((*parse_authorities(certificate), *step.previous), key, step.serving)
