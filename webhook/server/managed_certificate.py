"""The serving certificate that the replicas keep in a Secret: served once it is there, replaced while serving.

Until then connections are answered with a certificate that nobody trusts, so that probes, which do not look at it,
can be told why the process is not ready.
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
from webhook.web.http_messages import strip_control_characters
from webhook.web.tls import CertificateError, PemPair, replace_certificate

RECONCILE_SECONDS = 5.0
"""Between two looks. What somebody edits away is back within twice as much."""

NEXT_STEP_SECONDS = 0.2
MAX_CONSECUTIVE_STEPS = 4
"""A step is followed by the next at once, but only so often in a row: two programs that undo each other's work must
not do it as fast as they can."""

MAX_CLOCK_SKEW = timedelta(minutes=5)
"""A difference between this machine's clock and the API server's that is worth a word."""

STEP_NAMES: dict[type[RotationStep], str] = {
    CreateAuthority: "authority",
    UpdateBundles: "trust",
    IssueCertificate: "issue",
    PruneAuthorities: "forget",
}
"""What each step is called in metrics and logs."""


@dataclass(slots=True)
class ManagedCertificate:
    """Looks after the certificate of a live context.

    Attributes:
        keeper: Reads and writes what the replicas share.
        leading: This replica's part in the election of who writes.
        context: Gets each new certificate.
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
        """Look until cancelled."""
        while True:
            await asyncio.sleep(await self.reconcile())

    async def reconcile(self) -> float:
        """Look once; gives the seconds until the next look. Never raises: what is served stays."""
        looked = None
        try:
            looked = await self.reconciler.reconcile()
            self._apply_result(looked)
            trouble = self._explain_api_error(self.elector.last_error) or self._attention_message(looked)
        except ApiError as error:
            trouble = self._explain_api_error(error)
            await self._serve_from_secret()
        except CertificateError as error:
            trouble = f"Secret {self.reconciler.spec.secret}: {error}"
        except Exception as error:
            self.telemetry.record_crash("certificate", "", error)
            trouble = "a fault while keeping the certificate; the log has the details"
        self._report_error(trouble)
        self.telemetry.set_leader(self.elector.is_leader)
        return self._next_delay(looked)

    def checks(self) -> list[HealthCheck]:
        """Lines of `/readyz?verbose`."""
        secret, looked = self.reconciler.spec.secret, self._last_result
        leaf = self._served
        served = (
            f"of Secret {secret}, ends {leaf.not_after:%Y-%m-%dT%H:%M:%SZ}" if leaf else f"waits for Secret {secret}"
        )
        leader = "this replica" if self.elector.is_leader else strip_control_characters(self.elector.holder) or "nobody"
        work = self._error or (looked.step.reason if looked else "has not looked yet")
        return [
            HealthCheck("certificate", leaf is not None, served),
            HealthCheck("certificate work", not self._error, strip_control_characters(work), required=False),
            HealthCheck("leader", bool(self.elector.holder), leader, required=False),
        ]

    def _apply_result(self, looked: ReconcileResult) -> None:
        """Serve what is in the Secret, and tell what was done."""
        self._serve(looked.serving)
        if looked.changed:
            hooks = [hook.path for hook in looked.step.configs] if isinstance(looked.step, UpdateBundles) else []
            self.telemetry.record_certificate_step(STEP_NAMES[type(looked.step)], looked.step.reason, hooks)
        self._last_result = looked

    def _serve(self, leaf: ServingCertificate | None) -> None:
        if leaf is not None and leaf != self._served:
            replace_certificate(self.context, PemPair(leaf.certificate, leaf.key))
            self._served = leaf
            self.telemetry.record_certificate_loaded(leaf.not_after)

    async def _serve_from_secret(self) -> None:
        """A leader that is not let at the webhook configurations serves like any other replica."""
        with suppress(ApiError, CertificateError):
            self._serve(await self.reconciler.read_serving_certificate())

    def _report_error(self, trouble: str) -> None:
        """Say what is wrong when it begins, changes and ends, and no more often."""
        if trouble != self._error:
            self._error = trouble
            self.telemetry.set_certificate_error(trouble)

    def _next_delay(self, looked: ReconcileResult | None) -> float:
        self._consecutive_steps = self._consecutive_steps + 1 if looked is not None and looked.changed else 0
        if 0 < self._consecutive_steps <= MAX_CONSECUTIVE_STEPS:
            return NEXT_STEP_SECONDS
        return RECONCILE_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads calls, keeps no secret

    def _explain_api_error(self, error: ApiError | None) -> str:
        """Why the API server does not let us, and what it has to allow; empty: it does."""
        if error is None or error.status != 403:
            return str(error or "")
        keeping, lease = self.reconciler.spec, self.elector.lease
        return (
            f"{error.message}. Needed are get, create and update on Secret {keeping.secret} and Lease {lease}, and "
            f"get{', list' if keeping.configs.selector else ''} and patch on webhook configurations {keeping.configs}"
        )

    def _attention_message(self, looked: ReconcileResult) -> str:
        """What somebody else has to do, as far as a look can tell; empty: nothing."""
        keeping = self.reconciler.spec
        if isinstance(looked.step, NoAction) and looked.step.needs_attention:
            return f"Secret {keeping.secret}: {looked.step.reason}"
        if looked.config_count == 0:
            return f"there is no webhook configuration {keeping.configs}: nobody will call this server"
        if abs(self.clock() - looked.now) > MAX_CLOCK_SKEW:
            return f"this machine's clock is wrong, or the API server's: they differ by more than {MAX_CLOCK_SKEW}"
        return ""
