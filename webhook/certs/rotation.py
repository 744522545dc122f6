"""Chooses the next step of a certificate rotation from the observed state. A pure function: no clock, no client.

The order of the steps keeps every client working:

1. A new authority is added to the Secret, before the old ones. Nothing is signed by it yet.
2. Every `caBundle` in our webhook configurations is set to the authorities in the Secret.
3. After that has been unchanged for a while, a serving certificate is signed by the new authority and stored in the
   Secret. Replicas serve the certificate that they find there.
4. When no replica can serve an older certificate any more, the old authorities are removed from Secret and bundles.

Every step is a conditional write, and webhook configurations are read before the Secret. So a second leader, or a
leader that stops between two writes, does no damage, and nothing has to be undone: the next reconciliation continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from webhook.certs.secret_state import (
    CertificateAuthority,
    SecretState,
    ServingCertificate,
    parse_authorities,
)

BUNDLE_SETTLE_TIME = timedelta(seconds=30)
"""Time that bundles must be unchanged before a certificate relies on them: API servers load them one by one."""

AUTHORITY_OVERLAP = timedelta(hours=24)
"""Time that an old authority stays trusted after its last certificate was replaced."""

URGENT_REMAINING = timedelta(days=9)
"""With less time left, a new certificate does not wait for the bundles to settle. So even with a daily run of a process
that lives less than half a minute, a week is always left."""

MAX_AUTHORITIES = 8
"""A rotation needs two; there are more only if Secrets are lost or a clock jumps repeatedly."""


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """One webhook configuration.

    Attributes:
        bundles: The `caBundle` of each webhook in it, in order.
    """

    path: str
    version: str
    bundles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RotationInput:
    """The observed state.

    Attributes:
        secret: None if the Secret does not exist or is empty.
        configs: Our webhook configurations, read before the Secret.
        now: The API server's time, because the API server verifies the certificate.
        unchanged_for: How long Secret and configurations have been unchanged, as observed by this replica.
        names: Required names of the serving certificate.
    """

    secret: SecretState | None
    configs: tuple[WebhookConfig, ...]
    now: datetime
    unchanged_for: timedelta
    names: frozenset[str]
    is_leader: bool


@dataclass(frozen=True, slots=True)
class CreateAuthority:
    """Write a Secret with a new authority, the previous authorities and the current serving certificate."""

    reason: str
    previous: tuple[CertificateAuthority, ...] = ()
    serving: ServingCertificate | None = None


@dataclass(frozen=True, slots=True)
class UpdateBundles:
    """Set every `caBundle` in these configurations to the authorities in the Secret."""

    configs: tuple[WebhookConfig, ...]
    reason: str = "the caBundle differs from the Secret"


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    """Store a new serving certificate, signed by the signing authority, in the Secret."""

    reason: str


@dataclass(frozen=True, slots=True)
class PruneAuthorities:
    """Remove all authorities but the signing one from the Secret."""

    reason: str = "no certificate of the old authorities is in use"


@dataclass(frozen=True, slots=True)
class NoAction:
    """Nothing to do; `needs_attention` if a person has to act."""

    reason: str
    needs_attention: bool = False


RotationStep = CreateAuthority | UpdateBundles | IssueCertificate | PruneAuthorities | NoAction


def next_rotation_step(observed: RotationInput) -> RotationStep:
    """Return the step that is due."""
    state = observed.secret
    if state is None:
        return CreateAuthority("the Secret does not exist or is empty", _authorities_in_use(observed))
    if state.foreign:
        message = "the Secret holds data of another application: use another name, or empty it"
        return NoAction(message, needs_attention=True)
    if not observed.is_leader:
        return NoAction("the leader manages the certificates")
    in_use = _authorities_in_use(observed)
    if reason := authority_renewal_reason(state, observed.now):
        return CreateAuthority(reason, in_use, state.serving)
    # A replica that had read no bundles may have created a lost Secret again; updating the bundles would lose them.
    if state.serving is None and set(in_use) - set(state.authorities):
        return CreateAuthority("the Secret lacks authorities that the bundles have", in_use)
    if outdated := tuple(config for config in observed.configs if set(config.bundles) - {state.bundle}):
        return UpdateBundles(outdated)
    if reason := serving_renewal_reason(state, observed.names, observed.now):
        if _may_issue_now(state, observed):
            return IssueCertificate(reason)
        return NoAction(f"waiting for API servers to load the bundles: {reason}")
    if len(state.authorities) > 1 and observed.unchanged_for >= AUTHORITY_OVERLAP:
        return PruneAuthorities()
    return NoAction("up to date")


def authority_renewal_reason(state: SecretState, now: datetime) -> str:
    """Return why a new authority is needed; "" if it is not."""
    if state.signing_authority is None:
        return "the Secret has no authority with its key"
    if state.bundle_modified:
        return "ca.crt in the Secret was modified"
    return _expiry_reason("the authority", state.signing_authority, now)


def serving_renewal_reason(state: SecretState, names: frozenset[str], now: datetime) -> str:
    """Return why a new serving certificate is needed; "" if it is not."""
    serving = state.serving
    if serving is None:
        return "the Secret has no serving certificate with its key"
    if serving.signed_by != state.signing_authority:
        return "the certificate was signed by an older authority"
    if missing := names - serving.dns_names:
        return f"the certificate lacks the names {', '.join(sorted(missing))}"
    return _expiry_reason("the certificate", serving, now)


def is_within_validity(certificate: CertificateAuthority | ServingCertificate, now: datetime) -> bool:
    """Return whether a certificate is valid now."""
    return certificate.not_before <= now < certificate.not_after


def _expiry_reason(subject: str, certificate: CertificateAuthority | ServingCertificate, now: datetime) -> str:
    if now < certificate.not_before:
        return f"{subject} is not valid before {certificate.not_before:%Y-%m-%dT%H:%M:%SZ}"
    if now >= certificate.not_after - (certificate.not_after - certificate.not_before) / 3:
        expiry = f"{certificate.not_after:%Y-%m-%dT%H:%M:%SZ}"
        return f"two thirds of the lifetime of {subject} are over; it expires at {expiry}"
    return ""


def _may_issue_now(state: SecretState, observed: RotationInput) -> bool:
    """Return whether the bundles have settled, or the current certificate cannot wait for that."""
    if observed.unchanged_for >= BUNDLE_SETTLE_TIME:
        return True
    if state.serving is None:
        return len(state.authorities) == 1
    remaining = state.serving.not_after - observed.now
    return not is_within_validity(state.serving, observed.now) or remaining < URGENT_REMAINING


def _authorities_in_use(observed: RotationInput) -> tuple[CertificateAuthority, ...]:
    """Return every authority that a client may still rely on: of the served certificate, the Secret and the bundles."""
    state = observed.secret or SecretState()
    serving = (state.serving.signed_by,) if state.serving and state.serving.signed_by else ()
    bundled = [each for config in observed.configs for bundle in config.bundles for each in parse_authorities(bundle)]
    return tuple(dict.fromkeys((*serving, *state.authorities, *bundled)))[: MAX_AUTHORITIES - 1]
