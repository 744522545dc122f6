"""Builders of Secrets with certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tests.certs.cluster import CONFIGS, NAMES, START
from webhook.certs.reconciler import state_after_step
from webhook.certs.rotation import CreateAuthority, IssueCertificate, RotationInput, WebhookConfig
from webhook.certs.secret_state import SecretState

DAY = timedelta(days=1)
NOTHING = timedelta(0)


def make_state(
    *, authority: timedelta = DAY, leaf: timedelta | None = DAY, names: Sequence[str] = NAMES
) -> SecretState:
    """Return an authority and a certificate of these ages."""
    state = state_after_step(CreateAuthority("test"), SecretState(), (), START - authority)
    return state if leaf is None else state_after_step(IssueCertificate("test"), state, names, START - leaf)


def with_new_authority(old: SecretState) -> SecretState:
    """Return the state after a new authority was added, before it signs a certificate."""
    return state_after_step(CreateAuthority("test", old.authorities, old.serving), old, (), START)


def make_input(
    state: SecretState | None,
    *bundles: bytes,
    steady: timedelta = NOTHING,
    leads: bool = True,
    names: Sequence[str] = NAMES,
) -> RotationInput:
    """Return the observed state of a Secret and one configuration with these bundles."""
    return RotationInput(state, (WebhookConfig(CONFIGS[0], "1", bundles),), START, steady, frozenset(names), leads)


def trusted_input(state: SecretState, *, steady: timedelta = NOTHING, names: Sequence[str] = NAMES) -> RotationInput:
    """Return the observed state if every bundle equals the Secret."""
    return make_input(state, state.bundle, state.bundle, steady=steady, names=names)


def with_authorities(*states: SecretState) -> SecretState:
    """Return the first state with the authorities of the others added."""
    return replace(states[0], authorities=tuple(dict.fromkeys(each for state in states for each in state.authorities)))
