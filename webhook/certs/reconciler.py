"""Manages the certificates of a cluster: reads Secret and webhook configurations, and takes the step that is due.

Every write is conditional on the `resourceVersion` that was read, so a replica that was overtaken gets a conflict and
reads again.

Our mutating and validating webhook configurations: selecting, reading and patching their `caBundle`.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
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
    decode_base64,
    parse_authorities,
    parse_serving_certificate,
    secret_state_of,
)
from webhook.errors import ApiError
from webhook.kube.api import find_object
from webhook.kube.leader_election import LeaseApi
from webhook.kube.reflector import WatchedResource

ADMISSION_API = "/apis/admissionregistration.k8s.io/v1"
CONFIG_PATHS = (f"{ADMISSION_API}/mutatingwebhookconfigurations", f"{ADMISSION_API}/validatingwebhookconfigurations")


class CertificateApi(LeaseApi, Protocol):
    """The methods of `webhook.kube.api.KubeClient` that are used."""

    @property
    def server_time(self) -> datetime | None:
        """The server's clock at its last response."""

    async def get(self, path: str, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """Read an object or a list."""

    async def patch(self, path: str, body: Any, kind: Literal["merge"]) -> dict[str, Any]:
        """Patch an object."""


@dataclass(frozen=True, slots=True)
class WebhookConfigSelector:
    """Selects our configurations, of both kinds, by name or by label."""

    names: tuple[str, ...] = ()
    selector: str = ""

    @classmethod
    def parse(cls, text: str) -> WebhookConfigSelector:
        """Parse a label selector, which contains "=", or names separated by commas."""
        if "=" in text:
            return cls(selector=text)
        return cls(names=tuple(name.strip() for name in text.split(",") if name.strip()))

    async def read(self, api: CertificateApi) -> dict[str, dict[str, Any]]:
        """Return the existing configurations by path."""
        if self.selector:
            lists = [(prefix, await api.get(prefix, {"labelSelector": self.selector})) for prefix in CONFIG_PATHS]
            return {f"{prefix}/{each['metadata']['name']}": each for prefix, data in lists for each in data["items"]}
        paths = [f"{prefix}/{name}" for prefix in CONFIG_PATHS for name in self.names]
        return {path: found for path in paths if (found := await find_object(api, path)) is not None}

    def watched_resources(self) -> list[WatchedResource[dict[str, Any]]]:
        """Return what to watch: by name, because RBAC grants rights on single objects."""
        named = [{"fieldSelector": f"metadata.name={name}"} for name in self.names]
        params = [{"labelSelector": self.selector}] if self.selector else named
        return [
            WatchedResource(path.rpartition("/")[2], path, dict[str, Any], each)
            for path in CONFIG_PATHS
            for each in params
        ]

    def __str__(self) -> str:
        return self.selector or ", ".join(self.names)


@dataclass(slots=True)
class CaBundleWatch:
    """Notices a `caBundle` that differs from the expected one; the store of reflectors, which keeps no objects.

    Attributes:
        expected: What every `caBundle` must hold; None until that is known.
        changed: Set when a configuration holds another one.
    """

    expected: bytes | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Begin a list."""

    def upsert(self, item: Mapping[str, Any]) -> None:
        """Compare the bundles of a configuration that was created or changed."""
        if self.expected is not None and set(webhook_config_of("", item).bundles) - {self.expected}:
            self.changed.set()

    def remove(self, item: Mapping[str, Any]) -> None:
        """Ignore a configuration that was deleted."""

    def swap(self) -> None:
        """End a list."""


def webhook_config_of(path: str, configuration: Mapping[str, Any]) -> WebhookConfig:
    """Return path, version and bundles of a configuration."""
    clients = [webhook.get("clientConfig") or {} for webhook in configuration.get("webhooks") or ()]
    bundles = tuple(decode_base64(client.get("caBundle") or "") for client in clients)
    return WebhookConfig(path, str(configuration["metadata"].get("resourceVersion", "")), bundles)


def ca_bundle_patch(configuration: Mapping[str, Any], bundle: bytes) -> dict[str, Any]:
    """Return a merge patch that sets every `caBundle`, conditional on the configuration's `resourceVersion`."""
    text = b64encode(bundle).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
        for webhook in configuration["webhooks"]
    ]
    return {"metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]}, "webhooks": webhooks}


AUTHORITY_LIFETIME = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=90)
"""Renewed with 30 days left. An authority is renewed with 121 days left, so it outlives every certificate it signs."""

BACKDATED = timedelta(hours=1)
"""Tolerance for API servers whose clocks are behind or are set back."""

