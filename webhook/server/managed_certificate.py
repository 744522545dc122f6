"""Serves the certificate in the Secret that all replicas share, and replaces it while serving.

Until there is one, the server presents a self-signed certificate. Probes do not verify it, so they can read why the
process is not ready.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from webhook.certs.reconciler import CertificateReconciler, ReconcileResult
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
from webhook.web.tls import CertificateError, PemPair, replace_certificate

RECONCILE_SECONDS = 5.0
"""The average interval. A changed `caBundle` is restored within two of them."""

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
    """Keeps the certificate of a live TLS context up to date with the Secret.

    Attributes:
        context: The TLS context that gets each new certificate.
        clock: This machine's clock.
    """

    reconciler: CertificateReconciler
    elector: LeaderElector
    context: ssl.SSLContext
    telemetry: Telemetry
    clock: Clock
    _served: ServingCertificate | None = field(init=False, default=None)
    _last_result: ReconcileResult | None = field(init=False, default=None)
    _error: str = field(init=False, default="")
    _consecutive_steps: int = field(init=False, default=0)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            await asyncio.sleep(await self.reconcile())

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

    def _apply_result(self, result: ReconcileResult) -> None:
        self._serve(result.serving)
        if result.changed:
            step = result.step
            configurations = [config.path for config in step.configs] if isinstance(step, UpdateBundles) else []
            self.telemetry.record_certificate_step(STEP_NAMES[type(step)], step.reason, configurations)
        self._last_result = result

    def _serve(self, serving: ServingCertificate | None) -> None:
        if serving is not None and serving != self._served:
            replace_certificate(self.context, PemPair(serving.certificate, serving.key))
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
            f"get{', list' if spec.configs.selector else ''} and patch on webhook configurations {spec.configs}"
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
