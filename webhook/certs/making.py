"""What the Secret is to hold once a step is taken: here keys and certificates are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from webhook.certs.held import AUTHORITY_NAME, Held, authorities_in, leaf_in
from webhook.certs.issuing import issue, new_authority, signer_of
from webhook.certs.plan import Forget, Issue, NewAuthority

AUTHORITY_LIFE = timedelta(days=365)
LEAF_LIFE = timedelta(days=90)
"""Renewed with 30 days left. An authority is renewed with 121 left, so it never cuts a certificate's life short."""

BACKDATED = timedelta(hours=1)
"""API servers may be behind each other, and may be set back, by as much."""


def held_after(step: NewAuthority | Issue | Forget, held: Held, names: Sequence[str], now: datetime) -> Held:
    """What the Secret holds after a step that is about it."""
    match step:
        case NewAuthority():
            return _with_authority(step, now)
        case Issue():
            assert held.key is not None
            signer = signer_of(held.trusted[0].pem, held.key)
            certificate, key = issue(signer, names, now - BACKDATED, now + LEAF_LIFE)
            return replace(held, leaf=leaf_in(certificate, key, held.trusted), faults=())
        case Forget():
            return replace(held, trusted=held.trusted[:1], faults=())


def _with_authority(step: NewAuthority, now: datetime) -> Held:
    name = f"{AUTHORITY_NAME} {now:%Y-%m-%d} {uuid4().hex[:8]}"
    certificate, key = new_authority(name, now - BACKDATED, now + AUTHORITY_LIFE)
    return Held((*authorities_in(certificate), *step.carried), key, step.leaf)
