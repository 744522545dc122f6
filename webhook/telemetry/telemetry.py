"""Metrics, log and Events of the webhook: records each decision after the response was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES, MUTATION_CODES
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import DurationHistogram, MetricsPage
from webhook.telemetry.owner_events import OwnerEventQueue
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.telemetry.webhook_metrics import WebhookMetrics

OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
MODE_LABELS = {mode: str(mode) for mode in PolicyMode}
"""Looking a label up costs a tenth of formatting it."""


class Telemetry(ServerTelemetry):
    """Metrics, log and pending Events of one webhook process."""

    def __init__(self, log: StructuredLogger) -> None:
        super().__init__(log)
        self.metrics = WebhookMetrics()
        self.owner_events = OwnerEventQueue()
        self.metrics.events_dropped = lambda: self.owner_events.dropped
        self.metrics_text = MetricsPage(self, self.metrics).render

    def record_decision(self, route: str, request: AdmissionRequest, decision: Decision, seconds: float) -> None:
        """Count an answered review, and log it: denials at info, others at debug."""
        metrics = self.metrics
        result = response_result(route, decision, workload=request.pod is None)
        operation = request.operation if request.operation in OPERATIONS else "other"
        metrics.requests[route, operation, result] += 1
        durations = metrics.durations.get(route)
        if durations is None:
            durations = metrics.durations[route] = DurationHistogram()
        durations.observe(seconds)
        for finding in decision.findings:
            code = CODES.get(finding.code)
            if code is not None and (request.pod is None or code.from_mutation == (route == "mutate")):
                metrics.findings[finding.code, MODE_LABELS[finding.mode]] += 1
        if route == "mutate" and operation == "CREATE" and request.pod is not None and not request.dry_run:
            metrics.gpu_milli_requested += decision.gpu_milli_before
            metrics.gpu_milli_admitted += decision.gpu_milli_after
        if route == "validate":
            metrics.matches.update(decision.policies)
            metrics.denials.update({each.policy for each in decision.denials if each.code not in MUTATION_CODES})
            if result != "allowed":
                self.owner_events.enqueue(request, decision)
        if result == "denied":
            self._log_denial(request, decision)
        else:
            self.log.debug(
                "request evaluated",
                result=result,
                uid=request.uid,
                operation=operation,
                kind=request.kind,
                namespace=request.namespace,
                name=request.name,
                policies=decision.policies,
                reason=decision.reason,
            )

    def record_policies_loaded(self, digest: str, count: int, now: datetime) -> None:
        """Record that new policies are active."""
        metrics = self.metrics
        metrics.policy_loads["success"] += 1
        metrics.policies_current, metrics.policy_digest, metrics.policies_loaded_at = 1, digest, now.timestamp()
        metrics.active_policies = count
        self.log.info("policies loaded", policies=count, digest=digest)

    def record_policies_rejected(self, errors: tuple[str, ...]) -> None:
        """Record that the current policies do not load; the last valid set stays active."""
        self.metrics.policy_loads["error"] += 1
        self.metrics.policies_current = 0
        self.log.error("policies not loaded, keeping the last valid ones", errors=[each[:500] for each in errors[:20]])

    def set_rollouts(self, halted: Mapping[str, bool]) -> None:
        """Set which policies have a rollout, and whether it is halted."""
        self.metrics.rollouts = halted

    def record_rollout_halted(self, policy: str, reason: str, message: str) -> None:
        """Log that a rollout was halted."""
        self.log.error("rollout halted", policy=policy, reason=reason, message=message)

    def record_certificate_step(self, step: str, reason: str, configurations: Sequence[str]) -> None:
        """Record a rotation step, with the webhook configurations that it changed."""
        self.metrics.rotation_steps[step] += 1
        changed = {"configurations": list(configurations)} if configurations else {}
        self.log.info("certificate rotation step", step=step, reason=reason, **changed)

    def set_certificate_error(self, error: str) -> None:
        """Record that certificate management fails, or, with an empty error, that it works again."""
        self.metrics.rotation_failing = int(bool(error))
        if error:
            self.log.error("certificate management failed", error=error)
        else:
            self.log.info("certificate management recovered")

    def set_leader(self, is_leader: bool) -> None:
        """Record whether this replica is the leader."""
        if self.metrics.is_leader != int(is_leader):
            self.metrics.is_leader = int(is_leader)
            self.log.info("became leader" if is_leader else "lost leadership")

    def record_usage_loaded(self, containers: int, pods: int, notes: Sequence[str]) -> None:
        """Record that new usage data is active."""
        self.metrics.usage_loads["success"] += 1
        self.log.info("usage loaded", containers=containers, pods=pods, **({"notes": list(notes)} if notes else {}))

    def record_usage_rejected(self, error: str) -> None:
        """Record that usage could not be loaded; the last data stays in use for a day."""
        self.metrics.usage_loads["error"] += 1
        self.log.warning("usage not loaded", error=error)

    def count_event(self, result: str) -> None:
        """Count an Event that was written (`success`) or not (`error`)."""
        self.metrics.events[result] += 1

    def record_status_error(self, error: str) -> None:
        """Log that the status of a policy could not be written."""
        self.log.warning("policy status not written", error=error)

    def _log_denial(self, request: AdmissionRequest, decision: Decision) -> None:
        self.log.info(
            "request denied",
            uid=request.uid,
            operation=request.operation,
            kind=request.kind,
            namespace=request.namespace,
            name=request.name,
            user=request.user,
            codes=sorted({finding.code for finding in decision.denials}),
            policies=list(decision.policies),
            reason=decision.reason,
        )


def response_result(route: str, decision: Decision, *, workload: bool = False) -> str:
    """Return the result of a route's response: allowed, warned, patched or denied.

    For a pod, /validate ignores the findings of right-sizing, which /mutate reports; for a workload it reports all.
    """
    if route == "mutate":
        return "patched" if decision.patch else "allowed"
    if not decision.findings:
        return "allowed"
    if any(finding.code not in MUTATION_CODES for finding in decision.denials):
        return "denied"
    if any(workload or finding.code not in MUTATION_CODES for finding in decision.warnings):
        return "warned"
    return "allowed"