CONFLICT = 409
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class ManagedCertificateSpec:
    """The desired state.

    Attributes:
        configs: The webhook configurations that must trust the certificate.
        dns_names: Names of the server; the first is also the common name.
    """

    secret: SecretName
    configs: WebhookConfigSelector
    dns_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of one reconciliation.

    Attributes:
        changed: True if the step was taken; the next may be due at once.
        serving: The certificate to serve: the one in the Secret, if it is valid now.
        bundle: The trusted authorities in the Secret, which every `caBundle` must hold.
        now: The API server's time.
        errors: Unreadable keys of the Secret.
        config_count: Number of webhook configurations; None if this replica is not the leader and does not read them.
    """

    step: RotationStep
    changed: bool
    serving: ServingCertificate | None
    bundle: bytes
    now: datetime
    errors: tuple[str, ...] = ()
    config_count: int | None = None


class ObservedState(NamedTuple):
    """The Secret and the webhook configurations by path, as objects and as values."""

    secret: Mapping[str, Any] | None
    state: SecretState | None
    configurations: Mapping[str, Mapping[str, Any]]
    configs: tuple[WebhookConfig, ...]


@dataclass(slots=True)
class CertificateReconciler:
    """Reconciles the certificates for one replica.

    Attributes:
        is_leader: Returns whether this replica is the leader now.
        clock: The time if the API server has not sent its own.
        monotonic: A clock in seconds that never jumps.
    """

    api: CertificateApi
    spec: ManagedCertificateSpec
    is_leader: Callable[[], bool]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    _last_observed: object = field(init=False, default=None)
    _since: float = field(init=False, default=0.0)

    async def reconcile(self) -> ReconcileResult:
        """Read the state, and take the step that is due; raise `ApiError` of any call."""
        is_leader = self.is_leader()
        observed = await self._observe(with_configs=is_leader)
        if observed.state is None and not is_leader:  # the first Secret must contain the authorities in the bundles
            observed = await self._observe(with_configs=True)
        now = self.api.server_time or self.clock()
        monotonic, names = self.monotonic(), frozenset(self.spec.dns_names)
        if self._last_observed != (observed.state, observed.configs):
            self._last_observed, self._since = (observed.state, observed.configs), monotonic
        unchanged_for = timedelta(seconds=monotonic - self._since)
        step = next_rotation_step(RotationInput(observed.state, observed.configs, now, unchanged_for, names, is_leader))
        changed = await self._apply_step(step, observed, now)
        state = observed.state or SecretState()
        config_count = len(observed.configs) if is_leader else None
        serving = _usable_certificate(state, now)
        return ReconcileResult(step, changed, serving, state.bundle, now, state.errors, config_count)

    async def read_serving_certificate(self) -> ServingCertificate | None:
        """Return the certificate in the Secret if it is valid; needs no access to anything else."""
        observed = await self._observe(with_configs=False)
        return _usable_certificate(observed.state or SecretState(), self.api.server_time or self.clock())

    async def _observe(self, *, with_configs: bool) -> ObservedState:
        """Read the webhook configurations and then the Secret, so that the Secret is never the older of the two."""
        configurations = await self.spec.configs.read(self.api) if with_configs else {}
        secret = await find_object(self.api, self.spec.secret.path)
        configs = tuple(webhook_config_of(path, each) for path, each in configurations.items())
        return ObservedState(secret, secret_state_of(secret), configurations, configs)

    async def _apply_step(self, step: RotationStep, observed: ObservedState, now: datetime) -> bool:
        if isinstance(step, NoAction):
            return False
        state = observed.state or SecretState()
        try:
            if isinstance(step, UpdateBundles):
                for config in step.configs:
                    patch = ca_bundle_patch(observed.configurations[config.path], state.bundle)
                    await self.api.patch(config.path, patch, "merge")
            else:
                await self._write_secret(state_after_step(step, state, self.spec.dns_names, now), observed.secret)
        except ApiError as error:
            deleted = error.status == NOT_FOUND and observed.secret is not None
            if error.status == CONFLICT or deleted:
                return False
            raise
        return True

    async def _write_secret(self, state: SecretState, before: Mapping[str, Any] | None) -> None:
        name = self.spec.secret
        body = build_secret(state, name, before)
        if before is None:
            await self.api.create(name.collection_path, body)
        else:
            await self.api.replace(name.path, body)


def state_after_step(
    step: CreateAuthority | IssueCertificate | PruneAuthorities, state: SecretState, names: Sequence[str], now: datetime
) -> SecretState:
    """Return the content of the Secret after a step; creates keys and certificates."""
    match step:
        case CreateAuthority():
            common_name = f"{AUTHORITY_NAME_PREFIX} {now:%Y-%m-%d} {uuid4().hex[:8]}"
            certificate, key = create_authority(common_name, now - BACKDATED, now + AUTHORITY_LIFETIME)
            return SecretState((*parse_authorities(certificate), *step.previous), key, step.serving)
        case IssueCertificate():
            assert state.authority_key is not None
            signer = load_signer(state.authorities[0].pem, state.authority_key)
            certificate, key = issue_serving_certificate(signer, names, now - BACKDATED, now + SERVING_LIFETIME)
            return replace(state, serving=parse_serving_certificate(certificate, key, state.authorities), errors=())
        case PruneAuthorities():
            return replace(state, authorities=state.authorities[:1], errors=())


def _usable_certificate(state: SecretState, now: datetime) -> ServingCertificate | None:
    serving = None if state.foreign else state.serving
    usable = serving is not None and serving.signed_by is not None and is_within_validity(serving, now)
    return serving if usable else None
