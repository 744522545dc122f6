"""Serves the certificate in the Secret that all replicas share, and replaces it while serving.

Before it listens, the server reads the certificate that exists, because API servers trust no other. Until there is one,
it presents a self-signed certificate. Probes do not verify it, so they can read why the process is not ready.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from webhook.certs.reconciler import CaBundleWatch, CertificateReconciler, ReconcileResult
from webhook.certs.rotation import (
    CreateAuthority,
    IssueCertificate,
    NoAction,
    PruneAuthorities,
    RotationStep,
    UpdateBundles,
)
from webhook.certs.secret_state import ServingCertificate
from webhook.errors import ApiError
from webhook.kube.leader_election import LeaderElector
from webhook.server.admission_state import Clock
from webhook.telemetry.telemetry import Telemetry
from webhook.web.health import HealthCheck
from webhook.web.tls import CertificateError, PemPair, ServerTls

RECONCILE_SECONDS = 5.0
"""The average interval. Without a watch, a changed `caBundle` is restored within two of them."""

LOAD_SECONDS = 3.0
"""How long the server waits for the stored certificate before it listens without it, not ready."""

RETRY_SECONDS = 0.2

MAX_WAKES = 10
WAKE_PERIOD_SECONDS = 60.0
"""Changed bundles are repaired at once so often in this time, and then at the next interval: two programs may undo each
other's changes."""

NEXT_STEP_SECONDS = 0.2
MAX_CONSECUTIVE_STEPS = 4
"""The next step follows at once, but not forever: two programs may undo each other's changes."""

MAX_CLOCK_SKEW = timedelta(minutes=5)
"""A larger difference between this machine's clock and the API server's is reported."""

STEP_NAMES: dict[type[RotationStep], str] = {
    CreateAuthority: "create_authority",
    UpdateBundles: "update_bundles",
    IssueCertificate: "issue_certificate",
    PruneAuthorities: "prune_authorities",
}
"""Names in metrics and logs."""


@dataclass(slots=True)
class ManagedCertificate:
    """Keeps the certificate of a server up to date with the Secret.

    Attributes:
        tls: Gets each new certificate.
        clock: This machine's clock.
        bundles: Notices changed bundles, as far as its reflectors run.
    """

    reconciler: CertificateReconciler
    elector: LeaderElector
    tls: ServerTls
    telemetry: Telemetry
    clock: Clock
    bundles: CaBundleWatch = field(default_factory=CaBundleWatch)
    _served: ServingCertificate | None = field(init=False, default=None)
    _last_result: ReconcileResult | None = field(init=False, default=None)
    _error: str = field(init=False, default="")
    _consecutive_steps: int = field(init=False, default=0)
    _wakes: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=MAX_WAKES))

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            self.bundles.changed.clear()
            await self._wait(await self.reconcile())

    async def load_stored(self) -> None:
        """Serve the certificate in the Secret, if there is one; call it before the server listens.

        Returns after `LOAD_SECONDS` if the API server does not answer. Errors are reported by `reconcile`.
        """
        with suppress(TimeoutError, CertificateError):
            async with asyncio.timeout(LOAD_SECONDS):
                while not await self._load_once():
                    await asyncio.sleep(RETRY_SECONDS)

    async def reconcile(self) -> float:
        """Reconcile once, and return the seconds until the next time. Errors are reported, not raised."""
        result = None
        try:
            result = await self.reconciler.reconcile()
            self._apply_result(result)
            error = self._explain_api_error(self.elector.last_error) or self._attention_message(result)
        except ApiError as api_error:
            error = self._explain_api_error(api_error)
            with suppress(ApiError, CertificateError):  # serve even if the webhook configurations cannot be read
                self._serve(await self.reconciler.read_serving_certificate())
        except CertificateError as certificate_error:
            error = f"Secret {self.reconciler.spec.secret}: {certificate_error}"
        except Exception as exception:
            self.telemetry.record_internal_error("certificate", exception)
            error = "internal error in certificate management; see the log"
        if error != self._error:  # reported when it starts, changes and ends
            self._error = error
            self.telemetry.set_certificate_error(error)
        self.telemetry.set_leader(self.elector.is_leader)
        return self._next_delay(result)

    def checks(self) -> list[HealthCheck]:
        """Return the lines of `/readyz?verbose`."""
        secret, result, served = self.reconciler.spec.secret, self._last_result, self._served
        source = f"from Secret {secret}, expires {served.not_after:%Y-%m-%dT%H:%M:%SZ}" if served else ""
        leader = "this replica" if self.elector.is_leader else self.elector.holder or "none"
        management = self._error or (result.step.reason if result else "not started")
        return [
            HealthCheck("certificate", served is not None, source or f"waiting for Secret {secret}"),
            HealthCheck("certificate management", not self._error, management, required=False),
            HealthCheck("leader", bool(self.elector.holder), leader, required=False),
        ]

    async def _load_once(self) -> bool:
        """Serve the certificate in the Secret; return False if reading may succeed later."""
        try:
            self._serve(await self.reconciler.read_serving_certificate())
        except ApiError as error:
            return 400 <= error.status < 429  # forbidden, for example
        return True

    async def _wait(self, seconds: float) -> None:
        """Wait, but less if a `caBundle` is changed."""
        loop = asyncio.get_running_loop()
        if len(self._wakes) == MAX_WAKES and loop.time() < self._wakes[0] + WAKE_PERIOD_SECONDS:
            return await asyncio.sleep(seconds)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.bundles.changed.wait(), seconds)
            self._wakes.append(loop.time())
        return None

    def _apply_result(self, result: ReconcileResult) -> None:
        self._serve(result.serving)
        self.bundles.expected = result.bundle or None
        if result.changed:
            step = result.step
            configurations = [config.path for config in step.configs] if isinstance(step, UpdateBundles) else []
            self.telemetry.record_certificate_step(STEP_NAMES[type(step)], step.reason, configurations)
        self._last_result = result

    def _serve(self, serving: ServingCertificate | None) -> None:
        if serving is not None and serving != self._served:
            self.tls.replace_certificate(PemPair(serving.certificate, serving.key))
            self._served = serving
            self.telemetry.record_certificate_loaded(serving.not_after)

    def _next_delay(self, result: ReconcileResult | None) -> float:
        self._consecutive_steps = self._consecutive_steps + 1 if result is not None and result.changed else 0
        if 0 < self._consecutive_steps <= MAX_CONSECUTIVE_STEPS:
            return NEXT_STEP_SECONDS
        return RECONCILE_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret

    def _explain_api_error(self, error: ApiError | None) -> str:
        if error is None or error.status != 403:
            return str(error or "")
        spec, lease = self.reconciler.spec, self.elector.lease
        return (
            f"{error.message}. Required are get, create and update on Secret {spec.secret} and Lease {lease}, and "
            f"get, list, watch and patch on webhook configurations {spec.configs}"
        )

    def _attention_message(self, result: ReconcileResult) -> str:
        spec = self.reconciler.spec
        if isinstance(result.step, NoAction) and result.step.needs_attention:
            return f"Secret {spec.secret}: {result.step.reason}"
        if result.config_count == 0:
            return f"there is no webhook configuration {spec.configs}, so the API server does not call this server"
        if abs(self.clock() - result.now) > MAX_CLOCK_SKEW:
            return f"the clocks of this machine and of the API server differ by more than {MAX_CLOCK_SKEW}"
        return ""
