"""What to do next about the certificates: from what is seen to one step. No clock, no client.

The order of events is what makes a rotation unseen by anyone who calls us:

1. A new authority is put into the Secret, before the old ones. Nothing is signed by it yet.
2. Every `caBundle` of our webhook configurations becomes what the Secret holds: the new authority and the old ones.
3. When that has been so for a while, the serving certificate is signed by the new authority and put into the Secret.
   Replicas serve what they find there.
4. When no replica can serve an older certificate any more, the old authorities leave the Secret, then the bundles.

Whoever does a step first does it: each one is a write on condition that what it is based on has not changed, and
webhook configurations are read before the Secret. So a second leader, or a leader that ends between two writes,
does no harm, and there is nothing to undo: the next look goes on from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from webhook.certs.issuer import renewal_time
from webhook.certs.secret_state import (
    CertificateAuthority,
    SecretState,
    ServingCertificate,
    parse_authorities,
    unique_authorities,
)

BUNDLE_SETTLE_TIME = timedelta(seconds=30)
"""How long bundles must have been right before anything relies on them: API servers take up a change within a few
seconds of each other, and replicas read the Secret again within `webhook.certs.reconciler.LOOK_SECONDS`."""

AUTHORITY_OVERLAP = timedelta(hours=24)
"""How long old authorities stay after the last certificate of theirs was replaced."""

URGENT_REMAINING = timedelta(days=9)
"""With less left than this, a new certificate no longer waits for bundles to settle: then one that is looked at once a
day, by processes that never live for half a minute, still never has less than a week left."""

MAX_AUTHORITIES = 8
"""Authorities at once. Two in a rotation; more only where Secrets are lost or a clock jumps again and again."""


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """One webhook configuration.

    Attributes:
        path: Where the API server has it.
        version: Its resourceVersion.
        bundles: The `caBundle` of each webhook in it, in order.
    """

    path: str
    version: str
    bundles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RotationInput:
    """Everything that a step is chosen by.

    Attributes:
        held: What the Secret holds; None: there is none, or it is empty.
        hooks: Our webhook configurations, read before the Secret was.
        now: The API server's time: it is the one that judges certificates.
        steady: How long this replica has seen Secret and hooks as they are now.
        names: What clients call the server by.
        leads: Is this replica the leader?
    """

    secret: SecretState | None
    configs: tuple[WebhookConfig, ...]
    now: datetime
    unchanged_for: timedelta
    names: frozenset[str]
    is_leader: bool


@dataclass(frozen=True, slots=True)
class CreateAuthority:
    """Write a Secret with a new authority, those that were trusted before, and the certificate that is served."""

    reason: str
    previous: tuple[CertificateAuthority, ...] = ()
    serving: ServingCertificate | None = None


@dataclass(frozen=True, slots=True)
class UpdateBundles:
    """Make every `caBundle` of these configurations what the Secret holds."""

    configs: tuple[WebhookConfig, ...]
    reason: str = "caBundle is not what the Secret holds"


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    """Write a new serving certificate of the signing authority into the Secret."""

    reason: str


@dataclass(frozen=True, slots=True)
class PruneAuthorities:
    """Leave only the signing authority in the Secret."""

    reason: str = "no certificate of the old authorities is served any more"


@dataclass(frozen=True, slots=True)
class NoAction:
    """Nothing to do. `wrong`: somebody should do something, and it is not us."""

    reason: str
    needs_attention: bool = False


RotationStep = CreateAuthority | UpdateBundles | IssueCertificate | PruneAuthorities | NoAction


def next_rotation_step(seen: RotationInput) -> RotationStep:
    """The one step that is due."""
    held = seen.secret
    if held is None:
        return CreateAuthority("there is no Secret yet, or it is empty", _authorities_in_use(seen))
    if held.foreign:
        return NoAction("the Secret holds data that is not ours: name another one, or empty it", needs_attention=True)
    if not seen.is_leader:
        return NoAction("the leader keeps the certificates")
    if fault := authority_renewal_reason(held, seen.now):
        return CreateAuthority(fault, _authorities_in_use(seen), held.serving)
    if wrong := tuple(hook for hook in seen.configs if set(hook.bundles) - {held.bundle}):
        return UpdateBundles(wrong)
    if fault := serving_renewal_reason(held, seen.names, seen.now):
        return (
            IssueCertificate(fault)
            if _may_issue_now(held, seen)
            else NoAction(f"waits for API servers to trust the bundles: {fault}")
        )
    if len(held.authorities) > 1 and seen.unchanged_for >= AUTHORITY_OVERLAP:
        return PruneAuthorities()
    return NoAction("all is as it should be")


def authority_renewal_reason(held: SecretState, now: datetime) -> str:
    """Why a new authority is needed; empty: it is not."""
    if held.signing_authority is None:
        return "the Secret holds no authority with its key"
    if held.authorities and any(fault.startswith("ca.crt") for fault in held.errors):
        return "ca.crt in the Secret is not what we wrote"
    return _expiry_reason("the authority", held.signing_authority, now)


def serving_renewal_reason(held: SecretState, names: frozenset[str], now: datetime) -> str:
    """Why a new serving certificate is needed; empty: it is not."""
    leaf = held.serving
    if leaf is None:
        return "the Secret holds no serving certificate with its key"
    if leaf.signed_by != held.signing_authority:
        return "the certificate is of an older authority"
    if missing := names - leaf.dns_names:
        return f"the certificate does not stand for {', '.join(sorted(missing))}"
    return _expiry_reason("the certificate", leaf, now)


def is_within_validity(life: CertificateAuthority | ServingCertificate, now: datetime) -> bool:
    """Does it hold at this moment?"""
    return life.not_before <= now < life.not_after


def _expiry_reason(what: str, life: CertificateAuthority | ServingCertificate, now: datetime) -> str:
    if now < life.not_before:
        return f"{what} is not valid before {life.not_before:%Y-%m-%dT%H:%M:%SZ}"
    if now >= renewal_time(life.not_before, life.not_after):
        return f"two thirds of the life of {what} are over: it ends at {life.not_after:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def _may_issue_now(held: SecretState, seen: RotationInput) -> bool:
    """Only what has been trusted for a while may be served, unless nobody is served well as it is."""
    leaf = held.serving
    if seen.unchanged_for >= BUNDLE_SETTLE_TIME:
        return True
    if leaf is None:
        return len(held.authorities) == 1
    return not is_within_validity(leaf, seen.now) or leaf.not_after - seen.now < URGENT_REMAINING


def _authorities_in_use(seen: RotationInput) -> tuple[CertificateAuthority, ...]:
    """Every authority that somebody may still rely on: of what is served, of the Secret, of the bundles."""
    held = seen.secret or SecretState()
    served = (held.serving.signed_by,) if held.serving and held.serving.signed_by else ()
    bundled = [each for hook in seen.configs for bundle in hook.bundles for each in parse_authorities(bundle)]
    return unique_authorities((*served, *held.authorities, *bundled))[: MAX_AUTHORITIES - 1]
