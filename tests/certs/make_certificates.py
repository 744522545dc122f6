"""Builders of Secrets with certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tests.certs.cluster import HOOKS, NAMES, START
from webhook.certs.reconciler import state_after_step
from webhook.certs.rotation import CreateAuthority, IssueCertificate, RotationInput, WebhookConfig
from webhook.certs.secret_state import SecretState, unique_authorities

DAY = timedelta(days=1)
NOTHING = timedelta(0)


def make_held(*, authority: timedelta = DAY, leaf: timedelta | None = DAY, names: Sequence[str] = NAMES) -> SecretState:
    """An authority and a certificate that were made so long ago."""
    held = state_after_step(CreateAuthority("test"), SecretState(), (), START - authority)
    return held if leaf is None else state_after_step(IssueCertificate("test"), held, names, START - leaf)


def rotated(old: SecretState) -> SecretState:
    """The state after a new authority was added, before it signs anything."""
    return state_after_step(CreateAuthority("test", old.authorities, old.serving), old, (), START)


def make_seen(
    held: SecretState | None,
    *bundles: bytes,
    steady: timedelta = NOTHING,
    leads: bool = True,
    names: Sequence[str] = NAMES,
) -> RotationInput:
    """The observed state of a Secret and one configuration with these bundles."""
    return RotationInput(held, (WebhookConfig(HOOKS[0], "1", bundles),), START, steady, frozenset(names), leads)


def trusting(held: SecretState, *, steady: timedelta = NOTHING, names: Sequence[str] = NAMES) -> RotationInput:
    """The observed state if every bundle equals the Secret."""
    return make_seen(held, held.bundle, held.bundle, steady=steady, names=names)


def with_authorities(*helds: SecretState) -> SecretState:
    """The first, that also trusts the authorities of the others."""
    return replace(helds[0], authorities=unique_authorities(each for held in helds for each in held.authorities))
