"""Keeps the certificates of a cluster: reads Secret and webhook configurations, takes the one step that is due.

Every write is conditional on what was read, so a replica that was overtaken is told so by the API server, and
looks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

from webhook.certs.issuer import create_authority, issue_serving_certificate, load_signer
from webhook.certs.rotation import (
    CreateAuthority,
    IssueCertificate,
    NoAction,
    PruneAuthorities,
    RotationInput,
    RotationStep,
    UpdateBundles,
    WebhookConfig,
    is_within_validity,
    next_rotation_step,
)
from webhook.certs.secret_state import (
    AUTHORITY_NAME_PREFIX,
    SecretName,
    SecretState,
    ServingCertificate,
    build_secret,
    parse_authorities,
    parse_serving_certificate,
    secret_state_of,
)
from webhook.certs.webhook_configs import WebhookConfigSelector, ca_bundle_patch, webhook_config_of
from webhook.errors import ApiError

AUTHORITY_LIFETIME = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=90)
"""Renewed with 30 days left. An authority is renewed with 121 left, so it never cuts a certificate's life short."""

BACKDATED = timedelta(hours=1)
"""API servers may be behind each other, and may be set back, by as much."""


CONFLICT = 409
NOT_FOUND = 404


class CertificateApi(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    @property
    def server_time(self) -> datetime | None:
        """The server's clock when it last answered."""

    async def get(self, path: str, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """Read an object or a list."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write an object, if it has not changed since it was read."""

    async def patch(self, path: str, body: Any, kind: Literal["merge"]) -> dict[str, Any]:
        """Change an object."""


@dataclass(frozen=True, slots=True)
class ManagedCertificateSpec:
    """What is kept, and for whom.

    Attributes:
        secret: Where the certificates are.
        hooks: Which webhook configurations must trust them.
        names: What clients call the server by; the first also names the certificate.
    """

    secret: SecretName
    configs: WebhookConfigSelector
    dns_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What one look came to.

    Attributes:
        step: What was due.
        wrote: It was done, and there may be more to do at once.
        leaf: What is to be served: the Secret's certificate, if it holds at this moment.
        now: The API server's time.
        faults: What could not be read in the Secret.
        hooks: How many webhook configurations there are; None: only the leader looks.
    """

    step: RotationStep
    changed: bool
    serving: ServingCertificate | None
    now: datetime
    errors: tuple[str, ...] = ()
    config_count: int | None = None


class ObservedState(NamedTuple):
    """What the API server has: the Secret and the configurations by their path, as objects and as values."""

    secret: Mapping[str, Any] | None
    state: SecretState | None
    configurations: Mapping[str, Mapping[str, Any]]
    configs: tuple[WebhookConfig, ...]


@dataclass(slots=True)
class CertificateReconciler:
    """One replica's share in keeping the certificates.

    Attributes:
        leads: Is this replica the leader now?
        clock: The moment, where the API server does not tell its own.
        monotonic: Seconds of a clock that never steps.
    """

    api: CertificateApi
    spec: ManagedCertificateSpec
    is_leader: Callable[[], bool]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    _state: object = field(init=False, default=None)
    _since: float = field(init=False, default=0.0)

    async def reconcile(self) -> ReconcileResult:
        """Read, and take the step that is due, if there is one.

        Raises:
            ApiError: the API server does not let us, or does not answer.
        """
        leads = self.is_leader()
        found = await self._observe(with_hooks=leads)
        if found.state is None and not leads:  # whoever writes the first Secret must know what is trusted already
            found = await self._observe(with_hooks=True)
        now = self.api.server_time or self.clock()
        names = frozenset(self.spec.dns_names)
        step = next_rotation_step(
            RotationInput(found.state, found.configs, now, self._unchanged_for(found), names, leads)
        )
        wrote = await self._apply_step(step, found, now)
        held = found.state or SecretState()
        return ReconcileResult(
            step, wrote, _usable_certificate(held, now), now, held.errors, len(found.configs) if leads else None
        )

    async def read_serving_certificate(self) -> ServingCertificate | None:
        """The certificate in the Secret, if it holds: also where everything else is refused.

        Raises:
            ApiError: the Secret cannot be read.
        """
        found = await self._observe(with_hooks=False)
        return _usable_certificate(found.state or SecretState(), self.api.server_time or self.clock())

    async def _observe(self, *, with_hooks: bool) -> ObservedState:
        """Read the webhook configurations, and the Secret after them: so that what it has is never older than they."""
        configurations = await self.spec.configs.read(self.api) if with_hooks else {}
        try:
            secret = await self.api.get(self.spec.secret.path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            secret = None
        hooks = tuple(webhook_config_of(path, each) for path, each in configurations.items())
        return ObservedState(secret, secret_state_of(secret), configurations, hooks)

    def _unchanged_for(self, found: ObservedState) -> timedelta:
        """How long it has been like this."""
        moment, state = self.monotonic(), (found.state, found.configs)
        if self._state != state:
            self._state, self._since = state, moment
        return timedelta(seconds=moment - self._since)

    async def _apply_step(self, step: RotationStep, found: ObservedState, now: datetime) -> bool:
        """Take a step; False where there was none, or somebody else was first."""
        if isinstance(step, NoAction):
            return False
        held = found.state or SecretState()
        try:
            if isinstance(step, UpdateBundles):
                for hook in step.configs:
                    patch = ca_bundle_patch(found.configurations[hook.path], held.bundle)
                    await self.api.patch(hook.path, patch, "merge")
            else:
                await self._write_secret(state_after_step(step, held, self.spec.dns_names, now), found.secret)
        except ApiError as error:
            gone = error.status == NOT_FOUND and found.secret is not None
            if error.status == CONFLICT or gone:
                return False
            raise
        return True

    async def _write_secret(self, held: SecretState, before: Mapping[str, Any] | None) -> None:
        name = self.spec.secret
        body = build_secret(held, name, before)
        if before is None:
            await self.api.create(name.collection_path, body)
        else:
            await self.api.replace(name.path, body)


def _usable_certificate(held: SecretState, now: datetime) -> ServingCertificate | None:
    """The certificate in the Secret, if clients that trust its bundle can accept it now."""
    leaf = None if held.foreign else held.serving
    return leaf if leaf is not None and leaf.signed_by is not None and is_within_validity(leaf, now) else None


def state_after_step(
    step: CreateAuthority | IssueCertificate | PruneAuthorities, held: SecretState, names: Sequence[str], now: datetime
) -> SecretState:
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
