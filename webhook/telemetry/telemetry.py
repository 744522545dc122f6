"""Telemetry: takes a decision and says what happened, once the answer has left. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from prometheus_client import CollectorRegistry

from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES, MUTATION_CODES
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import METRICS_CONTENT_TYPE, MetricsPage
from webhook.telemetry.owner_events import OwnerEventQueue
from webhook.telemetry.webhook_metrics import DurationHistogram, WebhookMetrics

OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
MODE_LABELS = {mode: str(mode) for mode in PolicyMode}
"""The words of the modes: a look-up costs a tenth of writing one."""


class Telemetry:
    """The metrics and the log of one process."""

    metrics_content_type = METRICS_CONTENT_TYPE

    def __init__(self, log: StructuredLogger, registry: CollectorRegistry | None = None) -> None:
        self.log = log
        self.metrics = WebhookMetrics()
        self.owner_events = OwnerEventQueue()
        self.metrics.events_dropped = lambda: self.owner_events.dropped
        self._page = MetricsPage(self.metrics, registry)

    def metrics_text(self) -> bytes:
        """The metrics as Prometheus scrapes them."""
        return self._page.render()

    def record_decision(self, route: str, request: AdmissionRequest, decision: Decision, seconds: float) -> None:
        """Count one review that was answered, and log it: at info where it was denied, at debug otherwise."""
        counts = self.metrics
        outcome = response_result(route, decision, workload=request.pod is None)
        operation = request.operation if request.operation in OPERATIONS else "other"
        counts.requests[route, operation, outcome] += 1
        durations = counts.durations.get(route)
        if durations is None:
            durations = counts.durations[route] = DurationHistogram()
        durations.observe(seconds)
        for found in decision.findings:
            if found.code in CODES and (request.pod is None or CODES[found.code].from_mutation == (route == "mutate")):
                counts.findings[found.code, MODE_LABELS[found.mode]] += 1
        if route == "mutate" and operation == "CREATE" and request.pod is not None and not request.dry_run:
            counts.gpu_milli_before += decision.gpu_milli_before
            counts.gpu_milli_after += decision.gpu_milli_after
        if route == "validate":
            counts.matched.update(decision.policies)
            counts.denied.update({found.policy for found in decision.denials if found.code not in MUTATION_CODES})
            if outcome != "allowed":
                self.owner_events.enqueue(request, decision)
        if outcome == "denied":
            self._log_denial(request, decision)
        else:
            self.log.debug(
                "decided",
                verdict=outcome,
                uid=request.uid,
                operation=operation,
                kind=request.kind,
                namespace=request.namespace,
                name=request.name,
                policies=decision.policies,
                reason=decision.reason,
            )

    def record_rejected_request(self, reason: str) -> None:
        """Count a request or connection that was turned away; the reason is one of the server's few words."""
        self.metrics.refused[reason] += 1

    def record_crash(self, route: str, uid: str, error: Exception) -> None:
        """Count a fault of ours, and keep its stack."""
        self.metrics.crashes[route] += 1
        self.log.error("crashed", route=route, uid=uid, exc_info=error)

    def record_policies_loaded(self, digest: str, count: int, moment: datetime) -> None:
        """New policies are in use."""
        counts = self.metrics
        counts.policy_loads["good"] += 1
        counts.policies_current, counts.policy_digest, counts.policies_loaded = 1, digest, moment.timestamp()
        counts.policies_in_force = count
        self.log.info("policies loaded", policies=count, digest=digest)

    def record_policies_rejected(self, faults: tuple[str, ...]) -> None:
        """What is in the files cannot be used; the last good set stays."""
        self.metrics.policy_loads["bad"] += 1
        self.metrics.policies_current = 0
        self.log.error("policies do not load, the last good ones stay", faults=[fault[:500] for fault in faults[:20]])

    def set_rollouts(self, halted: Mapping[str, bool]) -> None:
        """The policies that are rolled out to a share, and whether that was halted."""
        self.metrics.rollouts = halted

    def record_rollout_halted(self, policy: str, reason: str, why: str) -> None:
        """A rollout does worse than the rest: its policy is on trial from now on."""
        self.log.error("rollout halted", policy=policy, reason=reason, why=why)

    def record_watch_error(self, kind: str, why: str) -> None:
        """A list or watch ended otherwise than it should; it goes on after a while."""
        self.log.warning("watch broke", kind=kind, why=why)

    def set_certificate_expiry(self, ends: datetime | None) -> None:
        """The certificate in use ends then; None: it cannot be told."""
        self.metrics.certificate_expiry = ends.timestamp() if ends else 0.0

    def record_certificate_loaded(self, ends: datetime | None) -> None:
        """A new serving certificate is in use."""
        self.metrics.certificate_loads["good"] += 1
        self.set_certificate_expiry(ends)
        self.log.info("certificate loaded", ends=f"{ends:%Y-%m-%dT%H:%M:%SZ}" if ends else "")

    def record_certificate_rejected(self, why: str) -> None:
        """The files are no usable pair; the last good one stays."""
        self.metrics.certificate_loads["bad"] += 1
        self.log.error("certificate does not load, the last good one stays", why=why)

    def record_certificate_step(self, step: str, why: str, hooks: Sequence[str]) -> None:
        """Something was done about the certificates that the replicas share; `hooks`: to these configurations."""
        self.metrics.certificate_steps[step] += 1
        self.log.info("certificate step", step=step, why=why, **({"hooks": list(hooks)} if hooks else {}))

    def set_certificate_error(self, why: str) -> None:
        """The certificates cannot be kept for now, for this reason; empty: they can again."""
        self.metrics.certificate_failing = int(bool(why))
        if why:
            self.log.error("certificates are not kept", why=why)
        else:
            self.log.info("certificates are kept again")

    def set_leader(self, leads: bool) -> None:
        """Is this replica the leader?"""
        if self.metrics.is_leader != int(leads):
            self.metrics.is_leader = int(leads)
            self.log.info("leads" if leads else "leads no more")

    def record_usage_loaded(self, containers: int, pods: int, notes: Sequence[str]) -> None:
        """A new view of what workloads were seen to use is in use."""
        self.metrics.usage_loads["good"] += 1
        self.log.info("usage loaded", containers=containers, pods=pods, **({"notes": list(notes)} if notes else {}))

    def record_usage_rejected(self, why: str) -> None:
        """What workloads were seen to use could not be loaded; the last good view stays for a day."""
        self.metrics.usage_loads["bad"] += 1
        self.log.warning("usage does not load", why=why)

    def count_event(self, result: str) -> None:
        """An Event was written, or failed to be."""
        self.metrics.events[result] += 1

    def record_status_error(self, why: str) -> None:
        """What became of policies cannot be written into their status."""
        self.log.warning("policy status is not written", why=why)

    def _log_denial(self, request: AdmissionRequest, decision: Decision) -> None:
        self.log.info(
            "denied",
            uid=request.uid,
            operation=request.operation,
            kind=request.kind,
            namespace=request.namespace,
            name=request.name,
            user=request.user,
            codes=sorted({found.code for found in decision.denials}),
            policies=list(decision.policies),
            reason=decision.reason,
        )


def response_result(route: str, decision: Decision, *, workload: bool = False) -> str:
    """What the route's face of a decision came to: allowed, warned, patched or denied.

    /validate says nothing of the shaping of a pod, and everything of a workload's.
    """
    if route == "mutate":
        return "patched" if decision.patch else "allowed"
    if not decision.findings:
        return "allowed"
    if any(found.code not in MUTATION_CODES for found in decision.denials):
        return "denied"
    warned = [found for found in decision.warnings if workload or found.code not in MUTATION_CODES]
    return "warned" if warned else "allowed"
